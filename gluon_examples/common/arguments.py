"""Command line flags that all recipes share, checked before anything is trained."""

import argparse
import difflib
import math
import os

import mxnet as mx

from gluon_examples.common.schedules import POLY_POWER, epoch_schedule
from hvd_dynamic import policies

OPTIMIZERS = ('sgd', 'nag', 'lars', 'adam')
_WITH_MOMENTUM = ('sgd', 'nag', 'lars')
LR_MODES = ('step', 'poly', 'cosine')
_MOMENTUM = 0.9
_ADAM_LR = 0.001
_SCENES = 6000
_STEPS_AT = (0.5, 0.75)  # of the epochs, unless --lr-decay-epoch says otherwise


def number(kind, what, check, example):
    """A type for `add_argument` that accepts the finite numbers for which `check` holds.

    Parameters
    ----------
    kind : {int, float}
    what : str
        Completes "must be ...".
    check : callable
    example : number
        Shown as a value that works.
    """

    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not check(value):
            raise argparse.ArgumentTypeError(f'must be {what}, got {text!r}; for example {example}')
        return value

    return convert


def positive_int(example):
    return number(int, 'a whole number of at least 1', lambda value: value >= 1, example)


def whole_number(example):
    return number(int, 'a whole number from 0 to 2147483647', lambda value: 0 <= value < 2**31, example)


def multiple_of_8(example):
    return number(int, 'a multiple of 8, from 32 to 4096', lambda value: 32 <= value <= 4096 and value % 8 == 0, example)


def multiple_of_32(example):
    return number(int, 'a multiple of 32, from 96 to 4096', lambda value: 96 <= value <= 4096 and value % 32 == 0, example)


def positive(example):
    return number(float, 'a number above 0', lambda value: value > 0, example)


def not_negative(example):
    return number(float, 'a number of at least 0', lambda value: value >= 0, example)


def fraction(example):
    return number(float, 'a number from 0 up to, but not including, 1', lambda value: 0 <= value < 1, example)


def epochs(text):
    """Epochs in ascending order, separated by commas."""
    one = positive(30)
    try:
        values = tuple(one(part) for part in text.split(','))
    except argparse.ArgumentTypeError:
        values = ()
    if not values or list(values) != sorted(set(values)):
        raise argparse.ArgumentTypeError(
            f'must be epochs in ascending order, got {text!r}; for example 30,60'
        )
    return values


def listing(names):
    """An action for `add_argument` that prints what ``names()`` gives, a line each, and stops."""

    class List(argparse.Action):
        def __call__(self, parser, *_):
            print('\n'.join(names()))
            parser.exit()

    return List


def recipe_parser(trains, module, defaults, without_files, scenes=False):
    """A parser with all flags that the recipes for vision share.

    Parameters
    ----------
    trains : str
        Completes "Train ...".
    module : str
        The recipe's package.
    defaults : dict of str to dict
        By data set, the values of flags that are left out.
    without_files : str
        The data set that needs no files.
    scenes : bool, default False
        Whether that is made of scenes; then there are --scenes, --skip-bad, --pretrained-root and --save-samples.

    Returns
    -------
    argparse.ArgumentParser
    callable
        The `add_argument` of its group "data and network", for the recipe's own flags.
    """
    parser = argparse.ArgumentParser(
        prog='train',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_defaults_table(defaults),
        description=(
            f'Train {trains}, alone or with workers that come and go:\n'
            f'  python -m gluon_examples.{module}.train\n'
            '  horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script SCRIPT \\\n'
            f'      python -m gluon_examples.{module}.train'
        ),
    )
    add = parser.add_argument_group('data and network').add_argument
    add(
        '--dataset',
        default=without_files,
        metavar='NAME',
        help=f'one of {", ".join(defaults)}; default: %(default)s, which needs no files',
    )
    add('--data-dir', metavar='DIR', help='folder with the files of the data set; nothing is ever downloaded')
    if scenes:
        _add_scene_flags(add, without_files)
    _add_training_flags(parser)
    _add_elastic_flags(parser)
    _add_output_flags(parser, scenes)
    add_checkpoint_flags(parser)
    return parser, add


def _add_scene_flags(add, without_files):
    add(
        '--scenes',
        type=number(int, 'a whole number of at least 10', lambda value: value >= 10, _SCENES),
        metavar='N',
        help=f'how many scenes to train with, and a tenth as many to test with ({without_files}; default: {_SCENES})',
    )
    add(
        '--skip-bad',
        action='store_true',
        help='leave out annotations and images that cannot be used, and tell at the end how many; default: stop',
    )
    add(
        '--pretrained-root',
        metavar='DIR',
        help="folder with GluonCV's files of weights; those of the base network are taken from there",
    )


