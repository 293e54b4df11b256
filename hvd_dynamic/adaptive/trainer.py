"""AdaptiveTrainer: every worker updates a replica of its own at its own pace; replicas are merged now and then."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass

import mxnet as mx
import numpy as np

from .. import errors, optimizers
from ..schedule import Decision
from ..trainer import _URGENT, _URGENT_AFTER_SECONDS, DynamicTrainer, UpdateRecord
from ..updater import Updater
from . import service
from .merging import EqualMerging, NormalizedMerging
from .policy import ByLocalBatch
from .sampler import AdaptiveSampler, with_spans
from .scaling import BatchScaling, fair_batch

__all__ = ['AdaptiveTrainer']

log = logging.getLogger('hvd_dynamic')


@dataclass
class _Replica:
    """What a worker has computed since the last merge, kept while a new world is formed after a failure."""

    update: int             # the merges before
    start: int              # of the mega-batch in the stream
    spans: list
    loss: float | None
    settings: dict
    weights: list
    states: list


class AdaptiveTrainer(DynamicTrainer):
    """Adaptive SGD for workers of unequal speed (arXiv 2110.07029), in place of `DynamicTrainer`.

    Each call of `step` updates this worker's replica alone. When a mega-batch is used up, the replicas are merged: that is
    one update as `GluonState` counts them, after which `commit` commits (before, it does nothing) and workers join and
    leave. After each merge the local batches change so that all workers come to the same number of updates.

    Optimizer state (momentum, say) is averaged with the replicas' weights, so that all workers go on alike.

    Parameters
    ----------
    params, optimizer, optimizer_params
        As for `DynamicTrainer`; gradients may also be row-sparse.
    schedule : DynamicSchedule
        With ``policy=ByLocalBatch()``: its learning rate is that of a local batch of `reference_batch` samples.
    merging : NormalizedMerging or EqualMerging, optional
        Default: ``NormalizedMerging()``, the paper's.
    beta : float, optional
        How many samples a local batch changes for each update more or less than the mean. Default: half the sampler's
        `min_batch`, as in the paper; 0: local batches never change.
    at_bounds : {'skip', 'clip'}, default 'skip'
        See `BatchScaling`.

    Raises
    ------
    TypeError, ValueError
        As `DynamicTrainer`; for another policy, and for arguments out of range.

    Notes
    -----
    Decisions are made from counts of updates that all workers have told each other, never from times.
    """

    def __init__(self, params, optimizer, optimizer_params=None, *, schedule, merging=None, beta=None, at_bounds='skip'):
        super().__init__(params, optimizer, optimizer_params, schedule=schedule, num_groups=1)
        if not isinstance(schedule.policy, ByLocalBatch):
            raise ValueError(f'the schedule has policy={schedule.policy!r}, but with AdaptiveTrainer the learning rate '
                             f'follows each worker\'s own batch: give DynamicSchedule policy=hvd_dynamic.adaptive.'
                             f'ByLocalBatch(), and as reference_batch the local batch for which its base was tuned')
        merging = NormalizedMerging() if merging is None else merging
        if not isinstance(merging, (NormalizedMerging, EqualMerging)):
            raise TypeError(f'merging must be a NormalizedMerging or an EqualMerging, got {merging!r}')
        BatchScaling(1, 1, beta, at_bounds)     # checks them; the range is the sampler's
        self.merging, self._beta, self._at_bounds = merging, beta, at_bounds
        if isinstance(self._updaters[0], Updater) and any(p._grad_stype != 'default' for p in self._params):
            self._updaters = [mx.optimizer.Updater(self._optimizer)]
        self._batches = {}              # local batches by worker (token)
        self._velocity = {}             # by number of parameter: the last merged model less the one before
        self._merged = None             # the last merged model
        self._client = self._replica = None
        self._lr_scale_of_state = 1.0   # the learning rate scale that the momentum buffers hold
        self._spans, self._asking, self._began = [], 0.0, None

    def _check_parameters(self):
        for param in self._params:
            if param._stype != 'default':
                raise ValueError(f'parameter {param.name} is sparse, which AdaptiveTrainer does not support; make it with '
                                 f"stype='default' (its gradient may be row_sparse)")
            if len(param.list_ctx()) > 1:
                raise ValueError(f'parameter {param.name} is on {len(param.list_ctx())} devices; a worker has one: start '
                                 f'one worker for each device and initialise with ctx=mx.gpu(hvd_dynamic.local_rank())')

    @staticmethod
    def _check_sampler(sampler):
        if not isinstance(sampler, AdaptiveSampler):
            raise TypeError(f'AdaptiveTrainer takes its batches from an AdaptiveSampler, got {type(sampler).__name__}: make '
                            f'the loader and the GluonState with hvd_dynamic.adaptive.AdaptiveSampler')

    # -- the world -----------------------------------------------------------------------------------------------

    def attach(self, world, sampler, statistics):
        self._check_sampler(sampler)
        self._scaling = BatchScaling(sampler.min_batch, sampler.max_batch, self._beta, self._at_bounds)
        super().attach(world, sampler, statistics)

    def arguments(self, sampler):
        self._check_sampler(sampler)
        return {'mega_batch of the sampler': sampler.mega_batch, 'min_batch of the sampler': sampler.min_batch,
                'max_batch of the sampler': sampler.max_batch, 'scheduling of the sampler': sampler.scheduling,
                'taper of the sampler': sampler.taper,
                'beta': self._beta, 'at_bounds': self._at_bounds, 'merging': repr(self.merging)}

    def begin_round(self):
        super().begin_round()
        if len(self._world.ranks) > 1:
            raise ValueError(f'AdaptiveTrainer cannot train in a VirtualWorld of {self._world.size} workers, which take '
                             f'turns in one process and have no speed of their own; use VirtualWorld(1), or horovodrun')
        self._spans, self._asking, self._began, self._merged = [], 0.0, None, None
        self._lr_scale_of_state = 1.0
        if self._client is not None:
            self._client.close(graceful=False)
            self._client = None
        done = self._agree_on_replicas()
        self._client = service.connect(self._world, self._sampler.dispatcher(self._world.size, done))
        self._sampler.local_batch = self._batches.get(self._world.member.token) or fair_batch(
            list(self._batches.values()), self._sampler.batch_size)
        self._sampler.connect(self._client, self._take_up_replica)

    def _agree_on_replicas(self):
        """What survivors of a failure have done of the present mega-batch, by rank; empty if they do it anew."""
        mine, cut = self._replica, self._sampler.next_update()
        if mine is not None and (cut is None or (mine.update, mine.start) != (self.update_count, cut.start)):
            mine = None         # others had merged what this worker had not
        told = self._world.allgather_bytes(json.dumps([] if mine is None else mine.spans).encode(), 'adaptive.replicas')
        done = {rank: spans for rank, spans in enumerate(map(json.loads, told)) if spans}
        left = 0 if cut is None else cut.global_batch - sum(count for spans in done.values() for _, count in spans)
        # Every worker takes at least one more batch.
        kept = left >= self._world.size * self._sampler.min_batch and self._sampler.scheduling == 'dynamic'
        if done and self._world.rank == 0:
            again = f'{left} are left, or handed out again' if kept else f'all {cut.global_batch} are handed out again'
            log.info('%d samples of the mega-batch were done; %s', cut.global_batch - left, again)
        self._replica = mine if kept else None
        return done if kept else {}

    # -- the step loop -------------------------------------------------------------------------------------------

    def step(self, batch_size, ignore_stale_grad=False, loss=None):
        """Update this worker's replica after ``loss.backward()`` on the per-sample losses; merge at a mega-batch's end.

        Parameters
        ----------
        batch_size : int
            Samples in this batch, as the sampler gave it: ``len(data)``.
        ignore_stale_grad : bool, default False
            As in gluon.Trainer.
        loss : NDArray, optional
            The per-sample losses of this batch; the log then has the mean over all samples of a mega-batch.

        Raises
        ------
        ValueError
            If `batch_size` is not what the sampler gave.
        RuntimeError
            If the trainer is not part of a GluonState that `hvd_dynamic.run` works on.
        """
        batch = self._present(batch_size, loss)
        try:
            self._update_replica(batch, ignore_stale_grad, loss)
            # The device is at work on this batch while the next one is asked for.
            start = time.monotonic()
            following = self._sampler.following()
            self._asking += time.monotonic() - start
            self._sampler.computed()
            if following is None or following.number != batch.number:
                self._merge()
        except Exception as error:
            if self._record is not None and errors.is_collective_failure(error):
                self._keep_replica()
            raise

    def allreduce_grads(self):
        """Nothing to do: a worker's gradients are its own. To be followed by `update`, as in `DynamicTrainer`."""

    def update(self, batch_size, ignore_stale_grad=False):
        """The same as `step`."""
        self.step(batch_size, ignore_stale_grad)

    def _present(self, batch_size, loss):
        self._cut()             # raises, if this is not the place to train
        batch = self._sampler.present
        if batch is None or batch_size != batch.count:
            given = 'none' if batch is None else batch.count
            raise ValueError(f'trainer.step got batch_size={batch_size}, but the sampler gave out {given} samples for this '
                             f'batch: pass len(data), and call step once for every batch of a loader made with '
                             f'batch_sampler=sampler')
        if loss is not None and loss.size == 1 and batch_size > 1:
            raise ValueError(f'loss is a single number for {batch_size} samples; give the per-sample losses, as they are '
                             f'before any mean')
        return batch

    def _update_replica(self, batch, ignore_stale_grad, loss):
        if self._record is None:
            self._begin_mega_batch()
        else:
            # A worker takes batches when it can compute them: at most one is queued behind the one at work.
            self._trained_arrays()[-1].wait_to_read()
        if loss is not None:
            total = loss.astype('float32').sum().reshape(1)
            self._loss_sum = total if self._loss_sum is None else self._loss_sum + total
        schedule = self.schedule
        scale = schedule.policy.local(batch.count / schedule.reference_batch, schedule.default_scaling)
        if scale != self._lr_scale_of_state:
            self._scale_momentum(scale / self._lr_scale_of_state)
            self._lr_scale_of_state = scale
        progress = schedule.samples_seen + batch.start - self._record.cut.start
        self._optimizer.set_learning_rate(schedule.base_lr(progress) * scale)
        self._check_and_rescale_grad(self._scale / batch.count)
        self._update(ignore_stale_grad)
        self._spans.append((batch.start, batch.count))
        self._pass += 1

    def _begin_mega_batch(self):
        self.before_update()            # commits the merge before this
        if self._merged is None and self.merging.momentum:
            self._merged = [array.copy() for array in self._trained_arrays()]
        cut, schedule = self._cut(), self.schedule
        self._began = time.monotonic()
        self._record = UpdateRecord(self.update_count + 1, cut, Decision(schedule.base_lr(), 1.0, 1.0), self._world.size,
                                    schedule.samples_seen + cut.global_batch, time.perf_counter())

    def _trained(self):
        return [i for i, param in enumerate(self._params) if param.grad_req != 'null' and param._data is not None]

    def _trained_arrays(self):
        return [self._params[i]._data[0] for i in self._trained()]

    # -- the merge -----------------------------------------------------------------------------------------------

    def _merge(self):
        """All workers come together, each with its replica, and leave with the same model."""
        self.wait_for_weights()
        world, record = self._world, self._record
        mine = self._tell()
        everyone = [json.loads(told) for told in world.allgather_bytes(json.dumps(mine).encode(), 'adaptive.merge')]
        record.cut = with_spans(record.cut, [one['spans'] for one in everyone])
        _check_spans(record.cut)
        updates, batches = [[one[name] for one in everyone] for name in ('updates', 'batch')]
        alphas = self.merging.weights(updates, batches, [one['norm'] for one in everyone])
        self._merge_arrays(alphas[world.rank], alphas[world.rank] / sum(alphas))
        # The counts of an optimizer, and what else steers it, are those of the worker that has done the most.
        leader = everyone[updates.index(max(updates))]
        optimizers.load_settings(self._optimizer, leader['optimizer'], self._contexts[0].device_id)
        self._batches = dict(zip([one['token'] for one in everyone], self._scaling(batches, updates)))
        self._sampler.local_batch = self._batches[world.member.token]
        self._note_signals(everyone)
        record.decision = self.schedule.advance(record.cut.global_batch)
        record.seconds = time.perf_counter() - record.started
        losses = [one['loss'] for one in everyone]
        record.loss = None if None in losses else sum(losses) / record.cut.global_batch
        busiest = max(one['busy'] for one in everyone)
        record.details = {'replicas': [
            {'slot': one['slot'], 'updates': one['updates'], 'samples': sum(count for _, count in one['spans']),
             'batch': one['batch'], 'weight': alpha, 'busy_seconds': one['busy'], 'waiting_seconds': busiest - one['busy'],
             'asking_seconds': one['asking']} for one, alpha in zip(everyone, alphas)]}
        self._confirmed.append(record)
        self._sampler.advance()
        self.update_count += 1
        self._record, self._loss_sum, self._pass = None, None, 0
        self._spans, self._asking = [], 0.0

    def _tell(self):
        stop = 0.0
        if self.stop_asked:
            stop = 1.0 + _URGENT * (time.monotonic() - self._stop_asked_at > _URGENT_AFTER_SECONDS)
        member, world = self._world.member, self._world
        return {'token': member.token, 'slot': member.slot, 'updates': self._pass, 'batch': self._sampler.local_batch,
                'spans': self._spans, 'loss': None if self._loss_sum is None else float(self._loss_sum.asscalar()),
                'norm': self._norm(), 'busy': time.monotonic() - self._began, 'asking': self._asking,
                'optimizer': optimizers.settings(self._optimizer),
                'signals': [bool(world.change_announced()), bool(world.resize_pending()), stop]}

    def _norm(self):
        """The replica's L2 norm divided by its number of weights."""
        arrays = self._trained_arrays()
        squares = mx.nd.concat(*[array.astype('float32').square().sum().reshape(1) for array in arrays], dim=0).sum()
        return float(np.sqrt(squares.asscalar())) / sum(array.size for array in arrays)

    def _merge_arrays(self, alpha, share):
        """Set weights and optimizer state to the merged ones; nothing is changed before all has been summed up."""
        if self._lr_scale_of_state != 1.0:
            self._scale_momentum(1.0 / self._lr_scale_of_state)
            self._lr_scale_of_state = 1.0
        trained, weights, states = self._trained(), self._trained_arrays(), super().state_arrays()
        sums = [array * alpha for array in weights] + [array * share for array in states]
        if self._world.collective:
            kinds = {}
            for array in sums:
                kinds.setdefault((array.dtype, array.context), []).append(array)
            for number, group in enumerate(kinds.values()):
                self._world.allreduce_group_(group, f'adaptive.replicas.{number}')
        for array in sums:
            array.wait_to_read()
        momentum = self.merging.momentum
        for k, (i, weight, total) in enumerate(zip(trained, weights, sums)):
            if momentum:
                if i in self._velocity:
                    total += momentum * self._velocity[i]
                else:
                    self._velocity[i] = mx.nd.zeros_like(weight)
                mx.nd.elemwise_sub(total, self._merged[k], out=self._velocity[i])
                total.copyto(self._merged[k])
            weight[:] = total
        for state, total in zip(states, sums[len(weights):]):
            state[:] = total

    def _note_signals(self, everyone):
        announced, leaving, stops = zip(*[one['signals'] for one in everyone])
        self._resize_agreed = self._resize_agreed or any(leaving)
        self._stopping = sum(stops)
        if any(announced):
            self._world.prepare()

    def confirm(self):
        """Nothing is in flight after a merge.

        Raises
        ------
        RuntimeError
            In the middle of a mega-batch, when every worker has a model of its own.
        """
        if self.in_update:
            raise RuntimeError(f'{self._pass} updates were done since the last merge, and the mega-batch is not used up: '
                               f'evaluate, save and end only after a merge (when trainer.in_update is false), such as at '
                               f'the end of an epoch')

    # -- a failure -----------------------------------------------------------------------------------------------

    def _keep_replica(self):
        record = self._record
        if not record.cut.spans:
            record.cut = with_spans(record.cut, [self._spans if rank == self._world.rank else ()
                                                 for rank in range(self._world.size)])
        # It counts as begun no more, for it is gone on with; but others may have merged, and then it was done.
        self._confirmed.append(record)
        self._record = None
        loss = None if self._loss_sum is None else float(self._loss_sum.asscalar())
        if self._lr_scale_of_state != 1.0:
            self._scale_momentum(1.0 / self._lr_scale_of_state)
            self._lr_scale_of_state = 1.0
        self._replica = _Replica(self.update_count, record.cut.start, self._spans, loss,
                                 optimizers.settings(self._optimizer),
                                 [array.asnumpy() for array in self._trained_arrays()],
                                 [array.asnumpy() for array in super().state_arrays()])

    def _take_up_replica(self):
        """Before the first batch of a new world: go on with what this worker had."""
        kept, self._replica = self._replica, None
        if kept is None:
            return
        self._begin_mega_batch()
        self.make_states(self._trained())
        optimizers.load_settings(self._optimizer, kept.settings, self._contexts[0].device_id)
        for arrays, values in ((self._trained_arrays(), kept.weights), (super().state_arrays(), kept.states)):
            for array, value in zip(arrays, values):
                array[:] = mx.nd.array(value, dtype=value.dtype)
        self._spans, self._pass = list(kept.spans), len(kept.spans)
        self._loss_sum = None if kept.loss is None else mx.nd.array([kept.loss], ctx=self._contexts[0])

    # -- state ---------------------------------------------------------------------------------------------------

    def state_arrays(self):
        return super().state_arrays() + [self._velocity[i] for i in sorted(self._velocity)]

    def state_dict(self):
        return {**super().state_dict(), 'batches': self._batches, 'velocity': sorted(self._velocity)}

    def load_state_dict(self, saved):
        super().load_state_dict(saved)
        self._batches = dict(saved['batches'])
        known = self._velocity
        self._velocity = {i: known[i] if i in known else mx.nd.zeros_like(self._params[i]._data[0])
                          for i in saved['velocity']}


def _check_spans(cut):
    """Every sample of a mega-batch exactly once."""
    at = cut.start
    for start, count in sorted(span for spans in cut.spans for span in spans):
        if start != at:
            raise RuntimeError(f'samples {min(at, start)} to {max(at, start)} of the stream were used twice or not at all')
        at += count
    if at != cut.start + cut.global_batch:
        raise RuntimeError(f'samples {at} to {cut.start + cut.global_batch} of the stream were not used')
