"""The figures: metric over epochs, the resizes marked, a line for each policy."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.lr_parts.plan import LARGEST, SMALLEST, STATIC, TRACES
from benchmarks.lr_parts.summary import by_policy
from hvd_dynamic import traces

__all__ = ['write_figures', 'STYLE']

#: Okabe and Ito's colours and a brown; dashes say it again. Policies that are not here are in the tables only.
STYLE = {STATIC: ('black', (0, (1, 1)), 2.2), 'fixed-global-batch': ('#999999', '-', 1.6), 'linear': ('#D55E00', '-', 1.8),
         'linear-uncorrected': ('#E69F00', (0, (4, 2)), 1.6), 'smooth': ('#0072B2', '-', 2.4),
         'smooth-epoch': ('#56B4E9', (0, (4, 1)), 1.8), 'compensated': ('#009E73', (0, (5, 1, 1, 1)), 1.8),
         'smooth-sqrt': ('#7B4B2A', (0, (6, 1)), 1.8), 'adascale': ('#CC79A7', '-', 1.8)}


def write_figures(results, folder):
    """One figure for each task: a panel for each trace and learning rate.

    Parameters
    ----------
    results : list of dict
    folder : Path

    Returns
    -------
    list of Path
    """
    paths = []
    for task in dict.fromkeys(r['task'] for r in results):
        path = folder / f'{task}.png'
        figure = draw([r for r in results if r['task'] == task], task)
        figure.savefig(path, dpi=110)
        paths.append(path)
    return paths


def draw(results, task):
    """The figure of a task."""
    factors = sorted({r['factor'] for r in results})
    shown = [trace for trace in TRACES if any(r['trace'] == trace for r in results)]
    panels = max(1, len(shown))
    columns = max(2, min(len(STYLE), 2 * panels))       # of the legend
    below = 0.25 + 0.25 * -(-len(STYLE) // columns)     # inches
    figure = Figure(figsize=(max(5.0, 3.9 * panels), 2.9 * len(factors) + 0.5 + below), facecolor='white')
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(factors), panels, squeeze=False)
    handles = {}
    epochs = max(len(r['metrics']) for r in results)
    for row, factor in zip(axes, factors):
        runs = by_policy(results, task, factor)
        for panel, trace in zip(row, shown):
            lowest, top = 100.0, 0.0
            if not any(r['trace'] == trace and r['factor'] == factor for r in results):
                panel.remove()
                continue
            for name, some in runs.items():
                curves = [_padded(r, epochs) for r in some if r['trace'] in (trace, '')]
                if name not in STYLE or not curves:
                    continue
                colour, dashes, width = STYLE[name]
                middle = 100 * np.mean(curves, axis=0)
                handles[name], = panel.plot(np.arange(1, epochs + 1), middle, color=colour, linestyle=dashes,
                                            linewidth=width)
                top = max(top, middle.max() + 2)
                if name not in ('linear', 'linear-uncorrected', 'compensated', 'smooth-epoch'):
                    lowest = min(lowest, middle[epochs // 4:].min())
            _mark(panel, trace, epochs, LARGEST[task])
            panel.set_xlim(0, epochs + 0.5)
            panel.set_xlabel('epoch')
            panel.set_title(f'{trace}, lr x {factor}', fontsize=10, pad=11)
            panel.grid(True, color='#e4e4e4', linewidth=0.7)
            panel.set_axisbelow(True)
            panel.set_ylim(max(0, lowest - 4), top)
    figure.legend(handles.values(), handles.keys(), loc='lower center', ncol=columns, frameon=False, fontsize=9)
    seeds = len({r['seed'] for r in results})
    figure.suptitle(f'{task}: held-out metric in %, mean over {seeds} seed{"s" * (seeds > 1)}; '
                    f'{SMALLEST} to {LARGEST[task]} workers', fontsize=12)
    figure.tight_layout(rect=(0, below / figure.get_figheight(), 1, 1))
    return figure


def _padded(result, epochs):
    """A run that was given up learns nothing any more."""
    metrics = result['metrics']
    return metrics + [0.0] * (epochs - len(metrics))


def _mark(panel, trace, epochs, largest):
    """Vertical lines at the resizes; of the traces made by chance there is one for each seed, so none is drawn."""
    if trace in ('random-walk', 'spot'):
        return
    points = traces.ready(trace, epochs, SMALLEST, largest).points
    for (at, size), (_, before) in zip(points[1:], points):
        colour, label = ('#009E73', '▲') if size > before else ('#E69F00', '▼')
        panel.axvline(at, color=colour, linewidth=1, alpha=0.7, zorder=0)
        panel.text(at, 1.0, label, transform=panel.get_xaxis_transform(), ha='center', va='bottom', fontsize=7, color=colour)
