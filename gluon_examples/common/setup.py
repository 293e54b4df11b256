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


def initialize(net, ctx):
    """Give first weights to what has none yet (GluonCV initialises, or loads, parts itself), and bring all to the device."""
    for param in net.collect_params().values():
        if param._data is None:
            # Vectors do not all say how they begin: those that GluonCV adds to a base network of an SSD do not.
            ones, zeros = param.name.endswith(('gamma', '_var')), param.name.endswith(('beta', 'bias', '_mean'))
            param.initialize(ctx=ctx, default_init=mx.init.One() if ones else mx.init.Zero() if zeros else mx.init.Xavier())
        else:
            param.reset_ctx(ctx)


def compile_as_asked(net, args):
    """Set up an initialised network as the flags say."""
    net.cast(args.dtype)
    new_graph(net, args)
    if args.no_wd:
        for param in net.collect_params('.*beta|.*gamma|.*bias').values():
            param.wd_mult = 0.0


def new_graph(net, args):
    """Have the network compiled anew at its next call.

    GluonCV's detectors answer in training otherwise than in a test, which their compiled graph does not know.
    """
    net.hybridize(args.mode == 'hybrid', **({'static_alloc': True, 'static_shape': True} if args.mode == 'hybrid' else {}))
