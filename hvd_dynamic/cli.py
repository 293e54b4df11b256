"""The command ``hvd-dynamic``.

Each subcommand imports what it needs when it is called: `doctor` must work where MXNet does not.
"""

import argparse
import sys

from hvd_dynamic import traces
from hvd_dynamic.version import __version__


def main(argv=None):
    """Run the command.

    Parameters
    ----------
    argv : list of str, optional
        The arguments, by default those of the process.

    Returns
    -------
    int
        The exit status: 0, or 1 if `doctor` found a fault, or 2 if the input is bad.
    """
    args = _parser().parse_args(argv)
    return args.call(args)


def _parser():
    parser = argparse.ArgumentParser(
        prog='hvd-dynamic', description='Elastic training with Gluon and Horovod: tools around it.')
    parser.add_argument('--version', action='version', version=f'%(prog)s {__version__}')
    commands = parser.add_subparsers(title='commands', metavar='COMMAND', required=True)

    doctor = commands.add_parser('doctor', help='check this environment and say how to mend each fault')
    doctor.set_defaults(call=_doctor)

    report = commands.add_parser('report', help="turn a run's folder into report.png and report.html")
    report.add_argument('run_dir', metavar='RUN_DIR', help='the folder given as --run-dir to the training')
    report.set_defaults(call=_report)

    simulate = commands.add_parser(
        'simulate', help='run a training script over a trace of world sizes, without a cluster',
        description='Run a training script in this process as the workers of a trace would: their batches one after the '
                    'other, one update of them all. The script needs no change.')
    simulate.add_argument('trace', metavar='TRACE', help="a CSV file (`hvd-dynamic trace` makes some), or a run's folder: "
                                                         'what happened to that job')
    simulate.add_argument('script', metavar='SCRIPT ...', nargs=argparse.REMAINDER,
                          help='script.py, or -m package.module, with its own arguments')
    simulate.set_defaults(call=_simulate)

    trace = commands.add_parser('trace', help='print a ready trace as CSV')
    trace.add_argument('name', metavar='NAME', help=f"one of {', '.join(traces.READY)}")
    trace.add_argument('--epochs', type=float, required=True, metavar='E', help='length of the training')
    trace.add_argument('--smallest', type=int, default=8, metavar='N', help='world size (default: 8)')
    trace.add_argument('--largest', type=int, default=128, metavar='N', help='world size (default: 128)')
    trace.add_argument('--seed', type=int, default=0, help='of random-walk and spot (default: 0)')
    trace.set_defaults(call=_trace)

    discover = commands.add_parser(
        'discover', help='a host discovery script for horovodrun that follows a trace',
        description="Print the hosts that a trace gives to a training, by the samples seen in its run's folder.")
    discover.add_argument('--trace', required=True, metavar='CSV')
    discover.add_argument('--run-dir', required=True, metavar='DIR', help="the training's --run-dir, new for each training")
    discover.add_argument('--hosts', required=True, metavar='HOST:SLOTS,...',
                          help='all that there are; the first stay longest')
    discover.set_defaults(call=_discover)
    return parser


def _doctor(_args):
    from hvd_dynamic.doctor import main as doctor_main

    return doctor_main()


def _report(args):
    from hvd_dynamic.report import write_report

    try:
        paths = write_report(args.run_dir)
    except (ValueError, OSError) as error:
        print(f'hvd-dynamic report: {error}', file=sys.stderr)
        return 2
    for path in paths:
        print(path)
    return 0


def _simulate(args):
    from hvd_dynamic.simulate import simulate

    try:
        return simulate(args.trace, args.script)
    except (ValueError, OSError) as error:
        print(f'hvd-dynamic simulate: {error}', file=sys.stderr)
        return 2


def _trace(args):
    try:
        trace = traces.ready(args.name, args.epochs, args.smallest, args.largest, args.seed)
    except ValueError as error:
        print(f'hvd-dynamic trace: {error}', file=sys.stderr)
        return 2
    print(trace.to_csv(), end='')
    return 0


def _discover(args):
    from hvd_dynamic.discovery import hosts_for, parse_hosts

    try:
        lines = hosts_for(traces.read(args.trace), args.run_dir, parse_hosts(args.hosts))
    except (ValueError, OSError) as error:
        print(f'hvd-dynamic discover: {error}', file=sys.stderr)
        return 2
    print('\n'.join(lines))
    return 0


if __name__ == '__main__':
    sys.exit(main())
