"""The reference learning rate of a task: ``python -m benchmarks.lr_parts.reference [TASK ...]``.

Static runs at 8 workers with the rates of a grid, on seeds that the comparison does not use. The rule: take the largest
rate whose mean final metric is below the best one's by no more than that one's spread over the seeds (standard deviation),
or a point if that is more; the reference is a quarter of it. So 4 times the reference is the largest rate that a job of
fixed size can be trained with: what fails there when the world changes fails for that.
"""

import logging
import multiprocessing
import os
import sys
from dataclasses import replace
from statistics import mean, stdev

from benchmarks.lr_parts.plan import STATIC, Run

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


def final(name, lr, seed):
    """The final metric of a static run in percent; in a process of the pool."""
    logging.getLogger('hvd_dynamic').addHandler(logging.NullHandler())
    from benchmarks.lr_parts.run import do
    from benchmarks.lr_parts.tasks import TASKS

    TASKS[name] = replace(TASKS[name], lr=lr)
    result = do(Run(name, STATIC, '', 1, seed))
    return 100 * result['metrics'][-1] if len(result['metrics']) == result['epochs'] else 0.0


def main(names):
    """Print the table."""
    from benchmarks.lr_parts.tasks import TASKS

    os.environ['OMP_NUM_THREADS'] = '1'
    for name in names or TASKS:
        task = TASKS[name]
        with multiprocessing.get_context('spawn').Pool() as pool:
            found = {lr: [pool.apply_async(final, (name, lr, seed)) for seed in SEEDS] for lr in task.rates}
            finals = {}
            for lr, waiting in found.items():
                finals[lr] = [one.get() for one in waiting]
                print(f'{name}  lr {lr:<7} {task.metric} {mean(finals[lr]):.2f} %  '
                      f'({", ".join(f"{value:.2f}" for value in finals[lr])})', flush=True)
        edge = '; the largest of the grid will do, so larger ones must be tried' if 4 * chosen(finals) == max(finals) else ''
        print(f'{name}  reference: {chosen(finals):g}{edge}', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
