"""The networks that `--network` can name: GluonCV's classifiers, and a small one for small digits."""

import difflib

import mxnet as mx
from mxnet.gluon import nn

from gluon_examples.common.errors import RecipeError

DIGITS_CNN = 'digits_cnn'
_WIDTHS = (32, 64, 128)


def digits_cnn(classes=10):
    """Three 3x3 convolutions with BatchNorm, for images from 4x4 pixels on.

    The shapes are not given: they follow from the first batch (deferred initialisation).

    Parameters
    ----------
    classes : int, default 10

    Returns
    -------
    HybridBlock
    """
    net = nn.HybridSequential()
    for number, width in enumerate(_WIDTHS):
        if number == len(_WIDTHS) - 1:
            net.add(nn.MaxPool2D())
        net.add(
            nn.Conv2D(width, kernel_size=3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation('relu')
        )
    net.add(nn.GlobalAvgPool2D(), nn.Dense(classes))
    return net


def channels_for(name):
    """How many channels grey images need to have: GluonCV's networks are made for colour."""
    return None if name.lower() == DIGITS_CNN else 3


def names():
    """All names that `create` knows, in alphabetical order."""
    return sorted([DIGITS_CNN, *_gluoncv_classifiers()])


def create(name, classes, input_shape):
    """The network called `name`, not yet initialised.

    Parameters
    ----------
    name : str
    classes : int
    input_shape : tuple of int
        Channels, height and width of an image.

    Returns
    -------
    HybridBlock

    Raises
    ------
    RecipeError
        There is no such classifier, or it cannot take images of this shape.
    """
    if name.lower() == DIGITS_CNN:
        net = digits_cnn(classes)
    else:
        known = _gluoncv_classifiers()
        if name.lower() not in known:
            close = difflib.get_close_matches(name.lower(), [DIGITS_CNN, *known], n=3)
            hint = f'did you mean {" or ".join(close)}? ' if close else ''
            raise RecipeError(
                f'--network {name}: no such classification network; {hint}--list-networks prints all names'
            )
        from gluoncv.model_zoo import get_model

        arguments = {'num_classes' if _is_hrnet(name.lower()) else 'classes': classes}
        if name.lower().startswith('nasnet'):
            arguments['use_aux'] = False  # its second output would need a loss of its own
        net = get_model(name, pretrained=False, **arguments)
    _check_shapes(net, name, classes, input_shape)
    return net


def _gluoncv_classifiers():
    # Imported late: it takes seconds, and digits_cnn has no use for it.
    from gluoncv.model_zoo import model_zoo

    # GluonCV's one list also has detectors, segmenters and video networks, some of which fetch weights when
    # they are made. Nothing but the module a network comes from tells them apart.
    return {
        name
        for name, maker in model_zoo._models.items()
        if maker.__module__ in _CLASSIFIER_MODULES and not (_is_hrnet(name) and name.endswith('_s'))
    }


def _is_hrnet(name):
    return name.startswith('hrnet_')  # those in _c classify, those in _s segment


_CLASSIFIER_MODULES = {
    f'gluoncv.model_zoo.{module}'
    for module in (
        'alexnet',
        'cifarresnet',
        'cifarresnext',
        'cifarwideresnet',
        'densenet',
        'dla',
        'googlenet',
        'hrnet',
        'inception',
        'mobilenet',
        'mobilenetv3',
        'nasnet',
        'pruned_resnet.resnetv1b_pruned',
        'residual_attentionnet',
        'resnest',
        'resnet',
        'resnetv1b',
        'resnext',
        'se_resnet',
        'senet',
        'shufflenet',
        'squeezenet',
        'vgg',
        'xception',
        'yolo.darknet',
    )
}


def _check_shapes(net, name, classes, input_shape):
    """Work out the output shape without computing anything, so that a misfit shows before training."""
    size = 'x'.join(map(str, input_shape))
    try:
        outputs = net(mx.sym.var('data'))
        _, shapes, _ = outputs.infer_shape(data=(1, *input_shape))
    except (mx.base.MXNetError, AssertionError, AttributeError, ValueError) as fault:
        reason = (
            str(fault).strip().splitlines()[-1].rsplit('Check failed: ', 1)[-1].removeprefix('MXNetError: ')
        )
        raise RecipeError(
            f'--network {name}: cannot take images of {size} ({reason}); '
            'choose another network or --input-size'
        ) from None
    if shapes != [(1, classes)]:
        raise RecipeError(
            f'--network {name}: answers with {shapes} for images of {size}, '
            f'a classifier with {[(1, classes)]}; choose another network'
        )
