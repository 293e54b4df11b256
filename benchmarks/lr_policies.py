"""Which policy loses least when the world size changes? Real trainings over traces of 8 to 64 or 128 workers.

``python -m benchmarks.lr_policies`` does all runs that are not in benchmarks/results/lr_policies yet, adds each to it as a
line, and prints the tables; it can be stopped and started again at any time. ``--tables`` only makes tables and figures of
the runs that are there; ``--quick`` does a few of its own in 5 minutes. docs/results.md says how to read the tables, and
what came out.

The design, written down before any result of it was seen, but for one line (`benchmarks.lr_parts.plan` has it as code):

- Every run is compared with static, the same training with 8 workers all the time, of the same seed, data and learning rate.
- digits, seeds 0 to 9: all policies at 1, 2 and 4 times the reference learning rate on the traces grow-shrink (8, 128, 8),
  random-walk and spot; at the reference rate alone on grow, shrink and sawtooth. AdaScale, whose runs take ten times as
  long, has seeds 0 to 4 and the first three traces.
- digits-bn (with BatchNorm), seeds 0 to 9: five policies on grow-shrink at 1, 2 and 4 times the reference.
- detection and segmentation, seeds 0 to 4, on grow-shrink: the same five policies at 1, 2 and 4 times the reference, five
  more at 1 and 4 times; and on spot linear, smooth, compensated, smooth-sqrt and adascale at the reference.
- smooth-start, which begins with the reference batch's learning rate, where a trace begins with all workers: on spot at
  1, 2 and 4 times (scenes: 1 and 4), and on shrink (digits). It was added when digits had shown what that beginning costs.
- The reference learning rate is found by the rule of `benchmarks.lr_parts.reference`, on other seeds.
- Runs are done seed by seed over all of these, so that whatever is there at any time is a balanced comparison.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.lr_parts.figure import write_figures
from benchmarks.lr_parts.plan import DESIGN, POLICIES, Run, plan
from benchmarks.lr_parts.summary import tables

SHIPPED = Path(__file__).parent / 'results' / 'lr_policies'


def main(argv=None):
    """Run it.

    Returns
    -------
    int
        The exit status: 0, or 130 if stopped.
    """
    parser = argparse.ArgumentParser(prog='python -m benchmarks.lr_policies', description=__doc__.partition('\n\n')[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='one seed, one trace, five policies, in OUT/results')
    parser.add_argument('--tasks', nargs='+', choices=DESIGN, default=list(DESIGN), metavar='TASK',
                        help=f'some of {", ".join(DESIGN)}')
    parser.add_argument('--policies', nargs='+', choices=POLICIES, metavar='POLICY', help=f'some of {", ".join(POLICIES)}')
    parser.add_argument('--seeds', type=int, metavar='N', help='no seeds from N on')
    parser.add_argument('--results', type=Path, metavar='DIR',
                        help=f'a file for each task, a line for each run, which is not done again (default: {SHIPPED})')
    parser.add_argument('--out', type=Path, default=Path(tempfile.gettempdir()) / 'lr-policies', metavar='DIR',
                        help='for tables.md and figures (default: %(default)s)')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), metavar='N',
                        help='processes (default: one for each core)')
    parser.add_argument('--tables', action='store_true', help='no runs, only tables and figures of what there is')
    args = parser.parse_args(argv)
    if args.jobs < 1 or (args.seeds is not None and args.seeds < 1):
        parser.error('--jobs and --seeds must be at least 1')
    folder = args.results or (args.out / 'results' if args.quick else SHIPPED)
    for path in (folder, args.out):
        path.mkdir(parents=True, exist_ok=True)
    runs = plan(args.tasks, args.quick, args.policies, args.seeds)
    stopped = False
    try:
        if not args.tables:
            do_all(runs, folder, args.jobs)
    except KeyboardInterrupt:
        stopped = True
    known = read(folder, args.tasks)
    results = [known[run] for run in runs if run in known]
    if not results:
        print('nothing was done yet')
        return 130 if stopped else 0
    text = tables(results)
    (args.out / 'tables.md').write_text(text)
    print(text)
    for figure in write_figures(results, args.out):
        print(figure)
    return 130 if stopped else 0


def read(folder, tasks):
    """The results that there are, by run."""
    found = {}
    for task in tasks:
        path = folder / f'{task}.jsonl'
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                result = json.loads(line)
            except ValueError:
                continue            # cut off when the benchmark was killed
            found[Run(**{name: result[name] for name in Run.__dataclass_fields__})] = result
    return found


def do_all(runs, folder, jobs):
    """Do the runs that are not in the files yet, and add them one by one."""
    from benchmarks.lr_parts.tasks import TASKS

    known = read(folder, {run.task for run in runs})
    for run, result in known.items():
        task = TASKS[run.task]
        if (result['lr'], result['epochs']) != (task.lr, task.epochs):
            raise SystemExit(f'{folder / run.task}.jsonl has runs with lr {result["lr"]} and {result["epochs"]} epochs, but '
                             f'the task has lr {task.lr} and {task.epochs} epochs now: move the file away, or give '
                             f'another --results')
    left = [run for run in runs if run not in known]
    # One thread for each process, set before MXNet is loaded in them.
    os.environ['OMP_NUM_THREADS'] = '1'
    with tqdm(total=len(runs), initial=len(runs) - len(left), unit='run', disable=None) as bar:
        # New processes from time to time: MXNet never gives memory back.
        with multiprocessing.get_context('spawn').Pool(jobs, ignore_interrupt, maxtasksperchild=50) as pool:
            for result in pool.imap_unordered(do_one, left):
                append(folder / f'{result["task"]}.jsonl', result)
                bar.update()


def append(path, result):
    """Add a line to a file, also if its last one was cut off."""
    cut_off = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b'\n'
    with open(path, 'a') as file:
        file.write('\n' * cut_off + json.dumps(result, separators=(',', ':')) + '\n')


def ignore_interrupt():
    """Ctrl-C is the parent's, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def do_one(run):
    """In a process of the pool."""
    import logging

    logging.getLogger('hvd_dynamic').addHandler(logging.NullHandler())     # a line for each resize of each run: no
    from benchmarks.lr_parts.run import do

    return do(run)


if __name__ == '__main__':
    sys.exit(main())
