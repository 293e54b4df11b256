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

    Features at an eighth of the resolution are joined with those at a quarter, and these with those at a half. Answers with
    (scores, auxiliary scores), as GluonCV's networks for segmentation do.

    Parameters
    ----------
    classes : int
    """

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.half, self.quarter, self.eighth, self.narrow, self.joint = (nn.HybridSequential() for _ in range(5))
            self.half.add(*_convolution(16, 3, strides=2, padding=1))
            self.quarter.add(_block(16, 48, strides=2), _block(48, 48))
            self.eighth.add(_block(48, 96, strides=2), _block(96, 96))
            # Few channels where they are enlarged: that takes longer on CPUs than convolutions do.
            self.narrow.add(*_convolution(32, 1))
            self.joint.add(*_convolution(32, 3, padding=1))
            self.head, self.auxlayer = _FCNHead(48, classes), _FCNHead(96, classes)

    def hybrid_forward(self, F, x):
        def joined(deep, shallow):
            return F.concat(F.contrib.BilinearResize2D(deep, like=shallow, mode='like'), shallow, dim=1)

        half = self.half(x)
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        deep = self.joint(joined(self.narrow(eighth), quarter))
        scores = self.head(joined(deep, half)), self.auxlayer(eighth)
        return tuple(F.contrib.BilinearResize2D(one, like=x, mode='like') for one in scores)


def _convolution(channels, kernel, **options):
    return nn.Conv2D(channels, kernel, use_bias=False, **options), nn.BatchNorm(), nn.Activation('relu')


def _block(inputs, channels, strides=1):
    shortcut = None
    if strides != 1 or inputs != channels:
        shortcut = nn.HybridSequential()
        shortcut.add(nn.Conv2D(channels, 1, strides, use_bias=False), nn.BatchNorm())
    return BasicBlockV1b(channels, strides, downsample=shortcut, norm_layer=nn.BatchNorm)


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
