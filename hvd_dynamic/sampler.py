"""ElasticSampler: one global order of samples, cut among the workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ['ElasticSampler', 'SampleIndex', 'Update']


@dataclass(frozen=True)
class Update:
    """How one update is cut: `counts` samples for each rank, from `start` on in the stream of all epochs.

    With logical workers, `logical` has the samples of each of them, in whose order the samples are dealt out.
    """

    epoch: int
    start: int
    counts: tuple
    carried: int
    logical: tuple = None

    @property
    def global_batch(self):
        """Samples in this update over all workers."""
        return sum(self.counts)

    def part(self, rank):
        """``(offset, count)`` of this rank's samples, counted from `start`."""
        return sum(self.counts[:rank]), self.counts[rank]


class SampleIndex(int):
    """An index into the data set that knows the epoch for which it was dealt out (`SeededDataset` asks for it)."""

    def __new__(cls, index, epoch):
        self = super().__new__(cls, index)
        self.epoch = epoch
        return self

    def __reduce__(self):
        return SampleIndex, (int(self), self.epoch)


class ElasticSampler:
    """A batch sampler whose order of samples does not depend on the world size.

    Epoch e has one permutation of the data set, a function of (`seed`, e) alone; the permutations of epochs
    0, 1, 2, ... joined together are one endless stream. A global cursor walks along it: each update takes the next
    *global batch* samples, cut in rank order. A resize changes only where the stream is cut, so every sample is used
    exactly once an epoch through any resizes. An update never reaches into the next epoch: the last one of an epoch
    splits what is left as evenly as it can, and fewer than world-size samples are carried to the front of the next
    epoch. (Faults shown absent: horovod issues 3399 and 3143.)

    The cursor moves when an update is done (`advance`), not when a loader fetches ahead.

    Parameters
    ----------
    length : int
        Samples in the data set, >= 1.
    batch_size : int
        Local batch: samples each worker takes in one update, >= 1. Under the policy `FixedGlobalBatch` the reference
        batch decides instead.
    seed : int, default 0
        Decides the permutations. 0 <= seed < 2**64.
    shuffle : bool, default True
        False: every epoch has the order 0, 1, 2, ...
    logical_workers : int, optional
        Have the training be that of so many logical workers, 1 to 1024, each with its own `batch_size` samples an update,
        whatever the number of physical ones (docs/same-weights.md): the weights are then the same, bit for bit, at any world
        size of at most `logical_workers`. Trainer and state find it here.

    Raises
    ------
    ValueError
        For arguments out of range, and by `set_world` for a world larger than the data set or than `logical_workers`.

    Examples
    --------
    >>> sampler = ElasticSampler(10, batch_size=2, shuffle=False)
    >>> sampler.set_world(size=2, ranks=[1])
    >>> list(sampler)
    [[2, 3], [6, 7], [9]]
    >>> sampler.advance()                  # one update is done; then a third worker joins
    >>> sampler.set_world(size=3, ranks=[1])
    >>> list(sampler)
    [[6, 7]]

    Of four logical workers, the second of three physical ones hosts one:

    >>> sampler = ElasticSampler(10, batch_size=2, shuffle=False, logical_workers=4)
    >>> sampler.set_world(size=3, ranks=[1])
    >>> list(sampler)
    [[4, 5]]
    >>> sampler.set_world(size=1, ranks=[0])
    >>> list(sampler)
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    def __init__(self, length, batch_size, seed=0, shuffle=True, logical_workers=None):
        _check_positive('length', length, 'the number of samples in the data set')
        _check_positive('batch_size', batch_size, 'the samples that each worker takes in one update')
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2 ** 64:
            raise ValueError(f'seed must be an integer from 0 to 2**64 - 1, got {seed!r}')
        if logical_workers is not None:
            check_logical(logical_workers)
            if logical_workers > length:
                raise ValueError(f'the data set has {length} samples, fewer than logical_workers={logical_workers}: each '
                                 f'needs at least one sample an update; use fewer logical workers or more data')
        self.length = int(length)
        self.batch_size = int(batch_size)
        self.logical_workers = None if logical_workers is None else int(logical_workers)
        self.seed = int(seed)
        self.shuffle = bool(shuffle)
        self._epoch = 0
        self._cursor = 0
        self._resumed = True
        self.in_use = False         # whether a loader has ever asked for batches
        self.before_batches = lambda: None          # the trainer's, called when a loader begins to ask
        self.seed_mxnet = lambda: None              # and one that has MXNet draw the random numbers of the pass at hand
        self._follows_epoch = False
        self._fixed_global_batch = None
        self._max_local_batch = None
        self._permutations = {}
        self.set_world(1, [0])

    # -- the world ---------------------------------------------------------------------------------------------

    def set_world(self, size, ranks, one_pass=False):
        """Cut the stream among `size` workers from here on; this process serves `ranks` of them.

        Parameters
        ----------
        size : int
            World size.
        ranks : sequence of int
            The ranks served here: one in a real job, all of them in a `VirtualWorld`.
        one_pass : bool, default False
            Compute the batches of all `ranks` as one.
        """
        why_not = self._why_not(size)
        if why_not:
            raise ValueError(why_not)
        if one_pass and self.logical_workers is not None:
            raise ValueError('VirtualWorld(one_pass=True) computes the batches of all workers as one, which '
                             f'logical_workers={self.logical_workers} forbids: leave one of the two out')
        self.size = size
        # Which logical workers each rank hosts: contiguous, as even as can be.
        self._hosted = None if self.logical_workers is None else _ranges(_split(self.logical_workers, size))
        self.ranks, self._one_pass = tuple(ranks), one_pass
        self._resumed = True

    def fits(self, size):
        """Whether an update can be cut among `size` workers.

        Examples
        --------
        >>> ElasticSampler(100, batch_size=8).fits(101)
        False
        """
        return self._why_not(size) is None

    def _why_not(self, size):
        if self.logical_workers is not None and size > self.logical_workers:
            return (f'logical_workers={self.logical_workers} cannot be shared by {size} workers: each hosts at least one; '
                    f'use fewer workers (--max-np {self.logical_workers}) or more logical ones')
        if size > self.length:
            return (f'the data set has {self.length} samples, fewer than the {size} workers: each worker needs at least one '
                    f'sample an update; use fewer workers (--max-np {self.length}) or more data')
        if self._fixed_global_batch is not None and size > self._fixed_global_batch:
            return (f'reference_batch={self._fixed_global_batch} cannot be formed by {size} workers under FixedGlobalBatch: '
                    f'each needs at least one sample an update; raise reference_batch or limit the workers '
                    f'(--max-np {self._fixed_global_batch})')
        return None

    def fix_global_batch(self, global_batch, max_local_batch=None):
        """Keep the global batch at `global_batch` samples; passes of at most `max_local_batch` (FixedGlobalBatch)."""
        if self.logical_workers is not None:
            raise ValueError(f'FixedGlobalBatch makes no sense with logical_workers={self.logical_workers}, whose global '
                             f'batch never changes: use another policy, such as Linear, or leave logical_workers out')
        if global_batch > self.length:
            raise ValueError(f'reference_batch={global_batch} is larger than the data set ({self.length} samples), '
                             f'so no update could ever have that many; choose at most {self.length}')
        self._fixed_global_batch = global_batch
        self._max_local_batch = max_local_batch
        self.set_world(self.size, self.ranks)

    @property
    def global_batch(self):
        """Samples over all workers in a full update; never more than the data set has."""
        return min(sum(self._full_counts()), self.length)

    @property
    def _parts(self):
        """Among how many an update is cut."""
        return self.size if self.logical_workers is None else self.logical_workers

    def _full_counts(self):
        if self.logical_workers is not None:
            return (self.batch_size,) * self.logical_workers
        if self._fixed_global_batch is None:
            return (self.batch_size,) * self.size
        return _split(self._fixed_global_batch, self.size)

    # -- the cursor --------------------------------------------------------------------------------------------

    @property
    def epoch(self):
        """The epoch that the cursor is in; it stays there, at its end, until the next one is begun."""
        return self._epoch

    @property
    def samples_left(self):
        """Samples of this epoch (and carried into it) that are not used yet."""
        return (self._epoch + 1) * self.length - self._cursor

    def next_update(self):
        """The cut of the update at hand, or None at the end of the epoch.

        Returns
        -------
        Update or None
        """
        return self._update_at(self._cursor)

    def _update_at(self, cursor):
        left = (self._epoch + 1) * self.length - cursor
        if left < self._parts:
            return None
        counts = self._full_counts()
        if left < sum(counts):
            counts = _split(left, self._parts)
        carried = max(0, min(sum(counts), self._epoch * self.length - cursor))
        return self._update(cursor, counts, carried)

    def _update(self, start, counts, carried):
        if self.logical_workers is None:
            return Update(self._epoch, start, counts, carried)
        by_rank = tuple(sum(counts[k] for k in hosted) for hosted in self._hosted)
        return Update(self._epoch, start, by_rank, carried, counts)

    def hosted(self, rank):
        """The logical workers that `rank` hosts, a range; None without logical workers."""
        return None if self._hosted is None else self._hosted[rank]

    def passes(self, update):
        """The sizes of the batches that this process computes for an update: one each, or more (accumulation)."""
        return [size for sizes in self.passes_by_worker(update) for size in sizes]

    def passes_by_worker(self, update):
        """The same, in one list for each rank that this process serves."""
        if self._one_pass:
            return [[update.global_batch]]
        return [self._passes_of(update, rank) for rank in self.ranks]

    def _passes_of(self, update, rank):
        if self._hosted is not None:
            return [update.logical[k] for k in self._hosted[rank]]
        return self._pass_sizes(update.counts[rank])

    @property
    def most_passes(self):
        """Batches that this process computes for a full update; no other update takes more."""
        return len(self.passes(self._update(0, self._full_counts(), 0)))

    def _pass_sizes(self, count):
        limit = self._max_local_batch or count
        return _split(count, -(-count // limit))

    def advance(self):
        """The update at hand is done: move the cursor past it."""
        update = self.next_update()
        if update is None:
            raise RuntimeError(f'epoch {self._epoch} has no update left')
        self._cursor += update.global_batch
        self._resumed = False

    def set_epoch(self, epoch):
        """Begin `epoch` (unless the cursor is in it): `GluonState` calls it when its attribute `epoch` changes.

        At the end of an epoch the next one begins with the samples carried over. A jump, or leaving an epoch before
        its end, begins the given epoch at its first sample.
        """
        self._follows_epoch = True
        if epoch == self._epoch:
            return
        if isinstance(epoch, bool) or not isinstance(epoch, (int, np.integer)) or epoch < 0:
            raise ValueError(f'epoch must be an integer of at least 0, got {epoch!r}')
        if epoch != self._epoch + 1 or self.next_update() is not None:
            self._cursor = int(epoch) * self.length
        self._epoch = int(epoch)

    def indices(self, update, rank):
        """The data set indices that `rank` uses in `update`, in order.

        Returns
        -------
        ndarray of int64, shape (count,)
        """
        offset, count = update.part(rank)
        return self._stream(update.start + offset, count)

    def _stream(self, start, count):
        epoch, first = divmod(start, self.length)
        here = self._permutation(epoch)[first:first + count]
        if len(here) == count:
            return here
        return np.concatenate([here, self._stream((epoch + 1) * self.length, count - len(here))])

    def _permutation(self, epoch):
        order = self._permutations.get(epoch)
        if order is None:
            order = np.arange(self.length)
            if self.shuffle:
                # The legacy generator: NumPy promises that its streams never change between versions.
                words = [self.seed & 0xffffffff, self.seed >> 32, epoch]
                order = np.random.RandomState(words).permutation(self.length)
            # At most two epochs are in use: the present one and the one that its carried samples come from.
            self._permutations = {e: p for e, p in self._permutations.items() if abs(e - epoch) <= 1}
            self._permutations[epoch] = order
        return order

    # -- a batch sampler for gluon.data.DataLoader ---------------------------------------------------------------

    def __iter__(self):
        self.in_use = True
        # Without GluonState's `epoch` the end of a loop begins the next epoch - but not the first loop after a resize
        # or restore: that one goes on where the interrupted loop was, even if nothing is left of its epoch.
        if not self._follows_epoch and not self._resumed and self.next_update() is None:
            self._epoch += 1
        self._resumed = False
        self.before_batches()
        return self._batches()

    def _batches(self):
        cursor = self._cursor
        while (update := self._update_at(cursor)) is not None:
            if self._one_pass:
                yield self._stream(update.start, update.global_batch).tolist()
            for rank in () if self._one_pass else self.ranks:
                offset, count = update.part(rank)
                samples = self._stream(update.start + offset, count).tolist()
                if self.logical_workers is not None:
                    first = update.start + offset
                    samples = [SampleIndex(index, (first + i) // self.length) for i, index in enumerate(samples)]
                for size in self._passes_of(update, rank):
                    yield samples[:size]
                    samples = samples[size:]
            cursor += update.global_batch

    def __len__(self):
        """Batches that this process has left in the epoch."""
        if self.next_update() is None:
            return 0
        full = self._full_counts()
        passes_full = self.most_passes
        updates, rest = divmod(self.samples_left, sum(full))
        if rest < self._parts:
            return updates * passes_full
        return updates * passes_full + len(self.passes(self._update(0, _split(rest, self._parts), 0)))

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self):
        """The cursor, with what it belongs to, as JSON values."""
        return {'epoch': self._epoch, 'cursor': self._cursor, 'length': self.length, 'seed': self.seed,
                'shuffle': self.shuffle}

    def load_state_dict(self, state):
        """Take up another sampler's cursor.

        Raises
        ------
        ValueError
            If it belongs to another order of samples (length, seed or shuffle differ).
        """
        for name in ('length', 'seed', 'shuffle'):
            if state[name] != getattr(self, name):
                raise ValueError(f'the sampler here has {name}={getattr(self, name)!r}, but the state to be taken up '
                                 f'was made with {name}={state[name]!r}; use the same data set and arguments everywhere')
        self._epoch, self._cursor = state['epoch'], state['cursor']
        self._resumed = True


def _split(total, parts):
    """Integers that differ by at most one and sum to `total`, the larger ones first."""
    small, more = divmod(total, parts)
    return (small + 1,) * more + (small,) * (parts - more)


def _ranges(counts):
    """Contiguous ranges of these lengths, from 0 on."""
    ends = np.cumsum(counts).tolist()
    return [range(end - count, end) for end, count in zip(ends, counts)]


def check_logical(value):
    """Refuse what is no number of logical workers."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= 1024:
        raise ValueError(f'logical_workers must be an integer from 1 to 1024, the most workers that the job may have, or '
                         f'None, got {value!r}')


def _check_positive(name, value, what):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f'{name} must be a positive integer, {what}, got {value!r}')
