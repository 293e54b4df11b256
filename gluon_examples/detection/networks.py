"""The networks that `--network` can name: GluonCV's SSD and YOLOv3, and a small SSD for CPUs."""

import difflib

from gluoncv.model_zoo import model_zoo
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from gluoncv.model_zoo.ssd.ssd import SSD
from mxnet import gluon
from mxnet.gluon import nn

from gluon_examples.common.errors import RecipeError
from gluon_examples.common.pretrained import weights_from

SSD_TINY = 'ssd_tiny'
TINY_SIDE = 64
YOLO_SIDE = 416
_ENDINGS = ('_custom', '_voc', '_coco')  # in the order of preference: the classes are ours anyway


class TinyFeatures(gluon.HybridBlock):
    """GluonCV's residual blocks at strides of 2 to 16; answers with the features at 8 and at 16."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.eighth, self.sixteenth = nn.HybridSequential(), nn.HybridSequential()
            self.eighth.add(nn.Conv2D(16, 3, 2, 1, use_bias=False), nn.BatchNorm(), nn.Activation('relu'))
            self.eighth.add(_block(32, 2), _block(64, 2), _block(64, 1))
            self.sixteenth.add(_block(96, 2), _block(96, 1))

    def hybrid_forward(self, F, x):
        eighth = self.eighth(x)
        return [eighth, self.sixteenth(eighth)]


def _block(channels, strides):
    shortcut = None
    if strides != 1:
        shortcut = nn.HybridSequential()
        shortcut.add(nn.Conv2D(channels, 1, strides, use_bias=False), nn.BatchNorm())
    return BasicBlockV1b(channels, strides, downsample=shortcut, norm_layer=nn.BatchNorm)


def ssd_tiny(classes):
    """GluonCV's SSD (arXiv 1512.02325) for images of 64x64, small enough for CPUs.

    Parameters
    ----------
    classes : sequence of str

    Returns
    -------
    SSD
    """
    return SSD(
        network=None,
        base_size=TINY_SIDE,
        features=lambda **_: TinyFeatures(),
        num_filters=[],
        # Digits are from 9 to 31 pixels (the root of the area), and two thirds as wide as high.
        sizes=[15, 25, 30],
        ratios=[[0.65, 0.95, 0.45]] * 2,
        steps=[8, 16],
        classes=classes,
        anchor_alloc_size=8,
    )


def _known():
    """Names without a data set to the names in GluonCV's list."""
    known = {}
    for ending in reversed(_ENDINGS):
        for name in model_zoo._models:
            # Those of the lite kind have anchors of another generator; int8 cannot be trained.
            if name.startswith(('ssd_', 'yolo3_')) and name.endswith(ending) and '_lite' not in name:
                known[name[: -len(ending)]] = name
    return known


def names():
    """All names that `create` knows."""
    return [SSD_TINY, *sorted(_known())]


def side(name):
    """Height and width of the images that a network is made for; YOLOv3 takes any multiple of 32."""
    if name == SSD_TINY:
        return TINY_SIDE
    return int(name.split('_')[1]) if name.startswith('ssd_') else YOLO_SIDE


def check(name):
    """Refuse a name that is not known.

    Raises
    ------
    RecipeError
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=3)
        hint = f'did you mean {" or ".join(close)}? ' if close else ''
        raise RecipeError(f'--network {name}: no such detector; {hint}--list-networks prints all names')


def create(name, classes, pretrained_root=None):
    """The network called `name`, not yet initialised (but for a base network that was pretrained).

    Parameters
    ----------
    name : str
    classes : sequence of str
    pretrained_root : str or Path, optional
        Folder with GluonCV's file of the base network's weights.

    Returns
    -------
    HybridBlock

    Raises
    ------
    RecipeError
        There is no such detector.
    MissingDataError, DamagedDataError
        The file of weights is not there, or not the right one.
    """
    check(name)
    if name == SSD_TINY:
        return ssd_tiny(classes)
    full = _known()[name]
    with weights_from(pretrained_root):
        if full.endswith('_custom'):
            return model_zoo._models[full](classes=list(classes), pretrained_base=pretrained_root is not None)
        net = model_zoo._models[full](pretrained=False, pretrained_base=pretrained_root is not None)
    net.initialize()
    net.reset_class(list(classes))
    return net
