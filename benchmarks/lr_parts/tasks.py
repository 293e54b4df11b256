"""What is trained: small real tasks. A new one is a subclass of `Task` and a line in `TASKS`."""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from hvd_dynamic import VirtualWorld

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
        ``forward(indices)``: the per-sample losses, an NDArray, and what they are divided by (`normalizer` of
        `DynamicTrainer.step`) or None; called within `autograd.record`.
    evaluate : callable
        The metric over the held-out data, from 0 to 1.
    hopeless : float
        A mean training loss as high as that at the end counts as diverged: what guessing gives.
    """

    length: int
    net: gluon.Block
    forward: object
    evaluate: object
    hopeless: float


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
        both.hybridize(static_alloc=True, static_shape=True)
        x, y = images[train], labels[train]
        held_out = mx.nd.array(images[test])

        def forward(indices):
            return both(mx.nd.array(x[indices]), mx.nd.array(y[indices])), None

        def evaluate():
            return float((net(held_out).argmax(axis=1).asnumpy() == labels[test]).mean())
        return Setting(len(train), net, forward, evaluate, math.log(10))

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


@functools.lru_cache(maxsize=2)
def _scenes(part, length, seed):
    """Composed once for all runs of a process that need them."""
    from gluon_examples.common.scenes import DigitScenes

    scenes = DigitScenes(part, length, seed)
    return [scenes[i] for i in range(length)]


class Detection(Task):
    """Find digits in scenes of 64 x 64 with the detection recipe's small SSD, its loss and its metric."""

    TRAIN, TEST = 512, 200

    def make(self, seed):
        from gluon_examples.common.scenes import CLASSES
        from gluon_examples.common.setup import initialize
        from gluon_examples.detection import networks
        from gluon_examples.detection.datasets import with_boxes
        from gluon_examples.detection.evaluation import VOC07, found_in
        from gluon_examples.detection.tasks import SSDTask

        mx.random.seed(seed)
        net = networks.ssd_tiny(CLASSES)
        initialize(net, mx.cpu())
        task = SSDTask(net, networks.TINY_SIDE, augment=False)
        train = [task.transform(*with_boxes(*scene)) for scene in _scenes('train', self.TRAIN, seed)]
        # As nothing is varied at random, targets are made once.
        images, *targets = (part.asnumpy() for part in task.batchify(train))
        test = [task.transform(*with_boxes(*scene)) for scene in _scenes('test', self.TEST, 0)]
        held_out = mx.nd.stack(*[image for image, _ in test])
        metric = VOC07(CLASSES)

        def forward(indices):
            return task.loss(net, *(mx.nd.array(part[indices]) for part in (images, *targets)))

        def evaluate():
            net.hybridize(False)        # detectors answer otherwise than in training, which a compiled graph does not know
            found = found_in(net, held_out, networks.TINY_SIDE)
            net.hybridize(static_alloc=True, static_shape=True)
            return metric(zip(found, (boxes for _, boxes in test)))
        net.hybridize(static_alloc=True, static_shape=True)
        # The classes' part for a matched anchor and three negatives that are given the frequencies of classes.
        return Setting(self.TRAIN, net, forward, evaluate, 4 * (0.75 * math.log(4 / 3) + 0.25 * math.log(40)))


class Segmentation(Task):
    """Tell digits from the ground, pixel by pixel, with the segmentation recipe's small FCN, its loss and its metric.

    Scenes at half their size, and two classes: to tell the digits from each other takes ten times as long.
    """

    TRAIN, TEST, SIDE, CLASSES = 512, 200, 32, 2

    def make(self, seed):
        from gluon_examples.common.setup import initialize
        from gluon_examples.segmentation import networks
        from gluon_examples.segmentation.evaluation import SegmentationEvaluator
        from gluon_examples.segmentation.losses import PixelCrossEntropy

        images, masks = self._halved(_scenes('train', self.TRAIN, seed))
        test = gluon.data.ArrayDataset(*self._halved(_scenes('test', self.TEST, 0)))
        mx.random.seed(seed)
        net = networks.create(networks.FCN_TINY, self.CLASSES, self.SIDE)
        initialize(net, mx.cpu())
        loss = PixelCrossEntropy()
        for block in (net, loss):
            block.hybridize(static_alloc=True, static_shape=True)
        evaluator = SegmentationEvaluator(test, self.CLASSES, 50, mx.cpu())
        alone = VirtualWorld()

        def forward(indices):
            return loss(*net(mx.nd.array(images[indices])), mx.nd.array(masks[indices], dtype='int32'))

        share = np.bincount(masks.ravel(), minlength=self.CLASSES) / masks.size
        # Scores and auxiliary scores that are the frequencies of classes.
        return Setting(self.TRAIN, net, forward, lambda: evaluator(net, alone).miou, -1.5 * (share * np.log(share)).sum())

    def _halved(self, scenes):
        """Images and masks of half the height and width."""
        import cv2

        from gluon_examples.common.normalization import normalized

        sides = (self.SIDE, self.SIDE)
        images = [normalized(cv2.resize(scene.image, sides, interpolation=cv2.INTER_AREA)) for scene in scenes]
        return np.stack(images), np.stack([(scene.mask[::2, ::2] > 0).astype('int32') for scene in scenes])


TASKS = {task.name: task for task in (
    Digits('digits', 'accuracy', epochs=16, local_batch=2, lr=0.0125, warmup=2, one_pass=True),
    Digits('digits-bn', 'accuracy', epochs=12, local_batch=4, lr=0.1, warmup=1, one_pass=False),
    Detection('detection', 'mAP', epochs=8, local_batch=2, lr=0.025, warmup=1, one_pass=False,
              rates=(0.025, 0.05, 0.1, 0.2, 0.4)),
    Segmentation('segmentation', 'mIoU', epochs=8, local_batch=2, lr=0.8, warmup=1, one_pass=False,
                 rates=(0.4, 0.8, 1.6, 3.2, 6.4, 12.8)),
)}
