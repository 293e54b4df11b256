"""Which policy loses least when the world size changes? Real trainings over traces of 8 to 128 virtual workers.

``python -m benchmarks.lr_policies`` does all runs and can be stopped and started again; ``--quick`` does a few in 5 minutes.
docs/results.md says how to read the tables, and what came out.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from tqdm import tqdm

from benchmarks.lr_parts.figure import write_figures
from benchmarks.lr_parts.plan import FACTORS, POLICIES, Run, plan
from benchmarks.lr_parts.summary import tables


def main(argv=None):
    """Run it.

    Returns
    -------
    int
        The exit status: 0, or 130 if stopped.
    """
    from benchmarks.lr_parts.tasks import TASKS

    parser = argparse.ArgumentParser(prog='python -m benchmarks.lr_policies', description=__doc__.partition('\n\n')[2])
    parser.add_argument('--quick', action='store_true', help='one seed, one trace, five policies')
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS), metavar='TASK',
                        help=f'some of {", ".join(TASKS)}')
    parser.add_argument('--policies', nargs='+', choices=POLICIES, metavar='POLICY', help=f'some of {", ".join(POLICIES)}')
    parser.add_argument('--factors', nargs='+', type=int, default=FACTORS, metavar='F',
                        help='of the reference learning rate (default: 1 2 4)')
    parser.add_argument('--seeds', type=int, metavar='N', help='seeds 0 to N - 1, in place of the number of each task')
    parser.add_argument('--out', type=Path, default=Path('lr-policies'), metavar='DIR',
                        help='for results.jsonl, tables.md and figures; what is there already is not run again')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), metavar='N',
                        help='processes (default: one for each core)')
    parser.add_argument('--tables', action='store_true', help='no runs, only tables and figures of what there is')
    args = parser.parse_args(argv)
    if args.jobs < 1 or (args.seeds is not None and args.seeds < 1) or min(args.factors) < 1:
        parser.error('--jobs, --seeds and --factors must be at least 1')
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / 'results.jsonl'
    runs = plan([TASKS[name] for name in args.tasks], args.quick, tuple(args.factors), args.policies, args.seeds)
    stopped = False
    if not args.tables:
        try:
            do_all(runs, path, args.jobs)
        except KeyboardInterrupt:
            stopped = True
    results = [line for line in read(path).values() if line['task'] in args.tasks]
    if not results:
        print('nothing was done yet')
        return 130 if stopped else 0
    text = tables(results)
    (args.out / 'tables.md').write_text(text)
    print(text)
    for figure in write_figures(results, args.out):
        print(figure)
    return 130 if stopped else 0


def read(path):
    """The results that there are, by run."""
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue            # cut off when the benchmark was stopped
            found[Run(**{name: result[name] for name in Run.__dataclass_fields__})] = result
    return found


def do_all(runs, path, jobs):
    """Do the runs that are not in the file yet, and add them to it one by one."""
    known = read(path)
    left = [run for run in runs if run not in known]
    # One thread for each process, set before MXNet is loaded in them.
    os.environ['OMP_NUM_THREADS'] = '1'
    with open(path, 'a') as file, tqdm(total=len(runs), initial=len(runs) - len(left), unit='run', disable=None) as bar:
        if path.stat().st_size and path.read_bytes()[-1:] != b'\n':
            file.write('\n')
        # New processes from time to time: MXNet never gives memory back.
        with multiprocessing.get_context('spawn').Pool(jobs, ignore_interrupt, maxtasksperchild=200) as pool:
            for result in pool.imap_unordered(do_one, left):
                file.write(json.dumps(result) + '\n')
                file.flush()
                bar.update()


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
