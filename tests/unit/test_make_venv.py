"""The set-up script: which Python it takes, when .venv is stale, what it says when something is wrong."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / 'tools' / 'make_venv.py'


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The script as a module that works in an empty folder."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location('make_venv', SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / 'tree'
    root.mkdir()
    (root / 'constraints.txt').write_text('numpy==1.23.5\nmxnet==1.9.1  # by name\nhorovod==0.28.1\n')
    places = {'ROOT': root, 'VENV': root / '.venv', 'LOG': root / 'log', 'LOCK': root / 'lock',
              'WHEELS': root / 'wheels', 'CONSTRAINTS': root / 'constraints.txt'}
    places['VENV_PYTHON'] = places['VENV'] / 'bin' / 'python'
    places['STAMP'] = places['VENV'] / 'setup-complete.json'
    places['MARKER'] = places['VENV'] / 'made-by-make'
    for name, path in places.items():
        monkeypatch.setattr(module, name, path)
    return module


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def fake_python(path, version, has_venv=True):
    return executable(path, f'#!/bin/sh\necho {version} {int(has_venv)}\n')


def complete(setup, version='3.11'):
    """Make a .venv that looks complete."""
    executable(setup.VENV_PYTHON, '#!/bin/sh\n')
    setup.MARKER.write_text('')
    setup.write_stamp(version)


# constraints.txt

def test_read_pins(setup):
    assert setup.read_pins(setup.CONSTRAINTS) == {
        'numpy': 'numpy==1.23.5', 'mxnet': 'mxnet==1.9.1', 'horovod': 'horovod==0.28.1'}


def test_every_package_is_pinned_exactly(setup):
    pins = setup.read_pins(ROOT / 'constraints.txt')
    for name, line in pins.items():
        assert re.fullmatch(r'[A-Za-z0-9.-]+==[0-9][0-9a-z.]*(; python_version < "3\.11")?', line), name
    assert {'horovod', *setup.INSTALLERS} <= set(pins)


def test_the_opencv_that_needs_a_screen_stays_out(setup):
    assert not {'opencv-python', 'opencv-contrib-python'} & set(setup.read_pins(ROOT / 'constraints.txt'))


def test_setup_py_asks_for_nothing_that_is_not_pinned(setup):
    pins = set(setup.read_pins(ROOT / 'constraints.txt')) | {'opencv-python'}
    wanted = re.findall(r"^\s+'([a-z-]+)[=<>]+[0-9]", (ROOT / 'setup.py').read_text(), re.M)
    assert {'numpy', 'gluoncv'} <= set(wanted) <= pins


# Complete, stale, unfinished

def test_complete(setup):
    assert setup.complete_version() is None
    complete(setup, '3.10')
    assert setup.complete_version() == '3.10'


def test_stale_when_the_constraints_change(setup):
    complete(setup)
    setup.CONSTRAINTS.write_text('numpy==1.23.4\n')
    assert setup.complete_version() is None


def test_stale_when_the_steps_change(setup, monkeypatch):
    complete(setup)
    monkeypatch.setattr(setup, 'RECIPE', setup.RECIPE + 1)
    assert setup.complete_version() is None


def test_stale_when_the_tree_was_copied(setup, monkeypatch, tmp_path):
    complete(setup)
    tree, copy = setup.ROOT, tmp_path / 'copy'
    tree.rename(copy)
    for name in ('VENV', 'STAMP', 'VENV_PYTHON', 'CONSTRAINTS'):
        monkeypatch.setattr(setup, name, copy / getattr(setup, name).relative_to(tree))
    assert setup.STAMP.exists()
    assert setup.complete_version() is None


def test_stale_when_its_python_is_gone(setup):
    complete(setup)
    setup.VENV_PYTHON.unlink()
    setup.VENV_PYTHON.symlink_to('/nowhere/python3.11')
    assert setup.complete_version() is None


@pytest.mark.parametrize('text', ['', '{', '[]', '{"python": 1}', 'null'])
def test_a_broken_stamp_is_not_complete(setup, text):
    complete(setup)
    setup.STAMP.write_text(text)
    assert setup.complete_version() is None


def test_a_complete_venv_is_used_without_looking_for_a_python(setup, monkeypatch):
    complete(setup)
    monkeypatch.setattr(setup, 'choose_python', None)
    assert setup.main([]) == 0


def test_another_python_makes_it_stale_only_if_it_was_asked_for(setup, monkeypatch):
    complete(setup, '3.10')
    built = []
    monkeypatch.setattr(setup, 'build', lambda python, version, lock: built.append(version))
    monkeypatch.setattr(setup, 'choose_python', lambda given: ('/usr/bin/python3.11', '3.11'))
    assert setup.main([]) == 0
    assert built == []
    assert setup.main(['--this-python']) == 0
    assert built == ['3.11']


def test_clear_takes_up_an_interrupted_setup(setup):
    complete(setup)
    (setup.VENV / 'lib64').symlink_to('lib')
    setup.clear_venv()
    assert [path.name for path in setup.VENV.iterdir()] == ['made-by-make']


def test_clear_starts_in_an_empty_folder(setup):
    setup.VENV.mkdir()
    setup.clear_venv()
    assert setup.MARKER.exists()


def test_clear_leaves_a_venv_of_the_users_alone(setup):
    kept = setup.VENV / 'bin' / 'python'
    executable(kept, '')
    with pytest.raises(setup.SetupError, match='was not made by this Makefile: move it away'):
        setup.clear_venv()
    assert kept.exists()


def test_a_failed_step_leaves_no_stamp(setup, monkeypatch, capsys):
    def fail(command, what, lock):
        raise setup.SetupError('no disk')

    complete(setup)
    setup.CONSTRAINTS.write_text('mxnet==1.9.1\nhorovod==0.28.1\nnumpy==1\n')
    monkeypatch.setattr(setup, 'run', fail)
    monkeypatch.setattr(setup, 'check_machine', lambda: None)
    monkeypatch.setattr(setup, 'check_compilers', lambda: None)
    monkeypatch.setattr(setup, 'choose_python', lambda given: (sys.executable, '3.11'))
    assert setup.main([]) == 1
    assert capsys.readouterr().err == 'set-up failed: no disk\n'
    assert not setup.STAMP.exists() and setup.complete_version() is None


def test_the_compiled_horovod_is_kept_for_the_same_mxnet_only(setup, monkeypatch):
    pins = setup.read_pins(setup.CONSTRAINTS)
    first = setup.wheel_folder('3.11', pins)
    assert setup.wheel_folder('3.11', dict(pins, numpy='numpy==1.23.4')) == first
    assert setup.wheel_folder('3.10', pins) != first
    assert setup.wheel_folder('3.11', dict(pins, mxnet='mxnet==1.9.0')) != first
    monkeypatch.setenv('HOROVOD_GPU_OPERATIONS', 'NCCL')
    assert setup.wheel_folder('3.11', pins) != first


# Which Python

@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty PATH to put commands in, and a running interpreter that MXNet does not work with."""
    monkeypatch.setattr(sys, 'version_info', (3, 12, 1))
    monkeypatch.setenv('PATH', str(tmp_path / 'a') + os.pathsep + str(tmp_path / 'b'))
    return tmp_path


