"""Where the images and masks of each data set are, and what the numbers in its masks mean."""

from typing import NamedTuple

import numpy as np
from gluoncv.data import ADE20KSegmentation, CitySegmentation, COCOSegmentation, VOCSegmentation
from PIL import Image, ImageDraw

from gluon_examples.common.coco import CocoFile
from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.segmentation.formats.masks import Item

ADE20K, VOC, CITYSCAPES, COCO = (
    tuple(kind.CLASSES) for kind in (ADE20KSegmentation, VOCSegmentation, CitySegmentation, COCOSegmentation)
)
_NO_LABEL = 255  # in VOC's masks
# Of Cityscapes' label ids, those that its benchmark counts, in its order.
_CITY_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_LEAST_PIXELS = 1000  # labelled ones, of an image of COCO's to train with, as in GluonCV


class Layout(NamedTuple):
    """The images of a data set.

    Attributes
    ----------
    train, test : list of Item
    names : tuple of str
        Of the classes.
    read_mask : callable
        From an item's mask to an array of int32 of classes, -1 for none.
    """

    train: list
    test: list
    names: tuple
    read_mask: object


def _numbers(path):
    mask = np.asarray(Image.open(path)).astype('int32')
    if mask.ndim != 2:
        raise ValueError(f'it has {mask.shape[-1]} channels, not the number of a class in each pixel')
    return mask


def _paired(images, mask_of):
    items = [Item(path, mask_of(path)) for path in images]
    missing = [item.mask for item in items if not item.mask.is_file()]
    if missing:
        raise MissingDataError(
            f'{missing[0]} is not there ({len(missing)} of {len(items)} masks are missing); copy the data set again'
        )
    return items


def _listed(folder, pattern):
    # Sorted: all workers must number the images alike, and a folder's own order differs by machine.
    found = sorted(folder.glob(pattern))
    if not found:
        raise MissingDataError(f'{folder} has no {pattern}; docs/recipes.md shows the layout that --data-dir must have')
    return found


def ade20k(folder):
    """ADEChallengeData2016, in `folder` or being `folder`; 0 in a mask is no label."""
    root = folder / 'ADEChallengeData2016' if (folder / 'ADEChallengeData2016').is_dir() else folder
    both = []
    for part in ('training', 'validation'):
        masks = root / 'annotations' / part
        both.append(_paired(_listed(root / 'images' / part, '*.jpg'), lambda path, m=masks: m / f'{path.stem}.png'))
    return Layout(*both, ADE20K, lambda path: _numbers(path) - 1)


def pascal_voc(folder):
    """VOC2012 (in VOCdevkit): train for training, val for testing; 255 in a mask is no label."""
    root = folder / 'VOC2012'
    both = []
    for part in ('train', 'val'):
        split = root / 'ImageSets' / 'Segmentation' / f'{part}.txt'
        try:
            names = split.read_text().split()
        except UnicodeDecodeError:
            raise DamagedDataError(f'{split} is no text; copy it again') from None
        except OSError as fault:
            raise MissingDataError(
                f'{split} cannot be read ({fault.strerror}); --data-dir must be VOCdevkit, with VOC2012 in it'
            ) from None
        images = [root / 'JPEGImages' / f'{name}.jpg' for name in names]
        missing = [path for path in images if not path.is_file()]
        if missing or not images:
            raise MissingDataError(
                f'{missing[0]} is not there, though {split} names it; copy the data set again' if missing
                else f'{split} is empty; copy it again'
            )
        both.append(_paired(images, lambda path: root / 'SegmentationClass' / f'{path.stem}.png'))

    def read_mask(path):
        mask = _numbers(path)
        return np.where(mask == _NO_LABEL, -1, mask).astype('int32')
    return Layout(*both, VOC, read_mask)


