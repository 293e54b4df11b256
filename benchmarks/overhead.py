"""What elasticity costs: ``python -m benchmarks.overhead [--quick] [--out FILE]``.

Step time of hvd_dynamic with a commit after each update over that of plain `hvd.DistributedTrainer`, the cost of a commit,
and its memory; the pause of a resize. With real workers; docs/overhead.md says how to read the tables.
"""

import argparse
import json
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from tqdm import tqdm

from benchmarks.overhead_parts.cases import CASES, DISTURBED, LAUNCHERS, VARIANTS
from benchmarks.overhead_parts.job import WORKERS, JobFailed, run_job, wait_for_quiet
from benchmarks.overhead_parts.pausetable import pause_goals, pause_table, size_table
from benchmarks.overhead_parts.resizes import PausePlan, measure_pauses
from benchmarks.overhead_parts.table import commit_rows, commit_table, goal_line, step_rows, step_table

_JOB_SECONDS_AT_MOST = 600


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    rounds : dict of str to int
        By case.
    kinds : tuple of str
        Kinds of jobs that take turns in a round.
    sweeps : int
        Blocks of each kind of update in a job.
    commits : dict of int to int
        By number of parameters, how many commits.
    pauses : PausePlan
        What is measured after all else, and has limits of its own.
    seconds : float
        When no further round is begun, and (a minute later) what runs is stopped.
    """

    rounds: dict
    kinds: tuple
    sweeps: int
    commits: dict
    pauses: PausePlan
    seconds: float

    @property
    def jobs(self):
        """How many there are."""
        return sum(self.rounds.values()) * len(self.kinds) + 2 * len(self.commits) + self.pauses.jobs


FULL = Plan({'cifar_resnet20_v1': 4, 'resnet18_v1b': 4, 'mlp': 2}, ('plain', 'bare', 'static', 'elastic'), 10,
            {1_000_000: 40, 25_000_000: 20, 100_000_000: 8},
            PausePlan(growths={1: 5, 20: 5}, late={20: 2}, crashes=3, unprepared={1: 3, 20: 3}, restarts={1: 3, 20: 3},
                      sizes={1_000_000: 3, 10_000_000: 3, 100_000_000: 2}), 26 * 60)
QUICK = Plan({'cifar_resnet20_v1': 2}, ('plain', 'elastic'), 6, {1_000_000: 20, 25_000_000: 8},
             PausePlan(growths={1: 2}, crashes=1, unprepared={1: 1}, restarts={1: 1}), 135)


class Benchmark:
    """Runs a plan.

    Parameters
    ----------
    plan : Plan
    bar : tqdm
    quiet_seconds : float
        How long to wait, in all, for a moment in which nothing else uses the machine.
    """

    def __init__(self, plan, bar, quiet_seconds=0.0):
        self._plan, self._bar, self._quiet_seconds = plan, bar, quiet_seconds
        self._end = time.monotonic() + plan.seconds
        self.rows, self.remarks = [], []

    def steps(self, case, rounds, cases_left):
        """Rounds of jobs of each kind, in turn there and back, until so many were undisturbed; returns the table."""
        done, longest, number, kinds = [], 0.0, 0, self._plan.kinds
        share = (self._end - time.monotonic()) / cases_left
        while sum(map(_undisturbed, done)) < rounds:
            self._wait_for_quiet()
            start = time.monotonic()
            if number > 0 and (longest > share or start + longest > self._end):
                break
            order = kinds[::1 if number % 2 == 0 else -1]
            done.append({kind: self._job(f'{case} {kind}', 'steps', [kind, case, self._plan.sweeps],
                                         LAUNCHERS[kind]) for kind in order})
            longest = max(longest, time.monotonic() - start)
            share -= time.monotonic() - start
            number += 1
            self._bar.update(len(kinds) if _undisturbed(done[-1]) else 0)
        quiet = [jobs for jobs in done if _undisturbed(jobs)]
        if len(quiet) < rounds:
            self.remarks.append(f'{case}: the time was over after {len(quiet)} undisturbed rounds of {rounds}')
        # A few rounds with some noise tell more than a single one without.
        chosen = quiet if len(quiet) > 1 or len(done) == len(quiet) else done
        if len(chosen) < len(done):
            self.remarks.append(f'{case}: {len(done) - len(chosen)} rounds left out, since other processes used more than '
                                f'{100 * DISTURBED:.0f} % of the machine')
        rows = step_rows(case, chosen)
        self.rows += rows
        return step_table(case, rows, chosen)

    def commits(self):
        """Commits of each size, alone and in an elastic job; returns the table."""
        rows = []
        for count, commits in self._plan.commits.items():
            for launcher, where in (('alone', 'alone'), ('elastic', f'{WORKERS} workers')):
                if time.monotonic() > self._end:
                    self.remarks.append(f'commit of {count:,} parameters, {where}: the time was over')
                    continue
                self._wait_for_quiet()
                outcome = self._job(f'commit {count:,} {where}', 'commits', [count, commits], launcher)
                self._bar.update()
                rows += commit_rows(where, outcome)
        self.rows += rows
        return commit_table(rows)

    def pauses(self):
        """Pauses of resizes and restarts; returns the tables."""
        self._wait_for_quiet()
        self._bar.set_description('pauses')
        rows = measure_pauses(self._plan.pauses, _say, self._bar.update)
        self.rows += rows
        return '\n\n'.join(filter(None, [pause_table(rows), size_table(rows)]))

    def _wait_for_quiet(self):
        if self._quiet_seconds > 0:
            self._bar.set_description('waiting for a quiet moment')
            waited = wait_for_quiet(self._quiet_seconds)
            self._quiet_seconds -= waited
            self._end += waited         # the time to wait is on top of the time to measure

    def _job(self, title, module, arguments, launcher):
        self._bar.set_description(title)
        left = max(1.0, self._end + 60 - time.monotonic())
        return run_job(module, arguments, launcher, min(_JOB_SECONDS_AT_MOST, left))


def _say(line):
    tqdm.write(line)
    sys.stdout.flush()


def _undisturbed(jobs):
    return all(job.other_load <= DISTURBED for job in jobs.values())


def main(argv=None):
    """Run the benchmark.

    Returns
    -------
    int
        The exit status: 0 whether or not the goal is reached, 1 if a job failed, 130 if stopped.
    """
    parser = argparse.ArgumentParser(prog='python -m benchmarks.overhead', description=__doc__.partition('\n\n')[2])
    parser.add_argument('--quick', action='store_true', help='about 4 minutes; without it, about 45')
    parser.add_argument('--out', type=Path, metavar='FILE', help='also write the rows to FILE, one JSON object a line')
    parser.add_argument('--wait-for-quiet', type=float, default=0.0, metavar='SECONDS',
                        help='before each round, wait until nothing else uses the machine; this long in all (default: 0)')
    parser.add_argument('--only', choices=[*CASES, 'commits', 'pauses'], help='measure one part of it')
    parser.add_argument('--kinds', nargs='+', choices=VARIANTS, help='of the step times, only jobs of these kinds')
    parser.add_argument('--sweeps', type=int, help='blocks of each kind of update in a job (default: 10; --quick: 6)')
    args = parser.parse_args(argv)
    if args.sweeps is not None and args.sweeps < 1:
        parser.error(f'argument --sweeps: must be at least 1, got {args.sweeps}')
    plan = QUICK if args.quick else FULL
    plan = replace(plan, kinds=tuple(args.kinds or plan.kinds), sweeps=args.sweeps or plan.sweeps)
    if args.only:
        rounds = {args.only: plan.rounds.get(args.only, 2)} if args.only in CASES else {}
        plan = replace(plan, rounds=rounds, commits=plan.commits if args.only == 'commits' else {},
                       pauses=plan.pauses if args.only == 'pauses' else PausePlan())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # so that the running job is ended, too
    try:
        return run(plan, args.out, args.wait_for_quiet)
    except JobFailed as failure:
        print(f'overhead: {failure}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('overhead: stopped; no worker is left running', file=sys.stderr)
        return 130


def run(plan, out, quiet_seconds):
    """Measure all of a plan, print the table, and write the rows."""
    print(f'{WORKERS} workers on this machine ({psutil.cpu_count()} cores), CPU only, one thread each; '
          'ratios are medians over rounds', flush=True)
    with tqdm(total=plan.jobs, unit='job', disable=None, leave=False) as bar:
        benchmark = Benchmark(plan, bar, quiet_seconds)
        if plan.commits:
            _say(f'\n{benchmark.commits()}')
            _write(out, benchmark.rows)
        for i, (case, rounds) in enumerate(plan.rounds.items()):
            _say(f'\n{benchmark.steps(case, rounds, len(plan.rounds) - i)}')
            _write(out, benchmark.rows)
        if plan.pauses.jobs:
            _say(f'\n{benchmark.pauses()}')
            _write(out, benchmark.rows)
    for remark in benchmark.remarks:
        print(remark)
    print()
    if plan.rounds or plan.commits:
        print(goal_line(benchmark.rows))
    if plan.pauses.jobs:
        print('\n'.join(pause_goals([row for row in benchmark.rows if row['kind'] == 'pause'])))
    return 0


def _write(out, rows):
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(''.join(json.dumps(row) + '\n' for row in rows))


if __name__ == '__main__':
    sys.exit(main())
