"""Starts the measuring workers, alone or under horovodrun, and leaves no process behind."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ['ROOT', 'WORKERS', 'JobFailed', 'Outcome', 'run_job', 'wait_for_quiet', 'environment', 'ended', 'busy_seconds',
           'children_seconds']

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2

# A family is noted this often while the job runs: a process whose parent is gone is no longer found from here.
_NOTE_SECONDS = 5
_QUIET_PERCENT, _QUIET_LOOKS, _LOOK_SECONDS = 8, 3, 4


class JobFailed(RuntimeError):
    """A job failed or took too long; the message has the end of its output."""


@dataclass(frozen=True)
class Outcome:
    """What a job left.

    Attributes
    ----------
    results : list of dict
        By rank, what the workers wrote.
    seconds : float
        From start to end, starting up included.
    launcher_cpu : float
        CPU seconds a second that horovodrun used, with all that it started but the workers; 0 if they were not asked for.
    other_load : float
        The part of all cores' time that was spent by processes which are no part of the job.
    """

    results: list
    seconds: float
    launcher_cpu: float
    other_load: float


def run_job(module, arguments, launcher, timeout):
    """Run a measuring module to its end.

    Parameters
    ----------
    module : str
        A module of this package; it gets `arguments` and a folder to write ``result-RANK.json`` in.
    arguments : sequence
    launcher : {'alone', 'static', 'elastic'}
        One process without horovodrun, or two workers on loopback.
    timeout : float
        Seconds.

    Returns
    -------
    Outcome

    Raises
    ------
    JobFailed
    """
    with tempfile.TemporaryDirectory(prefix='overhead-') as folder:
        folder = Path(folder)
        command = [*_launcher(launcher, folder), sys.executable, '-m', f'benchmarks.overhead_parts.{module}',
                   *map(str, arguments), str(folder)]
        start, busy, ours = time.monotonic(), busy_seconds(), children_seconds()
        with open(folder / 'log', 'wb') as log, ended(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(), cwd=ROOT,
                start_new_session=True)) as (process, note):
            status = _wait(process, note, start + timeout)
        seconds = time.monotonic() - start
        busy, ours = busy_seconds() - busy, children_seconds() - ours
        results = [json.loads(path.read_text()) for path in sorted(folder.glob('result-*.json'))]
        if status != 0 or len(results) != (1 if launcher == 'alone' else WORKERS):
            what = f'took more than {timeout:.0f} s' if status is None else f'failed with status {status}'
            tail = '\n'.join((folder / 'log').read_text(errors='replace').splitlines()[-25:])
            raise JobFailed(f'{module} {" ".join(map(str, arguments))} ({launcher}) {what}:\n{tail}')
    workers = sum(result.get('cpu_seconds', ours / len(results)) for result in results)
    return Outcome(results, seconds, max(0.0, ours - workers) / seconds,
                   max(0.0, busy - ours) / seconds / (psutil.cpu_count() or 1))


def _launcher(kind, folder):
    if kind == 'alone':
        return []
    horovodrun = Path(sys.executable).with_name('horovodrun')
    command = [str(horovodrun), '--network-interface', 'lo', '-np', str(WORKERS)]
    if kind == 'static':
        return [*command, '-H', f'localhost:{WORKERS}']
    discover = folder / 'discover-hosts.sh'
    discover.write_text(f'#!/bin/sh\necho localhost:{WORKERS}\n')
    discover.chmod(0o755)
    return [*command, '--min-np', '1', '--max-np', str(WORKERS), '--host-discovery-script', str(discover)]


def environment():
    """That of the jobs: settings that the user has made would no longer be the defaults."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(('HOROVOD_', 'HVD_DYNAMIC_'))}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    return {**kept, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path}


def _wait(process, note, deadline):
    """The exit status, or None if the time is over."""
    while True:
        note()
        left = deadline - time.monotonic()
        try:
            return process.wait(max(0.01, min(_NOTE_SECONDS, left)))
        except subprocess.TimeoutExpired:
            if left <= 0:
                return None


@contextmanager
def ended(process):
    """End a process and all that it started, whatever happens meanwhile; gives it, and what notes its family."""
    family = {}

    def note():
        try:
            for child in psutil.Process(process.pid).children(recursive=True):
                family.setdefault((child.pid, child.create_time()), child)
        except psutil.NoSuchProcess:
            pass

    try:
        yield process, note
    finally:
        if process.poll() is None:
            note()
            process.kill()
        process.wait()
        # Workers are in sessions of their own. A psutil.Process never takes a later process of the same number for it.
        for child in family.values():
            try:
                if child.is_running():
                    child.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(list(family.values()), timeout=5)


def busy_seconds():
    """CPU seconds that all processes of this machine have used."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, 'iowait', 0.0) - getattr(times, 'guest', 0.0) - \
        getattr(times, 'guest_nice', 0.0)


def children_seconds():
    """CPU seconds of all processes that this one started, and theirs, that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def wait_for_quiet(seconds):
    """Wait until nothing else uses this machine, for at most `seconds`; returns the seconds waited."""
    start, quiet = time.monotonic(), 0
    while quiet < _QUIET_LOOKS and time.monotonic() - start < seconds:
        quiet = quiet + 1 if psutil.cpu_percent(_LOOK_SECONDS) < _QUIET_PERCENT else 0
    return time.monotonic() - start
