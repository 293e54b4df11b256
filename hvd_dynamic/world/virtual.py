"""VirtualWorld: N workers in one process."""

from __future__ import annotations

from .base import World

__all__ = ['VirtualWorld']


class VirtualWorld(World):
    """N workers in one process: the mathematics of a job of N workers without a cluster.

    The process computes each worker's local batch one after the other (BatchNorm sees each batch by itself) and sums
    the gradients: one update, of N local batches, as N workers would do it. Running statistics are the mean over the
    workers (`hvd_dynamic.workerstats`). Of size 1 it is what a script runs in that was started without a launcher. No
    collective is ever called.

    Parameters
    ----------
    size : int, default 1
        Number of workers, >= 1.
    trace : hvd_dynamic.traces.Trace, optional
        Have so many workers as it says, each size from the first commit on at which its progress is reached; in place of
        `size`.
    one_pass : bool, default False
        Compute the batches of all workers as one, which is quicker. The same only for networks in which the samples of a
        batch do not influence each other: without BatchNorm. The noise scale cannot be measured then.

    Examples
    --------
    >>> world = VirtualWorld(4)
    >>> world.join()
    >>> world.size, world.ranks
    (4, (0, 1, 2, 3))
    >>> world.resize(2)                  # takes effect as a real resize does: at the next commit
    >>> world.resize_pending()
    True
    """

    elastic = True
    collective = False

    def __init__(self, size=1, trace=None, one_pass=False):
        super().__init__()
        self.one_pass = bool(one_pass)
        self._trace = trace
        self._next_size = _checked(size if trace is None else trace.sizes[0])
        self.size = self._next_size

    @property
    def ranks(self):
        return tuple(range(self.size))

    @property
    def shard(self):
        return 0, 1     # this process serves all workers

    def members(self):
        return {f'{self.member.token}-{rank}': f'virtual:{rank}' for rank in self.ranks}

    def resize(self, size):
        """Announce a new world size, as a discovery script would."""
        if self._trace is not None:
            raise RuntimeError('this VirtualWorld follows a trace, which decides its size; make one with VirtualWorld(size)')
        self._next_size = _checked(size)

    def _follow(self):
        if self._trace is not None:
            self._next_size = self._trace.size_at(*self.position())

    def join(self):
        self._follow()
        self.size = self._next_size
        self.generation += 1
        self.joined = True

    def leave(self, failed=False, incomplete=False):
        self.joined = False

    def resize_pending(self):
        self._follow()
        return self._next_size != self.size

    def allreduce_(self, array, name, priority=0):
        return array

    def allgather_bytes(self, data, name):
        return [data]


def _checked(size):
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f'size must be a positive integer, the number of workers, got {size!r}')
    return size
