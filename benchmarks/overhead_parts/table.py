"""Ratios from what the workers measured, and the table that shows them."""

from statistics import median

import numpy as np

from benchmarks.overhead_parts.cases import CASES, DISTURBED, GOAL, GOAL_FROM_SECONDS, LOOPS

__all__ = ['step_rows', 'commit_rows', 'step_table', 'commit_table', 'goal_line']

HEADLINE = 'one job: commit each update / plain'

# What is divided by what, (kind of job, variant) over (kind of job, variant). With both in one job their processes are the
# same, and so is all else that happens on the machine: those are compared block by block.
_RATIOS = {
    HEADLINE: (('elastic', 'commit'), ('elastic', 'plain')),
    'one job: the same, with run log / plain': (('elastic', 'commit-log'), ('elastic', 'plain')),
    'one job: without commit / plain': (('elastic', 'no-commit'), ('elastic', 'plain')),
    'elastic, commit each / elastic plain': (('elastic', 'commit'), ('bare', 'plain')),
    'fixed size, commit each / fixed plain': (('static', 'commit'), ('plain', 'plain')),
    'elastic, commit each / fixed plain': (('elastic', 'commit'), ('plain', 'plain')),
    'Horovod alone, elastic / fixed': (('bare', 'plain'), ('plain', 'plain')),
    'Horovod alone, num_groups=1 / 0': (('plain', 'plain-grouped'), ('plain', 'plain')),
}
_RESAMPLES, _SEED = 2000, 3


def step_rows(case, rounds):
    """Ratios of step times.

    Parameters
    ----------
    case : str
    rounds : list of dict of str to Outcome
        For each round, the job of each kind.

    Returns
    -------
    list of dict
        For each comparison and loop: the ratios of all rounds and their median, the 95 % interval of that median, the
        same ratio of CPU times, and by how many milliseconds of CPU the Python thread is busier. Of what is in one job,
        the ratios are those of all pairs of blocks; else each round gives one.
    """
    rows, load = [], _other_load(rounds)
    for label, (above, below) in _RATIOS.items():
        for loop in LOOPS:
            pairs = {quantity: [pair for jobs in rounds if above[0] in jobs and below[0] in jobs
                                for pair in _pairs(jobs, above, below, loop, quantity)]
                     for quantity in ('seconds', 'cpu_seconds', 'host_seconds')}
            if not pairs['seconds']:
                continue
            ratios = [a / b for a, b in pairs['seconds']]
            rows.append({'kind': 'step', 'case': case, 'what': label, 'loop': loop, 'ratio': median(ratios),
                         'interval': _interval(ratios), 'ratios': ratios,
                         'cpu_ratio': median(a / b for a, b in pairs['cpu_seconds']),
                         'more_host_ms': 1000 * median(a - b for a, b in pairs['host_seconds']),
                         'base_seconds': median(b for _, b in pairs['seconds']),
                         'base_host_ms': 1000 * median(b for _, b in pairs['host_seconds']),
                         'other_load': load})
    return rows


def _other_load(rounds):
    return max(job.other_load for jobs in rounds for job in jobs.values())


def _pairs(jobs, above, below, loop, quantity):
    """Both quantities of a round: of each pair of blocks if they are of one job, else the medians of both jobs."""
    both = [_blocks(jobs[kind], variant, loop, quantity) for kind, variant in (above, below)]
    return list(zip(*both)) if above[0] == below[0] else [tuple(map(median, both))]


def _blocks(job, variant, loop, quantity):
    """Of each block the mean of its workers, who wait for each other anyway."""
    by_worker = [[block[quantity] for block in result['blocks'] if (block['variant'], block['loop']) == (variant, loop)]
                 for result in job.results]
    return [sum(block) / len(block) for block in zip(*by_worker)]


def _interval(ratios):
    """The 95 % interval of their median, by resampling."""
    chosen = np.random.RandomState(_SEED).choice(ratios, (_RESAMPLES, len(ratios)))
    return [float(limit) for limit in np.percentile(np.median(chosen, axis=1), (2.5, 97.5))]


