"""The ways to train on many workers that the recipe knows: what sampler and trainer each takes."""

import contextlib

import hvd_dynamic as dynamic
from gluon_examples.extreme_classification.crossbow import CrossbowTrainer
from hvd_dynamic import adaptive, policies

__all__ = ['ALGORITHMS', 'build', 'evaluated']

ALGORITHMS = {
    'sync': 'gradients are averaged in every update (DynamicTrainer)',
    'averaging': 'every worker does the same number of updates by itself, then the models are averaged',
    'crossbow': 'replicas are pulled to a central model in every update (arXiv 1901.02244)',
    'adaptive': 'workers take batches when they are free, then the models are merged (arXiv 2110.07029)',
}


def build(args, net, samples):
    """Sampler and trainer.

    Parameters
    ----------
    args : argparse.Namespace
        As `arguments.parse` gives it.
    net : gluon.Block
    samples : int
        In the data set.

    Returns
    -------
    ElasticSampler
    DynamicTrainer
    """
    options = {'momentum': args.momentum} if args.optimizer == 'sgd' else {}
    by_itself = args.algorithm != 'sync'
    schedule = dynamic.DynamicSchedule(args.lr, args.batch_size,
                                       policy=adaptive.ByLocalBatch() if by_itself else policies.Smooth())
    common = (net.collect_params(), args.optimizer, options)
    if args.algorithm in ('sync', 'crossbow'):
        sampler = dynamic.ElasticSampler(samples, args.batch_size, seed=args.seed)
        kind = CrossbowTrainer if by_itself else dynamic.DynamicTrainer
        return sampler, kind(*common, schedule=schedule)
    if args.algorithm == 'averaging':
        sampler = adaptive.AdaptiveSampler(samples, args.mega_batch, args.batch_size, args.batch_size, seed=args.seed,
                                           scheduling='static')
        return sampler, adaptive.AdaptiveTrainer(*common, schedule=schedule, beta=0, merging=adaptive.EqualMerging())
    sampler = adaptive.AdaptiveSampler(samples, args.mega_batch, args.min_batch, args.max_batch, args.batch_size,
                                       seed=args.seed)
    merging = adaptive.NormalizedMerging(args.merge_threshold, args.perturbation, args.merge_momentum)
    return sampler, adaptive.AdaptiveTrainer(*common, schedule=schedule, beta=args.beta, at_bounds=args.at_bounds,
                                             merging=merging)


def evaluated(trainer):
    """A context in which the network is the model that is trained."""
    return trainer.central_model() if isinstance(trainer, CrossbowTrainer) else contextlib.nullcontext()
