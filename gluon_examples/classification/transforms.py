"""What is done to pictures before the network sees them: GluonCV's recipes."""

import math
import os
import random

import mxnet as mx
import numpy as np
from mxnet.gluon.data.vision import transforms

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_JITTER, _LIGHTING = 0.4, 0.1


class SeededApart:
    """A transform whose random choices differ between the processes of a loader.

    They are forked, and would otherwise all make the same choices. In the process that made it, random
    choices follow that process's own seeds.

    Parameters
    ----------
    transform : callable
    seed : int
    """

    def __init__(self, transform, seed):
        self._transform = transform
        self._seed = seed
        self._process = os.getpid()

    def __call__(self, image):
        if os.getpid() != self._process:
            self._process = os.getpid()
            own = int(np.random.SeedSequence([self._seed, self._process]).generate_state(1)[0]) >> 1
            random.seed(own)
            np.random.seed(own)
            mx.random.seed(own)
        return self._transform(image)


def cifar(seed):
    """Transforms for training (a crop from 4 more pixels on each side, a flip) and for testing.

    Returns
    -------
    (callable, callable)
        uint8 height x width x 3 -> float32 3 x height x width.
    """
    from gluoncv.data.transforms.block import RandomCrop

    both = [transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)]
    train = transforms.Compose([RandomCrop(32, pad=4), transforms.RandomFlipLeftRight(), *both])
    return SeededApart(train, seed), transforms.Compose(both)


def imagenet(input_size, crop_ratio, seed):
    """Transforms for training (a random part resized, a flip, colours shifted) and for testing (the centre).

    Parameters
    ----------
    input_size : int
        Height and width of what the network sees.
    crop_ratio : float
        For testing, the shorter side is first resized to `input_size` / `crop_ratio`.
    seed : int

    Returns
    -------
    (callable, callable)
        uint8 height x width x 3 -> float32 3 x `input_size` x `input_size`.
    """
    both = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    train = transforms.Compose(
        [
            transforms.RandomResizedCrop(input_size),
            transforms.RandomFlipLeftRight(),
            transforms.RandomColorJitter(brightness=_JITTER, contrast=_JITTER, saturation=_JITTER),
            transforms.RandomLighting(_LIGHTING),
            *both,
        ]
    )
    test = transforms.Compose(
        [
            transforms.Resize(math.ceil(input_size / crop_ratio), keep_ratio=True),
            transforms.CenterCrop(input_size),
            *both,
        ]
    )
    return SeededApart(train, seed), test
