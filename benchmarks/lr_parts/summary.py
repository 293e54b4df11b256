"""Tables of the results, in Markdown."""

from __future__ import annotations

import math
from statistics import mean, median, pstdev

from benchmarks.lr_parts.plan import POLICIES, STATIC, TRACES

__all__ = ['tables', 'final', 'diverged', 'by_policy']


def final(result):
    """The metric after the last epoch, in percent; that of a run that was given up is 0."""
    return 100 * result['metrics'][-1] if len(result['metrics']) == result['epochs'] else 0.0


def diverged(result, static):
    """Whether a run was given up or learned nothing, or ended with less than half of the static run's metric (percent)."""
    return result['diverged'] or final(result) < static / 2


def by_policy(results, task, factor):
    """The runs of a task and a learning rate by policy, static first; of seeds for which there is a static run."""
    chosen = [r for r in results if r['task'] == task and r['factor'] == factor]
    static = {r['seed']: r for r in chosen if r['policy'] == STATIC}
    found = {STATIC: list(static.values())} if static else {}
    for name in POLICIES:
        runs = [r for r in chosen if r['policy'] == name and r['seed'] in static]
        if runs:
            found[name] = runs
    return found


def tables(results):
    """All tables: one for each task and learning rate, and gaps by trace."""
    parts = []
    for task in dict.fromkeys(r['task'] for r in results):
        for factor in sorted({r['factor'] for r in results}):
            runs = by_policy(results, task, factor)
            if runs:
                shared = _shared_traces(runs)
                title = f'### {task}, {factor} x the reference learning rate; {", ".join(shared) or "static only"}\n'
                comparable = {name: [r for r in some if r['trace'] in ('', *shared)] for name, some in runs.items()}
                parts += [title, _main_table(comparable), '', _gap_table(runs), '']
    return '\n'.join(parts)


def _shared_traces(runs):
    """The traces that all policies have been run on: only over these are their means comparable."""
    return [trace for trace in TRACES if len(runs) > 1 and all(
        any(r['trace'] == trace for r in some) for name, some in runs.items() if name != STATIC)]


def _row(*cells):
    return '| ' + ' | '.join(map(str, cells)) + ' |'


def _main_table(runs):
    runs = {name: some for name, some in runs.items() if some}
    static = {r['seed']: final(r) for r in runs[STATIC]}
    goal = mean(static.values())
    lines = [_row('policy', 'runs', 'final: mean ± spread', 'worst', 'gap to static', 'diverged', 'peak, growth',
                  'peak, shrink', 'epochs to static\'s metric'), _row(*['---'] * 9)]
    for name, some in runs.items():
        finals = [final(r) for r in some]
        gap = mean(final(r) - static[r['seed']] for r in some)
        reached = [_epochs_to(r, goal) for r in some]
        lines.append(_row(
            f'`{name}`', len(some), f'{mean(finals):.2f} ± {pstdev(finals):.2f}', f'{min(finals):.2f}',
            '' if name == STATIC else f'{gap:+.2f}', sum(diverged(r, static[r['seed']]) for r in some),
            _peak(some, 'growth'), _peak(some, 'shrink'),
            f'{_median(reached)} ({sum(map(math.isfinite, reached))} of {len(some)})'))
    return '\n'.join(lines)


def _peak(runs, kind):
    peaks = [math.inf if ratio is None else ratio for r in runs for ratio in r[kind]]
    return f'{median(peaks):.2f}' if peaks else ''


def _median(values):
    middle = median(values)
    return f'{middle:g}' if math.isfinite(middle) else '–'


def _epochs_to(result, goal):
    """The first epoch after which the metric is at least `goal` percent."""
    return next((epoch + 1 for epoch, value in enumerate(result['metrics']) if 100 * value >= goal), math.inf)


def _gap_table(runs):
    static = {r['seed']: final(r) for r in runs[STATIC]}
    traces = [trace for trace in TRACES if any(r['trace'] == trace for some in runs.values() for r in some)]
    if not traces:
        return ''
    lines = ['Gap to static by trace, mean over seeds (percentage points; ✖: runs that diverged):\n',
             _row('policy', *traces, 'all'), _row(*['---'] * (len(traces) + 2))]
    for name, some in runs.items():
        if name == STATIC:
            continue
        cells = []
        for trace in (*traces, None):
            here = [r for r in some if trace in (None, r['trace'])]
            lost = sum(diverged(r, static[r['seed']]) for r in here)
            gap = f'{mean(final(r) - static[r["seed"]] for r in here):+.2f}' if here else ''
            cells.append(gap + f' ✖{lost}' * (lost > 0))
        lines.append(_row(f'`{name}`', *cells))
    return '\n'.join(lines)
