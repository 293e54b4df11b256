"""A long run with joins, leaves, kills, freezes and restarts, and a check of all that it left behind.

``python -m benchmarks.chaos --events 100 --seed 0`` runs one real elastic job on this machine over 2 to 5 workers and lets
one random event after the other happen to it. Then it checks, from the audit of samples, the logs and the weights, that
nothing was lost. docs/chaos.md says what is checked.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks.chaos_parts.events import KINDS, Dealer
from benchmarks.chaos_parts.job import HOSTS
from benchmarks.chaos_parts.runner import Fatal, Fault, Runner
from benchmarks.chaos_parts.table import table
from benchmarks.chaos_parts.verify import verify

#: What a short run is made of.
QUICK = {'join': 2, 'leave': 1, 'exchange': 1, 'kill a worker': 1, 'kill rank 0': 1, 'kill a newcomer': 1,
         'freeze, briefly': 1, 'checkpoint': 1, 'restart, kill -9': 1}


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes
    ----------
    done : list of Done
        The events.
    numbers : dict of str to float
        What was counted.
    faults : list of Fault
        Empty if all was right.
    """

    done: list
    numbers: dict
    faults: list


def main(argv=None):
    """Run it.

    Returns
    -------
    int
        The exit status: 0 if all was right, 1 if anything was wrong or time was too short, 130 if stopped.
    """
    parser = argparse.ArgumentParser(prog='python -m benchmarks.chaos', description=__doc__.partition('\n\n')[2])
    parser.add_argument('--events', type=int, metavar='N', help='how many (default: 100, or 10 with --quick)')
    parser.add_argument('--seed', type=int, default=0, help='decides the events (default: 0)')
    parser.add_argument('--quick', action='store_true', help='only kinds of events that are soon over')
    parser.add_argument('--minutes', type=float, metavar='M',
                        help='stop after so many minutes (default: 2 and one third for each event)')
    parser.add_argument('--folder', type=Path, metavar='DIR',
                        help='a new folder, to be kept (default: a temporary one, kept if anything is wrong)')
    parser.add_argument('--pause', type=float, default=0.03, metavar='SECONDS',
                        help='make each update so much longer, and leave the cores to newcomers (default: 0.03)')
    args = parser.parse_args(argv)
    events = args.events or (10 if args.quick else 100)
    if events < 1:
        parser.error(f'--events must be at least 1, got {args.events}')
    if args.folder is not None and args.folder.exists() and any(args.folder.iterdir()):
        parser.error(f'--folder {args.folder} is not empty: give a new one')
    folder = args.folder or Path(tempfile.mkdtemp(prefix='chaos-'))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # so that the job is ended, too
    minutes = args.minutes or 2 + events / 3
    dealer = Dealer(args.seed, QUICK if args.quick else KINDS, HOSTS)
    try:
        outcome = run(folder.resolve(), dealer, events, minutes, args.pause)
    except KeyboardInterrupt:
        print(f'chaos: stopped; no process of the job is left; the folder is {folder}', file=sys.stderr)
        return 130
    print(table(outcome.done, outcome.numbers, outcome.faults))
    for fault in outcome.faults:
        print(f'\nWRONG (seed {args.seed}): {fault.what}\n    in {fault.where}')
    if outcome.faults:
        print(f'\n{len(outcome.faults)} faults; the folder is kept: {folder}')
        return 1
    print('\nnothing was wrong')
    if args.folder is None:
        shutil.rmtree(folder)
    return 0


def run(folder, dealer, events, minutes, pause):
    """Let the events happen, and check what they left.

    Parameters
    ----------
    folder : Path
        An empty one.
    dealer : Dealer
    events : int
        How many.
    minutes : float
        After which no further event is begun.
    pause : float
        Seconds that each update takes longer.

    Returns
    -------
    Outcome
    """
    end, ended = time.monotonic() + 60 * minutes, False
    log = open(folder / 'chaos.txt', 'w')
    with log, Runner(folder, dealer, pause, lambda line: print(line, file=log, flush=True)) as runner, \
            tqdm(total=events, unit='event', disable=None, leave=False) as bar:
        try:
            runner.start()
            happened = 0
            while happened < events and time.monotonic() < end:
                runner.next()
                happened += 1
                bar.set_description(runner.done[-1].event.kind)
                bar.update()
            runner.finish()
            ended = True
            if happened < events:
                runner.faults.append(Fault(f'{minutes:.1f} minutes were over after {happened} events of {events}: give more '
                                           f'(--minutes)', str(runner.done[-1])))
        except Fatal:
            pass            # it is among the faults
    findings = verify(folder, ended)
    faults = runner.faults + [Fault(what, event_of(update, runner.done), kind) for what, update, kind in findings.faults]
    return Outcome(runner.done, findings.numbers, faults)


def event_of(update, done):
    """Which event an update belongs to, as text."""
    if update is None:
        return 'the log'
    return str(max((d for d in done if d.update <= update), key=lambda d: d.number, default=done[0]))


if __name__ == '__main__':
    sys.exit(main())
