"""`hvd.init` such that the death of another worker in the middle of it does not end this one.

When Horovod's thread finds, while the workers connect to each other, that one of them is gone, it throws a C++ exception
that nobody catches: the process is aborted (status 134; horovod issues 2484 and 3264). No Python code is asked. But the
abort is announced by a signal, on the thread that failed; if that thread is ended there, the process goes on, and Horovod
can be shut down and initialised once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

import horovod.mxnet as hvd
from horovod.mxnet import mpi_ops

from ..errors import HorovodStuck, JoinFailed
from .sockets import hang_up, open_sockets

__all__ = ['initialise', 'check_usable']

_POLL_SECONDS = 0.005
_TRIAL_SECONDS = 5
_ALONE = {'HOROVOD_RANK': '0', 'HOROVOD_SIZE': '1', 'HOROVOD_LOCAL_RANK': '0', 'HOROVOD_LOCAL_SIZE': '1',
          'HOROVOD_CROSS_RANK': '0', 'HOROVOD_CROSS_SIZE': '1'}
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_EXIT_THREAD = {'x86_64': 60, 'aarch64': 93}        # number of the system call that ends one thread


def initialise(given_up):
    """As ``hvd.init()``.

    Parameters
    ----------
    given_up : callable
        Whether another worker has found that one is gone: its news comes sooner than Gloo's time-outs.

    Raises
    ------
    JoinFailed
        If a worker was lost meanwhile; `hvd.shutdown` makes the next attempt possible.
    """
    end_thread = _EXIT_THREAD.get(os.uname().machine) if sys.platform.startswith('linux') else None
    if end_thread is None:
        hvd.init()
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    present = set(os.listdir('/proc/self/task'))
    sockets = open_sockets()
    failed, finished = threading.Event(), threading.Event()

    def aborting(number):
        if str(threading.get_native_id()) in present or finished.is_set():
            libc.signal(signal.SIGABRT, None)       # some other failure: let it have its way
            return
        failed.set()
        libc.syscall(end_thread, 0)

    handler = _HANDLER(aborting)
    # Not on this thread: it waits for Horovod's, also when that one is gone.
    helper = threading.Thread(target=_wait_for_horovod, args=(finished,), name='hvd_dynamic-init', daemon=True)
    previous = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    present.add(str(threading.get_native_id()))
    helper.start()
    present.add(str(helper.native_id))
    try:
        while not finished.wait(_POLL_SECONDS):
            if failed.is_set():
                raise JoinFailed('a worker was lost while the workers of a new world connected to each other')
            if given_up():
                hang_up({fd: identity for fd, identity in open_sockets().items() if sockets.get(fd) != identity})
    finally:
        libc.signal(signal.SIGABRT, previous)
        if failed.is_set():
            _KEPT.append(handler)
    hvd.init()          # returns at once: Horovod's thread is up. Sets up what is Python's.


def check_usable():
    """Try whether Horovod can still be initialised, after `initialise` has failed.

    The thread that failed may have held a lock, which then stays locked.

    Raises
    ------
    HorovodStuck
    """
    hvd.shutdown()
    finished = threading.Event()
    with _environment({**_ALONE, 'HOROVOD_GLOO_RENDEZVOUS_ADDR': None}):
        threading.Thread(target=_wait_for_horovod, args=(finished,), name='hvd_dynamic-trial', daemon=True).start()
        if not finished.wait(_TRIAL_SECONDS):
            raise HorovodStuck('a worker was lost at a moment at which Horovod cannot be started again in this process')
    hvd.shutdown()


@contextlib.contextmanager
def _environment(changes):
    before = {name: os.environ.get(name) for name in changes}
    try:
        for name, value in changes.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


_KEPT = []      # a handler that a thread has ended in must outlive it


def _wait_for_horovod(finished):
    nothing = (ctypes.c_int * 0)()
    mpi_ops._basics.MPI_LIB_CTYPES.horovod_init(nothing, ctypes.c_int(0), nothing, nothing, ctypes.c_int(0))
    finished.set()
