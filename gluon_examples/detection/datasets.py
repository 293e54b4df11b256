"""The data sets of the detection recipe, all behind one function. None is ever downloaded."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from gluoncv.data import COCODetection, VOCDetection
from mxnet import gluon, nd

from gluon_examples.common import scenes
from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.common.seeds import SeededApart
from gluon_examples.detection.formats import coco, voc
from gluon_examples.detection.formats.boxes import BoxImages, check_files, with_objects


class Datasets(NamedTuple):
    """Data to train and to test with.

    Attributes
    ----------
    train, test : gluon.data.Dataset
        Of (image, boxes): uint8, height x width x 3; float32, N x 6: left, top, right, bottom, class, difficult.
    classes : tuple of str
    augment : bool
        Whether mirrored and cropped images are still of the same classes.
    coco_file : Path or None
        The annotations to test with, for COCO's metric.
    """

    train: gluon.data.Dataset
    test: gluon.data.Dataset
    classes: tuple
    augment: bool = True
    coco_file: Path = None


def with_boxes(image, boxes, labels, _):
    """What a scene is to a detector; none of its digits is difficult."""
    columns = [boxes, labels[:, None], np.zeros((len(boxes), 1))]
    return nd.array(image, dtype='uint8'), np.concatenate(columns, axis=1).astype('float32')


class Transformed(gluon.data.Dataset):
    """A data set of (image, boxes) whose samples go through a transform of both.

    Parameters
    ----------
    dataset : gluon.data.Dataset
    transform : callable
    seed : int, optional
        The transform makes random choices: let them differ between the processes of a loader.
    """

    def __init__(self, dataset, transform, seed=None):
        self._dataset = dataset
        self._transform = transform if seed is None else SeededApart(transform, seed)

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        return self._transform(*self._dataset[index])


def load(name, data_dir, bad, seed=0, train_scenes=6000):
    """Load a data set and check its annotations: what is wrong with them shows here, not in the midst of training.

    Parameters
    ----------
    name : {'digits-scenes', 'voc', 'coco'}
    data_dir : str or Path, optional
        Where the files are; needed by all but the scenes.
    bad : BadData
        What is done with annotations and images that cannot be used.
    seed : int, default 0
        Of the scenes to train with. Those to test with are always the same.
    train_scenes : int, default 6000
        How many to train with; a tenth as many are there to test with.

    Returns
    -------
    Datasets

    Raises
    ------
    MissingDataError, DamagedDataError
        Files are not there, or do not hold what they should.
    """
    if name == 'digits-scenes':
        return Datasets(*scenes.train_and_test(with_boxes, train_scenes, seed), scenes.CLASSES, augment=False)
    folder = Path(data_dir)
    if not folder.is_dir():
        raise MissingDataError(f'--data-dir {data_dir}: no such folder; give the one with the files of {name}')
    coco_file = None
    if name == 'voc':
        classes = VOCDetection.CLASSES
        train, test = (voc.read(folder, splits, classes, bad) for splits in (voc.TRAIN, voc.TEST))
    else:
        classes = COCODetection.CLASSES
        train, _ = coco.read(folder, 'train2017', classes, bad)
        test, _ = coco.read(folder, 'val2017', classes, bad)
        coco_file = folder / 'annotations' / 'instances_val2017.json'
    check_files([*train, *test])
    train = with_objects(train, bad)
    if not train:
        raise DamagedDataError(f'--data-dir {data_dir}: no image to train with has an object; nothing can be learned')
    # Difficult ones, and crowds, do not count in the metrics.
    if not any((item.boxes[:, 5] == 0).any() for item in test):
        raise DamagedDataError(f'--data-dir {data_dir}: no image to test with has an object that counts; nothing can '
                               'be measured')
    return Datasets(BoxImages(train, bad), BoxImages(test, bad), tuple(classes), coco_file=coco_file)