def test_the_running_python_is_taken_if_it_fits(setup, path, monkeypatch):
    monkeypatch.setattr(sys, 'version_info', (3, 10, 4))
    monkeypatch.setattr(sys, 'executable', fake_python(path / 'mine', '3.10'))
    assert setup.choose_python(given=False) == (str(path / 'mine'), '3.10')
    assert setup.choose_python(given=True) == (str(path / 'mine'), '3.10')


def test_another_is_looked_for_on_path_and_the_newer_preferred(setup, path):
    fake_python(path / 'a' / 'python3.10', '3.10')
    found = fake_python(path / 'b' / 'python3.11', '3.11')
    assert setup.choose_python(given=False) == (found, '3.11')


def test_a_command_that_does_not_run_is_passed_over(setup, path):
    executable(path / 'a' / 'python3.11', '#!/bin/sh\necho "no such version is chosen" >&2\nexit 127\n')
    found = fake_python(path / 'b' / 'python3.11', '3.11')
    assert setup.choose_python(given=False) == (found, '3.11')


def test_a_command_that_lies_about_its_version_is_passed_over(setup, path):
    fake_python(path / 'a' / 'python3.11', '3.13')
    with pytest.raises(setup.SetupError, match='3.10 or 3.11 is needed, this is 3.12'):
        setup.choose_python(given=False)


