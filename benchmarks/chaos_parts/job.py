"""One elastic horovodrun job on loopback: its hosts, its workers, and its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

__all__ = ['HOSTS', 'COOLDOWN', 'Job']

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name('train.py')

#: Names of this machine that Horovod takes for different hosts.
HOSTS = ('localhost', '127.0.0.1', '127.1', '127.0.1', 'LocalHost')
#: Seconds for which Horovod uses the host of a failed worker no more. Longer than a worker may take to end after SIGTERM:
#: else the driver would take the end of the old worker for a failure of the new one in its slot.
COOLDOWN = 6
#: Seconds after which a worker that does not answer counts as lost.
STALL = 6


class Job:
    """Starts the training, changes its hosts, signals its workers; a context manager that leaves no process behind.

    Parameters
    ----------
    folder : Path
        Of the whole chaos run: the run's folder, checkpoints and reports are in it, and a log for each start.
    max_size : int
        Workers at most.
    pause : float
        Seconds that each update takes longer.
    """

    def __init__(self, folder, max_size, pause):
        self.folder, self._max_size, self._pause = folder, max_size, pause
        self.starts = 0
        self._process, self._family = None, {}
        self._hosts_file, self._discover = folder / 'hosts', folder / 'discover.sh'
        self._discover.write_text(f"#!/bin/sh\ncat '{self._hosts_file}'\n")
        self._discover.chmod(0o755)
        self.give_orders()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill_all()

    @property
    def log_file(self):
        """Of the present start, or the last one."""
        return self.folder / f'log-{self.starts}.txt'

    @property
    def status(self):
        """The exit status of horovodrun; None while it runs."""
        return self._process.poll()

    def start(self, hosts):
        """Start the job on these hosts (name to slots)."""
        self.starts += 1
        self.set_hosts(hosts)
        command = [str(Path(sys.executable).with_name('horovodrun')), '--network-interface', 'lo',
                   '-np', str(sum(hosts.values())), '--min-np', '1', '--max-np', str(self._max_size),
                   '--host-discovery-script', str(self._discover),
                   '--blacklist-cooldown-range', str(COOLDOWN), str(COOLDOWN),
                   sys.executable, str(SCRIPT), str(self.folder)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith('HOROVOD_')}
        path = os.pathsep.join(filter(None, [str(ROOT), environment.get('PYTHONPATH')]))
        environment.update(OMP_NUM_THREADS='1', PYTHONPATH=path, PYTHONFAULTHANDLER='1', CHAOS_PAUSE=str(self._pause),
                           HOROVOD_GLOO_TIMEOUT_SECONDS=str(STALL))
        with open(self.log_file, 'wb') as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                             env=environment, cwd=ROOT, start_new_session=True)
        self._family = {}

    def set_hosts(self, hosts):
        """Change what the discovery script answers."""
        new = self._hosts_file.with_suffix('.new')
        new.write_text(''.join(f'{host}:{slots}\n' for host, slots in hosts.items()))
        os.replace(new, self._hosts_file)

    def give_orders(self, **orders):
        """Tell the training script: `checkpoint_at` an update, `last_epoch`."""
        new = self.folder / 'orders.new'
        new.write_text(json.dumps(orders))
        os.replace(new, self.folder / 'orders.json')

    def workers(self):
        """The workers that run: ``host:slot`` to process id."""
        found = {}
        for process in self._note_family():
            try:
                if process.cmdline()[1:2] == [str(SCRIPT)]:
                    environment = process.environ()
                    found[f"{environment['HOROVOD_HOSTNAME']}:{environment['HOROVOD_LOCAL_RANK']}"] = process.pid
            except (psutil.NoSuchProcess, psutil.AccessDenied, KeyError):
                continue            # it ends, or has just been forked
        return found

    def signal(self, pid, number):
        """Send a signal to a worker, if it still runs."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def dump_stacks(self):
        """Have all workers write where they are into the log."""
        for pid in self.workers().values():
            self.signal(pid, signal.SIGUSR1)
        time.sleep(1)

    def terminate(self, timeout):
        """Send SIGTERM to horovodrun; returns whether all processes of the job ended in `timeout` seconds."""
        self._note_family()
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return not psutil.wait_procs(list(self._family.values()), timeout=5)[1]

    def wait(self, timeout):
        """The exit status of horovodrun, or None if the time is over."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill_all(self):
        """End the job and all that it started, at once."""
        if self._process is None:
            return
        self._note_family()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        # Workers are in sessions of their own. A psutil.Process never takes a later process of the same number for it.
        for process in self._family.values():
            try:
                if process.is_running():
                    process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(list(self._family.values()), timeout=10)

    def _note_family(self):
        """All processes that descend from horovodrun; they are kept, for one whose parent is gone is found no more."""
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        for process in family:
            self._family.setdefault((process.pid, process.create_time()), process)
        return family
