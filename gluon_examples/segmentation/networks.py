"""The networks that `--network` can name: GluonCV's for segmentation, and a small one for CPUs."""

from gluoncv.model_zoo.deeplabv3 import DeepLabV3
from gluoncv.model_zoo.fcn import FCN, _FCNHead
from gluoncv.model_zoo.pspnet import PSPNet
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet import gluon
from mxnet.gluon import nn

from gluon_examples.common.pretrained import weights_from

FCN_TINY = 'fcn_tiny'
_GLUONCV = {'fcn': FCN, 'psp': PSPNet, 'deeplab': DeepLabV3}
NAMES = (FCN_TINY, *_GLUONCV)
BACKBONES = ('resnet50', 'resnet101', 'resnet152', 'resnest50', 'resnest101', 'resnest200', 'resnest269')


class FCNTiny(gluon.HybridBlock):
    """A fully convolutional network (arXiv 1411.4038) of GluonCV's residual blocks, small enough for CPUs.

    The deepest features, at an eighth of the resolution, are joined with those at a quarter and a half. Answers with
    (scores, auxiliary scores), as GluonCV's networks for segmentation do.

    Parameters
    ----------
    classes : int
    """

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.half = nn.HybridSequential()
            self.half.add(*_convolution(16, 3, strides=2, padding=1), _block(16, 16))
            self.quarter = _block(16, 32, strides=2)
            self.eighth = _block(32, 64, strides=2)
            self.wide = nn.HybridSequential()
            self.wide.add(_block(64, 64, dilation=2), _block(64, 64, dilation=2))
            self.from_quarter, self.from_eighth = nn.HybridSequential(), nn.HybridSequential()
            self.from_quarter.add(*_convolution(16, 1))
            self.from_eighth.add(*_convolution(32, 1))
            self.head, self.auxlayer = _FCNHead(64, classes), _FCNHead(64, classes)

    def hybrid_forward(self, F, x):
        half = self.half(x)
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        parts = self.from_eighth(self.wide(eighth)), self.from_quarter(quarter), half
        joined = F.concat(*[F.contrib.BilinearResize2D(part, like=half, mode='like') for part in parts], dim=1)
        return tuple(
            F.contrib.BilinearResize2D(scores, like=x, mode='like')
            for scores in (self.head(joined), self.auxlayer(eighth))
        )


def _convolution(channels, kernel, **options):
    return nn.Conv2D(channels, kernel, use_bias=False, **options), nn.BatchNorm(), nn.Activation('relu')


def _block(inputs, channels, strides=1, dilation=1):
    shortcut = None
    if strides != 1 or inputs != channels:
        shortcut = nn.HybridSequential()
        shortcut.add(nn.Conv2D(channels, 1, strides, use_bias=False), nn.BatchNorm())
    return BasicBlockV1b(
        channels, strides, dilation, shortcut, previous_dilation=dilation, norm_layer=nn.BatchNorm
    )


def create(name, classes, crop_size, backbone='resnet50', pretrained_root=None):
    """The network called `name`; parts of it are not initialised yet.

    Parameters
    ----------
    name : {'fcn_tiny', 'fcn', 'psp', 'deeplab'}
    classes : int
    crop_size : int
        Height and width of the images.
    backbone : str, default 'resnet50'
        Of GluonCV's networks.
    pretrained_root : str or Path, optional
        Folder with GluonCV's file of the backbone's weights.

    Returns
    -------
    HybridBlock
        Answers with (scores, auxiliary scores), each of shape (batch, classes, height, width).
    """
    if name == FCN_TINY:
        return FCNTiny(classes)
    with weights_from(pretrained_root):
        return _GLUONCV[name](
            classes,
            backbone=backbone,
            aux=True,
            pretrained_base=pretrained_root is not None,
            base_size=crop_size,
            crop_size=crop_size,
        )
