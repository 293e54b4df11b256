"""The flags of the extreme classification recipe."""

import argparse

from gluon_examples.common import arguments as common
from gluon_examples.extreme_classification.algorithms import ALGORITHMS

__all__ = ['parse', 'SYNTHETIC']

SYNTHETIC = {'samples': 20000, 'features': 5000, 'labels': 1000}
_ADAPTIVE = {'min_batch': None, 'max_batch': None, 'beta': None, 'at_bounds': 'skip', 'merge_momentum': 0.9,
             'merge_threshold': 0.1, 'perturbation': 0.1}


def parse(argv=None):
    """Arguments of the recipe, all of them checked; a fault ends the program with one line and status 2."""
    parser = argparse.ArgumentParser(
        prog='train', description='Train a classifier with very many labels on sparse data.',
        epilog='algorithms: ' + '; '.join(f'{name}: {what}' for name, what in ALGORITHMS.items()))
    add = parser.add_argument_group('data').add_argument
    add('--dataset', choices=('synthetic', 'file'), help='default: synthetic, or file with --train-file')
    add('--train-file', metavar='FILE', help='in the text format of the Extreme Classification Repository')
    add('--test-file', metavar='FILE')
    for name, number in SYNTHETIC.items():
        add(f'--{name}', type=common.positive_int(number), metavar='N', help=f'of the synthetic data; default: {number}')
    add = parser.add_argument_group('training').add_argument
    add('--algorithm', choices=list(ALGORITHMS), default='adaptive', help='default: %(default)s')
    add('--hidden', type=common.positive_int(128), default=64, metavar='N', help='default: %(default)s')
    add('--batch-size', type=common.positive_int(32), default=32, metavar='N',
        help='samples of a worker in an update (adaptive: to begin with); default: %(default)s')
    add('--num-epochs', type=common.positive_int(10), default=5, metavar='N', help='default: %(default)s')
    add('--optimizer', choices=('sgd', 'adam'), default='sgd', help='default: %(default)s')
    add('--lr', type=common.positive(1.0), metavar='LR',
        help='for an update of --batch-size samples; default: 1 (sgd), 0.002 (adam)')
    add('--momentum', type=common.fraction(0.9), metavar='M', help='of sgd; default: 0')
    add('--sparse-grad', choices=('auto', 'yes', 'no'), default='auto',
        help='row-sparse gradients of the first layer; auto: where gradients are not sent (averaging, adaptive)')
    add('--seed', type=common.whole_number(0), default=0, metavar='N', help='default: 0')
    add = parser.add_argument_group('merging (averaging, adaptive)').add_argument
    add('--mega-batch', type=common.positive_int(2000), metavar='N', help='samples between two merges; default: 60 batches')
    add('--min-batch', type=common.positive_int(8), metavar='N', help='adaptive; default: an eighth of --batch-size')
    add('--max-batch', type=common.positive_int(64), metavar='N', help='adaptive; default: --batch-size')
    add('--beta', type=common.not_negative(4), metavar='B', help='adaptive: samples a batch changes for each update more '
        'or less than the mean; default: half of --min-batch')
    add('--at-bounds', choices=('skip', 'clip'), help='adaptive: what becomes of a change beyond them; default: skip')
    add('--merge-momentum', type=common.fraction(0.9), metavar='M', help='adaptive; default: 0.9')
    add('--merge-threshold', type=common.not_negative(0.1), metavar='T',
        help='adaptive: perturb where the norm of all replicas by weight is below; default: 0.1')
    add('--perturbation', type=common.fraction(0.1), metavar='D', help='adaptive; default: 0.1')
    add = parser.add_argument_group('output').add_argument
    add('--run-dir', metavar='DIR', help='folder for metrics, events and the report of this run')
    add('--audit-samples', action='store_true', help='also record there which worker used which samples')
    add('--save-dir', metavar='DIR', help='folder for parameters (default: --run-dir, or else params)')
    add('--log-interval', type=common.positive_int(50), metavar='N',
        help='updates (or merges) between two lines of progress; default: 50 (or 1)')
    common.add_checkpoint_flags(parser)
    args = parser.parse_args(argv)
    _check(parser, args)
    _complete(args)
    return args


def _check(parser, args):
    def only_with(flag, condition, where):
        if getattr(args, flag[2:].replace('-', '_')) not in (None, False) and not condition:
            parser.error(f'argument {flag}: has no effect {where}; leave it out')

    if args.dataset is None:
        args.dataset = 'file' if args.train_file else 'synthetic'
    for flag in ('--train-file', '--test-file'):
        only_with(flag, args.dataset == 'file', 'with --dataset synthetic')
    for name in SYNTHETIC:
        only_with(f'--{name}', args.dataset == 'synthetic', 'with --dataset file')
    if args.dataset == 'file' and not (args.train_file and args.test_file):
        parser.error('argument --dataset: file needs --train-file and --test-file; give both')
    merging = args.algorithm in ('averaging', 'adaptive')
    only_with('--mega-batch', merging, f'with --algorithm {args.algorithm}')
    for name in _ADAPTIVE:
        only_with('--' + name.replace('_', '-'), args.algorithm == 'adaptive', f'with --algorithm {args.algorithm}')
    only_with('--momentum', args.optimizer == 'sgd', f'with --optimizer {args.optimizer}')
    only_with('--audit-samples', args.run_dir, 'without --run-dir, the folder it writes to')
    if args.sparse_grad == 'yes' and not merging:
        parser.error(f'argument --sparse-grad: row-sparse gradients cannot be used with --algorithm {args.algorithm}, for '
                     f'which Horovod would have to sum them up; leave it out')
    for flag in ('--checkpoint-every', '--keep-checkpoints'):
        only_with(flag, args.checkpoint_dir or args.run_dir, 'without --checkpoint-dir or --run-dir')
    if args.resume == 'auto' and not (args.checkpoint_dir or args.run_dir):
        parser.error('argument --resume: auto needs --checkpoint-dir or --run-dir, where the checkpoints are; give one')


def _complete(args):
    merging = args.algorithm in ('averaging', 'adaptive')
    for name, number in {**SYNTHETIC, **_ADAPTIVE, 'momentum': 0.0, 'lr': 1.0 if args.optimizer == 'sgd' else 0.002,
                         'min_batch': max(1, args.batch_size // 8), 'max_batch': args.batch_size,
                         'mega_batch': 60 * args.batch_size, 'log_interval': 1 if merging else 50,
                         'keep_checkpoints': 3, 'save_dir': args.run_dir or 'params'}.items():
        if getattr(args, name) is None:
            setattr(args, name, number)
    if args.checkpoint_dir is None and args.run_dir:
        args.checkpoint_dir = f'{args.run_dir}/checkpoints'
    args.sparse_grad = merging if args.sparse_grad == 'auto' else args.sparse_grad == 'yes'
