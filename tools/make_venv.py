"""Make .venv: a Python 3.10 or 3.11 with everything in constraints.txt, Horovod compiled against MXNet.

Called by ``make``. Does nothing, at once, when .venv is complete and still what constraints.txt asks for.
Standard library only, and no syntax newer than Python 3.6: any Python 3 can run it, and if it is not itself
one that MXNet works with, it looks for one on PATH. What goes wrong ends in one line that says what to do.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setup_failures import explain

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'
VENV_PYTHON = VENV / 'bin' / 'python'
STAMP = VENV / 'setup-complete.json'  # written last: without it .venv is not finished
MARKER = VENV / 'made-by-make'  # written first: without it .venv is somebody else's
LOG = ROOT / '.venv-setup.log'
LOCK = ROOT / '.venv-setup.lock'
WHEELS = ROOT / '.venv-wheels'  # the compiled Horovod, which takes minutes, outlives a rebuilt .venv
CONSTRAINTS = ROOT / 'constraints.txt'

RECIPE = 1  # count up when the steps below change, so that a .venv made the old way counts as stale
SUPPORTED = ('3.11', '3.10')  # preferred first
STEPS = 6
INSTALLERS = ('pip', 'setuptools', 'wheel')
HOROVOD_BUILD = {
    'HOROVOD_WITH_MXNET': '1',
    'HOROVOD_WITH_GLOO': '1',
    'HOROVOD_WITHOUT_MPI': '1',
    'HOROVOD_WITHOUT_TENSORFLOW': '1',
    'HOROVOD_WITHOUT_PYTORCH': '1',
}
IMPORT_CHECK = (
    'import cv2, gluoncv, matplotlib, sklearn, tqdm, pytest, hypothesis\n'
    'import horovod.mxnet as hvd\n'
    'assert hvd.gloo_built(), "Horovod was built without Gloo"\n'
)


class SetupError(Exception):
    """A fault that the user can mend. Its text is the one line that is shown."""


# What .venv should be, and whether it is

def read_pins(path):
    """Return the lines of a constraints file by lower-case package name, comments left out."""
    pins = {}
    for line in path.read_text(encoding='utf-8').splitlines():
        line = line.split('#')[0].strip()
        if line:
            pins[re.split(r'[=<>!~;\s\[]', line)[0].lower()] = line
    return pins


def digest_of(*parts):
    """Return a short hash of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def venv_digest(version):
    """Return what the stamp of a complete .venv for this Python version ('3.11') says.

    The folder is part of it: scripts in a venv hold absolute paths, so one that was copied along with the
    tree would run the tree it came from.
    """
    constraints = CONSTRAINTS.read_text(encoding='utf-8')
    return digest_of(RECIPE, constraints, version, platform.machine(), str(VENV))


def complete_version():
    """Return the Python version ('3.11') of a .venv that is complete and not stale, else None."""
    try:
        stamp = json.loads(STAMP.read_text(encoding='utf-8'))
        version = stamp['python']
        fresh = stamp['digest'] == venv_digest(version)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if fresh and VENV_PYTHON.exists() else None


def write_stamp(version):
    """Mark .venv as complete, in one atomic step."""
    half = STAMP.with_suffix('.half')
    half.write_text(json.dumps({'digest': venv_digest(version), 'python': version}) + '\n', encoding='utf-8')
    os.replace(str(half), str(STAMP))


# What the machine must have

