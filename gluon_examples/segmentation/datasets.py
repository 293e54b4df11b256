"""The data sets of the segmentation recipe, all behind one function. None is ever downloaded."""

from pathlib import Path
from typing import NamedTuple

from mxnet import gluon

from gluon_examples.common import scenes
from gluon_examples.common.bad_data import BadData
from gluon_examples.common.errors import MissingDataError
from gluon_examples.common.normalization import normalized


class Datasets(NamedTuple):
    """Data to train and to test with.

    Attributes
    ----------
    train, test : gluon.data.Dataset
        Of (image, mask): float32, 3 x height x width, normalised; int32, height x width, the number of each pixel's class,
        -1 where it has none.
    names : tuple of str
        Of the classes.
    """

    train: gluon.data.Dataset
    test: gluon.data.Dataset
    names: tuple

    @property
    def classes(self):
        """How many classes there are."""
        return len(self.names)


def with_mask(image, _boxes, _labels, mask):
    """What a scene is to a network for segmentation."""
    return normalized(image), mask


def load(name, data_dir=None, base_size=520, crop_size=480, seed=0, bad=None, train_scenes=6000):
    """Load a data set and check what can be checked without decoding the images.

    Parameters
    ----------
    name : {'digits-scenes', 'ade20k', 'pascal_voc', 'citys', 'coco'}
    data_dir : str or Path, optional
        Where the files are; needed by all but the scenes.
    base_size, crop_size : int
        See the flags of these names.
    seed : int, default 0
        Of the scenes to train with, and of random choices in loader processes. The scenes to test with are always the same.
    bad : BadData, optional
        What is done with images and masks that cannot be used. Default: an error.
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
        return Datasets(*scenes.train_and_test(with_mask, train_scenes, seed), ('ground', *scenes.CLASSES))
    # Imported late: the scenes need none of it.
    from gluon_examples.segmentation.formats import layouts
    from gluon_examples.segmentation.formats.masks import MaskImages

    if not Path(data_dir).is_dir():
        raise MissingDataError(f'--data-dir {data_dir}: no such folder; give the one with the files of {name}')
    layout = layouts.READERS[name](Path(data_dir))
    bad = bad or BadData()
    train, test = (
        MaskImages(items, layout.read_mask, len(layout.names), mode, base_size, crop_size, bad, seed)
        for items, mode in ((layout.train, 'train'), (layout.test, 'val'))
    )
    return Datasets(train, test, layout.names)
