"""A real elastic horovodrun job on this machine, whose number of workers can be changed while it runs."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from gluon_examples.common.errors import MissingDataError, RecipeError

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS_TO_STOP = 10


class ElasticJob:
    """Runs a Python module under horovodrun, on loopback.

    horovodrun asks a script about once a second which hosts there are. The script prints a file, and `resize`
    rewrites the file. Use as a context manager: at its end no process of the job is left.

    Parameters
    ----------
    arguments : list of str
        What comes after ``python``: ``['-m', 'package.module', ...]``.
    folder : Path
        For the script, its file, and the workers' output.
    workers : int
        How many to begin with.
    max_workers : int

    Attributes
    ----------
    log : Path
        All that horovodrun and the workers print.

    Raises
    ------
    RecipeError
        There is no horovodrun beside this Python, or the folder cannot be made.
    """

    def __init__(self, arguments, folder, workers, max_workers):
        self.log = folder / 'workers.log'
        self._hosts = folder / 'hosts'
        self._script = folder / 'discover-hosts.sh'
        self._launcher = _horovodrun()
        self._command = [sys.executable, *arguments]
        self._workers, self._max_workers = workers, max_workers
        self._process = None
        self._family = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise RecipeError(f'{folder} cannot be made ({fault.strerror}); name another folder') from None
        self._script.write_text(f'#!/bin/sh\ncat {shlex.quote(str(self._hosts.resolve()))}\n')
        self._script.chmod(0o755)
        self.resize(workers)

    def resize(self, workers):
        """Have this many workers from now on; horovodrun notices within a second or so."""
        unfinished = self._hosts.with_name('.hosts')
        unfinished.write_text(f'localhost:{workers}\n')
        os.replace(unfinished, self._hosts)

    def __enter__(self):
        # Workers that share a machine fight over its cores unless each is content with one.
        environment = {'OMP_NUM_THREADS': '1', **os.environ, 'PYTHONUNBUFFERED': '1'}
        environment['PYTHONPATH'] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get('PYTHONPATH')]))
        options = [
            '-np',
            str(self._workers),
            '--network-interface',
            'lo',
            '--min-np',
            '1',
            '--max-np',
            str(self._max_workers),
            '--host-discovery-script',
            str(self._script.resolve()),
        ]
        with open(self.log, 'wb') as log:
            self._process = subprocess.Popen(
                [self._launcher, *options, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return self

    def poll(self):
        """The exit status, or None while the job runs."""
        self._remember_family()
        return self._process.poll()

    def tail(self, lines=20):
        """The last lines of the workers' output."""
        return self.log.read_text(errors='replace').splitlines()[-lines:]

    def __exit__(self, *_):
        self._remember_family()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # horovodrun then ends its workers itself
            try:
                self._process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Workers are in sessions of their own, so a signal to one group would not reach them all. A
        # psutil.Process knows when its process began, and never takes a later one of the same number for it.
        left = [process for process in self._family.values() if process.is_running()]
        _, alive = psutil.wait_procs(left, timeout=3)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(alive, timeout=3)

    def _remember_family(self):
        # A process whose parent has ended is no longer found from here, so all are noted while they are.
        for known in [psutil.Process(self._process.pid)] if self._process.poll() is None else []:
            try:
                for child in known.children(recursive=True):
                    self._family.setdefault((child.pid, child.create_time()), child)
            except psutil.NoSuchProcess:
                pass


def _horovodrun():
    beside = Path(sys.executable).with_name('horovodrun')
    launcher = str(beside) if beside.is_file() else shutil.which('horovodrun')
    if launcher is None:
        raise MissingDataError(
            f'{beside} is not there: Horovod is not installed for this Python; '
            '`hvd-dynamic doctor` says how to install it'
        )
    return launcher
