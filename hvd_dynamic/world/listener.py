"""Hears from the elastic driver that the set of hosts has changed.

Speaks the wire format of Horovod's worker notification service: a 32 byte HMAC-SHA256 of the body, 4 bytes of length,
the body. Horovod unpickles the body; here nothing that came over the network is unpickled. The signature is checked
first, then the kind of the message is told by the class name and the number that the body carries, and no more is needed.
"""

from __future__ import annotations

import logging
import os
import pickletools
import socketserver
import struct
import threading
import time

import psutil
from horovod.runner.common.util import network, secret

__all__ = ['HostListener']

log = logging.getLogger('hvd_dynamic')

_LONGEST_MESSAGE = 1 << 16
_SECONDS = 20
_FLAPPING_SECONDS = 1.5     # the driver looks for hosts once a second
_ADDED = 2                  # HostUpdateResult.added


class HostListener:
    """A small server on a thread of its own; `changed` is set when the driver reports a change of hosts.

    Parameters
    ----------
    interface : str, optional
        The network interface to listen on. Default: all.

    Attributes
    ----------
    changed : threading.Event
        Hosts have changed. After an announcement of new hosts only, `due` says when to act on it.
    refused : int
        How many messages were not signed, or not messages at all.
    secret_key : bytes
        What the driver signs its messages with.
    addresses : dict of str to list of (str, int)
        Where the driver can reach this listener, by interface.
    """

    SERVICE = 'worker notification service'     # the name that the driver asks for

    def __init__(self, interface=None):
        self.changed = threading.Event()
        self._due, self.refused = 0.0, 0
        self.secret_key = secret.make_secret_key()
        found = _interface_addresses(interface)
        only = [address for addresses in found.values() for address in addresses]
        # On a single interface the server is bound to it; otherwise it must answer on all of them.
        host = only[0] if len(only) == 1 else ''
        self._server = _Server((host, 0), _handler(self))
        port = self._server.server_address[1]
        self.addresses = {name: [(address, port) for address in addresses] for name, addresses in found.items()}
        threading.Thread(target=self._server.serve_forever, name='hvd_dynamic-host-listener', daemon=True).start()

    def close(self):
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def due(self):
        """Whether hosts have changed, and it is time to act on it.

        A host that was removed does not wait. One that was added may be gone a moment later, as when a discovery script
        flaps; a newcomer takes seconds to start anyway, so it is waited for a short while whether the news holds.
        """
        return self.changed.is_set() and time.monotonic() >= self._due

    def clear(self):
        """Forget what was announced so far."""
        self.changed.clear()
        self._due = 0.0

    def take(self):
        """Forget what was announced so far; whether there was anything."""
        announced = self.changed.is_set()
        self.clear()
        return announced

    def answer(self, body, client):
        """The reply to a message whose signature was found right, or None for one that is unknown."""
        if b'HostsUpdatedRequest' in body:
            log.debug('the driver says that %s', 'hosts were added' if _only_added(body) else 'hosts have changed')
            if not _only_added(body):
                self._due = 0.0
            elif not self.changed.is_set() or self._due:
                self._due = time.monotonic() + _FLAPPING_SECONDS
            self.changed.set()
            return network.AckResponse()
        if b'PingRequest' in body:
            return network.PingResponse(self.SERVICE, client[0])
        return None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def _handler(listener):
    class Handler(socketserver.StreamRequestHandler):
        timeout = _SECONDS

        def handle(self):
            try:
                digest = self.rfile.read(secret.DIGEST_LENGTH)
                header = self.rfile.read(4)
                length = struct.unpack('i', header)[0] if len(header) == 4 else 0
                if not 0 < length <= _LONGEST_MESSAGE:
                    listener.refused += 1
                    return
                body = self.rfile.read(length)
                if not secret.check_digest(listener.secret_key, body, digest):
                    listener.refused += 1
                    log.warning('a message with a wrong signature from %s was ignored', self.client_address[0])
                    return
                reply = listener.answer(body, self.client_address)
                if reply is not None:
                    network.Wire(listener.secret_key).write(reply, self.wfile)
            except OSError:
                pass        # the peer went away in the middle: nothing was lost, the driver asks again

    return Handler


def _only_added(body):
    """Whether an announcement is of new hosts only. The pickle is read, not executed."""
    try:
        values = [value for operation, value, _ in pickletools.genops(body)
                  if 'PUT' not in operation.name and 'GET' not in operation.name]       # these have places as arguments
        return next(v for v in values[values.index('res') + 1:] if type(v) is int) == _ADDED
    except (ValueError, StopIteration):
        return False


def _interface_addresses(interface):
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        if interface and name != interface:
            continue
        ipv4 = [a.address for a in addresses if a.family.name == 'AF_INET']
        if ipv4:
            found[name] = ipv4
    if not found:
        raise RuntimeError(f'no IPv4 address on network interface {interface!r}, which HOROVOD_GLOO_IFACE names; pass '
                           f'horovodrun --network-interface one of {", ".join(sorted(psutil.net_if_addrs()))}')
    return found


def listen():
    """A listener on the interface that the job uses."""
    return HostListener(os.environ.get('HOROVOD_GLOO_IFACE') or None)
