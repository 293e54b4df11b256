"""Workers of unequal speed: synchronous, averaging, CROSSBOW-style and adaptive training, the same model and data.

    python -m benchmarks.adaptive --output results          # all; one job after the other
    python -m benchmarks.adaptive --output results --scenarios k=4 --variants sync adaptive
    python -m benchmarks.adaptive --output results --only-report

What is compared is in `benchmarks.adaptive_parts.cases`. A worker that is k times slower gets a share of a core that is k
times smaller (`governor`), for computing; what it spends on communication is free. docs/adaptive.md has results.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from benchmarks.adaptive_parts import cases, report
from benchmarks.adaptive_parts.governor import Governor
from benchmarks.overhead_parts.job import ended, environment

_ROOT = Path(__file__).resolve().parents[1]


def main(argv=None):
    """Run what was asked for, append it to OUTPUT/runs.jsonl, and write table and pictures of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--output', type=Path, required=True, metavar='DIR')
    parser.add_argument('--scenarios', nargs='+', choices=list(cases.SCENARIOS), default=list(cases.SCENARIOS))
    parser.add_argument('--variants', nargs='+', choices=list(cases.VARIANTS), default=list(cases.VARIANTS))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0])
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--share', type=float, default=0.25, help='of a core, for a worker that is not slowed')
    parser.add_argument('--timeout', type=float, default=900, help='seconds for a job, which has all variants')
    parser.add_argument('--only-report', action='store_true')
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    runs = args.output / 'runs.jsonl'
    todo = [] if args.only_report else [(scenario, seed) for scenario in args.scenarios for seed in args.seeds]
    for scenario, seed in tqdm(todo, disable=None, desc='jobs'):
        results = run(args.variants, cases.SCENARIOS[scenario], seed, args.epochs, args.share, args.timeout)
        with open(runs, 'a') as file:
            for variant, result in results.items():
                file.write(json.dumps({'scenario': scenario, 'variant': variant, 'seed': seed, 'share': args.share,
                                       'time': time.time(), **result}) + '\n')
    report.write([json.loads(line) for line in runs.read_text().splitlines()], args.output)


def run(variants, phases, seed, epochs, share, timeout):
    """One job, in which the variants come one after the other.

    Returns
    -------
    dict
        By variant: ``workers``, what each wrote, by rank; or ``failed``, the end of the job's output.
    """
    with tempfile.TemporaryDirectory(prefix='adaptive-') as folder:
        folder = Path(folder)
        shares = [[cases.share_of(slowness, share) for slowness in phase] for phase in phases]
        command = [str(Path(sys.executable).with_name('horovodrun')), '--network-interface', 'lo', '-np',
                   str(cases.WORKERS), '-H', f'localhost:{cases.WORKERS}', sys.executable, '-m',
                   'benchmarks.adaptive_parts.job', str(seed), str(epochs), str(folder), *variants]
        status, end = None, time.monotonic() + timeout
        with open(folder / 'log', 'wb') as log, ended(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**environment(), 'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0'}, cwd=_ROOT,
                start_new_session=True)) as (process, note), Governor(folder, shares[0]) as governor:
            while status is None and time.monotonic() < end:
                note()
                governor.shares = shares[min(len(shares) - 1, _epochs_done(folder) * len(shares) // epochs)]
                try:
                    status = process.wait(0.2)
                except subprocess.TimeoutExpired:
                    pass
        results = {}
        for variant in variants:
            workers = [json.loads(path.read_text()) for path in sorted(folder.glob(f'result-{variant}-*.json'))]
            results[variant] = {'workers': workers} if len(workers) == cases.WORKERS else {
                'failed': (folder / 'log').read_text(errors='replace')[-1500:]}
        return results


def _epochs_done(folder):
    try:
        return int((folder / 'epoch-0').read_text())
    except (FileNotFoundError, ValueError):
        return 0


if __name__ == '__main__':
    main()
