"""Scenes of real handwritten digits at random sizes and places on textured ground, with boxes and masks."""

from typing import NamedTuple

import cv2
import numpy as np
from mxnet import gluon

from gluon_examples.classification.formats import digits

CLASSES = tuple('zero one two three four five six seven eight nine'.split())
SIDE = 64
_MOST_DIGITS = 4
_SIZES = (16, 34)  # pixels, before the empty margin of a digit's image is left out
_ASPECT = 0.15
_INK = 0.45  # what belongs to a digit, of the darkest
_CONTRAST = 70  # at least, between the digit and the ground, of 255
_OVERLAP = 0.05  # of the smaller box at most
_TRIALS = 20
_PARTS = ('train', 'test')


class Scene(NamedTuple):
    """One picture and what is in it.

    Attributes
    ----------
    image : array of uint8, shape (64, 64, 3)
    boxes : array of float32, shape (N, 4)
        Left, top, right and bottom edge in pixels, of what is inked; N is from 1 to 4.
    labels : array of int32, shape (N,)
        The digits.
    mask : array of int32, shape (64, 64)
        0: ground, 1 + digit: a digit.
    """

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    mask: np.ndarray


class DigitScenes(gluon.data.Dataset):
    """Scenes composed from scikit-learn's handwritten digits; scene i is a function of `part`, `seed` and i alone.

    Nothing is read from disk: a scene is composed when it is first asked for, and kept (28 KB each). Scenes to test with
    hold digits that no scene to train with has.

    Parameters
    ----------
    part : {'train', 'test'}
    length : int
    seed : int, default 0

    Examples
    --------
    >>> scene = DigitScenes('train', 100)[7]
    >>> scene.image.shape, len(scene.boxes) == len(scene.labels)
    ((64, 64, 3), True)
    """

    def __init__(self, part, length, seed=0):
        self._images, self._labels = digits.read()[_PARTS.index(part)]
        self._part, self._length, self._seed = _PARTS.index(part), length, seed
        self._composed = {}

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if not 0 <= index < self._length:
            raise IndexError(f'scene {index} of {self._length}')
        if index not in self._composed:
            self._composed[index] = self._compose(index)
        return self._composed[index]

    def _compose(self, index):
        # The legacy generator: NumPy promises that its streams never change between versions.
        random = np.random.RandomState([self._seed, self._part, index])
        image = _ground(random)
        mask = np.zeros((SIDE, SIDE), 'int32')
        boxes, labels = [], []
        for _ in range(random.randint(1, _MOST_DIGITS + 1)):
            number = random.randint(len(self._images))
            ink = _resized(self._images[number], random)
            place = _free_place(ink.shape, boxes, random)
            if place is None:
                continue
            left, top, right, bottom = place
            patch = image[top:bottom, left:right]
            patch += ink[:, :, None] * (_colour(patch.mean(axis=(0, 1)), random) - patch)
            mask[top:bottom, left:right][ink > _INK] = 1 + self._labels[number]
            boxes.append(place)
            labels.append(self._labels[number])
        image += random.normal(0, 6, image.shape)
        return Scene(
            image.clip(0, 255).astype('uint8'), np.array(boxes, 'float32'), np.array(labels, 'int32'), mask
        )


def train_and_test(make, train_scenes, seed=0):
    """Scenes to train with, and a tenth as many, always the same, to test with.

    Parameters
    ----------
    make : callable
        Makes a sample of the image, boxes, labels and mask of a `Scene`.
    train_scenes : int
    seed : int, default 0
        Of the scenes to train with.

    Returns
    -------
    gluon.data.Dataset, gluon.data.Dataset
    """
    parts = DigitScenes('train', train_scenes, seed), DigitScenes('test', train_scenes // 10)
    return tuple(scenes.transform(make) for scenes in parts)


def _ground(random):
    """Blotches of two sizes, stripes, and a colour of its own for each scene."""
    image = np.zeros((SIDE, SIDE, 3)) + random.uniform(60, 195, 3)
    for cells, strength in ((4, 30), (16, 12)):
        image += cv2.resize(random.normal(0, strength, (cells, cells, 3)), (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    angle, period = random.uniform(0, np.pi), random.uniform(4, 16)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    stripes = np.sin(2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / period)
    return image + random.uniform(0, 15) * stripes[:, :, None]


def _resized(digit, random):
    """The ink of a digit, cut to what is visible of it: float, from 0 to 1."""
    size = random.uniform(*_SIZES)
    height, width = (max(4, round(size * random.uniform(1 - _ASPECT, 1 + _ASPECT))) for _ in range(2))
    ink = cv2.resize(digit, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 1)
    rows, columns = np.flatnonzero((ink > _INK).any(axis=1)), np.flatnonzero((ink > _INK).any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _free_place(shape, boxes, random):
    height, width = shape
    for _ in range(_TRIALS):
        left, top = random.randint(SIDE - width + 1), random.randint(SIDE - height + 1)
        place = (left, top, left + width, top + height)
        if all(_overlap(place, box) <= _OVERLAP for box in boxes):
            return place
    return None


def _overlap(one, other):
    """Area that two boxes share, as part of the smaller one."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(0, width) * max(0, height) / smaller


def _colour(ground, random):
    while True:
        colour = random.uniform(0, 255, 3)
        if abs(colour.mean() - ground.mean()) >= _CONTRAST:
            return colour