def test_no_python(setup, path):
    with pytest.raises(setup.SetupError, match='install one or give its path: make PYTHON='):
        setup.choose_python(given=False)


def test_a_python_without_venv(setup, path):
    fake_python(path / 'a' / 'python3.11', '3.11', has_venv=False)
    with pytest.raises(setup.SetupError, match='apt-get install python3.11-venv'):
        setup.choose_python(given=False)
    found = fake_python(path / 'b' / 'python3.10', '3.10')
    assert setup.choose_python(given=False) == (found, '3.10')


def test_a_given_python_that_does_not_fit_is_refused(setup, path):
    fake_python(path / 'a' / 'python3.11', '3.11')
    with pytest.raises(setup.SetupError, match='PYTHON=.* is Python 3.12, and MXNet works with 3.10'):
        setup.choose_python(given=True)


# The machine

@pytest.mark.parametrize('system, machine, libc, words', [
    ('Darwin', 'arm64', '', 'this is Darwin on arm64'),
    ('Linux', 'aarch64', 'glibc', 'this is Linux on aarch64'),
    ('Linux', 'x86_64', '', 'needs a Linux with glibc'),
])
def test_machines_without_mxnet(setup, monkeypatch, system, machine, libc, words):
    monkeypatch.setattr(setup.platform, 'system', lambda: system)
    monkeypatch.setattr(setup.platform, 'machine', lambda: machine)
    monkeypatch.setattr(setup.platform, 'libc_ver', lambda: (libc, ''))
    with pytest.raises(setup.SetupError, match=words):
        setup.check_machine()


def test_a_folder_with_a_space(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, 'ROOT', tmp_path / 'my tree')
    monkeypatch.setattr(setup.platform, 'system', lambda: 'Linux')
    monkeypatch.setattr(setup.platform, 'machine', lambda: 'x86_64')
    monkeypatch.setattr(setup.platform, 'libc_ver', lambda: ('glibc', '2.36'))
    with pytest.raises(setup.SetupError, match='a space in its path, as .*my tree has: move'):
        setup.check_machine()


def test_compilers(setup, path, monkeypatch):
    monkeypatch.delenv('CC', raising=False)
    monkeypatch.delenv('CXX', raising=False)
    with pytest.raises(setup.SetupError, match=r'No C\+\+ compiler was found, .* build-essential'):
        setup.check_compilers()
    executable(path / 'a' / 'g++', '#!/bin/sh\n')
    with pytest.raises(setup.SetupError, match='No C compiler was found, '):
        setup.check_compilers()
    executable(path / 'b' / 'gcc', '#!/bin/sh\n')
    with pytest.raises(setup.SetupError, match='No make was found'):
        setup.check_compilers()
    executable(path / 'b' / 'make', '#!/bin/sh\n')
    setup.check_compilers()
    executable(path / 'a' / 'g++', '#!/bin/sh\nexit 1\n')
    with pytest.raises(setup.SetupError, match=r'g\+\+ cannot compile and link'):
        setup.check_compilers()
    monkeypatch.setenv('CXX', 'their-compiler -O1')
    with pytest.raises(setup.SetupError, match=r'No C\+\+ compiler was found \(CXX=their-compiler\)'):
        setup.check_compilers()


# What a failed step says

