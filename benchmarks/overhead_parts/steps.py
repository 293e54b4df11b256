"""A worker that times updates: ``python -m benchmarks.overhead_parts.steps``, started by `benchmarks.overhead`.

The kinds of update take turns in short blocks. A block begins when all workers are there with nothing in flight, and ends
when its last update is done, its commit stored included.
"""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from benchmarks.overhead_parts.cases import CASES, LOOPS, VARIANTS

_SEED = 5
_CLASSES = 10
_BATCHES = 4
# So small that the weights hardly move: a network that has learned its few batches by heart would end in denormal
# numbers, with which CPUs are slow.
_LEARNING_RATE = 1e-5
_OPTIMIZER = {'momentum': 0.9, 'wd': 1e-4}


class SwitchedLog(dynamic.RunLog):
    """A run log that writes only while it is on, so that one job measures updates with it and without."""

    on = False

    def metrics(self, record):
        if self.on:
            super().metrics(record)

    def started(self, record, slots):
        if self.on:
            super().started(record, slots)

    def settle(self, update, sampler, ranks):
        if self.on:
            super().settle(update, sampler, ranks)


class Training:
    """A network with its data, and one update of it with a given trainer.

    Parameters
    ----------
    case : Case
    """

    def __init__(self, case):
        mx.random.seed(_SEED)
        rng = np.random.RandomState(_SEED)
        self.batch = case.batch
        self.net = _network(case.network)
        self.net.initialize(mx.init.Xavier())
        self.net.hybridize()
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        shape = (case.batch, 3, case.image, case.image)
        self._batches = [(mx.nd.array(rng.randn(*shape).astype('float32')),
                          mx.nd.array(rng.randint(_CLASSES, size=case.batch))) for _ in range(_BATCHES)]
        self.net(self._batches[0][0]).wait_to_read()        # finishes deferred initialisation

    def update(self, number, trainer, tell_loss=False):
        """One update.

        Parameters
        ----------
        number : int
            Which of the batches to use, taken modulo their number.
        trainer : gluon.Trainer
        tell_loss : bool
            Have `DynamicTrainer` send the loss with the gradients, as a run's log wants it.

        Returns
        -------
        NDArray
            The loss of each sample.
        """
        data, label = self._batches[number % _BATCHES]
        with autograd.record():
            loss = self._loss(self.net(data), label)
        loss.backward()
        if tell_loss:
            trainer.step(self.batch, loss=loss)
        else:
            trainer.step(self.batch)
        return loss


def _network(name):
    if name == 'mlp':
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(64, activation='relu'), gluon.nn.Dense(_CLASSES))
        return net
    from gluoncv import model_zoo
    return model_zoo.get_model(name, classes=_CLASSES)


def plain_trainer(net, prefix, **options):
    """Horovod's own trainer, with a prefix that keeps its operations apart from other trainers'."""
    return hvd.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': _LEARNING_RATE, **_OPTIMIZER},
                                  prefix=prefix, **options)


def measure(variants, updates, sweeps):
    """Time blocks of updates.

    Parameters
    ----------
    variants : dict of str to (callable, callable)
        By name: ``update(number)``, which returns the loss, and ``settle()``, which does what is left to do for the last
        update.
    updates : int
        In a block.
    sweeps : int
        Blocks of each kind.

    Returns
    -------
    list of dict
        One for each block: variant, loop, and for each update the seconds, the CPU seconds of the process, and those of
        the Python thread alone (host_seconds).
    """
    kinds = [(name, loop) for name in variants for loop in LOOPS]
    for name in variants:
        _block(*variants[name], 'read', 2)
    blocks = []
    for sweep in range(sweeps):
        # There and back, so that a drift of the machine's speed falls on all kinds alike.
        for name, loop in kinds[::1 if sweep % 2 == 0 else -1]:
            blocks.append({'variant': name, 'loop': loop, **_block(*variants[name], loop, updates)})
    return blocks


def _block(update, settle, loop, updates):
    settle()
    mx.nd.waitall()
    hvd.allreduce(mx.nd.zeros((1,)), name='block').wait_to_read()
    clocks = {'seconds': time.perf_counter, 'cpu_seconds': time.process_time, 'host_seconds': time.thread_time}
    starts = {name: clock() for name, clock in clocks.items()}
    for number in range(updates):
        loss = update(number)
        if loop == 'read':
            loss.asnumpy()
    settle()
    mx.nd.waitall()
    return {name: (clock() - starts[name]) / updates for name, clock in clocks.items()}


def measure_plain(case, sweeps):
    """Horovod's trainer in a job of its own, with Horovod's default settings."""
    hvd.init()
    training = Training(case)
    trainers = {'plain': plain_trainer(training.net, 'plain.'),
                'plain-grouped': plain_trainer(training.net, 'grouped.', num_groups=1)}
    variants = {name: (lambda number, trainer=trainer: training.update(number, trainer), lambda: None)
                for name, trainer in trainers.items()}
    blocks = measure(variants, case.updates, sweeps)
    hvd.allreduce(mx.nd.zeros((1,)), name='end').wait_to_read()
    return blocks, hvd.rank()


def measure_dynamic(case, sweeps, names, folder):
    """The trainer of hvd_dynamic, with and without commits, and Horovod's own beside it in the same processes."""
    dynamic.init()
    training = Training(case)
    # Long enough for the whole job to stay in its first epoch; the order of samples is not made unless it is asked for.
    sampler = dynamic.ElasticSampler(10 ** 9, batch_size=case.batch)
    schedule = dynamic.DynamicSchedule(_LEARNING_RATE, reference_batch=case.batch * dynamic.size())
    trainer = dynamic.DynamicTrainer(training.net.collect_params(), 'sgd', dict(_OPTIMIZER), schedule=schedule)
    run_log = SwitchedLog(folder / 'run')
    state = dynamic.GluonState(net=training.net, trainer=trainer, sampler=sampler, run_log=run_log, epoch=0)

    def settle():
        trainer.confirm()
        trainer.before_update()         # stores the pending commit

    def no_commit(number):
        run_log.on = False
        return training.update(number, trainer)

    def commit(number):
        loss = no_commit(number)
        state.commit()
        return loss

    def commit_log(number):
        run_log.on = True
        loss = training.update(number, trainer, tell_loss=True)
        state.commit()
        return loss

    @dynamic.run
    def train(state):
        beside = plain_trainer(training.net, 'plain.')
        variants = {'commit': (commit, settle), 'commit-log': (commit_log, settle), 'no-commit': (no_commit, settle),
                    'plain': (lambda number: training.update(number, beside), settle)}
        return measure({name: variants[name] for name in names}, case.updates, sweeps)

    return train(state), dynamic.rank()


def main():
    """Measure, and write what came out to a file of this worker's own."""
    parser = argparse.ArgumentParser()
    parser.add_argument('kind', choices=VARIANTS)
    parser.add_argument('case', choices=CASES)
    parser.add_argument('sweeps', type=int)
    parser.add_argument('folder', type=Path)
    args = parser.parse_args()
    case = CASES[args.case]
    if args.kind in ('plain', 'bare'):
        blocks, rank = measure_plain(case, args.sweeps)
    else:
        blocks, rank = measure_dynamic(case, args.sweeps, VARIANTS[args.kind], args.folder)
    result = {'rank': rank, 'blocks': blocks, 'cpu_seconds': sum(os.times()[:2])}
    (args.folder / f'result-{rank}.json').write_text(json.dumps(result))


if __name__ == '__main__':
    main()