def check_scenes(parser, args, without_files):
    """Refuse flags that have no effect on the scenes, or none but on them; then fill in --scenes."""
    for flag in ('--skip-bad', '--base-size', '--crop-size'):
        if getattr(args, flag[2:].replace('-', '_'), None) and args.dataset == without_files:
            parser.error(
                f'argument {flag}: has no effect with --dataset {without_files}, whose images are made here; leave it out'
            )
    if args.scenes is not None and args.dataset != without_files:
        parser.error(f'argument --scenes: has no effect with --dataset {args.dataset}; leave it out')
    args.scenes = args.scenes or _SCENES


def _add_training_flags(parser):
    """How to optimize. Flags left out stay None; `complete` gives them the recipe's defaults."""
    group = parser.add_argument_group('training')
    add = group.add_argument
    add('--batch-size', type=positive_int(32), metavar='N', help='samples per worker in one update')
    add('--num-epochs', type=positive_int(30), metavar='N')
    add(
        '-j',
        '--num-workers',
        type=number(int, 'a whole number from 0 to 256', lambda value: 0 <= value <= 256, 2),
        metavar='N',
        help='processes that load data for each worker; 0: the worker itself',
    )
    add('--optimizer', choices=OPTIMIZERS, help='default: sgd')
    add('--lr', type=positive(0.1), metavar='LR', help='learning rate for an update of the reference batch')
    add('--lr-mode', choices=LR_MODES, help='its course over the epochs')
    add('--lr-decay', type=positive(0.1), metavar='F', help='factor of each step (mode step; default: 0.1)')
    add(
        '--lr-decay-epoch',
        type=epochs,
        metavar='E,E',
        help='when the steps happen (mode step; default: at half and three quarters of the epochs)',
    )
    add(
        '--warmup-epochs',
        type=not_negative(5),
        metavar='E',
        help='epochs in which the learning rate rises linearly',
    )
    add('--warmup-lr', type=not_negative(0), metavar='LR', help='where it begins (default: 0)')
    add(
        '--momentum',
        type=fraction(0.9),
        metavar='M',
        help=f'for {", ".join(_WITH_MOMENTUM)}; default: {_MOMENTUM}',
    )
    add('--wd', type=not_negative(0.0001), metavar='W', help='weight decay')
    add('--no-wd', action='store_true', help='no weight decay on biases, and on gamma and beta of BatchNorm')
    add(
        '--dtype',
        choices=('float32', 'float16'),
        default='float32',
        help='float16 needs a GPU; default: %(default)s',
    )
    add(
        '--mode',
        choices=('hybrid', 'imperative'),
        default='hybrid',
        help='hybrid: the network is compiled; default: %(default)s',
    )
    add(
        '--seed',
        type=whole_number(0),
        default=0,
        metavar='N',
        help='of weights and the order of samples; default: 0',
    )


def _add_elastic_flags(parser):
    """How the training follows the number of workers."""
    group = parser.add_argument_group('elastic training')
    add = group.add_argument
    add(
        '--policy',
        choices=list(policies.POLICIES),
        default='smooth',
        help='how learning rate and momentum follow the batch; default: %(default)s',
    )
    add(
        '--transition-updates',
        type=positive_int(64),
        metavar='N',
        help='updates in which the learning rate moves after a resize (default: 8 x new size / old size)',
    )
    add(
        '--ramp-at-start',
        action='store_true',
        help='begin with the learning rate of the reference batch, and move from there as after a resize',
    )
    add(
        '--scaling',
        choices=('linear', 'sqrt', 'auto'),
        help='how the learning rate depends on the batch (default: auto, sqrt for adam, else linear)',
    )
    add(
        '--reference-batch',
        type=positive_int(256),
        metavar='N',
        help='samples in one update, over all workers, for which --lr is meant',
    )
    add(
        '--max-local-batch',
        type=positive_int(64),
        metavar='N',
        help='the most samples a worker takes at once, the rest in further passes (fixed-global-batch)',
    )


def _add_output_flags(parser, samples):
    """What is written, and where; `samples`: also pictures of what was found."""
    group = parser.add_argument_group('output')
    add = group.add_argument
    add('--run-dir', metavar='DIR', help='folder for metrics, events and the report of this run')
    add('--audit-samples', action='store_true', help='also record there which worker used which samples')
    add(
        '--noise-scale',
        action='store_true',
        default=None,
        help='also measure the gradient noise scale, which tells up to which batch a larger world pays; '
        'needs two workers or more',
    )
    add('--save-dir', metavar='DIR', help='folder for parameters (default: --run-dir, or else params)')
    add('--save-prefix', metavar='NAME', help='how their names begin (default: DATASET-NETWORK)')
    add(
        '--save-frequency',
        type=whole_number(10),
        default=0,
        metavar='N',
        help='keep a file every N epochs, besides the best and the last',
    )
    add(
        '--log-interval',
        type=positive_int(50),
        default=50,
        metavar='N',
        help='updates between two lines of progress; default: %(default)s',
    )
    if samples:
        add(
            '--save-samples',
            type=whole_number(8),
            default=0,
            metavar='N',
            help='at the end, write pictures of N test images with what was found beside the truth, in SAVE_DIR/samples',
        )


