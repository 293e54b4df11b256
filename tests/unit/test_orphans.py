"""Processes that a worker forks end when it does."""
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='a feature of Linux')

PARENT = '''
import os, select, sys, threading, time
from hvd_dynamic.orphans import end_with_parent
end_with_parent()
end_with_parent()                       # a second call changes nothing
read, write = os.pipe()
def fork(depth):
    child = os.fork()
    if child == 0:
        if depth > 1:
            fork(depth - 1)
        else:
            os.write(write, str(os.getpid()).encode())
        time.sleep(60)
        os._exit(0)
    if depth == 1:
        here = select.select([read], [], [], 2)[0]
        print(os.read(read, 10).decode() if here else 0, flush=True)
if sys.argv[1] == 'thread':
    thread = threading.Thread(target=fork, args=(1,))
    thread.start()
    thread.join()
else:
    fork(2 if sys.argv[1] == 'child' else 1)
time.sleep(60)
'''


def alive(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] not in 'ZX'
    except FileNotFoundError:
        return False


def ended(pid, seconds):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture
def family(request):
    parent = subprocess.Popen([sys.executable, '-c', PARENT, request.param], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    yield parent, child
    for pid in (parent.pid, child):
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


@pytest.mark.parametrize('family', ['main'], indirect=True)
@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGTERM])
def test_child_ends_with_its_parent_however_that_ends(family, how):
    parent, child = family
    assert not ended(child, 0.2)
    os.kill(parent.pid, how)
    assert ended(child, 5)


@pytest.mark.parametrize('family', ['thread'], indirect=True)
def test_child_that_a_thread_forked_does_not_end_with_the_thread(family):
    """The system means the thread when it says parent: a data loader made in one must not die with it."""
    parent, child = family
    assert not ended(child, 0.5)
    parent.kill()
    assert ended(child, 5)


@pytest.mark.parametrize('family', ['child'], indirect=True)
def test_child_of_a_child_lives_as_long_as_that(family):
    """A data loader's process may fork again, to read ahead, say."""
    parent, grandchild = family
    assert grandchild, 'it has ended at once'
    assert not ended(grandchild, 0.3)
    parent.kill()
    assert ended(grandchild, 5)
