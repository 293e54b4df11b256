"""Pixels as GluonCV's networks want them, and back."""

import numpy as np

MEAN, STD = np.array((0.485, 0.456, 0.406), 'float32'), np.array((0.229, 0.224, 0.225), 'float32')


def normalized(image):
    """uint8, height x width x 3, to float32, 3 x height x width, by ImageNet's mean and deviation.

    Examples
    --------
    >>> image = np.full((2, 2, 3), 128, 'uint8')
    >>> bool((to_pixels(normalized(image)) == image).all())
    True
    """
    return ((image.astype('float32') / 255 - MEAN) / STD).transpose(2, 0, 1)


def to_pixels(image):
    """The inverse of `normalized`."""
    return np.rint((image.transpose(1, 2, 0) * STD + MEAN) * 255).clip(0, 255).astype('uint8')
