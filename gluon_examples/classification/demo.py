"""See a training whose workers come and go: python -m gluon_examples.classification.demo

Starts a real elastic job on this machine that learns to read handwritten digits, and changes the number of
workers as the training goes on: 2, 4, 1, 3. Nothing is restarted. Ends with a picture of the run.
"""

import argparse
import json
import signal
import sys
import time
from itertools import groupby
from pathlib import Path

from tqdm import tqdm

from gluon_examples.common.arguments import positive_int
from gluon_examples.common.elastic_job import ElasticJob
from gluon_examples.common.errors import RecipeError, told_in_one_line
from hvd_dynamic.report import write_report

SIZES = (2, 4, 1, 3)
# From which part of all samples on each change of the size is due, and how much lies between two at least. A change
# takes some seconds, in which a fast machine uses many samples; they leave room for that.
_DUE = (0.1, 0.35, 0.5)
_APART = 0.1
TRAIN_IMAGES = 1500
WANTED_ACCURACY = 0.97
_SECONDS_AT_MOST = 600
_SECONDS_BETWEEN_LOOKS = 0.2


class Lines:
    """The JSON lines that are added to a file, as they come; the file may not be there yet.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path):
        self._path = path
        self._read = 0

    def new(self):
        """The lines written in full since the last call, parsed.

        Returns
        -------
        list of dict
        """
        if not self._path.exists():
            return []
        with open(self._path, 'rb') as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b'\n') + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Demo:
    """Follows a job through its run folder, and resizes it at set numbers of samples.

    Parameters
    ----------
    run_dir : Path
    samples : int
        How many the whole training takes.
    """

    def __init__(self, run_dir, samples):
        self._metrics, self._events = Lines(run_dir / 'metrics.jsonl'), Lines(run_dir / 'events.jsonl')
        self._samples = samples
        self._sizes = []
        self._asked = 1  # how many of SIZES have been asked for
        self._changed_at = 0  # samples at the last change of the size
        self.accuracy = 0.0
        self._bar = tqdm(
            total=samples, unit='samples', desc='waiting for the workers', disable=None, leave=False
        )

    def follow(self, job):
        """Until the job ends, or has taken too long; returns what went wrong, or None."""
        end = time.monotonic() + _SECONDS_AT_MOST
        with self._bar:
            while True:
                status = job.poll()
                self._look(job)
                if status is not None:
                    return f'failed with exit status {status}' if status else None
                if time.monotonic() > end:
                    return f'was stopped, since it was not done after {_SECONDS_AT_MOST} s'
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    @property
    def sizes(self):
        """The world sizes seen, in order."""
        return tuple(size for size, _ in groupby(self._sizes))

    def _look(self, job):
        for event in self._events.new():
            self._tell(event)
        for update in self._metrics.new():
            if self._sizes and update['world_size'] != self._sizes[-1]:
                self._changed_at = update['samples']
            self._sizes.append(update['world_size'])
            self._bar.n = min(update['samples'], self._samples)
        if self._sizes:
            self._bar.set_description(_workers(self._sizes[-1]), refresh=False)
            self._bar.refresh()
        # The next change comes after the one before has happened, never while it is under way.
        if self.sizes == SIZES[: self._asked] and self._asked < len(SIZES):
            due = max(_DUE[self._asked - 1] * self._samples, self._changed_at + _APART * self._samples)
            if self._bar.n >= due:
                job.resize(SIZES[self._asked])
                self._say(f'the list of hosts now has room for {_workers(SIZES[self._asked])}')
                self._asked += 1

    def _tell(self, event):
        if event['kind'] == 'started':
            self._say(
                f'training started with {_workers(event["world_size"])}, '
                f'{event["global_batch"]} images an update'
            )
        elif event['kind'] in ('resized', 'failed_over'):
            self._say(
                f'{event["kind"].replace("_", " ")}: {event["old_size"]} -> {_workers(event["new_size"])}, '
                f'{event["global_batch"]} images an update; the survivors paused for '
                f'{event["downtime_seconds"]:.1f} s, {event["rolled_back_updates"]} updates were lost'
            )
        elif event['kind'] == 'evaluated':
            self.accuracy = event['metrics']['accuracy']
            epoch = event['epoch'] + 1
            if epoch == 1 or epoch % 10 == 0:
                self._say(f'epoch {epoch:3d}: test accuracy {100 * self.accuracy:.1f} %')

    @staticmethod
    def _say(line):
        tqdm.write(f'  {line}')
        sys.stdout.flush()


def main(argv=None):
    """Run the demo.

    Returns
    -------
    int
        The exit status.
    """
    parser = argparse.ArgumentParser(prog='demo', description=__doc__.partition('\n\n')[2])
    parser.add_argument('--run-dir', type=Path, metavar='DIR', help='default: runs/demo-DATE-TIME')
    parser.add_argument(
        '--num-epochs', type=positive_int(100), default=100, metavar='N', help='default: %(default)s'
    )
    args = parser.parse_args(argv)
    run_dir = args.run_dir or Path('runs') / time.strftime('demo-%Y%m%d-%H%M%S')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job is ended, too
    with told_in_one_line('demo'):
        try:
            return run(run_dir, args.num_epochs)
        except KeyboardInterrupt:
            print('demo: stopped; no worker is left running', file=sys.stderr)
            return 130


def run(run_dir, num_epochs):
    """Train in `run_dir`, tell what happens, and draw it; returns the exit status."""
    if (run_dir / 'metrics.jsonl').exists():
        raise RecipeError(f'--run-dir {run_dir}: already holds a run; name a new folder')
    began = time.monotonic()
    print(f'Training on {TRAIN_IMAGES} handwritten digits with {_arrows(SIZES)} workers.')
    flags = {
        '--dataset': 'digits',
        '--num-epochs': num_epochs,
        '--run-dir': run_dir.resolve(),
        '--log-interval': 100,
    }
    command = [
        '-m',
        'gluon_examples.classification.train',
        *(str(part) for flag in flags.items() for part in flag),
    ]
    job = ElasticJob(command, run_dir, SIZES[0], max(SIZES))
    print(f'  what the workers print is in {job.log}', flush=True)
    demo = Demo(run_dir, num_epochs * TRAIN_IMAGES)
    with job:
        fault = demo.follow(job)
    if fault:
        print('\n'.join(job.tail()), file=sys.stderr)
        raise RecipeError(f'the job {fault}; above is the end of {job.log}')
    picture = write_report(run_dir)[0]
    print(
        f'Done in {time.monotonic() - began:.0f} s. Workers: {_arrows(demo.sizes)}. '
        f'Final test accuracy: {100 * demo.accuracy:.2f} %'
    )
    good = demo.accuracy >= WANTED_ACCURACY and demo.sizes == SIZES
    if not good:
        print(
            f'demo: not as it should be: expected at least {100 * WANTED_ACCURACY:.0f} % '
            f'and the workers {_arrows(SIZES)}',
            file=sys.stderr,
        )
    print(picture)
    return 0 if good else 1


def _arrows(sizes):
    return ' -> '.join(map(str, sizes))


def _workers(count):
    return '1 worker' if count == 1 else f'{count} workers'


if __name__ == '__main__':
    sys.exit(main())
