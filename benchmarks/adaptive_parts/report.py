"""Table and pictures of what was measured."""

import numpy as np

from benchmarks.adaptive_parts.cases import TARGET, VARIANTS

__all__ = ['write', 'summary']

_COLORS = dict(zip(VARIANTS, ('#666666', '#E69F00', '#009E73', '#0072B2', '#56B4E9')))


def summary(run):
    """A run in numbers.

    Returns
    -------
    dict
        ``seconds`` and ``samples`` of each evaluation with its ``precision``; ``to_target``: seconds until precision at 1
        was `TARGET`, between two evaluations on a straight line, or None; ``rate``: samples a second; ``ideal``: sum of the
        speeds of the workers while each computes; ``waiting``: by worker, the part of the time in which it did not.
    """
    workers = [worker['points'] for worker in run['workers']]
    seconds = np.array([point['seconds'] for point in workers[0]])
    precision = np.array([point['precision'] for point in workers[0]])
    samples = np.cumsum(np.sum([[point['samples'] for point in points] for points in workers], axis=0))
    busy = np.array([[point['busy_seconds'] for point in points] for points in workers])
    own = np.array([[point['samples'] for point in points] for points in workers])
    lasted = np.array([point['epoch_seconds'] for point in workers[0]])
    return {'seconds': seconds, 'samples': samples, 'precision': precision, 'to_target': crossing(seconds, precision),
            'rate': samples[-1] / seconds[-1],
            'ideal': float(np.sum((own / busy).sum(axis=0) * lasted) / lasted.sum()),
            'waiting': (1 - busy.sum(axis=1) / lasted.sum()).tolist(),
            'updates': [sum(point['updates'] for point in points) for points in workers],
            'batches': [points[-1]['batch'] for points in workers]}


def crossing(seconds, precision, target=TARGET):
    """When a curve first reaches a target, on straight lines between its points; None if it does not.

    Examples
    --------
    >>> crossing(np.array([10.0, 20.0]), np.array([0.5, 1.0]))
    15.0
    """
    above = np.flatnonzero(precision >= target)
    if not len(above):
        return None
    i = above[0]
    if i == 0:
        return float(seconds[0])
    part = (target - precision[i - 1]) / (precision[i] - precision[i - 1])
    return float(seconds[i - 1] + part * (seconds[i] - seconds[i - 1]))


def write(runs, folder):
    """Write ``results.txt`` and a picture for each scenario; prints the table."""
    # The time in which a worker asks for its next batch counts as computing, for its device is at work meanwhile. If it also
    # waits in it, its own speed is too low, so the speeds in the synchronous run, where nobody asks, are the ideal.
    ideals = {(run['scenario'], run['seed']): summary(run)['ideal'] for run in runs
              if run['variant'] == 'sync' and 'workers' in run}
    lines = [f'seconds to a precision at 1 of {100 * TARGET:g} %; samples/s, their part of the sum of the speeds that the '
             f'workers have in the sync run (ideal) and in this run (own); part of the time not computing, updates and last '
             f'local batch by worker',
             f'{"scenario":10} {"variant":22} {"seed":>4} {"s to target":>11} {"final %":>8} {"seconds":>8} '
             f'{"samples/s":>9} {"of ideal":>8} {"of own":>7}  waiting %        updates            batches']
    for run in runs:
        head = f'{run["scenario"]:10} {run["variant"]:22} {run["seed"]:4}'
        if 'failed' in run:
            lines.append(f'{head} FAILED: {run["failed"].strip().splitlines()[-1][:80]}')
            continue
        s = summary(run)
        ideal = ideals.get((run['scenario'], run['seed']))
        of_ideal = '-' if ideal is None else f'{100 * s["rate"] / ideal:.1f}%'
        target = '-' if s['to_target'] is None else f'{s["to_target"]:.1f}'
        lines.append(f'{head} {target:>11} {100 * s["precision"][-1]:8.2f} {s["seconds"][-1]:8.1f} {s["rate"]:9.0f} '
                     f'{of_ideal:>8} {100 * s["rate"] / s["ideal"]:6.1f}%  '
                     f'{" ".join(f"{100 * w:4.0f}" for w in s["waiting"]):15}  '
                     f'{" ".join(map(str, s["updates"])):17}  {" ".join(map(str, s["batches"]))}')
    text = '\n'.join(lines) + '\n'
    (folder / 'results.txt').write_text(text)
    print(text)
    good = [run for run in runs if 'workers' in run]
    for scenario in dict.fromkeys(run['scenario'] for run in good):
        _draw([run for run in good if run['scenario'] == scenario], scenario, folder / f'{scenario.replace("=", "")}.png')


def _draw(runs, scenario, path):
    from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 7), layout='constrained')
    over_time, over_samples, batches, waiting = figure.subplots(2, 2).ravel()
    seen = []
    for run in runs:
        s, name = summary(run), run['variant']
        label = None if name in seen else name
        seen.append(name)
        for axes, x in ((over_time, s['seconds']), (over_samples, s['samples'])):
            axes.plot(x, 100 * s['precision'], 'o-', color=_COLORS[name], label=label, markersize=3)
    for axes, x in ((over_time, 'seconds of training'), (over_samples, 'samples, all workers')):
        axes.axhline(100 * TARGET, color='#bbbbbb', linewidth=1, linestyle='--')
        axes.axhline(100 * runs[0]['workers'][0]['best'], color='#bbbbbb', linewidth=1)
        axes.set(xlabel=x, ylabel='precision at 1, %')
        axes.grid(alpha=0.3)
    over_samples.legend(frameon=False, loc='lower right')
    last = next((run for run in runs if run['variant'] == 'adaptive'), None)
    if last is not None:
        merges = last['workers'][0]['merges']
        for rank in range(len(merges[0])):
            batches.plot([merge[rank][2] for merge in merges], '.-', label=f'worker {rank}')
        batches.legend(frameon=False)
    batches.set(xlabel='merge', ylabel='local batch, samples', title='adaptive')
    names = list(dict.fromkeys(run['variant'] for run in runs))
    for place, name in enumerate(names):
        parts = np.mean([summary(run)['waiting'] for run in runs if run['variant'] == name], axis=0)
        for rank, part in enumerate(parts):
            waiting.bar(place + (rank - 1) * 0.25, 100 * part, 0.22, color=_COLORS[name])
    waiting.set_xticks(range(len(names)), [name.replace(', ', ',\n') for name in names])
    waiting.set(ylabel='time not computing, %', title='by worker', ylim=(0, 100))
    figure.suptitle(f'three workers, slower by {scenario}' if '=' in scenario else f'three workers: {scenario}')
    figure.savefig(path, dpi=90)