def citys(folder):
    """Cityscapes: leftImg8bit and gtFine, with the original label ids."""
    both = []
    for part in ('train', 'val'):
        masks = folder / 'gtFine' / part
        both.append(_paired(
            _listed(folder / 'leftImg8bit' / part, '*/*_leftImg8bit.png'),
            lambda path, m=masks: m / path.parent.name / path.name.replace('_leftImg8bit', '_gtFine_labelIds'),
        ))
    table = np.full(256, -1, 'int32')
    table[list(_CITY_IDS)] = np.arange(len(_CITY_IDS))
    def read_mask(path):
        mask = _numbers(path)
        known = (mask >= -1) & (mask < 34) | (mask == 255)  # 255 is -1, the licence plate, in a byte
        return np.where(known, table[mask & 255], mask).astype('int32')
    return Layout(*both, CITYSCAPES, read_mask)


# COCO's names of Pascal VOC's classes, in the order of COCOSegmentation.CAT_LIST after the ground.
_COCO_NAMES = ('airplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow', 'dining table', 'dog',
               'horse', 'motorcycle', 'person', 'potted plant', 'sheep', 'couch', 'train', 'tv')


class CocoMask(NamedTuple):
    """What COCO says of one image."""

    file: str
    id: int
    size: tuple
    annotations: list

    def __str__(self):
        return f'{self.file}, image {self.id}'


def coco(folder):
    """COCO 2017, with the 21 classes of Pascal VOC, as GluonCV has it to prepare for VOC."""
    both = []
    for part in ('train2017', 'val2017'):
        file = CocoFile(folder / 'annotations' / f'instances_{part}.json')
        for number, name in zip(COCOSegmentation.CAT_LIST[1:], _COCO_NAMES, strict=True):
            if file.categories.get(number, name) != name:
                raise DamagedDataError(f'{file.path}: category {number} must be {name}, as in COCO, and is '
                                       f'{file.categories[number]!r}; use the original file')
        items = []
        for image in file.images:
            wanted = [one for one in file.annotations[image['id']] if one.get('category_id') in COCOSegmentation.CAT_LIST]
            try:
                source = CocoMask(str(file.path), image['id'], (image['width'], image['height']), wanted)
                labelled = sum(float(one['area']) for one in wanted)
                for one in wanted:
                    if not isinstance(one['segmentation'], (list, dict)):
                        raise TypeError(f'segmentation {one["segmentation"]!r}')
                path = folder / part / image['file_name']
            except (KeyError, TypeError, ValueError) as fault:
                raise DamagedDataError(
                    f'{file.path}: the annotation of image {image["id"]} is not whole '
                    f'({type(fault).__name__}: {fault}); copy the file again'
                ) from None
            if labelled > _LEAST_PIXELS:
                items.append(Item(path, source))
        missing = [item.path for item in items if not item.path.is_file()]
        if missing or not items:
            raise MissingDataError(
                f'{missing[0]} is not there ({len(missing)} of {len(items)} images are missing); copy the data set again'
                if missing else f'{file.path} has no image with enough of the classes of Pascal VOC; use the original file'
            )
        both.append(items)
    return Layout(*both, COCO, _painted)


def _painted(source):
    """The mask that COCO's polygons and run lengths make; what comes first is on top, as in GluonCV."""
    width, height = source.size
    mask = np.zeros((height, width), 'int32')
    for one in source.annotations:
        shape = one['segmentation']
        if isinstance(shape, list):
            canvas = Image.new('1', (width, height))
            for polygon in shape:
                ImageDraw.Draw(canvas).polygon([float(number) for number in polygon], fill=1)
            inside = np.asarray(canvas)
        else:
            runs = shape['counts']
            if not isinstance(runs, list):
                raise ValueError('its run lengths are compressed, which is not supported')
            inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
        mask[inside & (mask == 0)] = COCOSegmentation.CAT_LIST.index(one['category_id'])
    return mask


READERS = {'ade20k': ade20k, 'pascal_voc': pascal_voc, 'citys': citys, 'coco': coco}
