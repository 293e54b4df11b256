"""Train a network for semantic segmentation with any number of workers, also while they come and go.

    python -m gluon_examples.segmentation.train
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\
        python -m gluon_examples.segmentation.train

The numbered lines are all that makes it elastic.
"""

import logging

from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from gluon_examples.common import logging_setup
from gluon_examples.common.arguments import base_schedule, optimizer_options, policy
from gluon_examples.common.bad_data import BadData
from gluon_examples.common.errors import told_in_one_line
from gluon_examples.common.progress import Progress
from gluon_examples.common.saving import CheckpointTimes, ParameterFiles
from gluon_examples.common.setup import compile_as_asked, device, initialize, run_log, seed_everything
from gluon_examples.segmentation import arguments, datasets, networks, pictures
from gluon_examples.segmentation.evaluation import SegmentationEvaluator
from gluon_examples.segmentation.losses import PixelCrossEntropy

log = logging.getLogger(__name__)


def main(argv=None):
    """Train as the command line says.

    Parameters
    ----------
    argv : list of str, optional
        Default: the arguments of the command line.
    """
    args = arguments.parse(argv)
    seed_everything(args.seed)
    logging_setup.configure(is_first=lambda: dynamic.rank() == 0)
    bad = BadData(args.skip_bad)
    with told_in_one_line('train', ValueError):
        written = run_log(args)
        data = datasets.load(args.dataset, args.data_dir, args.base_size, args.crop_size, args.seed, bad,
                             args.scenes)
        net = networks.create(args.network, data.classes, args.crop_size, args.backbone, args.pretrained_root)
        files = ParameterFiles(args.save_dir, args.save_prefix, args.save_frequency)

    dynamic.init()
    ctx = device()
    initialize(net, ctx)
    compile_as_asked(net, args)
    loss_fn = PixelCrossEntropy(args.aux_weight)

    with told_in_one_line('train', ValueError):
        # 1 one order of samples, whoever computes them
        sampler = dynamic.ElasticSampler(len(data.train), batch_size=args.batch_size, seed=args.seed)
        loader = gluon.data.DataLoader(data.train, batch_sampler=sampler, num_workers=args.num_workers)
        # 2 a learning rate that follows the number of workers
        schedule = dynamic.DynamicSchedule(base_schedule(args, power=0.9), args.reference_batch, policy=policy(args))
        # 3 gradients summed over the workers
        trainer = dynamic.DynamicTrainer(net.collect_params(), args.optimizer, optimizer_options(args),
                                         schedule=schedule, noise_scale=args.noise_scale)
        # 4 all that a newcomer needs
        state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=written,
                                   checkpoint_dir=args.checkpoint_dir, keep_checkpoints=args.keep_checkpoints,
                                   epoch=0, best_miou=-1.0, skipped=0)
        if args.resume != 'never':
            state.resume(None if args.resume == 'auto' else args.resume)
    evaluate = SegmentationEvaluator(data.test, data.classes, args.batch_size, ctx, args.num_workers, args.dtype)
    progress = Progress(args.num_epochs, args.log_interval)
    checkpoints = CheckpointTimes(args.checkpoint_dir, args.checkpoint_every)

    @dynamic.run    # 5 called again after each change
    def train(state):
        for state.epoch in range(state.epoch, args.num_epochs):
            with progress.epoch(state) as step_done:
                for images, masks in loader:
                    images, masks = images.as_in_context(ctx), masks.as_in_context(ctx)
                    with autograd.record():
                        loss, labelled = loss_fn(*net(images.astype(args.dtype, copy=False)), masks)
                    loss.backward()
                    trainer.step(len(images), loss=loss, normalizer=labelled)
                    step_done(loss, labelled)
                    checkpoints.after_update(state)
                    state.commit()
            checkpoints.after_epoch(state)
            state.average_running_stats()
            result = evaluate(net, state.world)
            state.log_evaluation(**result._asdict())
            state.skipped += bad.images_since(state.world)
            is_best = result.miou > state.best_miou
            state.best_miou = max(result.miou, state.best_miou)
            log.info('epoch %d/%d  %s', state.epoch + 1, args.num_epochs, result)
            if state.world.rank == 0:
                files.after_epoch(net, state.epoch, is_best)

    with told_in_one_line('train', dynamic.SetupError):
        train(state)

    if state.world.rank == 0:
        log.info('saved %s; best test mIoU %.4f', files.save(net, 'last'), state.best_miou)
        bad.tell(state.skipped)
        pictures.save(args.save_samples, files.folder, net, data.test, data.names, ctx, args.dtype)


if __name__ == '__main__':
    main()
