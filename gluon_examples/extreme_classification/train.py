"""Train a classifier with very many labels on sparse data, on workers of unequal speed.

    python -m gluon_examples.extreme_classification.train
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\
        python -m gluon_examples.extreme_classification.train --algorithm adaptive
"""

import logging

import mxnet as mx
from mxnet import autograd

import hvd_dynamic as dynamic
from gluon_examples.common import logging_setup
from gluon_examples.common.errors import RecipeError, told_in_one_line
from gluon_examples.common.progress import Progress
from gluon_examples.common.saving import CheckpointTimes, ParameterFiles
from gluon_examples.extreme_classification import algorithms, arguments, synthetic, xmlformat
from gluon_examples.extreme_classification.network import SparseNetwork, batch_of, multi_label_loss
from gluon_examples.extreme_classification.precision import PrecisionEvaluator

log = logging.getLogger(__name__)


def main(argv=None):
    """Train as the command line says.

    Parameters
    ----------
    argv : list of str, optional
        Default: the arguments of the command line.
    """
    args = arguments.parse(argv)
    with told_in_one_line('train', ValueError):
        run_log = dynamic.RunLog(args.run_dir, audit_samples=args.audit_samples) if args.run_dir else None
        train_set, test_set, best = load(args)
        files = ParameterFiles(args.save_dir, f'extreme-{args.algorithm}')
    logging_setup.configure(is_first=lambda: dynamic.rank() == 0)
    mx.random.seed(args.seed)

    dynamic.init()
    ctx = mx.gpu(dynamic.local_rank()) if mx.context.num_gpus() else mx.cpu()
    net = SparseNetwork(train_set.features.shape[1], args.hidden, train_set.labels.shape[1], args.sparse_grad)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    with told_in_one_line('train', ValueError):
        sampler, trainer = algorithms.build(args, net, len(train_set))
        state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=run_log,
                                   checkpoint_dir=args.checkpoint_dir, keep_checkpoints=args.keep_checkpoints,
                                   epoch=0, best_precision=0.0)
        if args.resume != 'never':
            state.resume(None if args.resume == 'auto' else args.resume)
    evaluate = PrecisionEvaluator(test_set, 256, ctx)
    progress = Progress(args.num_epochs, args.log_interval)
    checkpoints = CheckpointTimes(args.checkpoint_dir, args.checkpoint_every)
    if best:
        log.info('best reachable precision at %s', ', '.join(f'{k}: {100 * value:.2f} %' for k, value in best.items()))

    @dynamic.run
    def train(state):
        for state.epoch in range(state.epoch, args.num_epochs):
            with progress.epoch(state) as step_done:
                for indices in sampler:
                    rows, labels, shares = batch_of(train_set, indices, ctx)
                    with autograd.record():
                        loss = multi_label_loss(net(rows), labels, shares)
                    loss.backward()
                    trainer.step(len(indices), loss=loss)
                    step_done(loss)
                    checkpoints.after_update(state)
                    state.commit()
            checkpoints.after_epoch(state)
            with algorithms.evaluated(trainer):
                result = evaluate(net, state.world)
                is_best = result.precision_at_1 > state.best_precision
                if state.world.rank == 0:
                    files.after_epoch(net, state.epoch, is_best)
            state.log_evaluation(**result._asdict())
            state.best_precision = max(result.precision_at_1, state.best_precision)
            log.info('epoch %d/%d  %s', state.epoch + 1, args.num_epochs, result)
        if args.algorithm == 'crossbow':
            trainer.use_central()

    with told_in_one_line('train', dynamic.SetupError):
        train(state)

    if state.world.rank == 0:
        log.info('saved %s; best precision at 1 %.2f %%', files.save(net, 'last'), 100 * state.best_precision)


def load(args):
    """Data to train and to test with, and the best precision that can be reached, where that is known.

    Raises
    ------
    RecipeError
        The two files do not belong together.
    """
    if args.dataset == 'synthetic':
        return synthetic.make(args.samples, args.features, args.labels, args.seed)
    train_set, test_set = xmlformat.read(args.train_file), xmlformat.read(args.test_file)
    for name in ('features', 'labels'):
        here, there = (getattr(samples, name).shape[1] for samples in (train_set, test_set))
        if here != there:
            raise RecipeError(f'--test-file {args.test_file} has {there} {name}, --train-file {args.train_file} has {here}; '
                              f'give two files of the same data set')
    return train_set, test_set, None


if __name__ == '__main__':
    main()
