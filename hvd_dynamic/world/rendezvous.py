"""The elastic driver's key-value store, asked over plain HTTP: slots, and where to send host changes."""

from __future__ import annotations

import base64
import http.client
import itertools
import os
import pickle
import socket
import time
from dataclasses import dataclass

__all__ = ['Rendezvous', 'Slot']

_SECONDS = 60
# The driver's server has room for five connections that it has not taken yet. One for which there is none is not refused but
# unheard, and the kernel knocks again only after a second.
_CONNECT_SECONDS = 0.2


@dataclass(frozen=True)
class Slot:
    """A worker's place in a round of the job; `rank` is -1 when it has none."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @property
    def removed(self):
        return self.rank < 0

    def to_environment(self):
        """Tell Horovod, which reads its place from the environment when it is initialised."""
        for name in ('rank', 'size', 'local_rank', 'local_size', 'cross_rank', 'cross_size'):
            os.environ['HOROVOD_' + name.upper()] = str(getattr(self, name))


class Rendezvous:
    """The driver that started this worker.

    Parameters
    ----------
    address : str
    port : int
    """

    def __init__(self, address, port):
        self._address, self._port = address, port

    @property
    def _url(self):
        return f'http://{self._address}:{self._port}'

    @classmethod
    def from_environment(cls):
        """The driver named in the environment that horovodrun sets."""
        return cls(os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'], int(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']))

    def _request(self, method, path, body=None, timeout=_SECONDS):
        """Status and content of the answer."""
        connection = http.client.HTTPConnection(self._address, self._port)
        try:
            connection.sock = self._connect()
            connection.sock.settimeout(timeout)
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connect(self):
        deadline = time.monotonic() + _SECONDS
        for attempt in itertools.count():
            # Longer after a while, for a network on which the way there and back takes that long.
            seconds = min(_CONNECT_SECONDS * 2 ** max(0, attempt - 5), 5)
            try:
                return socket.create_connection((self._address, self._port), seconds)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise

    def ask_slot(self, host, local_rank, timeout=None):
        """This worker's place in the next round.

        Asking also tells the driver that the worker has left the present round; the answer comes when all its
        workers have asked (or died), so this blocks.

        Parameters
        ----------
        host : str
        local_rank : int
        timeout : float, optional
            Seconds. Default: as long as it takes.

        Raises
        ------
        ConnectionError
            If the driver cannot be reached, or does not answer in time.
        """
        try:
            status, answer = self._request('GET', f'/rank_and_size/{host}:{local_rank}', timeout=timeout)
            if status != http.client.OK:
                raise ConnectionError(f'status {status}')
            return Slot(*[int(number) for number in answer.decode('ascii').split(',')])
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            raise ConnectionError(f'the elastic driver at {self._url} gave {host}:{local_rank} no place in the next '
                                  f'round: {error}') from None

    def put(self, scope, key, value):
        """Store bytes under a key, until the next round begins (the driver then clears its store)."""
        self._checked(*self._request('PUT', f'/{scope}/{key}', value))

    def get(self, scope, key):
        """The bytes under a key, or None."""
        status, value = self._request('GET', f'/{scope}/{key}')
        return None if status == http.client.NOT_FOUND else self._checked(status, value)

    def _checked(self, status, value):
        if status != http.client.OK:
            raise ConnectionError(f'the elastic driver at {self._url} answered with status {status}')
        return value

    def register_listener(self, host, local_rank, addresses, secret_key, attempts=3):
        """Tell the driver where this worker listens for host changes.

        Parameters
        ----------
        addresses : dict of str to list of (str, int)
            By network interface, the addresses and ports.
        secret_key : bytes
            Signs the driver's messages.
        """
        # The driver reads Horovod's own format, a pickle. It is only ever written here, never read.
        value = base64.b64encode(pickle.dumps((addresses, secret_key)))
        for attempt in range(1, attempts + 1):
            try:
                return self.put('worker_addresses', f'{host}:{local_rank}', value)
            except (OSError, http.client.HTTPException) as error:
                if attempt == attempts:
                    raise ConnectionError(f'cannot register with the elastic driver at {self._url}: {error}') from None
                time.sleep(0.5 * attempt)
