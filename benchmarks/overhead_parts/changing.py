"""Elastic jobs whose hosts change: starts them, changes their hosts, kills a worker, and reads what the workers note."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.overhead_parts.job import ROOT, JobFailed, busy_seconds, children_seconds, ended, environment

__all__ = ['HOSTS', 'ChangingJob', 'changing_job']

# Names of this machine that Horovod takes for different hosts. One whose worker was killed is not used again.
HOSTS = ('localhost', '127.0.0.1', '127.1', '127.0.1', 'LocalHost')
_AT_MOST = 4            # workers
_POLL_SECONDS = 0.1
_MODULE = 'benchmarks.overhead_parts.pauses'


class ChangingJob:
    """A job of the module `pauses`; made by `changing_job`.

    Parameters
    ----------
    folder : Path
    parameters : int
        Of the network, about.
    deadline : float
        Of `time.monotonic`, when it is given up.
    settings : dict
        Added to the environment.
    checkpoints : bool
        Whether it writes a checkpoint when it is told to end, and goes on from it when it is started again.

    Attributes
    ----------
    notes : dict of int to list of dict
        By process, in the order of time, what the workers have noted so far; `read` adds what is new.
    """

    def __init__(self, folder, parameters, deadline, settings, checkpoints):
        self._folder, self._deadline, self._settings = folder, deadline, settings
        self._arguments = [str(parameters), str(folder), *(['--checkpoints'] if checkpoints else [])]
        self._hosts_file, self._discover = folder / 'hosts', folder / 'discover.sh'
        self._discover.write_text(f"#!/bin/sh\ncat '{self._hosts_file}'\n")
        self._discover.chmod(0o755)
        self._process = self._note = None
        self._read = {}
        self.notes = {}

    @contextmanager
    def started(self, hosts):
        """horovodrun on these hosts, one worker each; all its processes are ended with the block."""
        self.set_hosts(hosts)
        command = [str(Path(sys.executable).with_name('horovodrun')), '--network-interface', 'lo', '-np', str(len(hosts)),
                   '--min-np', '1', '--max-np', str(_AT_MOST), '--host-discovery-script', str(self._discover),
                   sys.executable, '-m', _MODULE, *self._arguments]
        with open(self._folder / 'log', 'ab') as log, ended(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**environment(), **self._settings}, cwd=ROOT, start_new_session=True)) as (process, note):
            self._process, self._note = process, note
            yield

    def set_hosts(self, hosts):
        """Change what the discovery script answers."""
        self._replace(self._hosts_file, ''.join(f'{host}:1\n' for host in hosts))

    def set_startup(self, before=0.0, after=0.0):
        """For how many seconds workers that start from now on sleep, before `hvd_dynamic.init` and after it."""
        self._replace(self._folder / 'startup.json', json.dumps({'before': before, 'after': after}))

    def _replace(self, path, text):
        new = path.with_suffix('.new')
        new.write_text(text)
        os.replace(new, path)

    def kill(self, pid):
        """Kill one of the workers; returns the moment."""
        if pid not in self.notes:
            raise ValueError(f'pid={pid} is no worker of this job; give one of {sorted(self.notes)}')
        self._note()
        moment = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return moment

    def stop(self):
        """Send SIGTERM to horovodrun and wait for its end; returns the seconds."""
        self._note()
        start = time.monotonic()
        self._process.terminate()
        while self._process.poll() is None:
            self._in_time('horovodrun ended after SIGTERM')
            time.sleep(_POLL_SECONDS / 10)
        self.read()
        return time.monotonic() - start

    def wait_for(self, condition, what):
        """Wait until ``condition()`` holds, and read the notes meanwhile.

        Raises
        ------
        JobFailed
            If the job ends or the time is over before; the message has the end of the log.
        """
        noted = 0.0
        while True:
            if time.monotonic() - noted > 1:
                self._note()
                noted = time.monotonic()
            self.read()
            if condition():
                return
            if self._process.poll() is not None:
                self._fail(f'ended with status {self._process.returncode} before {what}')
            self._in_time(what)
            time.sleep(_POLL_SECONDS)

    def _in_time(self, what):
        if time.monotonic() > self._deadline:
            self._fail(f'took too long before {what}')

    def _fail(self, what):
        tail = '\n'.join((self._folder / 'log').read_text(errors='replace').splitlines()[-25:])
        raise JobFailed(f'the job for pauses {what}:\n{tail}')

    def updated(self, size, since, count):
        """Whether each of `size` workers has done so many updates in a world of that size since a moment."""
        def counts(note):
            return note['kind'] == 'update' and note['size'] == size and note['time'] > since
        return sum(sum(map(counts, notes[-4 * count:])) >= count for notes in self.notes.values()) >= size

    def wait_for_updates(self, size, since, count):
        """Wait until `updated`."""
        self.wait_for(lambda: self.updated(size, since, count), f'{size} workers had done {count} updates together')

    def workers(self):
        """The workers that run and have done an update: by rank in their world, their process and ``host:slot``."""
        found = {}
        for pid, notes in self.notes.items():
            updates = [note for note in notes if note['kind'] == 'update']
            if updates and _runs(pid):
                found[updates[-1]['rank']] = pid, notes[0]['slot']
        return found

    def read(self):
        """Take in what the workers have noted since."""
        for path in sorted(self._folder.glob('notes-*.jsonl')):
            with open(path, 'rb') as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            text = text[:text.rfind(b'\n') + 1]
            self._read[path] = self._read.get(path, 0) + len(text)
            for line in text.splitlines():
                note = json.loads(line)
                self.notes.setdefault(note['pid'], []).append(note)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def changing_job(parameters, seconds, settings=None, checkpoints=False):
    """A job, and what of the machine others have used when it is over.

    Parameters
    ----------
    parameters : int
    seconds : float
        At most.
    settings : dict, optional
        Environment variables.
    checkpoints : bool

    Yields
    ------
    job : ChangingJob
    load : list of float
        Empty; when the block is over, the part of all cores' time that was spent by processes which are no part of the job.
    """
    load = []
    with tempfile.TemporaryDirectory(prefix='pauses-') as folder:
        start, busy, ours = time.monotonic(), busy_seconds(), children_seconds()
        yield ChangingJob(Path(folder), parameters, start + seconds, settings or {}, checkpoints), load
        used = busy_seconds() - busy - (children_seconds() - ours)
        load.append(max(0.0, used) / (time.monotonic() - start) / (psutil.cpu_count() or 1))
