"""Gives each worker a share of a core, as a slower machine would: it is stopped when it has computed for more than that."""

import mmap
import os
import signal
import threading
import time

__all__ = ['Governor', 'Flag']

_LOOK_SECONDS = 0.002
_BURST_SECONDS = 0.004      # CPU time that may be saved up


class Flag:
    """By which a worker says that it computes; while it communicates, it is never stopped and not charged.

    Parameters
    ----------
    path : str or Path
        A file of one byte for each worker.
    rank : int
    """

    def __init__(self, path, rank):
        with open(path, 'r+b') as file:
            self._bytes = mmap.mmap(file.fileno(), 0)
        self._rank = rank
        self.seconds, self._since = 0.0, None       # spent computing

    def set(self, computing):
        """Say so; counts the time between."""
        now = time.monotonic()
        if computing and self._since is None:
            self._since = now
        elif not computing and self._since is not None:
            self.seconds += now - self._since
            self._since = None
        self._bytes[self._rank] = int(computing)


class Governor:
    """Watches the workers from outside, on a thread; a context manager that leaves none of them stopped.

    Parameters
    ----------
    folder : Path
        Where the flags are, and ``pid-RANK`` files appear.
    shares : list of float
        By rank: parts of a core. May be exchanged for another list at any time.
    """

    def __init__(self, folder, shares):
        self.shares, self._folder = list(shares), folder
        (folder / 'flags').write_bytes(bytes(len(shares)))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        with open(self._folder / 'flags', 'r+b') as file:
            flags = mmap.mmap(file.fileno(), 0)
        pids, used, saved, stopped = {}, {}, {}, set()
        last = time.monotonic()
        while not self._over.wait(_LOOK_SECONDS):
            now = time.monotonic()
            passed, last = now - last, now
            for rank, share in enumerate(self.shares):
                if rank not in pids:
                    try:
                        pids[rank] = int((self._folder / f'pid-{rank}').read_text())
                    except (FileNotFoundError, ValueError):
                        continue
                try:
                    self._govern(rank, pids[rank], flags[rank], share * passed, used, saved, stopped)
                except OSError:
                    pids.pop(rank, None)        # it has ended
                    stopped.discard(rank)
        for rank in stopped:
            try:
                os.kill(pids[rank], signal.SIGCONT)
            except OSError:
                pass

    @staticmethod
    def _govern(rank, pid, computing, earned, used, saved, stopped):
        total = time.clock_gettime((~pid << 3) | 2)         # CPU time of that process, as clock_getcpuclockid(3) makes it
        spent, used[rank] = total - used.get(rank, total), total
        saved[rank] = min(_BURST_SECONDS, saved.get(rank, 0.0) + earned - spent) if computing else 0.0
        if computing and saved[rank] < 0 and rank not in stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.add(rank)
        elif rank in stopped and (saved[rank] >= 0 or not computing):
            os.kill(pid, signal.SIGCONT)
            stopped.discard(rank)
