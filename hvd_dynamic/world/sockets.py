"""The sockets of a Horovod context, so that a worker that has seen a failure can hang up on its peers.

When a worker is lost, only those of its peers that wait for it are told by the system. They end their part of the collective
but keep their connections, so that the others, who wait for them, notice nothing until Gloo's timeout (30 s by default).
Hanging up passes the news on at once.
"""

from __future__ import annotations

import os
import socket

__all__ = ['open_sockets', 'hang_up']

_FOLDER = '/proc/self/fd'


def open_sockets():
    """The sockets that this process has open: file descriptor to what identifies the socket (Linux; else empty)."""
    found = {}
    try:
        descriptors = os.listdir(_FOLDER)
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            target = os.readlink(f'{_FOLDER}/{descriptor}')
        except OSError:
            continue        # closed meanwhile
        if target.startswith('socket:'):
            found[int(descriptor)] = target
    return found


def hang_up(sockets):
    """Shut down those of `sockets` (as `open_sockets` gave them) that are still the same."""
    now = open_sockets()
    for descriptor, identity in sockets.items():
        if now.get(descriptor) != identity:
            continue
        try:
            # A duplicate, so that the owner's descriptor stays its own to close.
            with socket.socket(fileno=os.dup(descriptor)) as own:
                own.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass            # not connected, or gone
