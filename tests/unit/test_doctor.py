"""The checks of `hvd-dynamic doctor`, and the command line around them."""

import os
import sys

import pytest

from hvd_dynamic import cli, doctor
from hvd_dynamic.doctor import FAULT, NOTE, OK, Check, Probe


def put_module(tmp_path, monkeypatch, name, source):
    """Let the probes find a module of this text in place of the installed one."""
    (tmp_path / f'{name}.py').write_text(source)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))


def executable(path, text='#!/bin/sh\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# probe: real processes, with stand-ins for the packages

def test_probe_returns_what_the_package_tells(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', "print('a banner')\n__version__ = '1.23.5'\n")
    assert doctor.probe('numpy') == Probe(found={'version': '1.23.5'})


def test_probe_reports_an_exception_in_one_line(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', "raise AttributeError('no bool.\\nA second line.')\n")
    assert doctor.probe('numpy').error == 'AttributeError: no bool.'


def test_probe_reports_a_crash(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', 'import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n')
    assert doctor.probe('numpy').error == 'the import crashed with SIGSEGV'


def test_probe_reports_a_hang(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', 'import time\ntime.sleep(60)\n')
    assert doctor.probe('numpy', seconds=0.5).error == 'the import did not end within 0.5 s'


def test_probe_reports_silence(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', 'import os\nos._exit(0)\n')
    assert doctor.probe('numpy').error == 'the import ended without an answer'


def test_probe_reports_an_exit_without_words(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', 'import os\nos._exit(3)\n')
    assert doctor.probe('numpy').error == 'the import ended with status 3'


def test_probe_hides_the_settings_of_a_job(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, 'numpy', "import os\n__version__ = str('HOROVOD_RANK' in os.environ)\n")
    monkeypatch.setenv('HOROVOD_RANK', '1')
    assert doctor.probe('numpy').found == {'version': 'False'}


# The single checks

@pytest.mark.parametrize('version, status', [
    ((3, 9, 18), FAULT), ((3, 10, 0), OK), ((3, 11, 7), OK), ((3, 12, 1), FAULT)])
def test_python(version, status):
    check = doctor.check_python(version)
    assert check.status == status
    assert check.detail == '.'.join(map(str, version))
    assert ('3.10 or 3.11' in check.remedy) == (status == FAULT)


@pytest.mark.parametrize('version, status', [
    ('1.21.6', OK), ('1.23.5', OK), ('1.24.0rc1', FAULT), ('2.1.3', FAULT)])
def test_numpy(version, status):
    check = doctor.check_numpy(Probe(found={'version': version}))
    assert check.status == status
    assert ('numpy==1.23.5' in check.remedy) == (status == FAULT)


def test_numpy_missing():
    assert doctor.check_numpy(Probe(error="ModuleNotFoundError: No module named 'numpy'")).status == FAULT


def test_mxnet_good_and_untried():
    assert doctor.check_mxnet(Probe(found={'version': '1.9.1'})) == Check('MXNet', OK, '1.9.1')
    untried = doctor.check_mxnet(Probe(found={'version': '1.8.0'}))
    assert untried.status == NOTE and '1.9.1' in untried.remedy


@pytest.mark.parametrize('error, remedy', [
    ("ModuleNotFoundError: No module named 'mxnet'", 'mxnet==1.9.1'),
    ("AttributeError: module 'numpy' has no attribute 'bool'.", "pip install 'numpy==1.23.5'"),
    ('OSError: libgomp.so.1: cannot open shared object file: No such file or directory', 'libgomp1'),
    ('the import crashed with SIGSEGV', 'mxnet==1.9.1'),
])
def test_mxnet_faults_have_remedies(error, remedy):
    check = doctor.check_mxnet(Probe(error=error))
    assert check.status == FAULT
    assert remedy in check.remedy


def test_a_missing_dependency_of_mxnet_is_not_taken_for_mxnet():
    check = doctor.check_mxnet(Probe(error="ModuleNotFoundError: No module named 'graphviz'"))
    assert 'graphviz' in check.detail


def test_gpus():
    def check(**found):
        return doctor.check_gpus(Probe(found=found))

    assert check(cuda=True, gpus=2).status == OK
    assert 'CPUs only' in check(cuda=False, gpus=0).detail
    hidden = check(cuda=True, gpus=0, gpu_error='CUDA: no device')
    assert hidden.status == NOTE and 'no device' in hidden.detail and 'CUDA_VISIBLE_DEVICES' in hidden.remedy
    assert doctor.check_gpus(Probe(error='broken')).status == NOTE


def test_horovod():
    def check(**found):
        return doctor.check_horovod(Probe(found=found))

    assert check(version='0.28.1', mxnet=True).status == OK
    assert check(version='0.27.0', mxnet=True).status == NOTE
    without = check(version='0.28.1', mxnet=False)
    assert without.status == FAULT and 'without MXNet' in without.detail
    assert 'HOROVOD_WITH_MXNET=1' in without.remedy and 'HOROVOD_WITH_GLOO=1' in without.remedy
    missing = doctor.check_horovod(Probe(error="ModuleNotFoundError: No module named 'horovod'"))
    assert missing.status == FAULT and missing.detail == 'not installed'


def test_gloo():
    mxnet, horovod = Check('MXNet', OK, ''), Check('Horovod', OK, '')

    def check(gpus=0, **found):
        return doctor.check_gloo(Probe(found=found), mxnet, horovod, gpus)

    assert check(gloo=True, nccl=False).status == OK
    assert check(gloo=False, nccl=False).status == FAULT
    assert check(gpus=1, gloo=True, nccl=True).status == OK
    slow = check(gpus=1, gloo=True, nccl=False)
    assert slow.status == NOTE and slow.remedy.startswith('HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_WITH_MXNET=1')
    unfit = doctor.check_gloo(Probe(error='OSError: undefined symbol: _ZN5mxnet'), mxnet, horovod)
    assert unfit.status == FAULT and '--force-reinstall' in unfit.remedy


def test_gloo_does_not_repeat_a_fault_of_mxnet():
    broken = Check('MXNet', FAULT, '')
    check = doctor.check_gloo(Probe(error='the same again'), broken, Check('Horovod', OK, ''))
    assert check.status == NOTE and 'the same again' not in check.detail


def test_gluoncv_is_never_a_fault():
    assert doctor.check_gluoncv(Probe(found={'version': '0.10.5.post0'})).status == OK
    missing = doctor.check_gluoncv(Probe(error="ModuleNotFoundError: No module named 'gluoncv'"))
    assert missing.status == NOTE and 'recipes only' in missing.detail and '--no-deps' in missing.remedy
    libgl = doctor.check_gluoncv(Probe(error='ImportError: libGL.so.1: cannot open shared object file'))
    assert libgl.status == NOTE and 'opencv-python-headless' in libgl.remedy


def test_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv('CXX', raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    none = doctor.check_compiler()
    assert none.status == NOTE and 'only needed to compile Horovod' in none.detail
    found = executable(tmp_path / 'g++')
    assert doctor.check_compiler() == Check('C++ compiler', OK, str(found))
    monkeypatch.setenv('CXX', 'my-compiler -m64')
    assert doctor.check_compiler().status == NOTE


def test_horovodrun(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'executable', str(tmp_path / 'env' / 'python'))
    monkeypatch.setenv('PATH', str(tmp_path / 'path'))
    horovod = Check('Horovod', OK, '')
    assert doctor.check_horovodrun(horovod).status == FAULT
    assert doctor.check_horovodrun(Check('Horovod', FAULT, '')).status == NOTE

    elsewhere = executable(tmp_path / 'path' / 'horovodrun')
    assert doctor.check_horovodrun(horovod) == Check('horovodrun', OK, str(elsewhere))

    own = executable(tmp_path / 'env' / 'horovodrun')
    other = doctor.check_horovodrun(horovod)
    assert other.status == NOTE and str(elsewhere) in other.detail

    monkeypatch.setenv('PATH', str(tmp_path / 'nothing'))
    off_path = doctor.check_horovodrun(horovod)
    assert off_path.status == NOTE and str(own) in off_path.detail and str(own.parent) in off_path.remedy

    monkeypatch.setenv('PATH', str(own.parent))
    assert doctor.check_horovodrun(horovod) == Check('horovodrun', OK, str(own))


def test_cpus(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    assert doctor.check_cpus() == Check('CPU cores', OK, '3, OMP_NUM_THREADS=1')
    monkeypatch.delenv('OMP_NUM_THREADS')
    unset = doctor.check_cpus()
    assert unset.status == NOTE and '3 divided by' in unset.remedy


def test_loopback(monkeypatch):
    monkeypatch.setattr(doctor.socket, 'if_nameindex', lambda: [(1, 'lo'), (2, 'eth0')])
    assert doctor.check_loopback().status == OK
    monkeypatch.setattr(doctor.socket, 'if_nameindex', lambda: [(2, 'eth0')])
    missing = doctor.check_loopback()
    assert missing.status == FAULT and 'eth0' in missing.detail and '--network-interface' in missing.remedy


def test_loopback_that_is_down(monkeypatch):
    class Down(doctor.socket.socket):
        def bind(self, address):
            raise OSError(99, 'Cannot assign requested address')

    monkeypatch.setattr(doctor.socket, 'if_nameindex', lambda: [(1, 'lo')])
    monkeypatch.setattr(doctor.socket, 'socket', Down)
    assert doctor.check_loopback().remedy == 'ip link set lo up'


# All together

GOOD = {
    'numpy': Probe(found={'version': '1.23.5'}),
    'mxnet': Probe(found={'version': '1.9.1', 'cuda': False, 'gpus': 0, 'gpu_error': None}),
    'horovod': Probe(found={'version': '0.28.1', 'mxnet': True}),
    'horovod.mxnet': Probe(found={'gloo': True, 'nccl': False}),
    'gluoncv': Probe(found={'version': '0.10.5.post0'}),
}


@pytest.fixture
def outcomes(monkeypatch):
    """What the probes find, all well; a test may change it."""
    found = dict(GOOD)
    monkeypatch.setattr(doctor, 'probe', found.__getitem__)
    monkeypatch.setattr(doctor, 'check_horovodrun', lambda horovod: Check('horovodrun', OK, ''))
    monkeypatch.setattr(doctor, 'check_python', lambda: Check('Python', OK, '3.11.7'))
    monkeypatch.setattr(doctor, 'check_loopback', lambda: Check('loopback', OK, 'lo'))
    return found


def test_doctor_without_a_fault(outcomes, capsys):
    assert cli.main(['doctor']) == 0
    out = capsys.readouterr().out
    assert out.endswith('no faults\n') and FAULT not in out


def test_doctor_with_a_numpy_that_breaks_mxnet(outcomes, capsys):
    outcomes['numpy'] = Probe(found={'version': '2.1.3'})
    broken = Probe(error="AttributeError: module 'numpy' has no attribute 'bool'.")
    outcomes.update({'mxnet': broken, 'horovod.mxnet': broken, 'gluoncv': broken})
    assert cli.main(['doctor']) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == '2 faults'
    faults = [i for i, line in enumerate(lines) if line.startswith(FAULT)]
    assert len(faults) == 2
    assert all('numpy==1.23.5' in lines[i + 1] for i in faults)


def test_every_fault_has_a_remedy(outcomes):
    for name in GOOD:
        outcomes[name] = Probe(error='ImportError: something else')
    assert all(check.remedy for check in doctor.run_checks() if check.status == FAULT)


# The command line

def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(['--version'])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith('hvd-dynamic 0.')


def test_no_command_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 2
    assert 'COMMAND' in capsys.readouterr().err


class TestReport:
    @pytest.fixture(autouse=True)
    def stand_in(self, monkeypatch):
        self.module = type(sys)('hvd_dynamic.report')
        monkeypatch.setitem(sys.modules, 'hvd_dynamic.report', self.module)

    def test_prints_the_paths(self, capsys):
        self.module.write_report = lambda run_dir: [f'{run_dir}/report.png', f'{run_dir}/report.html']
        assert cli.main(['report', 'runs/a']) == 0
        assert capsys.readouterr().out == 'runs/a/report.png\nruns/a/report.html\n'

    @pytest.mark.parametrize('kind', [ValueError, FileNotFoundError, PermissionError])
    def test_a_bad_folder_is_one_line(self, capsys, kind):
        def fail(run_dir):
            raise kind(f'{run_dir} holds no metrics.jsonl')

        self.module.write_report = fail
        assert cli.main(['report', 'nowhere']) == 2
        captured = capsys.readouterr()
        assert captured.out == ''
        assert captured.err == 'hvd-dynamic report: nowhere holds no metrics.jsonl\n'


def test_the_probes_are_valid_python():
    for name, code in doctor.PROBES.items():
        compile(code, name, 'exec')
        assert 'json' in code
