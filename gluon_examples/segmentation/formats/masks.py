"""Images with masks, cropped and scaled as GluonCV's recipes do it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from gluoncv.data.segbase import SegmentationDataset
from PIL import Image, ImageFile, UnidentifiedImageError

from gluon_examples.common.normalization import normalized
from gluon_examples.common.seeds import SeededApart

ImageFile.LOAD_TRUNCATED_IMAGES = False  # GluonCV has Pillow fill up images that are cut off
_MOST_SLENDER = 50  # the shorter side is scaled to the crop's size, or the longer, and the other with it


class Item(NamedTuple):
    """One image and where its mask comes from: a file, or what COCO says of the image."""

    path: Path
    mask: object


class MaskImages(SegmentationDataset):
    """Images with masks.

    Parameters
    ----------
    items : list of Item
    read_mask : callable
        From an item's `mask` to an array of int32, height x width, of classes; -1 is none.
    classes : int
    mode : {'train', 'val'}
        train: mirrored, scaled and cropped at random; val: the middle.
    base_size, crop_size : int
        See GluonCV's SegmentationDataset.
    bad : BadData
        Is told of images and masks that cannot be used; in their place come those of which no pixel has a label.
    seed : int, default 0
        Of random choices in loader processes.
    """

    def __init__(self, items, read_mask, classes, mode, base_size, crop_size, bad, seed=0):
        super().__init__('.', mode, mode, None, base_size, crop_size)
        self.items = items
        self._read_mask, self._classes, self._bad = read_mask, classes, bad
        self._transform = SeededApart(self._sync_transform, seed) if mode == 'train' else self._val_sync_transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, source = self.items[index]
        try:
            image = Image.open(path).convert('RGB')
        except Exception as fault:      # Pillow's errors are of many kinds
            return self._replaced(f'{path}: the image cannot be decoded ({_in_short(fault)})')
        try:
            mask = self._read_mask(source)
        except Exception as fault:
            return self._replaced(f'{source}: the mask cannot be decoded ({_in_short(fault)})')
        if max(image.size) > _MOST_SLENDER * min(image.size):
            return self._replaced(f'{path}: the image has {image.size[0]}x{image.size[1]} pixels, too slender to be cropped')
        if mask.shape != image.size[::-1]:
            return self._replaced(f'{source}: the mask has {mask.shape[1]}x{mask.shape[0]} pixels, its image {path} '
                                  f'{image.size[0]}x{image.size[1]}')
        top = mask.max()
        if top >= self._classes or mask.min() < -1:
            odd = top if top >= self._classes else mask.min()
            return self._replaced(f'{source}: the mask has the label {odd}, outside 0 to {self._classes - 1}')
        # GluonCV crops Pillow's images, whose pixels are from 0 on and are filled up with 0: that is no label here.
        return self._transform(image, Image.fromarray((mask + 1).astype('int32')))

    def _replaced(self, what):
        self._bad.image(what)
        shape = self.crop_size, self.crop_size
        return np.zeros((3, *shape), 'float32'), np.full(shape, -1, 'int32')

    def _img_transform(self, image):
        return normalized(np.asarray(image))

    def _mask_transform(self, mask):
        return np.asarray(mask).astype('int32') - 1


def _in_short(fault):
    if isinstance(fault, UnidentifiedImageError):
        return 'it is no picture'
    return getattr(fault, 'strerror', None) or (str(fault) or type(fault).__name__).splitlines()[0]
