"""The elastic driver's key-value store, asked over plain HTTP: slots, and where to send host changes."""

from __future__ import annotations

import base64
import http.client
import os
import pickle
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

__all__ = ['Rendezvous', 'Slot']

_SECONDS = 60


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
        self._url = f'http://{address}:{port}'
        # Straight to the driver: a proxy of the user's has no business between a job's own processes.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    @classmethod
    def from_environment(cls):
        """The driver named in the environment that horovodrun sets."""
        return cls(os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'], int(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']))

    def ask_slot(self, host, local_rank, timeout):
        """This worker's place in the next round.

        Asking also tells the driver that the worker has left the present round; the answer comes when all its
        workers have asked (or died), so this blocks.

        Parameters
        ----------
        host : str
        local_rank : int
        timeout : float or None
            Seconds; None: as long as it takes.

        Raises
        ------
        ConnectionError
            If the driver cannot be reached, or does not answer in time.
        """
        try:
            with self._open(f'{self._url}/rank_and_size/{host}:{local_rank}', timeout=timeout) as response:
                numbers = [int(n) for n in response.read().decode('ascii').split(',')]
            return Slot(*numbers)
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            raise ConnectionError(f'the elastic driver at {self._url} gave {host}:{local_rank} no place in the next '
                                  f'round: {error}') from None

    def put(self, scope, key, value):
        """Store bytes under a key, until the next round begins (the driver then clears its store)."""
        request = urllib.request.Request(f'{self._url}/{scope}/{key}', data=value, method='PUT')
        with self._open(request, timeout=_SECONDS):
            pass

    def get(self, scope, key):
        """The bytes under a key, or None."""
        try:
            with self._open(f'{self._url}/{scope}/{key}', timeout=_SECONDS) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

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
            except (OSError, urllib.error.URLError) as error:
                if attempt == attempts:
                    raise ConnectionError(f'cannot register with the elastic driver at {self._url}: {error}') from None
                time.sleep(0.5 * attempt)
