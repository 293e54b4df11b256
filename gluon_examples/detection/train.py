"""Train a detector with any number of workers, also while they come and go.

    python -m gluon_examples.detection.train
    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\
        python -m gluon_examples.detection.train

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
from gluon_examples.common.setup import compile_as_asked, device, initialize, new_graph, run_log, seed_everything
from gluon_examples.detection import arguments, datasets, networks, pictures
from gluon_examples.detection.evaluation import COCO, VOC07, DetectionEvaluator
from gluon_examples.detection.tasks import FixedSize, task_for

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
        networks.check(args.network)
        side = args.data_shape or networks.side(args.network)
        data = datasets.load(args.dataset, args.data_dir, bad, args.seed, args.scenes)
        metric = COCO(data.coco_file, data.classes, side) if args.metric == 'coco' else VOC07(data.classes)
        net = networks.create(args.network, data.classes, args.pretrained_root)
        files = ParameterFiles(args.save_dir, args.save_prefix, args.save_frequency)

    dynamic.init()
    ctx = device()
    initialize(net, ctx)
    compile_as_asked(net, args)
    task = task_for(net, side, data.augment)
    train_set = datasets.Transformed(data.train, task.transform, args.seed)
    test_set = datasets.Transformed(data.test, FixedSize(side))

    with told_in_one_line('train', ValueError):
        # 1 one order of samples, whoever computes them
        sampler = dynamic.ElasticSampler(len(train_set), batch_size=args.batch_size, seed=args.seed)
        loader = gluon.data.DataLoader(train_set, batch_sampler=sampler, batchify_fn=task.batchify,
                                       num_workers=args.num_workers)
        # 2 a learning rate that follows the number of workers
        schedule = dynamic.DynamicSchedule(base_schedule(args), args.reference_batch, policy=policy(args))
        # 3 gradients summed over the workers
        trainer = dynamic.DynamicTrainer(net.collect_params(), args.optimizer, optimizer_options(args),
                                         schedule=schedule, noise_scale=args.noise_scale)
        # 4 all that a newcomer needs
        state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=written,
                                   checkpoint_dir=args.checkpoint_dir, keep_checkpoints=args.keep_checkpoints,
                                   epoch=0, best_map=-1.0, skipped=0)
        if args.resume != 'never':
            state.resume(None if args.resume == 'auto' else args.resume)
    evaluate = DetectionEvaluator(test_set, metric, args.batch_size, side, ctx, args.num_workers, args.dtype)
    progress = Progress(args.num_epochs, args.log_interval)
    checkpoints = CheckpointTimes(args.checkpoint_dir, args.checkpoint_every)

    @dynamic.run    # 5 called again after each change
    def train(state):
        for state.epoch in range(state.epoch, args.num_epochs):
            new_graph(net, args)
            with progress.epoch(state) as step_done:
                for batch in loader:
                    images, *targets = (part.as_in_context(ctx) for part in batch)
                    with autograd.record():
                        loss, count = task.loss(net, images.astype(args.dtype, copy=False), *targets)
                    loss.backward()
                    trainer.step(len(images), loss=loss, normalizer=count)
                    step_done(loss, count)
                    checkpoints.after_update(state)
                    state.commit()
            checkpoints.after_epoch(state)
            state.average_running_stats()
            new_graph(net, args)
            result = evaluate(net, state.world)
            state.log_evaluation(**result._asdict())
            state.skipped += bad.images_since(state.world)
            is_best = result.map > state.best_map
            state.best_map = max(result.map, state.best_map)
            log.info('epoch %d/%d  %s', state.epoch + 1, args.num_epochs, result)
            if state.world.rank == 0:
                files.after_epoch(net, state.epoch, is_best)

    with told_in_one_line('train', dynamic.SetupError):
        train(state)

    if state.world.rank == 0:
        log.info('saved %s; best test mAP %.4f', files.save(net, 'last'), state.best_map)
        bad.tell(state.skipped)
        pictures.save(args.save_samples, files.folder, net, test_set, data.classes, side, ctx, args.dtype)


if __name__ == '__main__':
    main()
