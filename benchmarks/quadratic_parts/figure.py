"""The figure of the bound: lr scale, momentum factor and loss of the best possible beside those of policies."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.quadratic_parts.model import SMALL, models, outcome

__all__ = ['draw_bound']

COLOURS = ('#D55E00', '#E69F00', '#009E73', '#0072B2', '#CC79A7')


def draw_bound(bounds, rate, ratio, policies):
    """A column for growth and one for shrink; above the loss, below what the best possible does.

    Parameters
    ----------
    bounds : dict of (int, str, float) to Best
    rate : float
    ratio : int
    policies : dict of str to Policy

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = Figure(figsize=(11, 7), facecolor='white')
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex='col')
    for column, way in enumerate(('grows', 'shrinks')):
        bound = bounds[ratio, way, rate]
        above, below = axes[:, column]
        batch = SMALL * ratio if way == 'grows' else SMALL
        after = models(ratio, way, rate, drift=True)[1]
        shown = len(bound.losses)
        for (name, policy), colour in zip(policies.items(), COLOURS):
            losses = np.array(outcome(policy, ratio, way, rate, drift=True)[2])[:shown] / after.steady_loss
            above.plot(np.arange(len(losses)) * batch, losses, color=colour, label=name, linewidth=1.6)
        above.plot(np.arange(shown) * batch, bound.losses / after.steady_loss, 'k--', label='best possible', linewidth=1.6)
        above.set_title(f'the batch {way} {ratio}-fold, lr {rate} at the larger one')
        above.set_ylabel('expected loss / new steady loss')
        above.set_ylim(0, 4)
        updates = np.arange(1, shown) * batch
        below.plot(updates, bound.scales, 'k-', label='lr over the target')
        below.plot(updates, bound.factors, color='#0072B2', linestyle='--', label='factor on the momentum')
        below.set_yscale('symlog', linthresh=0.1)
        below.set_xlabel('samples after the resize')
        below.set_ylabel('the best possible')
        for panel in (above, below):
            panel.grid(True, color='#e4e4e4', linewidth=0.7)
            panel.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure
