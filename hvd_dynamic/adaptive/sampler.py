"""AdaptiveSampler: batches come from the dispatcher, as many as a worker has time for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from ..sampler import ElasticSampler, Update
from .dispatcher import SCHEDULINGS, Dispatcher
from .megabatches import MegaBatches
from .scaling import BatchScaling

__all__ = ['AdaptiveSampler', 'MegaUpdate']


@dataclass(frozen=True)
class MegaUpdate(Update):
    """A mega-batch as an update: `spans` are the (start, count) that each rank has computed, once they are known."""

    spans: tuple = ()

    def part(self, rank):
        return 0, sum(count for _, count in self.spans[rank]) if self.spans else 0


class AdaptiveSampler(ElasticSampler):
    """A batch sampler whose batches are taken from one cursor, by whoever is free (arXiv 2110.07029).

    Each epoch has one order of samples, as in `ElasticSampler`, cut into mega-batches of nearly equal size, after each of
    which the workers' replicas are merged. Within one, a worker takes its next batch when it can compute it. Every sample is
    used exactly once an epoch, through any resizes.

    To be used with `AdaptiveTrainer`. With loader processes give the loader ``prefetch=1``: what a worker has taken ahead,
    no other can take.

    Parameters
    ----------
    length : int
        Samples in the data set, >= 1.
    mega_batch : int
        Samples between two merges, over all workers, at most. A shorter epoch is one mega-batch.
    min_batch, max_batch : int
        The range of a worker's batches, in samples.
    batch_size : int, optional
        The local batch to begin with. Default: `max_batch`.
    seed : int, default 0
        Decides the order of samples. 0 <= seed < 2**64.
    shuffle : bool, default True
        False: every epoch has the order 0, 1, 2, ...
    scheduling : {'dynamic', 'static'}, default 'dynamic'
        ``static`` deals each mega-batch out in equal parts beforehand: plain model averaging, for comparison.
    taper : bool, default True
        Give out smaller and smaller batches, down to `min_batch`, towards the end of a mega-batch, so that nobody waits long
        for the last worker. (The paper does not; its learning rate rule covers small batches.)

    Raises
    ------
    ValueError
        For arguments out of range, an empty range of batches, and a mega-batch too small for the workers' batches.

    Examples
    --------
    >>> sampler = AdaptiveSampler(1000, mega_batch=250, min_batch=8, max_batch=32)
    >>> sampler.fits(31), sampler.fits(32)          # each worker takes at least one batch of 8 in each mega-batch
    (True, False)
    """

    def __init__(self, length, mega_batch, min_batch, max_batch, batch_size=None, seed=0, shuffle=True,
                 scheduling='dynamic', taper=True):
        BatchScaling(min_batch, max_batch)              # checks the range
        batch_size = max_batch if batch_size is None else batch_size
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not min_batch <= batch_size <= max_batch:
            raise ValueError(f'batch_size must be an integer from min_batch={min_batch} to max_batch={max_batch}, got '
                             f'{batch_size!r}')
        if isinstance(mega_batch, bool) or not isinstance(mega_batch, int) or mega_batch < 1:
            raise ValueError(f'mega_batch must be a positive integer, the samples between two merges, got {mega_batch!r}')
        if mega_batch < batch_size:
            raise ValueError(f'mega_batch={mega_batch} is smaller than a single batch (batch_size={batch_size}); choose it '
                             f'some 20 times as large as the batches of all workers together')
        if scheduling not in SCHEDULINGS:
            raise ValueError(f'scheduling must be one of {", ".join(SCHEDULINGS)}, got {scheduling!r}')
        self.mega_batch, self.min_batch, self.max_batch = mega_batch, min_batch, max_batch
        self.scheduling, self.taper = scheduling, bool(taper)
        self.local_batch = batch_size
        self._mega = None
        self._client = self._before_first = None
        self._taken, self._unread = deque(), 0          # batches that are not computed; how many of them no loader has seen
        self._at_end = False
        super().__init__(length, batch_size, seed, shuffle)

    # -- what ElasticSampler cuts an update from -----------------------------------------------------------------

    @property
    def megabatches(self):
        """How epochs are cut into mega-batches."""
        if self._mega is None:
            self._mega = MegaBatches(self.length, self.mega_batch)
        return self._mega

    def _why_not(self, size):
        smallest = self.megabatches.smallest
        if smallest < size * self.min_batch:
            cut = '' if smallest == self.mega_batch else f' (cut evenly from the {self.length} samples of an epoch)'
            return (f'mega_batch={self.mega_batch} means mega-batches of {smallest} samples{cut}, but {size} workers with '
                    f'min_batch={self.min_batch} need {size * self.min_batch} for one batch each; raise mega_batch, lower '
                    f'min_batch, or use fewer workers')
        return None

    def fix_global_batch(self, global_batch, max_local_batch=None):
        """Not supported: local batches follow the workers' speed."""
        raise ValueError('AdaptiveSampler does not keep a global batch, as FixedGlobalBatch asks for; use '
                         'DynamicSchedule(..., policy=hvd_dynamic.adaptive.ByLocalBatch())')

    def _full_counts(self):
        return (min(self.mega_batch, self.length),)

    def _update_at(self, cursor):
        if cursor >= (self._epoch + 1) * self.length:
            return None
        mega = self.megabatches.at(cursor)
        return MegaUpdate(self._epoch, mega.start, (mega.end - mega.start,), 0)

    def _pass_sizes(self, count):
        return [count]

    @property
    def most_passes(self):
        """1: there is no accumulation of gradients."""
        return 1

    def indices(self, update, rank):
        """The data set indices that `rank` computed in a mega-batch, in its order.

        Returns
        -------
        ndarray of int64, shape (count,)
        """
        parts = [self._stream(start, count) for start, count in update.spans[rank]]
        return np.concatenate(parts) if parts else np.zeros(0, 'int64')

    def __len__(self):
        raise TypeError('how many batches a worker computes in an epoch is known only at its end')

    # -- the dispatcher ------------------------------------------------------------------------------------------

    def dispatcher(self, workers, done=None):
        """A `Dispatcher` of this sampler's samples for a number of workers, to which `done` has been done already."""
        return Dispatcher(self.megabatches, workers, self.min_batch, self.scheduling, done, self.taper)

    def connect(self, client, before_first):
        """Called by `AdaptiveTrainer` when a world has been entered: where batches come from. None is held any more.

        ``before_first()`` is called when the first batch is asked for.
        """
        self._client, self._before_first = client, before_first
        self._forget()

    def _forget(self):
        self._taken.clear()
        self._unread, self._at_end = 0, False

    def _ask(self):
        if self._client is None:
            raise RuntimeError('batches of an AdaptiveSampler can be had only inside a function decorated with '
                               'hvd_dynamic.run, with an AdaptiveTrainer in its GluonState')
        if self._before_first is not None:
            call, self._before_first = self._before_first, None
            call()
        if not self._at_end:
            batch = self._client.take(self._epoch, self._cursor, self.local_batch)
            if batch is None:
                self._at_end = True
            else:
                self._taken.append(batch)
                self._unread += 1
        return not self._at_end

    @property
    def present(self):
        """The batch to compute next, or None if none was taken."""
        return self._taken[0] if self._taken else None

    def computed(self):
        """The present batch is done."""
        self._taken.popleft()
        self._unread = min(self._unread, len(self._taken))

    def following(self):
        """The batch that comes after the present one, asked for if need be; None at the end of the epoch."""
        if len(self._taken) < 2 and not self._ask():
            return None
        return self._taken[1]

    def set_epoch(self, epoch):
        if epoch != self._epoch:
            self._forget()
        super().set_epoch(epoch)

    def load_state_dict(self, state):
        super().load_state_dict(state)
        at = self._cursor
        if self.next_update() is not None and self.megabatches.at(at).start != at:
            raise ValueError(f'mega_batch={self.mega_batch} does not fit: the state to be taken up is at sample '
                             f'{at % self.length} of its epoch, within one of these mega-batches; use the mega_batch that '
                             f'it was made with')
        self._forget()

    def __iter__(self):
        before = self._epoch
        batches = super().__iter__()
        if self._epoch != before:
            self._forget()
        # What an earlier loader has read, but nobody has computed, is read again.
        self._unread = len(self._taken)
        return batches

    def _batches(self):
        while self._unread or self._ask():
            batch = self._taken[-self._unread]
            self._unread -= 1
            yield self._stream(batch.start, batch.count).tolist()


def with_spans(update, spans):
    """A mega-batch of which it is known who computed what."""
    return replace(update, spans=tuple(tuple(map(tuple, own)) for own in spans))
