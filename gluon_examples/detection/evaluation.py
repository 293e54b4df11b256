"""Mean average precision, exact at any world size."""

import contextlib
import io
import tempfile
from typing import NamedTuple

import numpy as np
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.utils.metrics.coco_detection import COCODetectionMetric
from gluoncv.utils.metrics.voc_detection import VOC07MApMetric

from gluon_examples.common.errors import MissingDataError
from gluon_examples.common.evaluation import SharedLoader
from hvd_dynamic import values


class Evaluation(NamedTuple):
    """Mean average precision over a data set, a fraction."""

    map: float

    def __str__(self):
        return f'test mAP {self.map:.4f}'


class VOC07:
    """GluonCV's mean average precision of VOC 2007: eleven points, boxes match from an overlap of 0.5.

    Parameters
    ----------
    classes : sequence of str
    """

    def __init__(self, classes):
        self._classes = list(classes)

    def __call__(self, images):
        """The metric of ``(found, truth)`` for each image of the data set, in its order.

        Parameters
        ----------
        images : iterable of (array, array)
            N x 6: class, score, left, top, right, bottom. M x 6: left, top, right, bottom, class, difficult.

        Returns
        -------
        float
        """
        metric = VOC07MApMetric(iou_thresh=0.5, class_names=self._classes)
        for found, truth in images:
            metric.update(
                found[None, :, 2:], found[None, :, :1], found[None, :, 1:2],
                truth[None, :, :4], truth[None, :, 4:5], truth[None, :, 5:6],
            )
        return float(metric.get()[1][-1])


class COCO:
    """GluonCV's metric of COCO, with pycocotools: mean over overlaps from 0.5 to 0.95.

    Parameters
    ----------
    path : Path
        The file of annotations.
    classes : sequence of str
    side : int
        Height and width of the images that the network sees; boxes are scaled back from there.

    Raises
    ------
    MissingDataError
        pycocotools is not installed.
    """

    def __init__(self, path, classes, side):
        try:
            from pycocotools.coco import COCO as Annotations
        except ImportError:
            raise MissingDataError(
                "COCO's metric needs pycocotools: pip install pycocotools, or choose --metric voc07"
            ) from None
        with contextlib.redirect_stdout(io.StringIO()):
            self.coco = Annotations(str(path))
        self.classes = list(classes)
        self.contiguous_id_to_json = dict(enumerate(sorted(self.coco.getCatIds())))
        self._side = side

    def __call__(self, images):
        """See `VOC07`."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            metric = COCODetectionMetric(self, f'{folder}/found', use_time=False, data_shape=(self._side, self._side))
            for found, _ in images:
                metric.update(found[None, :, 2:], found[None, :, :1], found[None, :, 1:2])
            return float(metric.get()[1][-1]) / 100


class DetectionEvaluator:
    """Evaluates a network on a data set of (image, boxes), each image counted once.

    What is found in each image goes to all workers, which compute the metric of all images in the order of the data set:
    the number is the one that a single worker computes.

    Parameters
    ----------
    dataset : gluon.data.Dataset
        Of (image, boxes), as the network sees them.
    metric : VOC07 or COCO
    batch_size : int
    side : int
        Height and width of images; boxes are cut there.
    ctx : mx.Context
    num_workers : int, default 0
        Processes that load data.
    dtype : str, default 'float32'
        What the network takes.
    """

    def __init__(self, dataset, metric, batch_size, side, ctx, num_workers=0, dtype='float32'):
        self._loader = SharedLoader(dataset, batch_size, num_workers, Tuple(Stack(), Pad(pad_val=-1)))
        self._metric, self._side, self._ctx, self._dtype = metric, side, ctx, dtype

    def __call__(self, net, world):
        """Evaluate `net` on this worker's share and put together what all have found; all workers call it.

        Returns
        -------
        Evaluation
        """
        found, truth = [], []
        for images, boxes in self._loader.share(world):
            data = self._loader.filled(images.as_in_context(self._ctx).astype(self._dtype, copy=False))
            found += found_in(net, data, self._side)[: len(images)]
            truth += [one[one[:, 4] >= 0] for one in boxes.asnumpy()]
        parts = [values.from_bytes(part) for part in world.allgather_bytes(_packed(found, truth), 'evaluation')]
        return Evaluation(self._metric([pair for part in parts for pair in _unpacked(part)]))


def found_in(net, images, side):
    """What a network finds.

    Returns
    -------
    list of array of float32, shape (N, 6)
        For each image: class, score, left, top, right, bottom in pixels.
    """
    labels, scores, boxes = (answer.astype('float32').asnumpy() for answer in net(images))
    together = np.concatenate([labels, scores, boxes.clip(0, side)], axis=2)
    return [one[one[:, 0] >= 0] for one in together]


def _packed(found, truth):
    counts = np.array([[len(one) for one in part] for part in (found, truth)], 'int64')
    both = [np.concatenate([np.zeros((0, 6), 'float32'), *part]) for part in (found, truth)]
    return values.to_bytes({'counts': counts, 'found': both[0], 'truth': both[1]})


def _unpacked(part):
    cuts = np.cumsum(part['counts'], axis=1)[:, :-1]
    if not part['counts'].size:
        return []
    return zip(np.split(part['found'], cuts[0]), np.split(part['truth'], cuts[1]))
