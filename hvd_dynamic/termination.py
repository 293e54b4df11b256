"""SIGTERM: what a job, or one machine of it, gets before it is taken away."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager

__all__ = ['on_sigterm', 'STATUS']

STATUS = 128 + signal.SIGTERM
_ours = None            # the handler that is installed at present


@contextmanager
def on_sigterm(function):
    """Have `function` called at the first SIGTERM while the block runs; a second one ends the process.

    Without effect on another than the main thread, and where the user has a handler already.
    """
    global _ours
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handler(number, frame):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function()

    _ours = handler
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        _ours = None
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_child():
    # The processes of a data loader are ended by this signal.
    if _ours is not None and signal.getsignal(signal.SIGTERM) is _ours:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_child)
