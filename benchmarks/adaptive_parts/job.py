"""A worker of `benchmarks.adaptive`: trains with one variant, and writes what it measured."""

import json
import os
import sys
import time
from pathlib import Path

import mxnet as mx
from mxnet import autograd

import hvd_dynamic as dynamic
from benchmarks.adaptive_parts import cases
from benchmarks.adaptive_parts.governor import Flag
from gluon_examples.extreme_classification import algorithms, arguments, synthetic
from gluon_examples.extreme_classification.network import SparseNetwork, batch_of, multi_label_loss
from gluon_examples.extreme_classification.precision import PrecisionEvaluator
from hvd_dynamic.adaptive import AdaptiveTrainer


def main():
    """``python -m benchmarks.adaptive_parts.job SEED EPOCHS FOLDER VARIANT...``: one after the other, in one job."""
    seed, epochs, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dynamic.init()
    data = synthetic.make(**cases.DATA, seed=seed)
    flag = Flag(folder / 'flags', dynamic.rank())
    (folder / f'pid-{dynamic.rank()}').write_text(str(os.getpid()))
    for variant in sys.argv[4:]:
        points, merges = measure(variant, seed, epochs, folder, data, flag)
        (folder / f'result-{variant}-{dynamic.rank()}.json').write_text(json.dumps(
            {'rank': dynamic.rank(), 'points': points, 'merges': merges, 'best': data.best[1]}))


def measure(variant, seed, epochs, folder, data, flag):
    """Train with one variant; what came of each epoch and of each merge."""
    # Dense gradients for all, so that only scheduling and merging differ.
    args = arguments.parse([*cases.VARIANTS[variant], '--batch-size', str(cases.BATCH), '--sparse-grad', 'no',
                            '--seed', str(seed)])
    args.lr = cases.LEARNING_RATE * (1 if args.algorithm == 'sync' else cases.WORKERS)
    args.mega_batch = cases.MEGA_BATCH
    mx.random.seed(seed)
    rank = dynamic.rank()
    net = SparseNetwork(cases.DATA['features'], cases.HIDDEN, cases.DATA['labels'])
    net.initialize(mx.init.Xavier())
    sampler, trainer = algorithms.build(args, net, cases.DATA['samples'])
    state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0)
    evaluate = PrecisionEvaluator(data.test, 256, mx.cpu())
    (folder / f'epoch-{rank}').write_text('0')
    points, merges = [], []
    if isinstance(trainer, AdaptiveTrainer):
        step = _watch_merges(trainer, flag, merges)
    else:
        def step(count, loss):
            _step_in_two(trainer, flag, count)

    @dynamic.run
    def train(state):
        seconds = 0.0
        for state.epoch in range(state.epoch, epochs):
            state.world.barrier()
            start, busy, samples, updates = time.monotonic(), flag.seconds, 0, 0
            flag.set(True)
            for indices in sampler:
                rows, labels, shares = batch_of(data.train, indices, mx.cpu())
                with autograd.record():
                    loss = multi_label_loss(net(rows), labels, shares)
                loss.backward()
                samples, updates = samples + len(indices), updates + 1
                step(len(indices), loss)
                state.commit()
            mx.nd.waitall()
            flag.set(False)
            own = flag.seconds - busy
            state.world.barrier()
            spent = time.monotonic() - start
            seconds += spent
            with algorithms.evaluated(trainer):
                result = evaluate(net, state.world)
            points.append({'epoch': state.epoch, 'seconds': seconds, 'epoch_seconds': spent, 'busy_seconds': own,
                           'samples': samples, 'updates': updates, 'batch': getattr(sampler, 'local_batch', cases.BATCH),
                           'precision': result.precision_at_1, 'loss': result.loss})
            (folder / f'epoch-{rank}').write_text(str(state.epoch + 1))
        if args.algorithm == 'crossbow':
            trainer.use_central()

    train(state)
    return points, merges


def _watch_merges(trainer, flag, merges):
    """Say that this worker does not compute while it waits for the others and merges."""
    merge, weights = trainer._merge, trainer.wait_for_weights

    def watched():
        weights()
        flag.set(False)
        merge()
        flag.set(True)
        merges.append([[replica[name] for name in ('updates', 'samples', 'batch', 'waiting_seconds', 'asking_seconds',
                                                   'busy_seconds')]
                       for replica in trainer._confirmed[-1].details['replicas']])
    trainer._merge = watched
    return lambda count, loss: trainer.step(count, loss=loss)


def _step_in_two(trainer, flag, count):
    """An update, in which this worker does not compute while gradients travel."""
    mx.nd.waitall()
    flag.set(False)
    trainer.allreduce_grads()
    mx.nd.waitall()
    flag.set(True)
    trainer.update(count)


if __name__ == '__main__':
    main()
