"""Images with boxes: the annotations in memory, the images decoded when asked for."""

import math
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluon_examples.common.errors import MissingDataError

_LEAST_SIDE = 2  # pixels; GluonCV's random crops fail on less
_TOLERANCE = 1.0  # pixels; annotators' tools round in ways of their own


class Item(NamedTuple):
    """One image and its boxes.

    Attributes
    ----------
    path : Path
    boxes : array of float32, shape (N, 6)
        Left, top, right, bottom in pixels, class, and 1 for one that is difficult (not counted in VOC's mAP).
    id : int
        COCO's; the place in the list elsewhere.
    size : (int, int)
        Width and height, as annotated.
    """

    path: Path
    boxes: np.ndarray
    id: int
    size: tuple


def checked(boxes, size, where, bad):
    """The boxes that can be used, cut to the image.

    Parameters
    ----------
    boxes : list of (left, top, right, bottom, class, difficult)
    size : (width, height)
    where : str
        The annotation, for messages.
    bad : BadData
        Is told of the others.

    Returns
    -------
    array of float32, shape (N, 6)
    """
    width, height = size
    if min(size) < _LEAST_SIDE:
        bad.annotation(f'{where}: the image is said to have {width}x{height} pixels, too few to cut anything from')
        return np.zeros((0, 6), 'float32')
    good = []
    for left, top, right, bottom, *rest in boxes:
        said = f'{where}: the box ({left:g}, {top:g}, {right:g}, {bottom:g}) '
        if not all(map(math.isfinite, (left, top, right, bottom))):
            bad.annotation(said + 'is not of numbers')
        elif right <= left or bottom <= top:
            bad.annotation(said + 'has no area')
        elif min(left, top) < -_TOLERANCE or right > width + _TOLERANCE or bottom > height + _TOLERANCE:
            bad.annotation(said + f'reaches beyond the image of {width}x{height}')
        else:
            good.append((max(left, 0), max(top, 0), min(right, width), min(bottom, height), *rest))
    return np.array(good, 'float32').reshape(-1, 6)


def with_objects(items, bad):
    """The images that have boxes: there is nothing to train with in the others, of which `bad` is told."""
    kept = []
    for item in items:
        if len(item.boxes):
            kept.append(item)
        else:
            bad.annotation(f'{item.path}: an image to train with without any object')
    return kept


def check_files(items):
    """All images must be there.

    Raises
    ------
    MissingDataError
        Names the first that is not.
    """
    missing = [item.path for item in items if not item.path.is_file()]
    if missing:
        raise MissingDataError(
            f'{missing[0]} is not there ({len(missing)} of {len(items)} images are missing); copy the data set again'
        )


class BoxImages(gluon.data.Dataset):
    """Images with boxes.

    Parameters
    ----------
    items : list of Item
    bad : BadData
        Is told of an image that cannot be read; in its place comes a grey one without boxes.
    """

    def __init__(self, items, bad):
        self.items = items
        self._bad = bad

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        """Image (NDArray of uint8, height x width x 3) and boxes (array, N x 6)."""
        item = self.items[index]
        width, height = item.size
        try:
            content = item.path.read_bytes()
            image = mx.image.imdecode(content)
            image.wait_to_read()
        except (OSError, mx.base.MXNetError, ValueError):
            self._bad.image(f'{item.path}: the image cannot be decoded')
        else:
            if _cut_off(content):
                self._bad.image(f'{item.path}: the image is cut off')
            elif image.shape[:2] != (height, width):
                self._bad.image(f'{item.path}: the image has {image.shape[1]}x{image.shape[0]} pixels, '
                                f'and its annotation says {width}x{height}')
            else:
                return image, item.boxes
        return mx.nd.full((max(1, height), max(1, width), 3), 128, dtype='uint8'), item.boxes[:0]


def _cut_off(content):
    """Whether a JPEG or PNG has no end, which decoders put up with."""
    if content.startswith(b'\xff\xd8'):
        # Within a scan, which the second marker begins, no two bytes are like a marker.
        return content.rfind(b'\xff\xd9') < content.rfind(b'\xff\xda')
    return content.startswith(b'\x89PNG') and b'IEND' not in content[-64:]