class _Replaced(argparse.Action):
    """A flag of GluonCV's scripts that --resume takes the place of."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(
            f'argument {option_string}: not known here; --resume FILE takes up weights, optimizer state and epoch '
            'from one checkpoint, and --resume auto the newest one'
        )


def resume(text):
    """What --resume can be: 'never', 'auto', or a checkpoint file."""
    if text not in ('never', 'auto') and not text.endswith('.hvd'):
        raise argparse.ArgumentTypeError(
            f'must be never, auto or a checkpoint file, got {text!r}; for example runs/mine/checkpoints/checkpoint-1200.hvd'
        )
    return text


def add_checkpoint_flags(parser):
    """When all of the state is written to disk, and what is taken up from there."""
    group = parser.add_argument_group('checkpoints')
    add = group.add_argument
    add(
        '--resume',
        type=resume,
        default='never',
        metavar='{never,auto,FILE}',
        help='auto: go on from the newest checkpoint of --checkpoint-dir, if there is one; FILE: from that one. '
        "Takes the place of GluonCV's --resume-epoch, --resume-params and --resume-states; default: %(default)s",
    )
    add('--checkpoint-dir', metavar='DIR', help='folder for checkpoints (default: RUN_DIR/checkpoints, or none)')
    add(
        '--checkpoint-every',
        type=positive_int(500),
        metavar='N',
        help='updates between two checkpoints (default: one at the end of each epoch)',
    )
    add('--keep-checkpoints', type=positive_int(3), metavar='N', help='keep the last N (default: 3)')
    for name in ('epoch', 'params', 'states'):
        add(f'--resume-{name}', action=_Replaced, help=argparse.SUPPRESS)


def check_dataset(parser, args, known, without_files):
    """Refuse a data set that is not known, and --data-dir where it is missing or needless.

    Parameters
    ----------
    parser : argparse.ArgumentParser
    args : argparse.Namespace
    known : iterable of str
        Names of all data sets.
    without_files : str
        The one that needs no files.
    """
    if args.dataset not in known:
        close = difflib.get_close_matches(args.dataset, known, n=1)
        hint = f'did you mean {close[0]}? ' if close else ''
        parser.error(f'argument --dataset: got {args.dataset!r}; {hint}choose one of {", ".join(known)}')
    if args.dataset == without_files and args.data_dir is not None:
        parser.error(
            f'argument --data-dir: has no effect with --dataset {without_files}, which comes with scikit-learn; '
            'leave it out'
        )
    if args.dataset != without_files and args.data_dir is None:
        parser.error(
            f'argument --data-dir: needed with --dataset {args.dataset}; give the folder with its files'
        )


def _defaults_table(defaults):
    """The defaults by data set, as text for the end of ``--help``."""
    rows = [[''] + list(defaults)]
    rows += [
        ['--' + name.replace('_', '-')] + [str(values[name]) for values in defaults.values()]
        for name in next(iter(defaults.values()))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        '  ' + '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return 'defaults by data set:\n' + '\n'.join(lines)


def complete(parser, args, defaults):
    """Refuse flags that do not go together, then fill in what was left out.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Reports a fault: one line, exit status 2.
    args : argparse.Namespace
        Changed in place.
    defaults : dict
        The recipe's values for flags that were left out.
    """
    if args.num_epochs is not None and defaults['warmup_epochs'] >= args.num_epochs:
        # A trial of an epoch or two needs no other flag to be changed.
        defaults = {**defaults, 'warmup_epochs': args.num_epochs / 10}
    usual = defaults.get('optimizer', 'sgd')
    args.optimizer = args.optimizer or usual
    _check_combinations(parser, args, defaults)
    if args.optimizer == 'adam' and usual != 'adam':
        defaults = {**defaults, 'lr': _ADAM_LR}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.lr_decay = args.lr_decay or 0.1
    args.lr_decay_epoch = args.lr_decay_epoch or tuple(part * args.num_epochs for part in _STEPS_AT)
    args.warmup_lr = args.warmup_lr or 0.0
    args.momentum = _MOMENTUM if args.momentum is None else args.momentum
    args.scaling = args.scaling or 'auto'
    args.save_dir = args.save_dir or args.run_dir or 'params'
    args.save_prefix = args.save_prefix or f'{args.dataset}-{args.network}'
    if args.checkpoint_dir is None and args.run_dir:
        args.checkpoint_dir = os.path.join(args.run_dir, 'checkpoints')
    args.keep_checkpoints = args.keep_checkpoints or 3


def _check_combinations(parser, args, defaults):
    given = argparse.Namespace(
        **{
            name: getattr(args, name) if getattr(args, name) is not None else defaults.get(name)
            for name in vars(args)
        }
    )
    kept_whole = policies.POLICIES[args.policy].fixed_global_batch

    def only_with(flag, condition, needed):
        name = flag[2:].replace('-', '_')
        if getattr(args, name) not in (None, False) and not condition:
            parser.error(f'argument {flag}: has no effect {needed}; leave it out')

    only_with('--lr-decay', given.lr_mode == 'step', f'with --lr-mode {given.lr_mode}, only with step')
    only_with('--lr-decay-epoch', given.lr_mode == 'step', f'with --lr-mode {given.lr_mode}, only with step')
    only_with('--warmup-lr', given.warmup_epochs, 'without --warmup-epochs')
    only_with('--momentum', args.optimizer in _WITH_MOMENTUM, f'with --optimizer {args.optimizer}')
    only_with(
        '--transition-updates',
        hasattr(policies.POLICIES[args.policy], 'updates'),
        f'with --policy {args.policy}, which changes the learning rate at once or not at all',
    )
    only_with(
        '--ramp-at-start',
        hasattr(policies.POLICIES[args.policy], 'updates'),
        f'with --policy {args.policy}, which has no ramp',
    )
    only_with(
        '--scaling', not kept_whole, f'with --policy {args.policy}, which never changes the learning rate'
    )
    only_with('--max-local-batch', kept_whole, f'with --policy {args.policy}, only with fixed-global-batch')
    only_with(
        '--batch-size',
        not kept_whole,
        f'with --policy {args.policy}, under which the workers share --reference-batch',
    )
    only_with('--audit-samples', args.run_dir, 'without --run-dir, the folder it writes to')
    only_with('--noise-scale', args.run_dir, 'without --run-dir, the folder it writes to')
    only_with('--no-wd', args.wd != 0, 'with --wd 0')
    for flag in ('--checkpoint-every', '--keep-checkpoints'):
        only_with(flag, args.checkpoint_dir or args.run_dir, 'without --checkpoint-dir or --run-dir')
    if args.dtype == 'float16' and not mx.context.num_gpus():
        parser.error('argument --dtype: float16 needs a GPU, and MXNet sees none here; use float32')
    if args.resume == 'auto' and not (args.checkpoint_dir or args.run_dir):
        parser.error('argument --resume: auto needs --checkpoint-dir or --run-dir, where the checkpoints are; give one')
    if given.warmup_epochs >= given.num_epochs:
        parser.error(
            f'argument --warmup-epochs: must be less than --num-epochs ({given.num_epochs}), '
            f'got {given.warmup_epochs:g}; shorten the warm-up or train longer'
        )
    if args.lr_decay_epoch and args.lr_decay_epoch[-1] >= given.num_epochs:
        parser.error(
            f'argument --lr-decay-epoch: must be less than --num-epochs ({given.num_epochs}), '
            f'got {args.lr_decay_epoch[-1]:g}; leave that step out or train longer'
        )
    if args.save_prefix is not None and (not args.save_prefix or '/' in args.save_prefix):
        parser.error(
            f'argument --save-prefix: must be the beginning of a file name without a slash, '
            f'got {args.save_prefix!r}; name the folder with --save-dir'
        )


def policy(args):
    """The policy that the flags ask for."""
    options = {} if args.policy == 'fixed-global-batch' else {'scaling': args.scaling}
    if args.transition_updates is not None:
        options['updates'] = args.transition_updates
    if args.ramp_at_start:
        options['ramp_at_start'] = True
    if args.max_local_batch is not None:
        options['max_local_batch'] = args.max_local_batch
    return policies.get(args.policy, **options)


def base_schedule(args, power=POLY_POWER):
    """The learning rate at the reference batch, as a function of the epoch; `power` is that of mode poly."""
    return epoch_schedule(
        args.lr_mode,
        args.lr,
        args.num_epochs,
        warmup_epochs=args.warmup_epochs,
        warmup_lr=args.warmup_lr,
        decay=args.lr_decay,
        decay_epochs=args.lr_decay_epoch,
        power=power,
    )


def optimizer_options(args):
    """What the optimizer is made with, all but its learning rate."""
    options = {'wd': args.wd}
    if args.optimizer in _WITH_MOMENTUM:
        options['momentum'] = args.momentum
    if args.dtype == 'float16':
        options['multi_precision'] = True
    return options
