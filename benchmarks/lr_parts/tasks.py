"""What is trained: small real tasks. A new one is a subclass of `Task` and a line in `TASKS`."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

__all__ = ['Task', 'Setting', 'TASKS']


@dataclass
class Setting:
    """A task made ready for one training.

    Attributes
    ----------
    length : int
        Samples of an epoch.
    net : gluon.Block
        Initialised.
    forward : callable
        ``forward(indices)``: the per-sample losses, as an NDArray; called within `autograd.record`.
    evaluate : callable
        The metric over the held-out data, from 0 to 1.
    """

    length: int
    net: gluon.Block
    forward: object
    evaluate: object


@dataclass(frozen=True)
class Task(abc.ABC):
    """A task and its recipe: fixed for all policies.

    Attributes
    ----------
    name, metric : str
    epochs : int
    local_batch : int
        Samples a worker takes in an update. The reference batch is that of 8 workers.
    lr : float
        At the reference batch, as `benchmarks.lr_parts.reference` finds it on seeds that are not used here.
    warmup : float
        Epochs in which it rises; then a cosine down to 0.
    hopeless : float
        A mean training loss as high as that at the end counts as diverged: what guessing gives.
    one_pass : bool
        The network has no BatchNorm, so the workers' batches may be computed as one.
    rates : tuple of float
        The grid from which `lr` was chosen.
    """

    name: str
    metric: str
    epochs: int
    local_batch: int
    lr: float
    warmup: float
    hopeless: float
    one_pass: bool
    rates: tuple = (0.0125, 0.025, 0.05, 0.1, 0.2)

    @property
    def reference_batch(self):
        """Samples in an update of 8 workers."""
        return 8 * self.local_batch

    def base_lr(self, factor):
        """The base schedule, as a function of epochs."""
        def lr(epoch):
            if epoch < self.warmup:
                return factor * self.lr * epoch / self.warmup
            part = min(1.0, (epoch - self.warmup) / (self.epochs - self.warmup))
            return factor * self.lr * (1 + math.cos(math.pi * part)) / 2
        return lr

    @abc.abstractmethod
    def make(self, seed):
        """Data, split and network of a seed.

        Returns
        -------
        Setting
        """


class _WithLoss(gluon.HybridBlock):
    """Network and loss as one compiled block: fewer calls an update."""

    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F, x, y):
        return self.loss(self.net(x), y)


class Digits(Task):
    """Classify scikit-learn's handwritten digits: a third of the images is held out, another third for each seed."""

    HELD_OUT = 597

    def make(self, seed):
        from sklearn.datasets import load_digits

        from gluon_examples.classification.formats.digits import stratified

        digits = load_digits()
        images = ((digits.images - digits.images.mean()) / digits.images.std()).astype('float32')[:, None]
        labels = digits.target.astype('float32')
        test = stratified(digits.target, self.HELD_OUT, seed)
        train = np.setdiff1d(np.arange(len(labels)), test)
        mx.random.seed(seed)
        net = self.network()
        net.initialize(mx.init.Xavier())
        both = _WithLoss(net)
        both.hybridize(static_alloc=True)
        x, y = images[train], labels[train]
        held_out = mx.nd.array(images[test])

        def forward(indices):
            return both(mx.nd.array(x[indices]), mx.nd.array(y[indices]))

        def evaluate():
            return float((net(held_out).argmax(axis=1).asnumpy() == labels[test]).mean())
        return Setting(len(train), net, forward, evaluate)

    def network(self):
        """Two convolutions, with or without BatchNorm."""
        net = nn.HybridSequential()
        for width in (16, 32):
            net.add(nn.Conv2D(width, 3, padding=1, use_bias=self.one_pass))
            if not self.one_pass:
                net.add(nn.BatchNorm())
            net.add(nn.Activation('relu'), nn.MaxPool2D())
        net.add(nn.Dense(10))
        return net


TASKS = {task.name: task for task in (
    Digits('digits', 'accuracy', epochs=16, local_batch=2, lr=0.0125, warmup=2, hopeless=math.log(10), one_pass=True),
    Digits('digits-bn', 'accuracy', epochs=12, local_batch=4, lr=0.1, warmup=1, hopeless=math.log(10), one_pass=False),
)}