def check_machine():
    """Raise SetupError unless MXNet has a wheel for this machine and Horovod can be built in this folder."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ('Linux', 'x86_64'):
        raise SetupError('MXNet and Horovod are set up here for Linux on x86_64 only, and this is {} on {}: '
                         'use such a machine, or a container of that kind.'.format(system, machine))
    if platform.libc_ver()[0] != 'glibc':
        raise SetupError('MXNet 1.9.1 needs a Linux with glibc, which this one (Alpine?) does not have: '
                         'use Debian, Ubuntu, Fedora or the like.')
    if re.search(r'\s', str(ROOT)):  # its build cuts the path of MXNet's library at the spaces
        raise SetupError('Horovod cannot be compiled in a folder with a space in its path, as {} has: move this '
                         'tree elsewhere.'.format(ROOT))


def probe_python(python):
    """Return (version, has_venv) of an interpreter, or None if it does not run.

    It is run, not just found: pyenv leaves commands on PATH that only say that no such version is chosen.
    """
    code = ('import sys\n'
            'try:\n    import venv, ensurepip; ok = 1\n'
            'except ImportError:\n    ok = 0\n'
            'print("%d.%d" % sys.version_info[:2], ok)')
    try:
        result = subprocess.run([python, '-c', code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, timeout=30, universal_newlines=True)
        version, has_venv = result.stdout.split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return version, has_venv == '1'


def pythons_on_path():
    """Yield every python3.11, then every python3.10, on PATH."""
    for version in SUPPORTED:
        for folder in os.environ.get('PATH', '').split(os.pathsep):
            found = shutil.which('python' + version, path=folder) if folder else None
            if found:
                yield found


def choose_python(given):
    """Return (path, version) of the interpreter to make .venv with.

    Parameters
    ----------
    given : bool
        The running interpreter was named by the user (``PYTHON=...``): take that one or fail.
    """
    own = '{}.{}'.format(*sys.version_info[:2])
    if given and own not in SUPPORTED:
        raise SetupError('PYTHON={} is Python {}, and MXNet works with 3.10 and 3.11 only: '
                         'give the path of one of these.'.format(sys.executable, own))
    without_venv = None
    candidates = [sys.executable] if own in SUPPORTED else []
    if not given:
        candidates.extend(pythons_on_path())
    for python in candidates:
        probed = probe_python(python)
        if probed is None or probed[0] not in SUPPORTED:
            continue
        if probed[1]:
            return python, probed[0]
        without_venv = without_venv or (python, probed[0])
    if without_venv:
        raise SetupError('{0} has no venv module: install it (Debian, Ubuntu: apt-get install python{1}-venv)'
                         ' or give another Python: make PYTHON=/path/to/python{1}.'.format(*without_venv))
    raise SetupError('Python 3.10 or 3.11 is needed, this is {}, and PATH has no working python3.11 or '
                     'python3.10: install one or give its path: make PYTHON=/path/to/python3.11.'.format(own))


def check_compilers():
    """Raise SetupError unless Horovod can be compiled."""
    remedy = '(Debian, Ubuntu: apt-get install build-essential; Fedora: dnf install gcc-c++ make).'
    for language, variable, names, source in (
            ('C++', 'CXX', ('c++', 'g++', 'clang++'), '#include <vector>\nint main() {}\n'),
            ('C', 'CC', ('cc', 'gcc', 'clang'), '#include <stdio.h>\nint main() { return 0; }\n')):
        if os.environ.get(variable):
            command = shlex.split(os.environ[variable])
        else:
            command = [found for found in names if shutil.which(found)][:1]
        name = command[0] if command else ''
        if not name or not shutil.which(name):
            which = ' ({}={})'.format(variable, name) if name else ''
            raise SetupError('No {} compiler was found{}, and Horovod has to be compiled: '
                             'install one {}'.format(language, which, remedy))
        with tempfile.TemporaryDirectory() as scratch:
            kind = language.lower().replace('c++', 'cpp')
            Path(scratch, 'try.' + kind).write_text(source)
            try:
                status = subprocess.call(command + ['try.' + kind, '-o', 'try'], cwd=scratch,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            except OSError:
                status = 1
        if status:
            raise SetupError('The {} compiler {} cannot compile and link a program of one line, and Horovod '
                             'has to be compiled: install a whole one {}'.format(language, name, remedy))
    if not (shutil.which('make') or shutil.which('gmake')):
        raise SetupError('No make was found, and Horovod has to be compiled with it: install it ' + remedy)


# Running things

def step_environment():
    """Return the environment for pip: the user's own, less what would lead it out of .venv."""
    env = dict(os.environ)
    for name in ('PYTHONPATH', 'PYTHONHOME', 'PIP_TARGET', 'PIP_PREFIX', 'PIP_ROOT', 'PIP_DRY_RUN',
                 'MFLAGS', 'MAKELEVEL', 'GNUMAKEFLAGS'):
        env.pop(name, None)
    env.update(PIP_USER='0', PIP_DISABLE_PIP_VERSION_CHECK='1', PYTHONNOUSERSITE='1', PYTHONUNBUFFERED='1')
    env['VIRTUAL_ENV'] = str(VENV)
    env['PATH'] = str(VENV / 'bin') + os.pathsep + env.get('PATH', '')
    for name, value in HOROVOD_BUILD.items():
        env.setdefault(name, value)
    env['HOROVOD_CMAKE'] = str(VENV / 'bin' / 'cmake')  # a system's own cmake may be 4
    # make's own flags would pass PYTHON=... on to the build of Horovod.
    env['MAKEFLAGS'] = '-j{}'.format(os.cpu_count() or 1)
    return env


def run(command, what, lock):
    """Run a command with its output in the log; raise SetupError with the reason if it fails.

    The command holds the lock as well: if this process is killed and leaves it behind, the next call waits
    for it to end and does not work in the same folder at the same time.
    """
    with open(str(LOG), 'ab') as log:
        log.write('\n$ {}\n'.format(' '.join(shlex.quote(str(part)) for part in command)).encode())
        log.flush()
        start = log.tell()
        process = subprocess.Popen([str(part) for part in command], cwd=str(ROOT), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, env=step_environment(),
                                   pass_fds=(lock.fileno(),))
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        with open(str(LOG), 'rb') as log:
            log.seek(start)
            reason = explain(log.read().decode(errors='replace'), what)
            raise SetupError('{} All output: {}'.format(reason, LOG))


class Step:
    """Prints one line for a step: its number and name, and, when it is done, the seconds it took."""

    def __init__(self, number, name):
        self.text = '[set-up {}/{}] {} ...'.format(number, STEPS, name)

    def __enter__(self):
        self.start = time.time()
        print(self.text, end='', flush=True)

    def __exit__(self, kind, *_):
        print(' {:.0f} s'.format(time.time() - self.start) if kind is None else ' not done', flush=True)


