"""The reference learning rate of a task: ``python -m benchmarks.lr_parts.reference [TASK ...]``.

Static runs at 8 workers with the rates of a grid, on seeds that the comparison does not use. The rule: take the largest
rate whose mean final metric is below the best one's by no more than that one's spread over the seeds (standard deviation),
or a point if that is more; the reference is a quarter of it. So 4 times the reference is the largest rate that a job of
fixed size can be trained with: what fails there when the world changes fails for that.
"""

import logging
import sys
from dataclasses import replace
from statistics import mean, stdev

from benchmarks.lr_parts import tasks
from benchmarks.lr_parts.plan import STATIC, Run
from benchmarks.lr_parts.run import do

SEEDS = (100, 101, 102)
TOLERANCE = 1.0         # percentage points at least


def chosen(finals):
    """The reference rate by the rule.

    Parameters
    ----------
    finals : dict of float to list of float
        Final metrics in percent by learning rate.

    Returns
    -------
    float

    Examples
    --------
    >>> chosen({0.025: [97, 99], 0.05: [98, 99], 0.1: [97.9, 98.1], 0.2: [10, 90]})
    0.025
    """
    best = max(finals.values(), key=mean)
    enough = mean(best) - max(TOLERANCE, stdev(best))
    return max(lr for lr, final in finals.items() if mean(final) >= enough) / 4


def main(names):
    """Print the table."""
    logging.getLogger('hvd_dynamic').addHandler(logging.NullHandler())
    for name in names or tasks.TASKS:
        task = tasks.TASKS[name]
        finals = {}
        for lr in task.rates:
            tasks.TASKS[name] = replace(task, lr=lr)
            results = [do(Run(name, STATIC, '', 1, seed)) for seed in SEEDS]
            finals[lr] = [100 * result['metrics'][-1] if result['metrics'] else 0.0 for result in results]
            print(f'{name}  lr {lr:<7} {task.metric} {mean(finals[lr]):.2f} %  '
                  f'({", ".join(f"{value:.2f}" for value in finals[lr])})', flush=True)
        tasks.TASKS[name] = task
        print(f'{name}  reference: {chosen(finals):g}', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
