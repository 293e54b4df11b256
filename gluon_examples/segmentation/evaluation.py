"""Pixel accuracy and mean intersection over union, exact at any world size."""

from typing import NamedTuple

import numpy as np
from gluoncv.utils.metrics.segmentation import batch_intersection_union, batch_pix_accuracy

from gluon_examples.common.errors import DamagedDataError
from gluon_examples.common.evaluation import SharedLoader


class Evaluation(NamedTuple):
    """Both as fractions, over all labelled pixels of a data set."""

    pixel_accuracy: float
    miou: float

    def __str__(self):
        return f'test pixel accuracy {100 * self.pixel_accuracy:.2f} %  mIoU {self.miou:.4f}'


class SegmentationEvaluator:
    """Evaluates a network on a data set of (image, mask), each image counted once.

    Parameters
    ----------
    dataset : gluon.data.Dataset
    classes : int
    batch_size : int
    ctx : mx.Context
    num_workers : int, default 0
        Processes that load data.
    dtype : str, default 'float32'
        What the network takes.
    """

    def __init__(self, dataset, classes, batch_size, ctx, num_workers=0, dtype='float32'):
        self._loader = SharedLoader(dataset, batch_size, num_workers)
        self._classes, self._ctx, self._dtype = classes, ctx, dtype

    def __call__(self, net, world):
        """Evaluate `net` on this worker's share and add up over `world`; all workers call it.

        Returns
        -------
        Evaluation
            The mean is over the classes that occur in masks or answers.

        Raises
        ------
        DamagedDataError
            On all workers: no pixel has a label.
        """
        own = np.zeros(2 + 2 * self._classes, 'int64')
        for images, masks in self._loader.share(world):
            data = self._loader.filled(images.as_in_context(self._ctx).astype(self._dtype, copy=False))
            scores = net(data)[0][: len(images)]
            both = batch_intersection_union(scores, masks, self._classes)
            own += np.concatenate([batch_pix_accuracy(scores, masks), *both])
        total = world.allreduce_sum(own)
        (correct, labelled), intersection, union = total[:2], *np.split(total[2:], 2)
        if not labelled:
            raise DamagedDataError('no pixel of any image to test with has a label; there is nothing to measure')
        occurs = union > 0
        return Evaluation(float(correct / labelled), float((intersection[occurs] / union[occurs]).mean()))
