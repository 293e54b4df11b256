"""Train an image classifier with any number of workers, also while they come and go.

    python -m gluon_examples.classification.train
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\
        python -m gluon_examples.classification.train

The numbered lines are all that makes it elastic.
"""

import logging

import mxnet as mx
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from gluon_examples.classification import arguments, datasets, networks
from gluon_examples.classification.losses import SmoothedCrossEntropy
from gluon_examples.common import logging_setup
from gluon_examples.common.arguments import base_schedule, optimizer_options, policy
from gluon_examples.common.errors import told_in_one_line
from gluon_examples.common.evaluation import ClassificationEvaluator
from gluon_examples.common.progress import Progress
from gluon_examples.common.saving import CheckpointTimes, ParameterFiles
from gluon_examples.common.setup import compile_as_asked, device, run_log, seed_everything

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
        written = run_log(args)
        data = datasets.load(args.dataset, args.data_dir, channels=networks.channels_for(args.network),
                             classes=args.classes, seed=args.seed, **picture_size(args))
        net = networks.create(args.network, data.classes, data.input_shape)
        files = ParameterFiles(args.save_dir, args.save_prefix, args.save_frequency)
    seed_everything(args.seed)
    logging_setup.configure(is_first=lambda: dynamic.rank() == 0)

    dynamic.init()
    ctx = device()
    net.initialize(mx.init.Xavier(), ctx=ctx)
    compile_as_asked(net, args)
    loss_fn = SmoothedCrossEntropy(args.label_smoothing)

    with told_in_one_line('train', ValueError):
        # 1 one order of samples, whoever computes them
        sampler = make_sampler(args, len(data.train))
        loader = gluon.data.DataLoader(data.train, batch_sampler=sampler, num_workers=args.num_workers,
                                       prefetch=1 if args.algorithm == 'adaptive' and args.num_workers else None)
        # 2 a learning rate that follows the number of workers
        adaptive = args.algorithm == 'adaptive'
        schedule = dynamic.DynamicSchedule(base_schedule(args), args.reference_batch, policy=dynamic.adaptive.ByLocalBatch(
            args.scaling) if adaptive else policy(args))
        # 3 gradients summed over the workers
        kind = dynamic.adaptive.AdaptiveTrainer if adaptive else dynamic.DynamicTrainer
        more = {} if adaptive else {'noise_scale': args.noise_scale}
        trainer = kind(net.collect_params(), args.optimizer, optimizer_options(args), schedule=schedule, **more)
        # 4 all that a newcomer needs
        state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=written,
                                   checkpoint_dir=args.checkpoint_dir, keep_checkpoints=args.keep_checkpoints,
                                   epoch=0, best_accuracy=-1.0)
        if args.resume != 'never':
            state.resume(None if args.resume == 'auto' else args.resume)
    evaluate = ClassificationEvaluator(data.test, args.batch_size, ctx, args.num_workers, args.dtype)
    progress = Progress(args.num_epochs, args.log_interval)
    checkpoints = CheckpointTimes(args.checkpoint_dir, args.checkpoint_every)

    @dynamic.run    # 5 called again after each change
    def train(state):
        for state.epoch in range(state.epoch, args.num_epochs):
            with progress.epoch(state) as step_done:
                for images, label in loader:
                    images, label = images.as_in_context(ctx), label.as_in_context(ctx)
                    with autograd.record():
                        loss = loss_fn(net(images.astype(args.dtype, copy=False)), label)
                    loss.backward()
                    trainer.step(len(images), loss=loss)
                    step_done(loss)
                    checkpoints.after_update(state)
                    state.commit()
            checkpoints.after_epoch(state)
            state.average_running_stats()
            result = evaluate(net, state.world)
            state.log_evaluation(**result._asdict())
            is_best = result.accuracy > state.best_accuracy
            state.best_accuracy = max(result.accuracy, state.best_accuracy)
            log.info('epoch %d/%d  %s', state.epoch + 1, args.num_epochs, result)
            if state.world.rank == 0:
                files.after_epoch(net, state.epoch, is_best)

    with told_in_one_line('train', dynamic.SetupError):
        train(state)

    if state.world.rank == 0:
        log.info('saved %s; best test accuracy %.2f %%', files.save(net, 'last'), 100 * state.best_accuracy)


def picture_size(args):
    """The flags about the size of pictures that were given."""
    given = {'input_size': args.input_size, 'crop_ratio': args.crop_ratio}
    return {name: value for name, value in given.items() if value is not None}


def make_sampler(args, samples):
    """The order of samples, dealt out alike or to whoever is free."""
    if args.algorithm == 'adaptive':
        return dynamic.adaptive.AdaptiveSampler(samples, args.mega_batch, args.min_batch, args.batch_size,
                                                seed=args.seed)
    return dynamic.ElasticSampler(samples, batch_size=args.batch_size, seed=args.seed)


if __name__ == '__main__':
    main()
