"""The command ``hvd-dynamic``.

Each subcommand imports what it needs when it is called: `doctor` must work where MXNet does not.
"""

import argparse
import sys

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


if __name__ == '__main__':
    sys.exit(main())
