"""The flags of the segmentation recipe, and what each data set is trained with by default."""

from gluon_examples.common import arguments as common
from gluon_examples.segmentation import networks

# GluonCV's; those for the scenes were tried on scenes of the training digits, never on the test's.
_PICTURES = {
    'network': 'fcn',
    'backbone': 'resnet50',
    'base_size': 520,
    'crop_size': 480,
    'batch_size': 4,
    'reference_batch': 16,
    'num_epochs': 50,
    'num_workers': 4,
    'lr': 0.001,
    'lr_mode': 'poly',
    'warmup_epochs': 0,
    'wd': 1e-4,
    'aux_weight': 0.5,
}
_ADE = {**_PICTURES, 'num_epochs': 120, 'lr': 0.01}
DEFAULTS = {
    'digits-scenes': {
        'network': networks.FCN_TINY,
        'backbone': None,
        'base_size': 64,
        'crop_size': 64,
        'batch_size': 8,
        'reference_batch': 16,
        'num_epochs': 8,
        'num_workers': 0,
        'lr': 0.8,  # high, for the loss is a mean over pixels, of which one in eight belongs to a digit
        'lr_mode': 'cosine',
        'warmup_epochs': 1,
        'wd': 1e-4,
        'aux_weight': 0.5,
    },
    'ade20k': _ADE,
    'pascal_voc': _PICTURES,
    'citys': {**_PICTURES, 'base_size': 1024, 'crop_size': 768, 'batch_size': 2, 'num_epochs': 240, 'lr': 0.01},
    'coco': {**_PICTURES, 'num_epochs': 30, 'lr': 0.01},
}
SCENES = 'digits-scenes'
_base_size = common.number(int, 'a whole number from 32 to 4096', lambda value: 32 <= value <= 4096, 520)


def parse(argv=None):
    """Arguments of the recipe, all of them checked; a fault ends the program with one line and status 2.

    Parameters
    ----------
    argv : list of str, optional
        Default: those of the command line.

    Returns
    -------
    argparse.Namespace
    """
    parser, add = common.recipe_parser('a network for semantic segmentation', 'segmentation', DEFAULTS, SCENES, scenes=True)
    add('--network', '--model', choices=networks.NAMES, help='default: by data set')
    add('--backbone', choices=networks.BACKBONES, help="of GluonCV's networks")
    add('--base-size', type=_base_size, metavar='N', help='side of images before they are scaled at random')
    add('--crop-size', type=common.multiple_of_8(480), metavar='N', help='side of the images that the network sees')
    add('--aux-weight', type=common.not_negative(0.5), metavar='W', help='of the loss of the auxiliary scores')
    args = parser.parse_args(argv)
    common.check_dataset(parser, args, DEFAULTS, SCENES)
    common.check_scenes(parser, args, SCENES)
    common.complete(parser, args, DEFAULTS[args.dataset])
    if args.network == networks.FCN_TINY:
        for flag, value in (('--backbone', args.backbone), ('--pretrained-root', args.pretrained_root)):
            if value not in (None, DEFAULTS[args.dataset]['backbone']):
                parser.error(f'argument {flag}: has no effect with --network {networks.FCN_TINY}; leave it out')
        if args.crop_size % networks.TINY_STRIDE:
            parser.error(
                f'argument --crop-size: must be a multiple of {networks.TINY_STRIDE} with --network {networks.FCN_TINY}, '
                f'got {args.crop_size}'
            )
    args.backbone = args.backbone or 'resnet50'
    return args
