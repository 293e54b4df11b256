"""DynamicTrainer: a gluon.Trainer whose updates follow a world that changes size."""

from __future__ import annotations

import itertools
import logging
import math
import time
from dataclasses import dataclass, field

import mxnet as mx
import numpy as np
from mxnet import gluon

from . import optimizers
from .control import Known, Packer
from .logical import LogicalUpdates
from .noise import NoiseScale
from .schedule import Decision, DynamicSchedule
from .updater import Updater

__all__ = ['DynamicTrainer', 'UpdateRecord']

log = logging.getLogger('hvd_dynamic')

_PATIENCE = 200     # updates without a commit after a resize was announced
# A worker that was told to end says 1, and this more when the others have not been told so within a second: then it is not
# the job that is stopped but this worker's machine.
_URGENT, _URGENT_AFTER_SECONDS = 100000.0, 1.0


@dataclass
class UpdateRecord:
    """One update that was started: what it used, and (once it is known) how it went."""

    update: int
    cut: object                 # sampler.Update
    decision: Decision
    world_size: int
    samples: int
    started: float
    normalizer: float | None = None
    loss: float | None = None
    seconds: float | None = None
    noise_scale: float | None = None
    details: dict = field(default_factory=dict)     # more for the log


class DynamicTrainer(gluon.Trainer):
    """Gluon's trainer for elastic data parallel training.

    An update uses the sum of the samples' gradients over all workers divided by the global batch, also when the local
    batches differ. Learning rate and momentum follow the schedule's policy (arXiv 1904.12043). The trainer must be part
    of a `GluonState`, from which it gets the world and the sampler.

    Whether the job is about to be resized is agreed on by a few numbers that travel with the gradients; there is no
    round trip of its own.

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        As for gluon.Trainer. Their order must be the same on all workers; that of `collect_params()` is.
    optimizer : str or mx.optimizer.Optimizer
        Any dense optimizer. For sgd, nag, lars and lbsgd (also multi-precision) the momentum buffer is corrected when
        the learning rate scale changes; for all others it is left alone.
    optimizer_params : dict, optional
        As for gluon.Trainer, but without 'learning_rate' and 'lr_scheduler': those are the schedule's.
    schedule : DynamicSchedule
    num_groups : int, optional
        As in `hvd.DistributedTrainer`: in how many operations the gradients are sent; 0 sends each by itself, as soon as
        it is there. Default: 1 on CPUs, where backward leaves no idle time to send in, and 0 on GPUs.
    noise_scale : bool, optional
        Measure the gradient noise scale (`hvd_dynamic.noise`), for the log and the report. Norms of the gradients before and
        after they are summed travel with those of the next update; nothing waits for them. Default: only if the
        schedule's policy needs it.

    Raises
    ------
    TypeError, ValueError
        For a schedule that is none, a learning rate given twice, sparse parameters, several devices in one worker,
        a noise scale that is switched off though the policy needs it.
    """

    def __init__(self, params, optimizer, optimizer_params=None, *, schedule, num_groups=None, noise_scale=None):
        if not isinstance(schedule, DynamicSchedule):
            raise TypeError(f'schedule must be a DynamicSchedule, got {schedule!r}')
        if noise_scale is False and schedule.policy.follows_noise:
            raise ValueError(f'noise_scale=False, but the policy {schedule.policy!r} needs it: leave it out or choose '
                             f'another policy')
        for name in ('learning_rate', 'lr_scheduler'):
            if optimizer_params and name in optimizer_params:
                raise ValueError(f'optimizer_params has {name!r}={optimizer_params[name]!r}, but the schedule decides the '
                                 f'learning rate: give it to DynamicSchedule as its base and leave it out here')
        if getattr(optimizer, 'lr_scheduler', None) is not None:
            raise ValueError('optimizer has an lr_scheduler, but the schedule decides the learning rate: give the '
                             'scheduler to DynamicSchedule as its base and make the optimizer without one')
        if hasattr(params, 'values'):
            # In the order in which the network was built. gluon.Trainer sorts by name, where dense10 comes before
            # dense9: an order that depends on how many layers a process had made before.
            params = list(params.values())
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._check_parameters()
        optimizers.check(self._optimizer)
        on_cpu = all(ctx.device_type == 'cpu' for ctx in self._contexts)
        if on_cpu:
            self._updaters = [Updater(self._optimizer)]
        if num_groups is None:
            num_groups = int(on_cpu)
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f'num_groups must be an integer of at least 0, got {num_groups!r}')
        self._num_groups = num_groups
        self._kv_initialized, self._params_to_init = True, []
        self.schedule = schedule
        schedule.default_scaling = optimizers.default_scaling(self._optimizer)
        self._momentum_of = optimizers.momentum_rule(self._optimizer)
        self.update_count = 0
        self.before_update = lambda: None           # GluonState stores the pending commit here
        self.digest = None                          # and gives a function here if the log is to have a digest each epoch
        self._world = self._sampler = self._statistics = None
        self._record = self._control = None         # of the update in flight
        self._confirmed = []
        self._resize_agreed, self._kept_waiting = False, 0
        self._stop_asked_at, self._stopping = None, 0.0
        self._pass, self._sizes = 0, None
        self._accumulating, self._several = [], False
        self._loss_sum = self._normalizer_sum = None
        self._noise = NoiseScale() if noise_scale or schedule.policy.follows_noise else None
        self._gradient_sums = {}                    # over the passes of an update, while noise is measured
        self._local_norm = self._global_norm = self._awaiting = None
        self._reduced = False
        self._logical, self._exponents = None, {}   # LogicalUpdates; what its sums know
        self._packer = Packer()
        self._told_of_loader = False

    def _check_parameters(self):
        for param in self._params:
            if param._stype != 'default' or param._grad_stype != 'default':
                raise ValueError(f'parameter {param.name} is sparse, which DynamicTrainer does not support; make it with '
                                 f"stype='default' and grad_stype='default' (sparse_grad=False)")
            if len(param.list_ctx()) > 1:
                raise ValueError(f'parameter {param.name} is on {len(param.list_ctx())} devices; a worker has one: start '
                                 f'one worker for each device and initialise with ctx=mx.gpu(hvd_dynamic.local_rank())')

    # -- the world ---------------------------------------------------------------------------------------------

    def attach(self, world, sampler, statistics):
        """Called by `GluonState`: where the updates happen, what they are made of, and the workers' running statistics."""
        if self._noise is not None and world.one_pass:
            raise ValueError('the noise scale cannot be measured with VirtualWorld(one_pass=True), which does not see each '
                             "worker's gradients: leave one_pass out")
        if self._noise is not None and sampler.logical_workers is not None:
            raise ValueError(f'the noise scale cannot be measured with logical_workers={sampler.logical_workers}: its norms '
                             f'are float32 sums, which depend on the number of workers; choose a policy that needs none')
        self._world, self._sampler, self._statistics = world, sampler, statistics
        if sampler.logical_workers is not None:
            self._logical = LogicalUpdates(sampler, self._params, statistics)
            self._logical.exponents = self._exponents
            sampler.before_batches = self._seed_pass
            sampler.seed_mxnet = lambda: self._logical.seed_mxnet(self.update_count, self._pass)

    def arguments(self, sampler):
        """What must be the same on all workers, besides optimizer and schedule, by name."""
        return {}

    def begin_round(self):
        """A new world has been entered, or the last commit restored: nothing is in flight any more."""
        self._record = self._control = self._loss_sum = self._normalizer_sum = self._sizes = None
        self._local_norm = self._global_norm = self._awaiting = None
        self._gradient_sums = {}
        self._confirmed, self._pass = [], 0
        if self._logical is not None:
            self._logical.begin_round()
        self._resize_agreed, self._reduced, self._kept_waiting, self._stopping = False, False, 0, 0.0
        self._arrange_accumulation()
        self._begin_update()

    def _begin_update(self):
        if self._logical is not None:
            self._logical.begin_update(self.update_count)
        elif len(self._sampler.ranks) > 1:
            self._statistics.begin()

    def _seed_pass(self):
        """The random numbers of the pass at hand, whatever has drawn some since the last one (an evaluation, say)."""
        self._logical.seed(self.update_count, self._pass)

    def seed_first(self):
        """With logical workers: the random numbers of the very first pass, which also initialises weights."""
        if self._logical is not None:
            self._logical.seed_worker(0, 0)

    def _arrange_accumulation(self):
        # Several passes an update add to the gradients; with one, backward overwrites them, as usual. To measure noise each
        # pass's own gradients are needed, and `_take_pass` adds them.
        self._several = self._sampler.most_passes > 1 and self._noise is None and self._logical is None
        if self._several:
            self._add_gradients()
            self._zero_gradients()
        else:
            for param in self._accumulating:
                if param.grad_req == 'add':         # else it has been frozen meanwhile
                    param.grad_req = 'write'
            self._accumulating = []

    def _add_gradients(self):
        """Have backward add to the gradients in place of overwriting them; those that are there are kept."""
        for param in self._params:
            if param.grad_req == 'write':
                present = param.grad().copy() if param._data is not None else None
                param.grad_req = 'add'          # makes new, empty gradients
                if present is not None:
                    present.copyto(param.grad())
                self._accumulating.append(param)

    def _zero_gradients(self):
        gradients = [param.grad() for param in self._accumulating if param._grad is not None]
        if gradients:
            mx.nd.reset_arrays(*gradients, num_arrays=len(gradients))

    @property
    def resize_agreed(self):
        """Whether all workers know that the world is about to be resized and leave at their next commit."""
        if not self._world.collective:
            return self._world.resize_pending()
        return self._resize_agreed

    def ask_to_stop(self):
        """This worker is told to end (SIGTERM): it tells the others with the next update."""
        self._stop_asked_at = time.monotonic()

    @property
    def stop_asked(self):
        """Whether this worker was told to end."""
        return self._stop_asked_at is not None

    @property
    def stop_agreed(self):
        """Whether all workers know that all were told to end, and do so at their next commit."""
        if not self._world.collective:
            return self.stop_asked
        return self._stopping % _URGENT == self._world.size

    @property
    def departure_agreed(self):
        """Whether all workers know that some, but not all, were told to end, and leave the world at their next commit."""
        return self._stopping >= _URGENT and not self.stop_agreed

    @property
    def in_update(self):
        """Whether an update has begun (some of its passes are done) and is not finished."""
        return self._pass > 0

    # -- the step loop -----------------------------------------------------------------------------------------

    def step(self, batch_size, ignore_stale_grad=False, loss=None, normalizer=None):
        """One update, or one pass of it, after ``loss.backward()`` on the per-sample losses.

        Parameters
        ----------
        batch_size : int
            Samples in this batch, as the sampler cut it: ``len(data)``.
        ignore_stale_grad : bool, default False
            As in gluon.Trainer.
        loss : NDArray, optional
            The per-sample losses of this batch. Their sum travels with the gradients, so that the log has the exact
            mean loss over all workers at no extra round trip.
        normalizer : NDArray of one float32, or float, optional
            What this batch adds to the number by which the update is divided in place of the global batch: the matched
            anchors of a detector, say, or the pixels that have a label. The update is then the sum of the gradients
            of all workers over the sum of their normalizers, and so is the loss in the log. It travels with the
            gradients, and nothing waits for it. A worker may have none (0); if nobody has any, the sum of the gradients
            is divided by 1. All workers give it, in every pass, or none does.

        Raises
        ------
        ValueError
            If `batch_size` is not what the sampler dealt out, or `normalizer` is not a single number.
        RuntimeError
            If the trainer is not part of a GluonState that `hvd_dynamic.run` works on.
        """
        if not self._pass_done(batch_size, loss, normalizer):
            return
        self.allreduce_grads()
        self._finish(ignore_stale_grad)

    def _pass_done(self, batch_size, loss, normalizer=None):
        """Check one pass; True if it was the last of its update."""
        cut = self._cut()
        if self._sizes is None:
            by_worker = self._sampler.passes_by_worker(cut)
            self._sizes = [size for sizes in by_worker for size in sizes]
            self._last_passes = list(itertools.accumulate(map(len, by_worker)))
        expected = self._sizes[self._pass]
        if batch_size != expected:
            raise ValueError(f'trainer.step got batch_size={batch_size}, but the sampler dealt out {expected} samples for '
                             f'this batch (update {self.update_count + 1}, epoch {cut.epoch}): pass len(data), and call '
                             f'step once for every batch of a loader made with batch_sampler=sampler')
        if not self._sampler.in_use and not self._told_of_loader:
            self._told_of_loader = True
            log.warning('the batches do not come from the sampler: make the loader with DataLoader(data_set, '
                        'batch_sampler=sampler), or samples will be used twice or not at all')
        if loss is not None:
            if loss.size == 1 and batch_size > 1:
                raise ValueError(f'loss is a single number for {batch_size} samples; give the per-sample losses, as they '
                                 f'are before any mean')
            total = loss.astype('float32').sum().reshape(1)
            self._loss_sum = total if self._loss_sum is None else self._loss_sum + total
        self._add_normalizer(normalizer)
        if self._several:
            self._add_gradients()       # of layers that were unfrozen since the last update
        self._pass += 1
        if self._logical is not None:
            self._logical.pass_done(self._loss_sum, self._normalizer_sum, self._pass == len(self._sizes))
            self._loss_sum = self._normalizer_sum = None
            if self._pass < len(self._sizes):
                self._seed_pass()
        elif len(self._last_passes) > 1 and self._pass in self._last_passes:
            self._statistics.worker_done(self._last_passes.index(self._pass), len(self._last_passes),
                                         self._gradients().values())
        if self._noise is not None and len(self._sizes) > 1:
            self._take_pass(batch_size)
        return self._pass == len(self._sizes)

    def _add_normalizer(self, normalizer):
        if (normalizer is None) != (self._normalizer_sum is None) and self._pass and self._logical is None:
            raise ValueError('normalizer was given for some passes of this update and not for others; give it with every '
                             'call of trainer.step')
        if normalizer is None:
            return
        if not isinstance(normalizer, mx.nd.NDArray):
            if not math.isfinite(normalizer) or normalizer < 0:
                raise ValueError(f'normalizer must be a number of at least 0, got {normalizer!r}')
            normalizer = mx.nd.array([normalizer], ctx=self._contexts[0])
        if normalizer.size != 1:
            raise ValueError(f'normalizer must be a single number, the sum over the batch, got shape {normalizer.shape}')
        normalizer = normalizer.astype('float32').reshape(1)
        self._normalizer_sum = normalizer if self._normalizer_sum is None else self._normalizer_sum + normalizer

    def _gradients(self):
        return {i: param.list_grad()[0] for i, param in enumerate(self._params) if param.grad_req != 'null'}

    def _squared_norm(self):
        gradients = list(self._gradients().values())
        return mx.nd.multi_sum_sq(*gradients, num_arrays=len(gradients)).sum().reshape(1)

    def _take_pass(self, samples):
        """Measure the gradients of one of several passes, and add them up."""
        norm = self._squared_norm() / samples
        self._local_norm = norm if self._local_norm is None else self._local_norm + norm
        last = self._pass == len(self._sizes)
        for i, gradient in self._gradients().items():
            known = self._gradient_sums.get(i)
            if self._pass == 1:
                if known is None or known.shape != gradient.shape:
                    self._gradient_sums[i] = gradient.copy()
                else:
                    gradient.copyto(known)
            elif last:
                gradient += known
            else:
                known += gradient

    def _cut(self):
        if self._world is None or self._world.generation == 0:
            raise RuntimeError('DynamicTrainer works inside a function decorated with hvd_dynamic.run: make '
                               'GluonState(net=net, trainer=trainer, sampler=sampler) and pass it to that function')
        cut = self._sampler.next_update()
        if cut is None:
            raise ValueError(f'trainer.step was called after the last update of epoch {self._sampler.epoch}: call it once '
                             f'for every batch of a loader made with batch_sampler=sampler')
        return cut

    def allreduce_grads(self, normalizer=None):
        """Sum the gradients over the workers (to clip them, say), to be followed by `update`.

        With a `normalizer` (as in `step`) they are also scaled: divided by the global batch, as `update` does, they are
        the sum over the workers' normalizers.

        Before that, the previous update is made sure of. Its own collectives are done by the time this one's can start,
        and forward and backward are already queued behind it, so the device does not idle. Its pending commit is copied
        while the gradients travel: they are sent first, for a CPU does what is queued on it in turn.
        """
        if self._reduced:
            raise RuntimeError('the gradients of this update have been summed already: call trainer.update() next')
        cut = self._cut()
        if self._logical is not None and (self._sizes is None or self._pass < len(self._sizes)):
            raise RuntimeError(f'with logical_workers={self._sampler.logical_workers} an update has several passes, for '
                               f"which trainer.step() must be used; to clip gradients, give the optimizer a 'clip_gradient'")
        if normalizer is not None:
            self._add_normalizer(normalizer)
        self.confirm()
        decision = self.schedule.advance(cut.global_batch)
        corrects_momentum = decision.momentum_scale != 1.0
        if corrects_momentum:
            self.before_update()
            self._scale_momentum(decision.momentum_scale)
        self._optimizer.set_learning_rate(decision.lr)
        self._record = UpdateRecord(self.update_count + 1, cut, decision, self._world.size, self.schedule.samples_seen,
                                    time.perf_counter())
        if self._noise is not None and self._local_norm is None:
            self._local_norm = self._squared_norm() / sum(sum(sizes) for sizes in self._sampler.passes_by_worker(cut))
        if self._logical is not None:
            self._sum_exactly(cut)
            self._reduced = True
            return
        self._control = self._make_control()
        self._allreduce_grads()
        if self._noise is not None:
            self._global_norm = self._squared_norm() / cut.global_batch
        if not corrects_momentum:
            self.before_update()
        if self._normalized:
            self._normalize()
        self._reduced = True

    def update(self, batch_size, ignore_stale_grad=False):
        """The second half of `step`, after `allreduce_grads`.

        Parameters
        ----------
        batch_size : int
            Samples in this worker's local batch, ``len(data)``.
        """
        if not self._reduced:
            raise RuntimeError('call trainer.allreduce_grads() before trainer.update(), or trainer.step() for both')
        if not self._pass_done(batch_size, None):
            raise RuntimeError(f'this update takes {len(self._sizes)} passes, for which trainer.step() must be used')
        self._finish(ignore_stale_grad)

    def _sum_exactly(self, cut):
        """The sum of all logical workers' gradients: here the host does the work, so it waits."""
        self._logical.send(self._world, self._signals())
        self.before_update()
        self._control = Known(self._logical.receive(self._world, cut.global_batch))
        self._exponents = self._logical.exponents

    def _signals(self):
        if not self._world.collective:
            return {}
        stopping = 0.0
        if self.stop_asked:
            stopping = 1.0 + _URGENT * (time.monotonic() - self._stop_asked_at > _URGENT_AFTER_SECONDS)
        return {'announced': float(self._world.change_announced()), 'leaving': float(self._world.resize_pending()),
                'stopping': stopping}

    def _make_control(self):
        """What travels with the gradients: a Packet, or None.

        announced, leaving, stopping: who knows of a change, wants to leave, is told to end (alone, a process has no use for
        them); loss, normalizer: sums over the batch, NaN if the script gives none; and of the noise scale the sum of the
        squared norms of passes, the number of passes, and the squared norm of the sum of the update before.
        """
        (loss, self._loss_sum), (normalizer, self._normalizer_sum) = (self._loss_sum, None), (self._normalizer_sum, None)
        self._normalized = normalizer is not None
        numbers = self._signals()
        for name, array in (('loss', loss), ('normalizer', normalizer)):
            if array is not None or self._world.collective:
                numbers[name] = np.nan if array is None else array
        if self._noise is not None:
            numbers.update(local_norm=self._local_norm, passes=float(len(self._sizes) if self._sizes else 1),
                           norm_before=0.0 if self._global_norm is None else self._global_norm)
            self._local_norm = self._global_norm = None
        if not numbers:
            return None
        context = next((array.context for array in (loss, normalizer) if array is not None), self._contexts[0])
        return self._packer.pack(numbers, context)

    def _normalize(self):
        """Have the gradients' sum over the global batch be their sum over the normalizers' sum; waits for nothing."""
        total = self._control['normalizer']
        # A ratio, and not the normalizer itself, which float16 could not hold.
        ratio = self._record.cut.global_batch / mx.nd.where(total != 0, total, mx.nd.ones_like(total))
        ratios = {}             # by type: one small operation less for each parameter
        for gradient in self._gradients().values():
            if gradient.dtype not in ratios:
                ratios[gradient.dtype] = ratio.astype(gradient.dtype)
            factor = ratios[gradient.dtype].reshape((1,) * gradient.ndim)
            mx.nd.broadcast_mul(gradient, factor, out=gradient)

    def _allreduce_grads(self):
        if not self._world.collective:
            return
        arrays = [param.list_grad()[0] for param in self._params if param.grad_req != 'null'] + [self._control.array]
        if self._num_groups == 0:
            for i, array in enumerate(arrays):
                self._world.allreduce_(array, f'grad.{i}', priority=-i)
            return
        per_group = -(-len(arrays) // self._num_groups)
        for start in range(0, len(arrays), per_group):
            by_type = {}
            for array in arrays[start:start + per_group]:
                by_type.setdefault((array.dtype, array.context), []).append(array)
            for kind, group in enumerate(by_type.values()):
                self._world.allreduce_group_(group, f'grads.{start}.{kind}')

    def _finish(self, ignore_stale_grad):
        self._check_and_rescale_grad(self._scale / self._record.cut.global_batch)
        self._update(ignore_stale_grad)
        if self._accumulating:
            self._zero_gradients()
        self._sampler.advance()
        self.update_count += 1
        self._pass, self._sizes, self._reduced = 0, None, False
        self._begin_update()
        if self.digest is not None and self._sampler.next_update() is None:
            self._record.details['digest'] = self.digest()
        if self.resize_agreed:
            self._kept_waiting += 1
            if self._kept_waiting == _PATIENCE and self._world.rank == 0:
                log.warning('a resize was announced %d updates ago and waits for state.commit()', _PATIENCE)

    def _scale_momentum(self, factor):
        if self._momentum_of is None:
            return
        for state in self._updaters[0].states.values():
            momentum = self._momentum_of(state)
            if momentum is not None:
                momentum *= factor

    # -- what is known of updates ------------------------------------------------------------------------------

    def confirm(self):
        """Wait for what travelled with the update in flight and take it in.

        Raises
        ------
        MXNetError
            If a collective of the update failed.
        """
        if self._record is None:
            return
        numbers = {} if self._control is None else self._control.read()
        if self._world.collective:
            self._stopping = numbers['stopping']
            self._resize_agreed = self._resize_agreed or numbers['leaving'] > 0
            announced = numbers['announced'] > 0
        else:
            announced = self._world.change_announced()
        if announced:
            self._world.prepare()
        if self._noise is not None:
            self._observe_noise(numbers['local_norm'], numbers['passes'], numbers['norm_before'])
        record, self._record, self._control = self._record, None, None
        loss, normalizer = numbers.get('loss', np.nan), numbers.get('normalizer', np.nan)
        record.normalizer = None if np.isnan(normalizer) else normalizer
        record.loss = None if np.isnan(loss) else loss / (record.cut.global_batch if record.normalizer is None
                                                          else normalizer or 1.0)
        record.seconds = time.perf_counter() - record.started
        record.noise_scale = self.schedule.noise_scale
        self._confirmed.append(record)

    def _observe_noise(self, local, passes, total_before):
        # All workers read the same sums, so they have the same estimate to the last bit; a norm that each worked out for
        # itself might differ in its last digit, and with AdaScale the learning rate.
        if self._awaiting is not None:
            self._noise.observe(*self._awaiting, total_before / self._processes)
            self.schedule.noise_scale = self._noise.value
        self._awaiting = local, round(passes), self._record.cut.global_batch

    @property
    def _processes(self):
        return self._world.size if self._world.collective else 1

    def wait_for_weights(self):
        """Wait until the weights of all updates started are there; raises what went wrong in them."""
        for param in self._params:
            if param.grad_req != 'null' and param._data is not None:
                param.list_data()[0].wait_to_read()

    def take_confirmed(self):
        """The records of updates that have been confirmed since the last call."""
        records, self._confirmed = self._confirmed, []
        return records

    @property
    def in_flight(self):
        """The record of the update that is not confirmed yet, or None."""
        return self._record

    # -- optimizer state ---------------------------------------------------------------------------------------

    def state_arrays(self):
        """All NDArrays of the optimizer's state, in a fixed order; empty before the first update."""
        states = self._updaters[0].states
        return [leaf for i in sorted(states) for leaf in optimizers.flatten_state(states[i]) if leaf is not None]

    def state_indices(self):
        """The parameters (by number) that have optimizer state."""
        return sorted(self._updaters[0].states)

    def make_states(self, indices):
        """Have optimizer state for exactly these parameters, as a worker has that has done updates."""
        updater = self._updaters[0]
        for i in set(updater.states) - set(indices):
            del updater.states[i], updater.states_synced[i]
        for i in indices:
            if i not in updater.states:
                weight = self._params[i].list_data()[0]
                updater.states[i] = self._optimizer.create_state_multi_precision(i, weight)
                updater.states_synced[i] = True

    def state_dict(self):
        """The numbers of optimizer and schedule, as JSON values; arrays are in `state_arrays`."""
        numbers = {'update': self.update_count, 'optimizer': optimizers.settings(self._optimizer),
                   'schedule': self.schedule.state_dict(), 'states': self.state_indices(),
                   'noise': None if self._noise is None else self._noise.state_dict()}
        if self._exponents:
            numbers['exponents'] = dict(self._exponents)
        return numbers

    def load_state_dict(self, saved):
        """Take up what `state_dict` gave; makes the optimizer state, whose arrays the caller then fills."""
        self.update_count = saved['update']
        optimizers.load_settings(self._optimizer, saved['optimizer'], self._contexts[0].device_id)
        self.schedule.load_state_dict(saved['schedule'])
        if self._noise is not None and saved.get('noise') is not None:
            self._noise.load_state_dict(saved['noise'])
            self.schedule.noise_scale = self._noise.value
        self._exponents = dict(saved.get('exponents', {}))
        if self._logical is not None:
            self._logical.exponents = self._exponents
        self.make_states(saved['states'])

    def set_learning_rate(self, lr):
        """Not supported: the schedule decides the learning rate, anew in every update."""
        raise RuntimeError(f'set_learning_rate({lr!r}) would be undone by the next update: the schedule decides the '
                           f'learning rate; make the change in the base of DynamicSchedule')

    def save_states(self, fname):
        """Not supported: use `GluonState`, which holds the schedule's and the sampler's position too."""
        raise RuntimeError('DynamicTrainer.save_states would lose the position of schedule and sampler; GluonState '
                           'carries all of the state')

    load_states = save_states
