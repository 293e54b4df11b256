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
    parent = os.getpid()

    def in_child():
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:      # it ended before the line above
            os._exit(1)

    # Not for subprocess.Popen, whose children begin another program: they are the user's own.
    os.register_at_fork(after_in_child=in_child)
