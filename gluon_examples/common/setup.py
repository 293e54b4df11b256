"""What every recipe does before training begins."""

import random

import mxnet as mx
import numpy as np

import hvd_dynamic as dynamic


def run_log(args):
    """The run's folder, if one was asked for."""
    return dynamic.RunLog(args.run_dir, audit_samples=args.audit_samples) if args.run_dir else None


def seed_everything(seed):
    """The same first weights on every worker, and the same random choices in every run."""
    mx.random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def device():
    """This worker's GPU, or the CPU where there is none."""
    return mx.gpu(dynamic.local_rank()) if mx.context.num_gpus() else mx.cpu()


def compile_as_asked(net, args):
    """Set up an initialised network as the flags say."""
    net.cast(args.dtype)
    if args.mode == 'hybrid':
        net.hybridize(static_alloc=True, static_shape=True)
    if args.no_wd:
        for param in net.collect_params('.*beta|.*gamma|.*bias').values():
            param.wd_mult = 0.0
