"""The updates of L logical workers on any number of physical ones, the same to the last bit (docs/same-weights.md).

The idea of training workers that are independent of the processes that host them is EasyScale's (arXiv 2208.14228).
"""

from __future__ import annotations

import json
import random

import mxnet as mx
import numpy as np

from . import hostarrays
from .exactsum import ExactSum

__all__ = ['LogicalUpdates', 'pass_seed']


def pass_seed(seed, update, worker):
    """What all generators of random numbers begin a logical worker's pass with.

    Parameters
    ----------
    seed : int
        The sampler's, 0 <= seed < 2**64.
    update : int
        Updates done before.
    worker : int
        The logical worker.

    Returns
    -------
    int
        0 <= seed < 2**31.

    Examples
    --------
    >>> pass_seed(0, 0, 0) == pass_seed(0, 0, 0), pass_seed(0, 0, 0) == pass_seed(0, 0, 1)
    (True, False)
    """
    words = [seed & 0xffffffff, seed >> 32, update, worker]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


class LogicalUpdates:
    """What a physical worker does for the logical workers that it hosts, in one update after another.

    Each logical worker is a pass: its random numbers are seeded, the user's script computes its batch, and what came of it
    (its gradients, running statistics, loss and normalizer) is added to an `ExactSum`. After the last pass that is summed
    over the physical workers. BatchNorm's running statistics begin each pass with what all logical workers begin the update
    with, and are then set to the mean of what came of them: the mean over the logical workers of the statistics that each
    would have by itself, as the rule that moves them is linear (see `WorkerStatistics`). So between two updates all that
    there is is the same on all physical workers, and a resize or a crash has nothing to move.

    Parameters
    ----------
    sampler : ElasticSampler
        With logical workers.
    params : list of gluon.Parameter
        The trainer's.
    statistics : WorkerStatistics

    Attributes
    ----------
    exponents : dict of str to int
        Of the sums (`ExactSum`): the only state.

    Raises
    ------
    ValueError
        For parameters that are not float32, and gradients that are added up by the script itself.
    """

    def __init__(self, sampler, params, statistics):
        for param in [*params, *statistics.params]:
            if np.dtype(param.dtype).kind == 'f' and np.dtype(param.dtype) != np.float32:
                raise ValueError(f'parameter {param.name} is {np.dtype(param.dtype).name}; with logical_workers all must '
                                 'be float32, of which sums are exact: leave out net.cast, or logical_workers')
            if param.grad_req == 'add':
                raise ValueError(f"parameter {param.name} has grad_req='add', but logical_workers adds up gradients itself: "
                                 f"use 'write'")
        self._sampler, self._params, self._statistics = sampler, params, statistics
        self._sums = self._layout = self._array = None
        self._exponents = {}
        self._hosted, self._fresh = [], {}
        self._losses = self._normalizers = 0

    @property
    def exponents(self):
        return dict(self._exponents if self._sums is None else self._sums.exponents)

    @exponents.setter
    def exponents(self, exponents):
        self._exponents = dict(exponents)
        if self._sums is not None:
            self._sums.exponents = dict(exponents)

    # -- passes ------------------------------------------------------------------------------------------------

    def begin_round(self):
        """A new world has been entered: other logical workers may be hosted here."""
        self._hosted = [k for rank in self._sampler.ranks for k in self._sampler.hosted(rank)]

    def begin_update(self, update):
        """The next pass is the first one of the update after `update`."""
        self._losses = self._normalizers = 0
        self._fresh = {}
        self._layout_known = False
        self._statistics.begin()
        for _, begin in self._statistics.kept():
            begin.wait_to_read()        # of what a backward pass does to statistics MXNet does not always know
        self.seed(update, 0)

    def seed(self, update, number):
        """Give pass `number` of the update after `update` its random numbers: MXNet's, NumPy's and Python's."""
        self.seed_worker(update, self._hosted[number])

    def seed_mxnet(self, update, number):
        """The same, MXNet's only."""
        mx.random.seed(pass_seed(self._sampler.seed, update, self._hosted[number]))

    def seed_worker(self, update, worker):
        """The same, of a logical worker, wherever it is hosted."""
        seed = pass_seed(self._sampler.seed, update, worker)
        mx.random.seed(seed)
        np.random.seed(seed)
        random.seed(seed)

    def pass_done(self, loss, normalizer, last):
        """Add what came of a pass, and set the running statistics back for the next one.

        Parameters
        ----------
        loss, normalizer : NDArray of shape (1,), or None
        last : bool
            Whether it is the last one of this worker in the update.
        """
        gradients = {i: param for i, param in enumerate(self._params) if param.grad_req != 'null'}
        for param in gradients.values():
            # Statistics change in the backward pass, and MXNet does not always know it: it is over once these are there.
            param.list_grad()[0].wait_to_read()
        if not self._layout_known:
            self._arrange(gradients)
        for i, param in gradients.items():
            data = param.list_data()[0]
            # A layer that this pass did not use still has the gradient of another pass.
            if data._fresh_grad:
                data._fresh_grad = False
                self._fresh[i] = self._fresh.get(i, 0) + 1
                self._sums.add(f'gradient {i}', hostarrays.read(param.list_grad()[0]))
        for i, (statistic, begin) in enumerate(self._statistics.kept()):
            if np.dtype(statistic.dtype) == np.float32:     # of integers there is no mean
                self._sums.add(f'statistic {i}', hostarrays.read(statistic))
            if not last:
                begin.copyto(statistic)
                statistic.wait_to_read()
        if loss is not None:
            self._losses += 1
            self._sums.add('loss', hostarrays.read(loss))
        if normalizer is not None:
            self._normalizers += 1
            self._sums.add('normalizer', hostarrays.read(normalizer))

    def _arrange(self, gradients):
        """Have a buffer for all that is summed; a new one if the network has changed since (layers were frozen, say)."""
        sizes = {f'gradient {i}': param.list_grad()[0].size for i, param in gradients.items()}
        sizes.update({f'statistic {i}': statistic.size for i, (statistic, _) in enumerate(self._statistics.kept())})
        sizes.update(loss=1, normalizer=1)
        if self._layout != sizes:
            self._layout = sizes
            # a count for each gradient, of losses and of normalizers, and three signals
            self._sums = ExactSum(sizes, self._sampler.logical_workers, len(gradients) + 5, self.exponents)
            self._array = mx.nd.from_numpy(self._sums.buffer[:])
        self._layout_known = True
        self._sums.begin()

    # -- the sum -----------------------------------------------------------------------------------------------

    def send(self, world, signals):
        """All passes of this worker are done: begin to sum over the workers; waits for nothing.

        Parameters
        ----------
        world : World
        signals : dict of str to float
            At most three, the same names on all workers.
        """
        self._signals = list(signals)
        counts = [self._fresh.get(i, 0) for i in self._numbers()]
        numbers = [self._losses, self._normalizers, *signals.values(), *counts]
        self._sums.extra[:len(numbers)] = numbers
        self._sums.finish_adding()
        if world.collective:
            world.allreduce_(self._array, 'exact')

    def _numbers(self):
        return [int(name.split()[1]) for name in self._layout if name.startswith('gradient')]

    def receive(self, world, global_batch):
        """Wait for the sums; set gradients and running statistics to them, on all workers alike.

        With normalizers the gradients are scaled by global batch / sum of normalizers.

        Returns
        -------
        dict of str to float
            The signals' sums, and those of loss and normalizer, NaN if the script gives none.

        Raises
        ------
        ValueError
            If only some passes had a normalizer.
        """
        sums, count = self._sums, self._sampler.logical_workers
        if world.collective:
            self._array.wait_to_read()
        if world.collective and sums.anything_outside:
            everyone = world.allgather_bytes(json.dumps(sums.outside()).encode(), 'exact.outside')
            buffer = sums.outside_buffer([[tuple(pair) for pair in json.loads(one)] for one in everyone])
            world.allreduce_(mx.nd.from_numpy(buffer[:]), 'exact.outside.sum').wait_to_read()
            sums.take_outside(buffer)
        losses, normalizers, *rest = sums.extra.tolist()
        numbers = dict(zip(self._signals, rest))
        if normalizers not in (0, count):
            raise ValueError(f'normalizer was given for {normalizers:.0f} of {count} logical workers; give it with every '
                             'call of trainer.step, or with none')
        numbers['loss'] = float(sums.total('loss')[0]) if losses == count else np.nan
        factor = 1.0
        numbers['normalizer'] = np.nan
        if normalizers:
            numbers['normalizer'] = total = float(sums.total('normalizer')[0])
            factor = global_batch / (total or 1.0)
        for i, fresh in zip(self._numbers(), rest[len(self._signals):]):
            param = self._params[i]
            hostarrays.write(param.list_grad()[0], self._filler(f'gradient {i}', factor))
            if fresh:
                param.list_data()[0]._fresh_grad = True
        for i, (statistic, _) in enumerate(self._statistics.kept()):
            if np.dtype(statistic.dtype) == np.float32:
                hostarrays.write(statistic, self._filler(f'statistic {i}', 1 / count))
        return numbers

    def _filler(self, name, factor):
        return lambda values: self._sums.total(name, factor, out=values)
