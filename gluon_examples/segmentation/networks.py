"""The networks that `--network` can name: GluonCV's for segmentation, and a small one for CPUs."""

from gluoncv.model_zoo.deeplabv3 import DeepLabV3
from gluoncv.model_zoo.fcn import FCN, _FCNHead
from gluoncv.model_zoo.pspnet import PSPNet
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet import gluon
from mxnet.gluon import nn

from gluon_examples.common.pretrained import weights_from

FCN_TINY = 'fcn_tiny'
TINY_STRIDE = 16  # images are multiples of it
_GLUONCV = {'fcn': FCN, 'psp': PSPNet, 'deeplab': DeepLabV3}
NAMES = (FCN_TINY, *_GLUONCV)
BACKBONES = ('resnet50', 'resnet101', 'resnet152', 'resnest50', 'resnest101', 'resnest200', 'resnest269')


class FCNTiny(gluon.HybridBlock):
    """A fully convolutional network (arXiv 1411.4038) of GluonCV's residual blocks, small enough for CPUs.

    Features at a sixteenth of the resolution, which see a whole digit, are joined with those at an eighth, and so on up to a
    half. The head gives four scores for each place there, one for each pixel (arXiv 1609.05158), so that thin strokes are
    not smoothed away. Answers with (scores, auxiliary scores), as GluonCV's networks for segmentation do.

    Parameters
    ----------
    classes : int
    """

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        # All numbers of channels are multiples of 16, in GluonCV's heads (a quarter of what comes in) too: the convolution
        # of any other number takes thrice as long on CPUs.
        with self.name_scope():
            self.half, self.quarter, self.eighth, self.sixteenth = (nn.HybridSequential() for _ in range(4))
            self.half.add(*_convolution(16, strides=2))
            self.quarter.add(_block(16, 32, strides=2), _block(32, 32))
            self.eighth.add(_block(32, 64, strides=2), _block(64, 64))
            self.sixteenth.add(_block(64, 128, strides=2), _block(128, 128))
            self.joint_eighth, self.joint_quarter = (nn.HybridSequential() for _ in range(2))
            self.joint_eighth.add(*_convolution(64))
            self.joint_quarter.add(*_convolution(48))
            self.head, self.auxlayer = _FCNHead(64, 4 * classes), _FCNHead(64, classes)

    def hybrid_forward(self, F, x):
        # Bilinear enlargement takes longer on CPUs than all convolutions do, and so does depth_to_space.
        def larger(features, scale):
            return F.UpSampling(features, scale=scale, sample_type='nearest')

        def joined(deep, shallow):
            return F.concat(larger(deep, 2), shallow, dim=1)

        half = self.half(x)
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        deep = self.joint_eighth(joined(self.sixteenth(eighth), eighth))
        deep = self.joint_quarter(joined(deep, quarter))
        scores = self.head(joined(deep, half)).reshape((0, -4, -1, 4, 0, 0)).reshape((0, 0, -4, 2, 2, 0, 0))
        return scores.transpose((0, 1, 4, 2, 5, 3)).reshape((0, 0, -3, -3)), larger(self.auxlayer(eighth), 8)


def _convolution(channels, strides=1):
    return nn.Conv2D(channels, 3, strides, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation('relu')


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