@pytest.mark.parametrize('output, words', [
    ("WARNING: Retrying (Retry(total=4, ...)) after connection broken by 'NewConnectionError(...)'\n"
     'ERROR: No matching distribution found for setuptools==65.7.0\n', 'index cannot be reached'),
    ("WARNING: ... after connection broken by 'ProxyError(...)'\n", 'index cannot be reached'),
    ("WARNING: ... after connection broken by 'SSLError(SSLCertVerificationError(...))'\n", 'set PIP_CERT'),
    ('ERROR: HTTP error 403 while getting http://host/x.whl\n', 'refused the request'),
    ('ERROR: No matching distribution found for mxnet==1.9.1\n', 'has no mxnet==1.9.1 for this Python'),
    ('ERROR: ResolutionImpossible: for help visit ...\n', 'conflict with a constraint'),
    ('OSError: [Errno 28] No space left on device\n', 'disk is full'),
    ('Building wheel for horovod (setup.py): started\nerror: subprocess-exited-with-error\n'
     'x.cc:1:10: fatal error: a.h: No such file\n',
     'x.cc:1:10: fatal error: a.h: No such file'),
    ('Building wheel for horovod\nc++: fatal error: Killed signal terminated program cc1plus\n',
     'want of memory'),
    ('Traceback (most recent call last):\nImportError: libGL.so.1: cannot open\n', 'ImportError: libGL.so.1'),
    ('Building wheel for horovod\nsomething else\n', 'Horovod did not compile: mend what its output tells'),
    ('', 'The step "import what was installed" failed'),
])
def test_explanations(setup, output, words):
    line = setup.explain(output, 'import what was installed')
    assert words in line
    assert '\n' not in line


def test_a_failing_command_ends_in_its_explanation(setup):
    with open(setup.LOCK, 'w') as lock:
        code = "import sys; sys.exit('ERROR: No matching distribution found for mxnet==1.9.1')"
        with pytest.raises(setup.SetupError, match='has no mxnet==1.9.1 .* All output: .*log$'):
            setup.run([sys.executable, '-c', code], 'install', lock)
        # An old failure in the log is not taken for the reason of a new one.
        with pytest.raises(setup.SetupError, match='The step "check" failed'):
            setup.run([sys.executable, '-c', 'raise SystemExit(3)'], 'check', lock)


def test_the_environment_leads_pip_into_the_venv_only(setup, monkeypatch):
    for name in ('PYTHONPATH', 'PIP_TARGET', 'MAKELEVEL'):
        monkeypatch.setenv(name, 'x')
    for name in ('PIP_INDEX_URL', 'PIP_CONSTRAINT', 'HOROVOD_GPU_OPERATIONS'):
        monkeypatch.setenv(name, 'theirs')
    env = setup.step_environment()
    assert not {'PYTHONPATH', 'PIP_TARGET', 'MAKELEVEL'} & set(env)
    assert env['PIP_USER'] == '0'
    assert env['PIP_INDEX_URL'] == env['PIP_CONSTRAINT'] == env['HOROVOD_GPU_OPERATIONS'] == 'theirs'
    assert env['HOROVOD_WITH_GLOO'] == '1'
    assert env['PATH'].startswith(str(setup.VENV / 'bin') + os.pathsep)


# Two calls at once

def test_a_second_call_waits_and_then_uses_what_the_first_made(setup, monkeypatch, capfd):
    holder = subprocess.Popen(
        [sys.executable, '-c',
         'import fcntl, sys\n'
         'lock = open(sys.argv[1], "w"); fcntl.flock(lock, fcntl.LOCK_EX)\n'
         'print("held", flush=True); sys.stdin.read()', str(setup.LOCK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == 'held\n'

    import fcntl
    real = fcntl.flock

    def flock(lock, operation):
        if not operation & fcntl.LOCK_NB:
            complete(setup)
            holder.stdin.close()
        real(lock, operation)

    monkeypatch.setattr(fcntl, 'flock', flock)
    monkeypatch.setattr(setup, 'check_machine', lambda: None)
    monkeypatch.setattr(setup, 'choose_python', lambda given: (sys.executable, '3.11'))
    monkeypatch.setattr(setup, 'build', None)
    try:
        assert setup.main([]) == 0
    finally:
        holder.wait()
    assert 'Another set-up is at work' in capfd.readouterr().out


def test_the_script_keeps_to_the_syntax_of_python_3_6():
    import ast
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
