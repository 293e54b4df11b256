"""What is done to pictures before the network sees them: GluonCV's recipes."""

import math

from mxnet.gluon.data.vision import transforms

from gluon_examples.common.seeds import SeededApart

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_JITTER, _LIGHTING = 0.4, 0.1


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
