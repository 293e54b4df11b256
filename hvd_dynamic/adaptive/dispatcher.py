"""Dynamic scheduling of Adaptive SGD (arXiv 2110.07029): who is free takes the next samples from one cursor."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ['Dispatcher', 'Batch', 'SCHEDULINGS', 'free_parts']

SCHEDULINGS = ('dynamic', 'static')


@dataclass(frozen=True)
class Batch:
    """`count` samples from `start` on in the stream of all epochs, of the mega-batch `number`."""

    number: int
    start: int
    count: int


class _Open:
    """A mega-batch that is being handed out: what is left of it, and who has had a part."""

    def __init__(self, free, served=()):
        self.free, self.served = list(free), set(served)

    @property
    def left(self):
        return sum(end - start for start, end in self.free)

    def take(self, most):
        start, end = self.free[0]
        count = min(most, end - start)
        self.free[0] = (start + count, end)
        if not self.free[0][0] < end:
            del self.free[0]
        return start, count


class Dispatcher:
    """Hands the samples of an epoch's one order out, each once. May be called from several threads.

    A batch never reaches over the end of a mega-batch, and every worker gets at least one in each: so much is kept back for
    those that have had none. A worker that asks when its mega-batch is used up gets one of the next, to compute after the
    merge.

    Parameters
    ----------
    mega : MegaBatches
    workers : int
    min_batch : int
        Samples that are kept back for a worker that has had none.
    scheduling : {'dynamic', 'static'}, default 'dynamic'
        ``static``: a mega-batch is dealt out beforehand in equal parts, one for each worker.
    taper : bool, default False
        Give smaller and smaller batches (down to `min_batch`) when the end of a mega-batch comes near, so that nobody waits
        long for the last one to finish: at most half of what is left, divided by the number of workers.
    done : dict of int to list of (int, int), optional
        What workers (by rank) have done of the first mega-batch to be handed out, as (start, count); it is not handed out.

    Examples
    --------
    >>> from hvd_dynamic.adaptive.megabatches import MegaBatches
    >>> dispatcher = Dispatcher(MegaBatches(length=10, size=10), workers=2, min_batch=2)
    >>> [dispatcher.take(0, 0, 0, 6), dispatcher.take(0, 0, 0, 6)]             # 2 of 10 are for worker 1
    [Batch(number=0, start=0, count=6), Batch(number=0, start=6, count=2)]
    >>> dispatcher.take(0, 0, 0, 6) is None
    True
    >>> dispatcher.take(1, 0, 0, 6)
    Batch(number=0, start=8, count=2)
    """

    def __init__(self, mega, workers, min_batch, scheduling='dynamic', done=None, taper=False):
        self._mega, self._workers, self._min_batch = mega, workers, min_batch
        self._static = scheduling == 'static'
        self._lock = threading.Lock()
        self._done, self._taper = done or {}, taper and not self._static
        self._epoch, self._open, self._at = None, {}, {}

    def take(self, rank, epoch, position, count):
        """The next batch for a worker.

        Parameters
        ----------
        rank : int
        epoch : int
        position : int
            Where the worker's present mega-batch begins. With the first question of an epoch its cursor is set there.
        count : int
            Samples wanted, >= 1; there may be fewer.

        Returns
        -------
        Batch or None
            None when there is nothing more for this worker in the epoch.

        Raises
        ------
        ValueError
            For arguments out of range.
        """
        self._check(rank, epoch, position, count)
        if position == (epoch + 1) * self._mega.length:
            return None         # while others are in the next epoch already
        with self._lock:
            if epoch != self._epoch:
                self._epoch, self._open, self._at = epoch, {}, {}
            at = max(position, self._at.get(rank, 0))
            while at < (epoch + 1) * self._mega.length:
                mega = self._mega.at(at)
                most = min(count, self._available(mega, rank))
                if most > 0:
                    part = self._part(mega, rank)
                    start, count = part.take(most)
                    part.served.add(rank)
                    self._at[rank] = mega.start
                    return Batch(mega.number, start, count)
                at = mega.end
            return None

    def _check(self, rank, epoch, position, count):
        for name, value, low, high in (('rank', rank, 0, self._workers - 1), ('epoch', epoch, 0, 2 ** 53),
                                       ('count', count, 1, 2 ** 53), ('position', position, epoch * self._mega.length,
                                                                      (epoch + 1) * self._mega.length)):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f'{name} must be an integer from {low} to {high}, got {value!r}')

    def _available(self, mega, rank):
        part = self._part(mega, rank)
        if self._static:
            return part.left
        waiting = self._workers - len(part.served | {rank})
        available = part.left - waiting * self._min_batch
        if self._taper:
            available = min(available, max(self._min_batch, part.left // (2 * self._workers)))
        return available

    def _part(self, mega, rank):
        key = (mega.number, rank if self._static else 0)
        if key not in self._open:
            done, self._done = self._done, {}       # of the first mega-batch alone
            start, end = mega.start, mega.end
            if self._static:
                size = end - start
                start, end = start + rank * size // self._workers, start + (rank + 1) * size // self._workers
            spans = [span for spans in done.values() for span in spans]
            self._open[key] = _Open(free_parts(start, end, spans), [r for r, spans in done.items() if spans])
        return self._open[key]


def free_parts(start, end, spans):
    """What is left between `start` and `end` when `spans`, pairs of (start, count), are taken away.

    Examples
    --------
    >>> free_parts(0, 10, [(4, 2), (0, 1)])
    [(1, 4), (6, 10)]
    """
    free = []
    for first, count in sorted(map(tuple, spans)):
        if first > start:
            free.append((start, first))
        start = max(start, first + count)
    return free + ([(start, end)] if start < end else [])
