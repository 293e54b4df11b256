"""Starts real elastic horovodrun jobs on loopback, changes their hosts, kills their workers, and reads what they wrote."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).resolve().parent / 'worker.py'


class Job:
    """One horovodrun job; a context manager that leaves no process behind.

    Parameters
    ----------
    folder : Path
        For the hosts file, the log, and the run's folder (`run`).
    hosts : dict of str to int
        Slots by host name. `localhost` and `127.0.0.1` count as two hosts.
    script : Path
    arguments : sequence of str
    environment : dict
        Added to the environment of the workers.
    elastic : bool
    options : sequence of str
        Further ones of horovodrun's.
    min_np : int
    discovery : str
        A command to discover hosts by, in place of what `set_hosts` says.
    """

    def __init__(self, folder, hosts, script=WORKER, arguments=(), environment=None, elastic=True, options=(), min_np=1,
                 discovery=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_dir = self.folder / 'run'
        self._answer, self._log_file = self.folder / 'answer', self.folder / 'log.txt'
        self.set_hosts(hosts)
        discover = self.folder / 'discover.sh'
        discover.write_text(f'#!/bin/sh\n. {self._answer}\n')
        discover.chmod(discover.stat().st_mode | stat.S_IXUSR)
        size = sum(hosts.values())
        command = [str(Path(sys.executable).with_name('horovodrun')), '--network-interface', 'lo', '-np', str(size)]
        if elastic:
            command += ['--min-np', str(min_np), '--max-np', '8', '--host-discovery-script', discovery or str(discover),
                        *options]
        else:
            command += ['-H', ','.join(f'{host}:{slots}' for host, slots in hosts.items())]
        command += [sys.executable, str(script), *map(str, arguments)]
        environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT), 'RUN_DIR': str(self.run_dir),
                       'JOB_DIR': str(self.folder), 'PYTHONFAULTHANDLER': '1', 'LOG_LEVEL': 'DEBUG', **(environment or {})}
        with open(self._log_file, 'wb') as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                             env=environment, cwd=ROOT, start_new_session=True)
        self._script = str(script)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """End the job and everything it started."""
        for process in self.processes():
            try:
                # Python's own, that gives back the semaphores of processes that were killed: it ends with them.
                if not any('resource_tracker' in part for part in process.cmdline()):
                    process.kill()
            except psutil.NoSuchProcess:
                pass
        self._process.wait()

    def processes(self):
        """All processes of this job that run, also those whose parent is gone: they have its folder in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get('JOB_DIR') == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def set_hosts(self, hosts):
        """Change what the discovery script answers."""
        self.set_discovery('cat <<.\n' + ''.join(f'{host}:{slots}\n' for host, slots in hosts.items()) + '.\n')

    def set_discovery(self, shell):
        """Change what the discovery script does."""
        new = self._answer.with_suffix('.new')
        new.write_text(shell)
        os.replace(new, self._answer)

    def make(self, name, text=''):
        """A file in the job's folder, by which worker.py is told something (it says what)."""
        new = self.folder / (name + '.new')
        new.write_text(text)
        os.replace(new, self.folder / name)

    def remove(self, name):
        """Take back what `make` made."""
        (self.folder / name).unlink()

    def workers(self):
        """The workers that run: ``host:slot`` to process id."""
        found, ours = {}, set()
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        for child in children:
            try:
                command = child.cmdline()
                if len(command) > 1 and command[1] == self._script:
                    ours.add(child.pid)
                    if child.ppid() in ours:
                        continue            # a process of a worker's data loader
                    environment = child.environ()
                    found[f"{environment['HOROVOD_HOSTNAME']}:{environment['HOROVOD_LOCAL_RANK']}"] = child.pid
            except (psutil.NoSuchProcess, psutil.AccessDenied, KeyError):
                continue
        return found

    def kill(self, slot, number=signal.SIGKILL):
        """Send a signal to one worker."""
        self.kill_pid(self.workers()[slot], number)

    def kill_pid(self, pid, number=signal.SIGKILL):
        """Send a signal to one process of this job."""
        assert psutil.Process(pid).environ()['JOB_DIR'] == str(self.folder)
        os.kill(pid, number)

    def interrupt(self):
        """What Ctrl-C in a terminal does: SIGINT to the whole process group of horovodrun."""
        os.killpg(self._process.pid, signal.SIGINT)

    def wait_for(self, condition, what, timeout=120):
        """Wait until `condition()` is true; an error with the log if the job ends or the time is over."""
        end = time.monotonic() + timeout
        while not condition():
            if self._process.poll() is not None:
                raise AssertionError(f'the job ended before {what}:\n{self.log()[-6000:]}')
            if time.monotonic() > end:
                raise AssertionError(f'{timeout} s passed before {what}:\n{self.log()[-6000:]}')
            time.sleep(0.05)

    def wait_for_update(self, update, timeout=120):
        """Wait until `update` is in metrics.jsonl."""
        self.wait_for(lambda: self.last_update() >= update, f'update {update} was done', timeout)

    def wait_for_size(self, size, timeout=120):
        """Wait until an update was done by `size` workers after now."""
        before = self.last_update()
        self.wait_for(lambda: any(m['world_size'] == size and m['update'] > before for m in self.metrics()[-50:]),
                      f'an update with {size} workers was done', timeout)

    def resize(self, hosts, timeout=120):
        """Have other hosts, and wait until they take part; few updates are done meanwhile, however long that takes."""
        self.make('slow')
        self.set_hosts(hosts)
        self.wait_for_size(sum(hosts.values()), timeout)
        self.remove('slow')

    def last_update(self):
        metrics = self.metrics()
        return metrics[-1]['update'] if metrics else 0

    def finish(self, timeout=150):
        """Wait for the end.

        Returns
        -------
        int
            Exit status of horovodrun.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'the job did not end in {timeout} s:\n{self.log()[-6000:]}') from None

    def log(self):
        return self._log_file.read_text(errors='replace')

    def worker_log(self):
        """What the workers printed, without horovodrun's own lines."""
        return ''.join(line for line in self.log().splitlines(keepends=True) if line.startswith('['))

    def metrics(self):
        return read_lines(self.run_dir / 'metrics.jsonl')

    def events(self, *kinds):
        return [e for e in read_lines(self.run_dir / 'events.jsonl') if not kinds or e['kind'] in kinds]

    def reports(self, kind):
        """What the workers of the test script wrote with `report`, as dicts, in the order of time."""
        found = [r for path in self.run_dir.glob('report-*.jsonl') for r in read_lines(path) if r['kind'] == kind]
        return sorted(found, key=lambda r: r['time'])

    def audit(self):
        """All lines of the audit, by file."""
        return {path.stem: read_lines(path) for path in sorted(self.run_dir.glob('samples-*.jsonl'))}


def read_lines(path):
    """The whole lines of a file of JSON lines."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]


def used_samples(audit):
    """The samples of all updates in the order of the stream.

    Parameters
    ----------
    audit : dict of str to list of dict
        As `Job.audit` gives it.

    Returns
    -------
    list of (epoch, index)
    """
    by_update = {}
    for name, lines in audit.items():
        for line in lines:
            by_update.setdefault(line['update'], []).append((name, line))
    assert sorted(by_update) == list(range(1, len(by_update) + 1)), 'updates are missing from the audit'
    stream = []
    for update in sorted(by_update):
        parts = by_update[update]
        assert len({name for name, _ in parts}) == len(parts), f'update {update} is twice in one file'
        for _, line in parts:
            stream.extend((line['epoch'] - (i < line['carried']), index) for i, index in enumerate(line['indices']))
    return stream