def step_table(case, rows, rounds):
    """The rows of one case as text."""
    launchers = {kind: median(jobs[kind].launcher_cpu for jobs in rounds if kind in jobs) for kind in rounds[0]}
    lines = [f'{CASES[case].title}: {1000 * rows[0]["base_seconds"]:.4g} ms an update with plain Horovod in that job '
             f'(of the Python thread {rows[0]["base_host_ms"]:.2f} ms); {len(rounds)} rounds',
             f'  other load on the machine: up to {100 * _other_load(rounds):.0f} %; '
             'CPU of horovodrun itself, in % of one core: ' +
             ', '.join(f'{kind} {100 * cpu:.0f}' for kind, cpu in launchers.items()),
             f'  {"":39} {"loop":5} {"ratio":>6}  {"95 % interval":13} {"lowest-highest":15} {"of":>4} {"CPU":>6} '
             f'{"host ms":>8}']
    for row in rows:
        low, high = row['interval']
        spread = f'{min(row["ratios"]):.3f}-{max(row["ratios"]):.3f}'
        lines.append(f'  {row["what"]:39} {row["loop"]:5} {row["ratio"]:6.3f}  {f"{low:.3f}-{high:.3f}":13} {spread:15} '
                     f'{len(row["ratios"]):4d} {row["cpu_ratio"]:6.3f} {row["more_host_ms"]:+8.2f}')
    return '\n'.join(lines)


def commit_rows(where, outcome):
    """What a commit costs, and what memory it takes.

    Parameters
    ----------
    where : str
        'alone' or '2 workers'.
    outcome : Outcome
        Of one job of the module `commits`.

    Returns
    -------
    list of dict
        One row: medians over commits and workers; memory of the worker with the most.
    """
    commits = [commit for result in outcome.results for commit in result['commits']]
    host = [commit['commit_seconds'] + commit['host_seconds'] for commit in commits]
    whole = [h + commit['copy_seconds'] for h, commit in zip(host, commits)]
    plain = [commit['plain_copy_seconds'] for commit in commits]
    state_bytes = outcome.results[0]['state_bytes']
    return [{
        'kind': 'commit', 'where': where, 'parameters': outcome.results[0]['parameters'], 'state_bytes': state_bytes,
        'host_ms': 1000 * median(host), 'whole_ms': 1000 * median(whole), 'plain_copy_ms': 1000 * median(plain),
        # of each pair, so that it does not matter if the machine was slower for some of them
        'ratio': median(a / b for a, b in zip(whole, plain)),
        'memory_ratio': max(result['begin']['grown_bytes'] + result['first']['grown_bytes']
                            for result in outcome.results) / state_bytes,
        'peak_ratio': max(result['begin']['grown_bytes'] + result['first']['peak_bytes']
                          for result in outcome.results) / state_bytes,
        'later_growth_ratio': max(result['commits'][-1]['resident_bytes'] - result['commits'][0]['resident_bytes']
                                  for result in outcome.results) / state_bytes,
        'commits': len(outcome.results[0]['commits']), 'other_load': outcome.other_load,
    }]


def commit_table(rows):
    """The rows of commits as text."""
    lines = ['a commit: parameters and momentum, float32; a plain NumPy copy of as many bytes; '
             'memory as a multiple of those bytes',
             f'  {"parameters":>11} {"job":10} {"host ms":>8} {"host+copy ms":>13} {"NumPy ms":>9} {"ratio":>6}'
             f' {"memory":>7} {"peak":>6} {"later growth":>13} {"other load":>11}']
    for row in rows:
        growth = f'{row["later_growth_ratio"]:.3f} in {row["commits"]}'
        lines.append(f'  {row["parameters"]:11,d} {row["where"]:10} {row["host_ms"]:8.2f} {row["whole_ms"]:13.2f} '
                     f'{row["plain_copy_ms"]:9.2f} {row["ratio"]:6.2f} {row["memory_ratio"]:7.3f} {row["peak_ratio"]:6.3f} '
                     f'{growth:>13} {100 * row["other_load"]:9.0f} %')
    return '\n'.join(lines)


def goal_line(rows):
    """Whether the goal holds for all that was measured of it."""
    judged = [row for row in rows if row.get('what') == HEADLINE and row['base_seconds'] >= GOAL_FROM_SECONDS]
    goal = f'goal: at most {GOAL:.2f} for steps of {1000 * GOAL_FROM_SECONDS:.0f} ms or more'
    if not judged:
        return f'{goal}: no such step was measured'
    found = ', '.join('{case} {loop} {ratio:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]'.format(**row) for row in judged)
    if max(row['other_load'] for row in judged) > DISTURBED:
        return f'{goal}: not decided, since other processes used the machine meanwhile ({found})'
    return f'{goal}: {"reached" if all(row["ratio"] <= GOAL for row in judged) else "not reached"} ({found})'
