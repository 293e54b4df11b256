"""The data sets of the classification recipe, all behind one function. None is ever downloaded."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from mxnet import gluon, nd

from gluon_examples.classification import transforms
from gluon_examples.classification.formats import cifar, digits, folder, idx, records
from gluon_examples.common.errors import DamagedDataError, MissingDataError, RecipeError


class Datasets(NamedTuple):
    """Data to train and to test with.

    Attributes
    ----------
    train, test : gluon.data.Dataset
        Of (image, label): float32 channels x height x width, normalised, and the number of the class.
    classes : int
    input_shape : tuple of int
        Channels, height, width.
    """

    train: gluon.data.Dataset
    test: gluon.data.Dataset
    classes: int
    input_shape: tuple


class Images(gluon.data.Dataset):
    """Images that are ready for the network, in memory.

    Parameters
    ----------
    images : array of float32
        N x channels x height x width.
    labels : array of int32
    """

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class RawImages(Images):
    """Images in memory that still go through transforms.

    Parameters
    ----------
    images : array of uint8
        N x height x width x channels.
    labels : array of int32
    """

    def __getitem__(self, index):
        return nd.array(self.images[index], dtype='uint8'), self.labels[index]


def load(name, data_dir=None, *, channels=None, input_size=224, crop_ratio=0.875, classes=None, seed=0):
    """Load a data set and check it: what is wrong with the files shows here, not in the midst of training.

    Parameters
    ----------
    name : {'digits', 'idx', 'cifar10', 'folder', 'rec'}
        See the modules in `formats` for the files each needs.
    data_dir : str or Path, optional
        Where the files are; needed by all but digits.
    channels : int, optional
        Repeat the one channel of grey images (digits, idx) this many times.
    input_size : int, default 224
        Height and width to which pictures (folder, rec) are brought.
    crop_ratio : float, default 0.875
        Part of a test picture's side that is left after the central crop (folder, rec).
    classes : int, optional
        Number of classes, for rec; then only some records are checked when loading.
    seed : int, default 0
        Of random crops and the like in loader processes.

    Returns
    -------
    Datasets

    Raises
    ------
    RecipeError
        There is no such data set, or `data_dir` is missing or needless.
    MissingDataError, DamagedDataError
        Files are not there, or do not hold what they should.
    """
    if name not in NAMES:
        raise RecipeError(f'--dataset {name}: no such data set; choose one of {", ".join(NAMES)}')
    if name == 'digits':
        return _grey(*digits.read(), digits.CLASSES, channels)
    if data_dir is None:
        raise MissingDataError(
            f'--dataset {name} needs --data-dir, the folder with its files; nothing is downloaded'
        )
    if not Path(data_dir).is_dir():
        raise MissingDataError(
            f'--data-dir {data_dir}: no such folder; give the one with the files of {name}'
        )
    if name == 'idx':
        return _idx(data_dir, channels)
    if name == 'cifar10':
        train, test = cifar.read(data_dir)
        sets = RawImages(*train), RawImages(*test)
        return _transformed(*sets, transforms.cifar(seed), cifar.CLASSES, (3, 32, 32))
    both = transforms.imagenet(input_size, crop_ratio, seed)
    shape = (3, input_size, input_size)
    if name == 'folder':
        train, test, names = folder.read(data_dir)
        return _transformed(train, test, both, len(names), shape)
    train, test = records.read(data_dir, classes)
    return _transformed(train, test, both, train.classes, shape)


NAMES = ('digits', 'idx', 'cifar10', 'folder', 'rec')


def _idx(data_dir, channels):
    train, test = idx.read(data_dir)
    classes = int(train[1].max()) + 1
    if classes < 2:
        raise DamagedDataError(
            f'{data_dir}: all labels for training are 0; nothing can be learnt from one class'
        )
    if test[1].max() >= classes:
        raise DamagedDataError(
            f'{data_dir}: the label {test[1].max()} of a test image is outside 0 to {classes - 1}, '
            'the labels for training; both must come from the same data set'
        )
    scaled = [(images.astype('float32') / 255, labels) for images, labels in (train, test)]
    return _grey(*scaled, classes, channels)


def _grey(train, test, classes, channels):
    mean, std = train[0].mean(dtype='float64'), train[0].std(dtype='float64')
    if std == 0:
        raise DamagedDataError('all pixels of the images for training are equal; copy the files again')
    sets = []
    for images, labels in (train, test):
        images = ((images - mean) / std).astype('float32')[:, None]
        sets.append(Images(np.repeat(images, channels or 1, axis=1), labels))
    return Datasets(*sets, classes, sets[0].images.shape[1:])


def _transformed(train, test, both, classes, shape):
    for_train, for_test = both
    return Datasets(train.transform_first(for_train), test.transform_first(for_test), classes, shape)
