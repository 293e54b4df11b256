"""``hvd-dynamic doctor``: is this environment fit for elastic Gluon training, and if not, how to mend it.

Nothing here imports MXNet, Horovod or numpy into this process: a broken one may raise anything, or take the
process down with it. Each is imported in a process of its own (`probe`), and its outcome is judged here.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

OK, FAULT, NOTE = 'ok', 'FAULT', 'note'

PROBE_SECONDS = 120

# What each probe runs; the last thing it prints is one JSON object.
PROBES = {
    'numpy': "import json, numpy; print(json.dumps({'version': numpy.__version__}))",
    'mxnet': (
        'import json, mxnet as mx\n'
        "cuda = mx.runtime.Features().is_enabled('CUDA')\n"
        'try:\n'
        '    gpus, gpu_error = (mx.context.num_gpus() if cuda else 0), None\n'
        'except mx.base.MXNetError as error:\n'
        '    gpus, gpu_error = 0, str(error).strip().splitlines()[-1]\n'
        "print(json.dumps({'version': mx.__version__, 'cuda': cuda, 'gpus': gpus, 'gpu_error': gpu_error}))"
    ),
    # horovod.mxnet imports MXNet, so what Horovod was built with is looked up without that first.
    'horovod': (
        'import json, os, horovod\n'
        'from horovod.common.util import get_ext_suffix\n'
        "folder = os.path.join(os.path.dirname(horovod.__file__), 'mxnet')\n"
        "built = os.path.exists(os.path.join(folder, 'mpi_lib' + get_ext_suffix()))\n"
        "print(json.dumps({'version': horovod.__version__, 'mxnet': built}))"
    ),
    'horovod.mxnet': (
        'import json, horovod.mxnet as hvd\n'
        "print(json.dumps({'gloo': bool(hvd.gloo_built()), 'nccl': bool(hvd.nccl_built())}))"
    ),
    # GluonCV 0.10.5 says 0.11.0 in its own __version__.
    'gluoncv': (
        'import json, gluoncv\n'
        'from importlib.metadata import version\n'
        "print(json.dumps({'version': version('gluoncv')}))"
    ),
}

GET_NUMPY = "pip install 'numpy==1.23.5'"
GET_MXNET = "pip install 'mxnet==1.9.1' 'numpy==1.23.5'   (with GPUs mxnet-cu112 or the like, in its place)"
GET_HOROVOD = (
    "pip install 'setuptools<66' wheel 'cmake<4' cffi cloudpickle pyyaml psutil packaging && "
    'HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 '
    'HOROVOD_WITHOUT_PYTORCH=1 '
    'pip install --no-cache-dir --no-build-isolation --no-deps --force-reinstall horovod==0.28.1'
)
GET_GLUONCV = (
    "pip install --no-deps gluoncv==0.10.5.post0 && pip install 'opencv-python-headless==4.8.1.78' "
    "'pandas==2.0.3' 'scipy<1.12' 'numpy==1.23.5' 'matplotlib<3.9' "
    'pyyaml yacs autocfg portalocker pillow requests tqdm'
)


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Parameters
    ----------
    name : str
        What was looked at.
    status : str
        'ok', 'FAULT' (training or tests would fail) or 'note' (worth knowing).
    detail : str
        What was found.
    remedy : str
        How to mend it, '' if there is nothing to mend.
    """

    name: str
    status: str
    detail: str
    remedy: str = ''


@dataclass(frozen=True)
class Probe:
    """What came of an import in a process of its own: `found` if it went well, else `error`, one line."""

    found: dict | None = None
    error: str = ''


