"""What SSD and YOLOv3 need of the images and boxes, and how each is trained: GluonCV's targets and losses.

A task has `transform`, which makes a sample to train with of an image and its boxes; `batchify`, which makes a batch of
samples; and `loss`.
"""

import mxnet as mx
import numpy as np
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform, SSDDefaultValTransform
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
from gluoncv.loss import SSDMultiBoxLoss
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from gluoncv.model_zoo.yolo.yolo_target import YOLOV3PrefetchTargetGenerator
from mxnet import autograd, nd

_NOTHING = np.full((1, 6), -1, 'float32')  # how both target generators are told that there is no object


class FixedSize:
    """An image and its boxes, brought to the size that the network sees.

    Parameters
    ----------
    side : int
    """

    def __init__(self, side):
        self._transform = SSDDefaultValTransform(side, side)

    def __call__(self, image, boxes):
        """float32, 3 x side x side, and boxes in its pixels, float32, N x 6 (one row of -1 if there is none)."""
        image, boxes = self._transform(image, boxes if len(boxes) else _NOTHING)
        return image, boxes.astype('float32')


class SSDTask:
    """Training of GluonCV's SSD: anchors matched to boxes, three hard negatives for each match.

    Parameters
    ----------
    net : SSD
        Initialised.
    side : int
        Height and width of images.
    augment : bool
        Vary images at random, as GluonCV's recipe does.
    """

    def __init__(self, net, side, augment):
        with autograd.train_mode():
            _, _, anchors = net(nd.zeros((1, 3, side, side), ctx=_context(net), dtype=_dtype(net)))
        self._anchors = anchors.as_in_context(mx.cpu()).astype('float32')
        self._plain = FixedSize(side)
        self._vary = SSDDefaultTrainTransform(side, side) if augment else None
        # No sampling of negatives here, where the network's answers are not known; the loss does it.
        self._targets = SSDTargetGenerator(negative_mining_ratio=-1)
        self._loss = SSDMultiBoxLoss()
        self._stack = Tuple(Stack(), Pad(pad_val=-1))

    def transform(self, image, boxes):
        """Image and boxes, as `FixedSize` gives them."""
        return (self._vary if self._vary is not None and len(boxes) else self._plain)(image, boxes)

    def batchify(self, samples):
        """Images, class target of each anchor (0: ground), box target of each.

        All images at once: GluonCV's generator is made of so many small operations that its time hardly depends on how many.
        """
        images, boxes = self._stack(samples)
        boxes = boxes.as_in_context(mx.cpu())
        classes, shifts, _ = self._targets(self._anchors, None, boxes[:, :, :4], boxes[:, :, 4:5])
        # The generator makes targets of NaN for an image without any box.
        empty = boxes[:, :, 4].max(axis=1) < 0
        return images, *(nd.where(empty, nd.zeros_like(target), target) for target in (classes, shifts))

    def loss(self, net, images, class_targets, box_targets):
        """Loss of each image, and the number of matched anchors, by whose sum over all workers it is to be divided."""
        classes, shifts, _ = net(images)
        matched = (class_targets > 0).astype('float32').sum().reshape(1)
        total, _, _ = self._loss(classes.astype('float32'), shifts.astype('float32'), class_targets, box_targets)
        # GluonCV has divided by this worker's own number; and if that is none, it gives one zero for the batch.
        loss = nd.broadcast_mul(total[0].reshape(-1), nd.maximum(matched, 1))
        return loss.broadcast_to((len(images),)), matched


class YOLOTask:
    """Training of GluonCV's YOLOv3, whose losses are sums over each image, to be divided by the number of images.

    Parameters
    ----------
    net : YOLOV3
        Initialised.
    side : int
        Height and width of images, a multiple of 32.
    augment : bool
        Vary images at random, as GluonCV's recipe does.
    """

    def __init__(self, net, side, augment):
        with autograd.train_mode():
            answers = net(nd.zeros((1, 3, side, side), ctx=_context(net), dtype=_dtype(net)))
        self._anchors, self._offsets, self._maps = (
            [array.as_in_context(mx.cpu()).astype('float32') for array in part] for part in answers[1:4]
        )
        self._plain = FixedSize(side)
        self._vary = YOLO3DefaultTrainTransform(side, side) if augment else None
        self._targets = YOLOV3PrefetchTargetGenerator(num_class=len(net.classes))
        self.batchify = Tuple(*[Stack()] * 6, Pad(axis=0, pad_val=-1))

    def transform(self, image, boxes):
        """Image; targets of objectness, centre, scale, their weights, class; and the boxes themselves."""
        image, boxes = (self._vary if self._vary is not None and len(boxes) else self._plain)(image, boxes)
        corners, labels = nd.array(boxes[None, :, :4]), nd.array(boxes[None, :, 4:5])
        targets = self._targets(image.expand_dims(0), self._maps, self._anchors, self._offsets, corners, labels)
        return (image, *[target[0] for target in targets], corners[0])

    def loss(self, net, images, *targets):
        """Loss of each image, and the number of images, by whose sum over all workers it is to be divided.

        One without any box, which stands for an image that could not be read, adds to neither.
        """
        *fixed, corners = targets
        counts = (corners.max(axis=(1, 2)) >= 0).astype('float32')
        parts = net(images, corners, *fixed)
        loss = sum(part.astype('float32') for part in parts) * counts
        return loss, counts.sum().reshape(1)


def _context(net):
    return next(iter(net.collect_params().values())).list_ctx()[0]


def _dtype(net):
    return next(iter(net.collect_params('.*weight').values())).dtype


def task_for(net, side, augment):
    """The task of a network."""
    return (YOLOTask if hasattr(net, 'yolo_blocks') else SSDTask)(net, side, augment)
