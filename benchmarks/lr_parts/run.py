"""One training of the comparison, and what is kept of it."""

from __future__ import annotations

import math
import random
import time

import mxnet as mx
import numpy as np
from mxnet import autograd

import hvd_dynamic as dynamic
from benchmarks.lr_parts.plan import LARGEST, POLICIES, SMALLEST, STATIC
from benchmarks.lr_parts.tasks import TASKS
from hvd_dynamic import policies, traces

__all__ = ['do']

#: Local batches of FixedGlobalBatch get smaller as the world grows; more workers than this would leave less than half a
#: reference worker's samples to each, and wait.
MOST_FIXED = 16
_DIVERGED = 1e4         # a mean loss from which none of these networks comes back


class _Recorder(dynamic.RunLog):
    """Keeps losses and resizes in memory."""

    def __init__(self):
        self.losses, self.resizes = [], []

    def metrics(self, record):
        self.losses.append((record.samples, record.cut.global_batch, record.loss))

    def event(self, kind, update, **fields):
        if kind == 'resized':
            self.resizes.append((self.losses[-1][0], fields['old_size'], fields['new_size']))

    def started(self, record, slots):
        pass

    def settle(self, update, sampler, ranks):
        pass

    def begin_round(self, update):
        pass


def trace_of(run, epochs):
    """The trace of a run; the seed of a run is also that of its trace."""
    if run.policy == STATIC:
        return traces.Trace('epochs', [(0, SMALLEST)])
    trace = traces.ready(run.trace, epochs, SMALLEST, LARGEST[run.task], run.seed)
    if run.policy == 'fixed-global-batch':
        trace = traces.Trace('epochs', _merged([(at, min(size, MOST_FIXED)) for at, size in trace.points]))
    return trace


def _merged(points):
    return [point for i, point in enumerate(points) if i == 0 or point[1] != points[i - 1][1]]


def do(run):
    """Train.

    Parameters
    ----------
    run : benchmarks.lr_parts.plan.Run

    Returns
    -------
    dict
        JSON values: the run's own fields; ``lr`` and ``epochs`` of the task; ``metrics``, by epoch; ``diverged``; ``growth``
        and ``shrink``: for each resize the highest loss after it over the loss before, None where that is not finite;
        ``cpu_seconds``.
    """
    begun = time.process_time()
    task = TASKS[run.task]
    random.seed(run.seed)
    np.random.seed(run.seed)
    setting = task.make(run.seed)
    policy = policies.Smooth() if run.policy == STATIC else POLICIES[run.policy](setting.length)
    world = dynamic.VirtualWorld(trace=trace_of(run, task.epochs), one_pass=task.one_pass and not policy.follows_noise)
    dynamic.init(world)
    sampler = dynamic.ElasticSampler(setting.length, task.local_batch, seed=run.seed)
    schedule = dynamic.DynamicSchedule(task.base_lr(run.factor), task.reference_batch, policy=policy)
    trainer = dynamic.DynamicTrainer(setting.net.collect_params(), 'sgd', {'momentum': 0.9, 'wd': 1e-4}, schedule=schedule)
    recorder, metrics = _Recorder(), []
    state = dynamic.GluonState(net=setting.net, trainer=trainer, sampler=sampler, run_log=recorder, epoch=0)

    @dynamic.run
    def train(state):
        for state.epoch in range(state.epoch, task.epochs):
            for batch in sampler:
                with autograd.record():
                    loss, normalizer = setting.forward(batch)
                loss.backward()
                trainer.step(len(batch), loss=loss, normalizer=normalizer)
                if recorder.losses and not _is_sound(recorder.losses[-1][2]):
                    return
                state.commit()
            metrics.append(setting.evaluate())

    train(state)
    mx.nd.waitall()
    lost = [loss for _, _, loss in recorder.losses if not _is_sound(loss)]
    last = _mean(recorder.losses, (task.epochs - 1) * setting.length, math.inf)
    growth, shrink = _peaks(recorder, setting.length)
    return {**vars(run), 'lr': task.lr, 'epochs': task.epochs, 'metrics': [round(value, 4) for value in metrics],
            'diverged': bool(lost) or last >= setting.hopeless, 'growth': growth, 'shrink': shrink,
            'cpu_seconds': round(time.process_time() - begun, 1)}


def _is_sound(loss):
    return loss is not None and math.isfinite(loss) and loss < _DIVERGED


def _mean(losses, low, high):
    """Mean loss of the samples from `low` to `high`."""
    inside = [(batch, loss) for samples, batch, loss in losses if low < samples <= high and _is_sound(loss)]
    weight = sum(batch for batch, _ in inside)
    return sum(batch * loss for batch, loss in inside) / weight if weight else math.nan


def _peaks(recorder, length):
    """For each growth, and for each shrink: the highest mean loss over a quarter of an epoch, within an epoch after it and
    before the next resize, over the mean of half an epoch before."""
    growth, shrink = [], []
    edges = [at for at, _, _ in recorder.resizes] + [math.inf]
    for (at, old, new), following in zip(recorder.resizes, edges[1:]):
        before = _mean(recorder.losses, at - length / 2, at)
        after = [(samples, loss) for samples, _, loss in recorder.losses if at < samples <= min(at + length, following)]
        if not after:
            continue
        peak = max(_mean(recorder.losses, max(at, samples - length / 4), samples) if _is_sound(loss) else math.inf
                   for samples, loss in after)
        ratio = peak / before if before > 0 else math.inf
        (growth if new > old else shrink).append(round(ratio, 3) if math.isfinite(ratio) else None)
    return growth, shrink
