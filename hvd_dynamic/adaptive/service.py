"""The dispatcher as a service: a thread of the worker with rank 0, which the others ask over the network.

The service lives as long as a world. When its worker dies, the others form a new world, whose rank 0 starts a new one, from
the last merge.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading

import psutil

from .. import errors
from .dispatcher import Batch
from .messages import BadMessage, Channel

__all__ = ['Service', 'LocalClient', 'RemoteClient', 'connect']

log = logging.getLogger('hvd_dynamic')

_GREETING_SECONDS = 20


def _patience():
    """Seconds after which a worker that does not answer counts as lost: the same as in a collective."""
    return float(os.environ.get('HOROVOD_GLOO_TIMEOUT_SECONDS', 15))


class Service:
    """Answers other workers' questions to a dispatcher, on threads of its own.

    Parameters
    ----------
    dispatcher : Dispatcher
    interface : str, optional
        The network interface to listen on. Default: all.

    Attributes
    ----------
    addresses : list of (str, int)
        Where it can be reached.
    key : bytes
        What its messages are signed with.
    refused : int
        How many connections were ended because of a message that was not signed with the key, or none at all.
    """

    def __init__(self, dispatcher, interface=None):
        self.dispatcher, self.key, self.refused = dispatcher, os.urandom(32), 0
        self.lost = threading.Event()
        self._closing, self._open, self._lock = False, set(), threading.Lock()
        hosts = [address.address for name, addresses in psutil.net_if_addrs().items() for address in addresses
                 if address.family == socket.AF_INET and interface in (None, name)]
        self._server = _Server((hosts[0] if len(hosts) == 1 else '', 0), _handler(self))
        self.addresses = [(host, self._server.server_address[1]) for host in hosts]
        threading.Thread(target=self._server.serve_forever, name='hvd_dynamic-dispatcher', daemon=True).start()

    def close(self):
        """Stop, and end all connections."""
        self._closing = True
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass        # it has ended by itself

    def _serve(self, connection):
        with self._lock:
            self._open.add(connection)
        rank, said_goodbye = None, False
        try:
            connection.settimeout(_GREETING_SECONDS)
            channel = Channel(connection, self.key, answers=True)
            while True:
                question = channel.receive()
                if rank is None:
                    connection.settimeout(None)     # from now on it may compute for as long as it likes
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                rank, said_goodbye, answer = self._answer(question)
                channel.send(answer)
                if said_goodbye:
                    return
        except BadMessage as error:
            self.refused += 1
            log.warning('the dispatcher ended a connection, because of a message: %s', error)
        except (EOFError, OSError):
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            if rank is not None and not said_goodbye and not self._closing:
                self.lost.set()

    def _answer(self, question):
        """Who asks, whether it leaves, and the answer."""
        rank = None
        try:
            rank = question['rank']
            if question.get('goodbye'):
                return rank, True, {}
            if self.lost.is_set():
                return rank, False, {'lost': True}
            if 'take' not in question:
                return rank, False, {}
            batch = self.dispatcher.take(rank, *question['take'])
            return rank, False, {'batch': batch and [batch.number, batch.start, batch.count]}
        except (KeyError, TypeError, ValueError) as error:
            return rank, False, {'error': f'{error}'}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


def _handler(service):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            service._serve(self.request)

    return Handler


class LocalClient:
    """Asks a dispatcher of the same process.

    Parameters
    ----------
    dispatcher : Dispatcher
    service : Service, optional
        The one that serves the others; closed with this client.
    rank : int, default 0
    """

    def __init__(self, dispatcher, service=None, rank=0):
        self._dispatcher, self._service, self._rank = dispatcher, service, rank

    def take(self, epoch, position, count):
        """As `Dispatcher.take`.

        Raises
        ------
        PeerLost
            If another worker of this world is gone.
        """
        if self._service is not None and self._service.lost.is_set():
            raise errors.PeerLost('a worker has ended its connection to the dispatcher')
        return self._dispatcher.take(self._rank, epoch, position, count)

    def close(self, graceful=True):
        """No more questions."""
        if self._service is not None:
            self._service.close()


class RemoteClient:
    """Asks the dispatcher of another worker.

    Parameters
    ----------
    addresses : list of (str, int)
        Tried in turn.
    key : bytes
    rank : int

    Raises
    ------
    PeerLost
        If it cannot be reached at any of its addresses.
    """

    def __init__(self, addresses, key, rank):
        self._rank = rank
        failures = []
        for address in addresses:
            try:
                self._connection = socket.create_connection(tuple(address), timeout=_patience() / len(addresses))
                self._connection.settimeout(_patience())
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._channel = Channel(self._connection, key, answers=False)
                self._ask({})       # only the right one can answer
                return
            except (OSError, EOFError, BadMessage, errors.PeerLost) as error:
                failures.append(f'{address[0]}:{address[1]}: {error}')
        raise errors.PeerLost(f'the dispatcher cannot be reached ({"; ".join(failures)})')

    def take(self, epoch, position, count):
        """As `Dispatcher.take`.

        Raises
        ------
        PeerLost
            If the dispatcher does not answer, or says that a worker is gone.
        """
        batch = self._ask({'take': [epoch, position, count]})['batch']
        return None if batch is None else Batch(*batch)

    def close(self, graceful=True):
        """No more questions; unless `graceful`, without a word, as a worker that dies."""
        try:
            if graceful:
                self._ask({'goodbye': True})
        except (errors.PeerLost, ValueError):
            pass        # it closes, too
        self._connection.close()

    def _ask(self, question):
        try:
            self._channel.send({'rank': self._rank, **question})
            answer = self._channel.receive()
        except (OSError, EOFError, BadMessage) as error:
            raise errors.PeerLost(f'the dispatcher does not answer: {error}') from error
        if answer.get('lost'):
            raise errors.PeerLost('a worker has ended its connection to the dispatcher')
        if 'error' in answer:
            raise ValueError(f"the dispatcher refused a question: {answer['error']}")
        return answer


def connect(world, dispatcher):
    """A client for each worker of a world; rank 0 serves. A collective.

    Parameters
    ----------
    world : World
    dispatcher : Dispatcher
        The same on all workers; that of rank 0 is used.

    Returns
    -------
    LocalClient or RemoteClient
    """
    if not world.collective:
        return LocalClient(dispatcher)
    service = Service(dispatcher, os.environ.get('HOROVOD_GLOO_IFACE') or None) if world.rank == 0 else None
    where = {} if service is None else {'addresses': service.addresses, 'key': service.key.hex()}
    try:
        where = json.loads(world.allgather_bytes(json.dumps(where).encode(), 'adaptive.dispatcher')[0])
        client = (LocalClient(dispatcher, service) if service is not None else
                  RemoteClient(where['addresses'], bytes.fromhex(where['key']), world.rank))
    except BaseException:
        if service is not None:
            service.close()
        raise
    return client
