"""What a ramp gives that a momentum factor cannot: a coordinate whose curvature follows the learning rate.

In networks the sharpness settles near what the learning rate allows, h = 2 (1 + m) / lr ("edge of stability", arXiv
2103.00065), and falls when the rate is raised, but not at once. Here a single coordinate: at the learning rate lr, h goes
towards f 2 (1 + m) / lr, by a part 1 / tau of the way in each update. f < 1 is how near to the edge it settles. If lr is
raised r-fold at once with f r > 1, the coordinate is unstable until h has come down, and its moments grow, whatever becomes
of the momentum buffer. The moments are exact, as in the model without.
"""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.quadratic_parts.model import MOMENTUM, SMALL
from hvd_dynamic import policies
from hvd_dynamic.schedule import DynamicSchedule

__all__ = ['losses', 'curvature_rows', 'draw_curvature']

NEAR, RATIO, LR = 0.5, 8, 0.01      # f, r, and the learning rate before the growth
SPEEDS = (5, 10, 20, 40)            # tau
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KINDS = {'Smooth': policies.Smooth, 'SmoothCompensated': policies.SmoothCompensated}


def losses(policy, tau, updates=400):
    """The expected loss in each update after a growth of the batch, over the one before.

    Parameters
    ----------
    policy : hvd_dynamic.policies.Policy
    tau : float
        Updates in which the curvature goes two thirds of its way.
    updates : int, default 400

    Returns
    -------
    list of float
    """
    schedule = DynamicSchedule(LR, SMALL, policy)
    batch = SMALL
    h = _settled(LR)
    moments = np.zeros(3)
    for _ in range(2000):           # to the steady state
        moments = _update(moments, h, LR, 1.0, batch)
    before = h * moments[0]
    schedule.set_global_batch(batch)
    schedule.advance(batch)
    batch *= RATIO
    schedule.set_global_batch(batch)
    found = []
    for _ in range(updates):
        decision = schedule.advance(batch)
        moments = _update(moments, h, decision.lr, decision.momentum_scale, batch)
        h += (_settled(decision.lr) - h) / tau
        found.append(h * moments[0] / before)
    return found


def _settled(lr):
    return NEAR * 2 * (1 + MOMENTUM) / lr


def _update(moments, h, lr, rho, batch):
    A, C, D = moments
    a, M = lr * h, MOMENTUM * rho
    D_new = M ** 2 * D + 2 * M * a * C + a ** 2 * A + lr ** 2 / batch
    C_new = (M * C + a * A) - D_new
    return np.array([A - 2 * (M * C + a * A) + D_new, C_new, D_new])


def curvature_rows():
    """The table: peak of the loss over that before, for growth at once and for ramps."""
    cases = {'Linear': policies.Linear(), 'Compensated (momentum factor, no ramp)': policies.Compensated(),
             **{f'Smooth, T = {t}': policies.Smooth(updates=t) for t in LENGTHS[1:]},
             **{f'SmoothCompensated, T = {t}': policies.SmoothCompensated(updates=t) for t in (8, 64)},
             'Smooth, default T': policies.Smooth()}
    lines = [f'Peak of the expected loss over the one before, growth {RATIO}-fold, the curvature settles at {NEAR:g} of the '
             'edge of stability and follows in tau updates:\n',
             '| policy | ' + ' | '.join(f'tau = {tau}' for tau in SPEEDS) + ' |', '| --- ' * (len(SPEEDS) + 1) + '|']
    for name, policy in cases.items():
        peaks = [max(1.0, *losses(policy, tau)) for tau in SPEEDS]
        lines.append(f'| {name} | ' + ' | '.join(f'{p:.2f}' if p < 1000 else f'{p:.0e}' for p in peaks) + ' |')
    return '\n'.join(lines)


def draw_curvature():
    """Left the loss after the growth, right its peak over the length of the ramp."""
    figure = Figure(figsize=(10, 4.8), facecolor='white')
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    shown = {'Linear': (policies.Linear(), '#D55E00', '-'), 'Compensated': (policies.Compensated(), '#009E73', (0, (5, 2))),
             'Smooth, T = 16': (policies.Smooth(updates=16), '#56B4E9', '-'),
             'Smooth, default T = 64': (policies.Smooth(), '#0072B2', '-')}
    for name, (policy, colour, dashes) in shown.items():
        left.semilogy(np.arange(1, 151), losses(policy, SPEEDS[1], 150), color=colour, linestyle=dashes, label=name)
    left.set_title(f'tau = {SPEEDS[1]}', fontsize=11)
    left.set_xlabel(f'updates after a {RATIO}-fold growth')
    left.set_ylabel('expected loss / loss before')
    styles = dict(zip(KINDS, ('-', (0, (2, 2)))))
    for tau, colour in zip(SPEEDS, ('#56B4E9', '#0072B2', '#CC79A7', '#E69F00')):
        for kind, dashes in styles.items():
            peaks = [max(1.0, *losses(KINDS[kind](updates=t), tau)) for t in LENGTHS]
            right.loglog(LENGTHS, peaks, color=colour, linestyle=dashes, marker='o', markersize=3)
        right.plot([], [], color=colour, label=f'tau = {tau}')
    for kind, dashes in styles.items():
        right.plot([], [], color='#555555', linestyle=dashes, label=kind)
    right.set_title('ramps', fontsize=11)
    right.set_xticks(LENGTHS, LENGTHS)
    right.minorticks_off()
    right.set_yticks([10.0 ** power for power in range(0, 101, 20)])
    right.set_xlabel('length T of the ramp, in updates')
    right.set_ylabel('peak of the loss / loss before')
    for axes, columns in ((left, 2), (right, 3)):
        # Below the panel: inside, any corner is some line's.
        axes.legend(frameon=False, fontsize=9, ncol=columns, loc='upper center', bbox_to_anchor=(0.5, -0.16))
        axes.grid(True, color='#e4e4e4', linewidth=0.7)
        axes.set_axisbelow(True)
    figure.tight_layout()
    return figure
