"""The flags of the classification recipe, and what each data set is trained with by default."""

from gluon_examples.classification import networks
from gluon_examples.common import arguments as common

# For CIFAR-10 and ImageNet the usual recipes, as GluonCV has them. Those for digits were chosen on a part of
# the training images that was held out for it, never on the test images.
_GREY = {
    'network': networks.DIGITS_CNN,
    'batch_size': 32,
    'reference_batch': 64,
    'num_epochs': 30,
    'num_workers': 0,
    'lr': 0.1,
    'lr_mode': 'cosine',
    'warmup_epochs': 2,
    'wd': 1e-4,
}
_PICTURES = {
    'network': 'resnet50_v1b',
    'batch_size': 32,
    'reference_batch': 256,
    'num_epochs': 90,
    'num_workers': 4,
    'lr': 0.1,
    'lr_mode': 'cosine',
    'warmup_epochs': 5,
    'wd': 1e-4,
}
DEFAULTS = {
    'digits': _GREY,
    'idx': {**_GREY, 'num_epochs': 10, 'warmup_epochs': 1},
    'cifar10': {
        'network': 'cifar_resnet20_v1',
        'batch_size': 32,
        'reference_batch': 128,
        'num_epochs': 200,
        'num_workers': 2,
        'lr': 0.1,
        'lr_mode': 'step',
        'warmup_epochs': 0,
        'wd': 1e-4,
    },
    'folder': _PICTURES,
    'rec': _PICTURES,
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
    parser, add = common.recipe_parser('an image classifier', 'classification', DEFAULTS, 'digits')
    add('--network', '--model', metavar='NAME', help=f"{networks.DIGITS_CNN}, or any of GluonCV's classifiers")
    add(
        '--list-networks',
        action=common.listing(networks.names),
        nargs=0,
        help='print all names that --network takes, and stop',
    )
    add(
        '--input-size',
        type=common.positive_int(224),
        metavar='N',
        help='side of the images (folder, rec; default: 224)',
    )
    add(
        '--crop-ratio',
        type=common.number(float, 'a number above 0, at most 1', lambda value: 0 < value <= 1, 0.875),
        metavar='F',
        help='part of a test image left after the central crop (folder, rec; default: 0.875)',
    )
    add(
        '--classes',
        type=common.positive_int(1000),
        metavar='N',
        help='number of classes (rec; default: found by reading all labels first)',
    )
    add = parser.add_argument_group('loss').add_argument
    add(
        '--label-smoothing',
        nargs='?',
        type=common.fraction(0.1),
        const=0.1,
        default=0.0,
        metavar='E',
        help='take this part of each label away and spread it over all classes (0.1 if no number follows)',
    )
    add = parser.add_argument_group('workers of unequal speed').add_argument
    add(
        '--algorithm',
        choices=('sync', 'adaptive'),
        default='sync',
        help='adaptive: each worker trains at its own pace, models are merged (docs/adaptive.md); --lr is then for a '
        'batch of --reference-batch samples on one worker; default: %(default)s',
    )
    add(
        '--mega-batch',
        type=common.positive_int(6400),
        metavar='N',
        help='samples between two merges (adaptive; default: 100 times --batch-size)',
    )
    add(
        '--min-batch',
        type=common.positive_int(8),
        metavar='N',
        help='a worker\'s smallest batch; the largest is --batch-size (adaptive; default: an eighth of that)',
    )
    args = parser.parse_args(argv)
    _check_dataset(parser, args)
    _check_algorithm(parser, args)
    common.complete(parser, args, DEFAULTS[args.dataset])
    args.min_batch = args.min_batch or max(1, args.batch_size // 8)
    args.mega_batch = args.mega_batch or 100 * args.batch_size
    return args


def _check_algorithm(parser, args):
    if args.algorithm == 'adaptive':
        if args.policy != 'smooth' or args.transition_updates is not None:
            flag = '--policy' if args.policy != 'smooth' else '--transition-updates'
            parser.error(
                f'argument {flag}: has no effect with --algorithm adaptive, where the learning rate follows '
                "each worker's own batch; leave it out"
            )
        if args.noise_scale:
            parser.error(
                'argument --noise-scale: cannot be measured with --algorithm adaptive, where gradients are never summed '
                'over the workers; leave it out'
            )
        return
    for flag, value in (('--mega-batch', args.mega_batch), ('--min-batch', args.min_batch)):
        if value is not None:
            parser.error(f'argument {flag}: has no effect with --algorithm sync, only with adaptive; leave it out')


def _check_dataset(parser, args):
    common.check_dataset(parser, args, DEFAULTS, 'digits')
    for flag, value, meant_for in (
        ('--input-size', args.input_size, ('folder', 'rec')),
        ('--crop-ratio', args.crop_ratio, ('folder', 'rec')),
        ('--classes', args.classes, ('rec',)),
    ):
        if value is not None and args.dataset not in meant_for:
            parser.error(
                f'argument {flag}: has no effect with --dataset {args.dataset}, '
                f'only with {" and ".join(meant_for)}; leave it out'
            )
