"""The processes that a worker forks (a data loader's, above all) end when it does, however it ends.

A worker that is killed leaves the processes of its data loader behind. They hold its standard output open, and
horovodrun counts a worker as running until that is closed: the driver would never hear of the death, and all others would
wait for ever.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

__all__ = ['end_with_parent']

_PR_SET_PDEATHSIG = 1
_registered = False


def end_with_parent():
    """Have every process that is forked from this one from now on killed when this one ends (Linux; else no effect)."""
    global _registered
    if _registered or not sys.platform.startswith('linux'):
        return
    _registered = True
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    fork = {}

    def before():
        fork.update(parent=os.getpid(), by_main_thread=threading.current_thread() is threading.main_thread())

    def in_child():
        if not fork['by_main_thread']:
            # The system's own way below goes by the thread that forked: its end would end the child too early.
            threading.Thread(target=_watch, args=(fork['parent'],), name='hvd_dynamic-watch-parent', daemon=True).start()
            return
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != fork['parent']:      # it ended before the line above
            os._exit(1)

    # Not for subprocess.Popen, whose children begin another program: they are the user's own.
    os.register_at_fork(before=before, after_in_child=in_child)


def _watch(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
