"""The flags of the segmentation recipe, and what each data set is trained with by default."""

import argparse

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
        'num_epochs': 20,
        'num_workers': 0,
        'lr': 0.2,
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
    parser = argparse.ArgumentParser(
        prog='train',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=common.defaults_table(DEFAULTS, list(_PICTURES)),
        description=(
            'Train a network for semantic segmentation, alone or with workers that come and go:\n'
            '  python -m gluon_examples.segmentation.train\n'
            '  horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\\n'
            '      python -m gluon_examples.segmentation.train'
        ),
    )
    add = parser.add_argument_group('data and network').add_argument
    common.add_data_flags(add, DEFAULTS, SCENES)
    add('--network', '--model', choices=networks.NAMES, help='default: by data set')
    add('--backbone', choices=networks.BACKBONES, help="of GluonCV's networks")
    add('--base-size', type=common.positive_int(520), metavar='N', help='side of images before they are scaled at random')
    add('--crop-size', type=common.multiple_of_8(480), metavar='N', help='side of the images that the network sees')
    add('--aux-weight', type=common.not_negative(0.5), metavar='W', help='of the loss of the auxiliary scores')
    common.add_training_flags(parser)
    common.add_elastic_flags(parser)
    common.add_output_flags(parser)
    common.add_sample_flags(parser)
    common.add_checkpoint_flags(parser)
    args = parser.parse_args(argv)
    common.check_dataset(parser, args, DEFAULTS, SCENES)
    common.check_scenes(parser, args, SCENES)
    common.complete(parser, args, DEFAULTS[args.dataset])
    if args.network == networks.FCN_TINY:
        for flag, value in (('--backbone', args.backbone), ('--pretrained-root', args.pretrained_root)):
            if value not in (None, DEFAULTS[args.dataset]['backbone']):
                parser.error(f'argument {flag}: has no effect with --network {networks.FCN_TINY}; leave it out')
    args.backbone = args.backbone or 'resnet50'
    return args