# The set-up

def clear_venv():
    """Remove what an older or interrupted set-up left, but never a .venv that was not made here."""
    if VENV.is_symlink() or (VENV.exists() and not MARKER.exists() and any(VENV.iterdir())):
        raise SetupError('{} was not made by this Makefile: move it away or remove it, and call '
                         'again.'.format(VENV))
    if VENV.exists():
        if STAMP.exists():
            STAMP.unlink()
        # The marker goes last, so that a removal which is cut short can be gone on with.
        for path in VENV.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            elif path != MARKER:
                path.unlink()
    VENV.mkdir(exist_ok=True)
    MARKER.write_text('Removed and made anew by make when constraints.txt changes.\n')


def wheel_folder(version, pins):
    """Return the folder where the Horovod compiled for this Python and this MXNet is kept."""
    env = step_environment()
    options = sorted((k, v) for k, v in env.items() if k.startswith('HOROVOD_') and k != 'HOROVOD_CMAKE')
    key = digest_of(RECIPE, pins['horovod'], pins['mxnet'], version, platform.machine(), options)
    return WHEELS / 'horovod-py{}-{}'.format(version, key)


def compile_horovod(pip, folder, pins, lock):
    """Compile Horovod and put the wheel into the folder, which appears only when it is complete."""
    WHEELS.mkdir(exist_ok=True)
    half = WHEELS / 'unfinished'
    shutil.rmtree(str(half), ignore_errors=True)
    # Neither pip's cache nor a wheel lying about elsewhere: those may be of a build without MXNet.
    run(pip + ['wheel', '--no-deps', '--no-build-isolation', '--no-cache-dir', '--no-binary', 'horovod',
               '--wheel-dir', half, pins['horovod']], 'compile Horovod', lock)
    shutil.rmtree(str(folder), ignore_errors=True)
    os.replace(str(half), str(folder))


def build(python, version, lock):
    """Make .venv from nothing."""
    pins = read_pins(CONSTRAINTS)
    horovod = wheel_folder(version, pins)
    compiled = any(horovod.glob('*.whl'))
    if not compiled:
        check_compilers()
    pip = [VENV_PYTHON, '-m', 'pip', '--no-input']
    LOG.write_bytes(b'')
    print('Making .venv with Python {} ({}); all output is in {}'.format(version, python, LOG.name),
          flush=True)
    with Step(1, 'virtual environment'):
        clear_venv()
        run([python, '-m', 'venv', VENV], 'make the virtual environment', lock)
    # Exactly what constraints.txt lists, and only wheels: that one is missing is told at once, not after an
    # hour of compiling.
    install = pip + ['install', '--only-binary', ':all:', '--no-deps']
    with Step(2, 'pip and setuptools'):
        run(install + [pins[name] for name in INSTALLERS], 'install pip and setuptools', lock)
    with Step(3, 'MXNet and the other packages'):
        others = [pins[name] for name in pins if name not in INSTALLERS + ('horovod',)]
        run(install + others, 'install the packages', lock)
    with Step(4, 'Horovod, as compiled before' if compiled else 'Horovod, which is compiled (some minutes)'):
        if not compiled:
            compile_horovod(pip, horovod, pins, lock)
        wheel = next(horovod.glob('*.whl'))
        run(pip + ['install', '--no-deps', '--no-index', wheel], 'install Horovod', lock)
    with Step(5, 'this package'):
        own = ['install', '--no-deps', '--no-build-isolation', '--editable', ROOT]
        run(pip + own, 'install this package', lock)
    with Step(6, 'check that all of it imports'):
        run([VENV_PYTHON, '-c', IMPORT_CHECK], 'import what was installed', lock)
        write_stamp(version)


def ensure(given):
    """Make .venv unless it is complete; wait for another call that is at it."""
    if complete_version() is not None and not given:
        return
    check_machine()
    python, version = choose_python(given)
    if complete_version() == version:
        return
    import fcntl  # not on Windows, which check_machine has turned away by now

    with open(str(LOCK), 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print('Another set-up is at work in this folder; waiting for it to end ...', flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if complete_version() == version:
            return
        start = time.time()
        build(python, version, lock)
        print('.venv is ready after {:.0f} s'.format(time.time() - start), flush=True)


def main(argv=None):
    """Run the set-up and return the exit status."""
    parser = argparse.ArgumentParser(description='Make .venv, unless it is complete already.')
    parser.add_argument('--this-python', action='store_true',
                        help='use the Python that runs this and no other')
    args = parser.parse_args(argv)
    try:
        ensure(args.this_python)
    except SetupError as error:
        print('set-up failed: {}'.format(error), file=sys.stderr)
        return 1
    except OSError as error:
        print('set-up failed: {}: check the disk and the rights in {}, and call again.'.format(error, ROOT),
              file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('set-up interrupted: call again to take it up.', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    # A plain kill ends in the same way as Ctrl-C: the running step is stopped with us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
