"""The reference learning rate of a task: ``python -m benchmarks.lr_parts.reference [TASK ...]``.

Static runs at 8 workers with the rates of a grid, on seeds that the comparison does not use. The rule: take the largest
rate whose mean final metric is within a point of the best one's; the reference is a quarter of it. So 4 times the reference
is the largest rate that a job of fixed size can be trained with: what fails there when the world changes fails for that.
"""

import logging
import sys
from dataclasses import replace

from benchmarks.lr_parts import tasks
from benchmarks.lr_parts.plan import STATIC, Run
from benchmarks.lr_parts.run import do

SEEDS = (100, 101, 102)
TOLERANCE = 1.0         # percentage points


def chosen(finals):
    """The reference rate by the rule.

    Parameters
    ----------
    finals : dict of float to float
        Mean final metric in percent by learning rate.

    Returns
    -------
    float

    Examples
    --------
    >>> chosen({0.025: 97.9, 0.05: 98.2, 0.1: 98.0, 0.2: 62.7})
    0.025
    """
    best = max(finals.values())
    return max(lr for lr, final in finals.items() if final >= best - TOLERANCE) / 4


def main(names):
    """Print the table."""
    logging.getLogger('hvd_dynamic').addHandler(logging.NullHandler())
    for name in names or tasks.TASKS:
        task = tasks.TASKS[name]
        means = {}
        for lr in task.rates:
            tasks.TASKS[name] = replace(task, lr=lr)
            results = [do(Run(name, STATIC, '', 1, seed)) for seed in SEEDS]
            final = [100 * result['metrics'][-1] if result['metrics'] else 0.0 for result in results]
            means[lr] = sum(final) / len(final)
            print(f'{name}  lr {lr:<7} {task.metric} {means[lr]:.2f} %  ({", ".join(f"{value:.2f}" for value in final)})',
                  flush=True)
        tasks.TASKS[name] = task
        print(f'{name}  reference: {chosen(means):g}', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
