"""The reference learning rate of a task: ``python -m benchmarks.lr_parts.reference [TASK ...]``.

Static runs at 8 workers with several rates, on seeds that the comparison does not use. The rule: the smallest rate whose
mean final metric is within half a point of the best one's, so that twice and four times as much can still be trained with.
"""

import logging
import sys
from dataclasses import replace

from benchmarks.lr_parts import tasks
from benchmarks.lr_parts.plan import STATIC, Run
from benchmarks.lr_parts.run import do

SEEDS = (100, 101, 102)
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)


def main(names):
    """Print the table."""
    logging.getLogger('hvd_dynamic').addHandler(logging.NullHandler())
    for name in names or tasks.TASKS:
        task = tasks.TASKS[name]
        for lr in RATES:
            tasks.TASKS[name] = replace(task, lr=lr)
            results = [do(Run(name, STATIC, '', 1, seed)) for seed in SEEDS]
            final = [100 * result['metrics'][-1] if result['metrics'] else 0.0 for result in results]
            print(f'{name}  lr {lr:<7} {task.metric} {sum(final) / len(final):.2f} %  '
                  f'({", ".join(f"{value:.2f}" for value in final)})', flush=True)
        tasks.TASKS[name] = task


if __name__ == '__main__':
    main(sys.argv[1:])