def probe(module, seconds=PROBE_SECONDS):
    """Import a module in a process of its own and return what it tells about itself.

    Parameters
    ----------
    module : str
        A key of `PROBES`.
    seconds : float
        How long it may take.

    Returns
    -------
    Probe
    """
    # A worker's settings, if this is called within a job, would make Horovod look for that job's servers.
    env = {name: value for name, value in os.environ.items() if not name.startswith('HOROVOD_')}
    try:
        result = subprocess.run(
            [sys.executable, '-c', PROBES[module]], env=env, timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace')
    except subprocess.TimeoutExpired:
        return Probe(error=f'the import did not end within {seconds:g} s')
    if result.returncode < 0:
        return Probe(error=f'the import crashed with {_signal_name(-result.returncode)}')
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        return Probe(error=_error_line(lines) or f'the import ended with status {result.returncode}')
    try:
        return Probe(found=json.loads(result.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return Probe(error='the import ended without an answer')


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def _error_line(lines):
    """Return the line of a traceback that names the exception; its message may go on for more lines."""
    last_frame = max((i for i, line in enumerate(lines) if line.startswith('  File ')), default=-1)
    for line in lines[last_frame + 1:]:
        if not line.startswith(' '):
            return line.strip()
    return lines[-1].strip() if lines else ''


def _is_missing(error, module):
    return error.startswith('ModuleNotFoundError') and f"'{module}'" in error


def _version_tuple(version):
    numbers = []
    for part in version.split('.')[:3]:
        digits = ''.join(c for c in part if c.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def _import_fault(name, error, remedy):
    """Return the check for a package that does not import, with the remedy for what is known to go wrong."""
    numpy_signs = ("module 'numpy' has no attribute", 'numpy.core.multiarray failed', '_ARRAY_API')
    if any(sign in error for sign in numpy_signs):
        remedy = GET_NUMPY
    elif 'libGL' in error:
        remedy = ("pip uninstall -y opencv-python && pip install --force-reinstall --no-deps "
                  "'opencv-python-headless==4.8.1.78'   (opencv-python needs libGL)")
    elif 'cannot open shared object file' in error:
        remedy = 'install the system package that holds this library (libgomp1, libcudart, ...)'
    return Check(name, FAULT, error, remedy)


def check_python(version=None):
    """Check that this Python is one that MXNet 1.9.1 and Horovod 0.28.1 work with."""
    version = tuple(version or sys.version_info)[:3]
    text = '.'.join(map(str, version))
    if version[:2] in ((3, 10), (3, 11)):
        return Check('Python', OK, text)
    return Check('Python', FAULT, text, 'make an environment with Python 3.10 or 3.11')


def check_numpy(outcome):
    """Check numpy's version: MXNet 1.9.1 uses names that numpy 1.24 removed."""
    if outcome.error:
        return Check('numpy', FAULT, outcome.error, GET_NUMPY)
    version = outcome.found['version']
    if _version_tuple(version) >= (1, 24):
        return Check('numpy', FAULT, f'{version}, and MXNet 1.9.1 needs one below 1.24', GET_NUMPY)
    return Check('numpy', OK, version)


def check_mxnet(outcome):
    """Check that MXNet imports, and its version."""
    if outcome.error:
        if _is_missing(outcome.error, 'mxnet'):
            return Check('MXNet', FAULT, 'not installed', GET_MXNET)
        return _import_fault('MXNet', outcome.error, GET_MXNET)
    version = outcome.found['version']
    if version != '1.9.1':
        return Check('MXNet', NOTE, f'{version}; only 1.9.1 has been tried', GET_MXNET)
    return Check('MXNet', OK, version)


def check_gpus(outcome):
    """Tell which GPUs MXNet sees."""
    if outcome.error:
        return Check('GPUs', NOTE, 'not looked for, since MXNet does not import')
    if not outcome.found['cuda']:
        return Check('GPUs', NOTE, 'this MXNet is built for CPUs only')
    if outcome.found['gpus']:
        return Check('GPUs', OK, str(outcome.found['gpus']))
    why = f' ({outcome.found["gpu_error"]})' if outcome.found.get('gpu_error') else ''
    return Check('GPUs', NOTE, f'none seen by MXNet, although it is built with CUDA{why}',
                 'see whether nvidia-smi lists them, and whether CUDA_VISIBLE_DEVICES hides them')


def check_horovod(outcome):
    """Check that Horovod is there and was compiled with MXNet."""
    if outcome.error:
        if _is_missing(outcome.error, 'horovod'):
            return Check('Horovod', FAULT, 'not installed', GET_HOROVOD)
        return _import_fault('Horovod', outcome.error, GET_HOROVOD)
    version = outcome.found['version']
    if not outcome.found['mxnet']:
        return Check('Horovod', FAULT, f'{version}, compiled without MXNet', GET_HOROVOD)
    if version != '0.28.1':
        return Check('Horovod', NOTE, f'{version}, with MXNet; only 0.28.1 has been tried', GET_HOROVOD)
    return Check('Horovod', OK, f'{version}, with MXNet')


def check_gloo(outcome, mxnet, horovod, gpus=0):
    """Check that Horovod's MXNet part loads and has Gloo, which elastic jobs need.

    Parameters
    ----------
    outcome : Probe
        Of 'horovod.mxnet'.
    mxnet, horovod : Check
        What came of these; a fault in one of them is not told a second time.
    gpus : int
        How many GPUs MXNet sees.
    """
    name = 'Horovod with Gloo'
    if FAULT in (mxnet.status, horovod.status):
        return Check(name, NOTE, 'not looked at: first mend MXNet and Horovod')
    if outcome.error:
        # Both are there and MXNet imports: then it is the compiled part that does not fit this MXNet.
        return _import_fault(name, outcome.error, GET_HOROVOD)
    if not outcome.found['gloo']:
        return Check(name, FAULT, 'compiled without Gloo, which elastic jobs need', GET_HOROVOD)
    if gpus and not outcome.found['nccl']:
        return Check(name, NOTE, 'yes, but without NCCL: GPU arrays go by way of the host',
                     'HOROVOD_GPU_OPERATIONS=NCCL ' + GET_HOROVOD.split(' && ')[1])
    return Check(name, OK, 'yes')


def check_gluoncv(outcome):
    """Check GluonCV, without which only the recipes fail."""
    name, purpose = 'GluonCV', 'needed for the recipes only'
    if not outcome.error:
        return Check(name, OK, outcome.found['version'])
    if _is_missing(outcome.error, 'gluoncv'):
        return Check(name, NOTE, f'not installed; {purpose}', GET_GLUONCV)
    fault = _import_fault(name, outcome.error, GET_GLUONCV)
    return Check(name, NOTE, f'{fault.detail}; {purpose}', fault.remedy)


def check_compiler():
    """Look for a C++ compiler, which is needed only to compile Horovod."""
    for name in os.environ.get('CXX', '').split()[:1] or ['c++', 'g++', 'clang++']:
        path = shutil.which(name)
        if path:
            return Check('C++ compiler', OK, path)
    return Check('C++ compiler', NOTE, 'none found; only needed to compile Horovod',
                 'Debian, Ubuntu: apt-get install build-essential; Fedora: dnf install gcc-c++ make')


def check_horovodrun(horovod):
    """Check that horovodrun, which starts the jobs, can be called and belongs to this environment.

    Parameters
    ----------
    horovod : Check
        What came of Horovod itself; a fault in it is not told a second time.
    """
    name = 'horovodrun'
    here = Path(sys.executable).parent
    found = shutil.which(name)
    own = shutil.which(name, path=str(here))
    if own and (not found or not Path(found).samefile(own)):
        which = f', which has {found} in its place' if found else ''
        return Check(name, NOTE, f'{own}, not on PATH{which}', f'PATH={here}:$PATH')
    if found:
        return Check(name, OK, found)
    if horovod.status == FAULT:
        return Check(name, NOTE, 'not there; it comes with Horovod')
    return Check(name, FAULT, 'not on PATH and not beside this Python', GET_HOROVOD)


def check_cpus():
    """Tell how many cores there are for this process, and whether workers would fight over them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    threads = os.environ.get('OMP_NUM_THREADS')
    if threads:
        return Check('CPU cores', OK, f'{cores}, OMP_NUM_THREADS={threads}')
    return Check('CPU cores', NOTE,
                 f'{cores}, OMP_NUM_THREADS is not set: several workers on a machine slow one another down',
                 f'OMP_NUM_THREADS=N, N being {cores} divided by the workers on this machine')


def check_loopback():
    """Check the interface `lo`, over which the workers of a job on one machine speak."""
    name = 'loopback'
    interfaces = [interface for _, interface in socket.if_nameindex()]
    if 'lo' not in interfaces:
        return Check(name, FAULT, f'there is no interface lo (there are: {", ".join(interfaces) or "none"})',
                     'give jobs on one machine another of these: horovodrun --network-interface NAME')
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind(('127.0.0.1', 0))
            server.listen(1)
            client.settimeout(5)
            client.connect(server.getsockname())
    except OSError as error:
        return Check(name, FAULT, f'lo is there, but 127.0.0.1 does not answer ({error})',
                     'ip link set lo up')
    return Check(name, OK, 'lo')


def run_checks():
    """Run all checks.

    Returns
    -------
    list of Check
    """
    with ThreadPoolExecutor(len(PROBES)) as pool:
        outcomes = dict(zip(PROBES, pool.map(probe, PROBES)))
    mxnet = check_mxnet(outcomes['mxnet'])
    horovod = check_horovod(outcomes['horovod'])
    gpus = (outcomes['mxnet'].found or {}).get('gpus', 0)
    return [
        check_python(),
        check_numpy(outcomes['numpy']),
        mxnet,
        horovod,
        check_gloo(outcomes['horovod.mxnet'], mxnet, horovod, gpus),
        check_horovodrun(horovod),
        check_gluoncv(outcomes['gluoncv']),
        check_gpus(outcomes['mxnet']),
        check_cpus(),
        check_loopback(),
        check_compiler(),
    ]


def format_checks(checks):
    """Return the checks as text: a line each, and below it how to mend what can be mended."""
    lines = []
    width = max(len(check.name) for check in checks)
    for check in checks:
        lines.append(f'{check.status:<5}  {check.name:<{width}}  {check.detail}')
        if check.remedy:
            lines.append(f'{"":<5}  {"":<{width}}  -> {check.remedy}')
    faults = sum(check.status == FAULT for check in checks)
    lines.append('')
    lines.append('no faults' if not faults else f'{faults} {"fault" if faults == 1 else "faults"}')
    return '\n'.join(lines)


def main():
    """Print all checks and return the exit status: 0 if there is no fault, else 1."""
    checks = run_checks()
    print(format_checks(checks))
    return int(any(check.status == FAULT for check in checks))
