"""The flags of the detection recipe, and what each data set is trained with by default."""

from gluon_examples.common import arguments as common
from gluon_examples.detection import networks

SCENES = 'digits-scenes'
# GluonCV's; those for the scenes were tried on scenes of the training digits, never on the test's.
_PICTURES = {
    'network': 'ssd_512_resnet50_v1',
    'batch_size': 8,
    'reference_batch': 32,
    'num_epochs': 240,
    'num_workers': 4,
    'optimizer': 'sgd',
    'lr': 0.001,
    'lr_mode': 'step',
    'warmup_epochs': 0,
    'wd': 5e-4,
    'metric': 'voc07',
}
DEFAULTS = {
    SCENES: {
        'network': networks.SSD_TINY,
        'batch_size': 8,
        'reference_batch': 16,
        'num_epochs': 10,
        'num_workers': 0,
        'optimizer': 'sgd',
        'lr': 0.05,
        'lr_mode': 'cosine',
        'warmup_epochs': 1,
        'wd': 5e-4,
        'metric': 'voc07',
    },
    'voc': _PICTURES,
    'coco': {**_PICTURES, 'metric': 'coco'},
}


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
    parser, add = common.recipe_parser('a detector', 'detection', DEFAULTS, SCENES, scenes=True)
    add('--network', '--model', metavar='NAME', help=f"{networks.SSD_TINY}, or any of GluonCV's SSD and YOLOv3")
    add('--list-networks', action=common.listing(networks.names), nargs=0,
        help='print all names that --network takes, and stop')
    add(
        '--data-shape',
        type=common.multiple_of_32(416),
        metavar='N',
        help='side of the images that YOLOv3 sees (default: 416); that of an SSD is in its name',
    )
    add('--metric', choices=('voc07', 'coco'), help='what is measured after each epoch; default: by data set')
    args = parser.parse_args(argv)
    common.check_dataset(parser, args, DEFAULTS, SCENES)
    common.check_scenes(parser, args, SCENES)
    common.complete(parser, args, DEFAULTS[args.dataset])
    if args.metric == 'coco' and args.dataset != 'coco':
        parser.error(f'argument --metric: coco needs --dataset coco, got {args.dataset}; use voc07')
    if args.network == networks.SSD_TINY and args.pretrained_root is not None:
        parser.error(f'argument --pretrained-root: has no effect with --network {networks.SSD_TINY}; leave it out')
    if args.dtype == 'float16' and args.network.startswith('yolo3_'):
        parser.error('argument --dtype: float16 is not supported with YOLOv3, whose losses are part of it; use float32')
    if args.data_shape is not None and not args.network.startswith('yolo3_'):
        parser.error(f'argument --data-shape: has no effect with --network {args.network}, only with YOLOv3; leave it out')
    return args
