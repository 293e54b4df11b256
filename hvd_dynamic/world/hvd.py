"""HorovodWorld: the workers of a horovodrun job, elastic or of fixed size."""

from __future__ import annotations

import logging
import os
import threading

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from ..errors import JoinFailed
from .base import WorkerRemoved, World
from .gathering import gather
from .listener import listen
from .rendezvous import Rendezvous
from .sockets import hang_up, open_sockets

__all__ = ['HorovodWorld']

log = logging.getLogger('hvd_dynamic')

ELASTIC = 'HOROVOD_ELASTIC'
_SAY_AFTER = 10         # seconds


class HorovodWorld(World):
    """One worker a process, one process a Horovod rank.

    A worker is started with its place in the environment. For every later round it asks the driver from Python, before
    `hvd.init`: a worker that was removed gets a plain answer, where Horovod itself would abort the process with status
    134 (horovod issues 2484 and 3264).

    Only allreduce and allgather are used: under MXNet, Horovod's broadcast and alltoall read a name that may be freed.

    Parameters
    ----------
    slot_timeout : float, optional
        Seconds to wait for the driver's answer when a round ends. Default: HOROVOD_ELASTIC_TIMEOUT, else 600.
    join_grace : float, optional
        Seconds in which the workers of a round meet by themselves; after that they leave the waiting for those that are
        still starting to the driver. Default: HVD_DYNAMIC_JOIN_GRACE, else 5.
    """

    def __init__(self, slot_timeout=None, join_grace=None):
        super().__init__()
        self.elastic = os.environ.get(ELASTIC) == '1'
        self._slot_timeout = float(slot_timeout or os.environ.get('HOROVOD_ELASTIC_TIMEOUT', 600))
        self._join_grace = float(join_grace or os.environ.get('HVD_DYNAMIC_JOIN_GRACE', 5))
        self.rank = int(os.environ.get('HOROVOD_RANK', 0))
        self.size = int(os.environ.get('HOROVOD_SIZE', 1))
        self.local_rank = int(os.environ.get('HOROVOD_LOCAL_RANK', 0))
        self._host = self.member.slot.rsplit(':', 1)[0]
        self._place_is_old = False
        self._connections = {}
        self._listener = self._rendezvous = None
        if self.elastic:
            _keep_failures_apart()
            # Registered before anything else is built, so that no change of hosts goes unheard meanwhile.
            self._rendezvous = Rendezvous.from_environment()
            self._listener = listen()
            self._rendezvous.register_listener(self._host, self.local_rank, self._listener.addresses,
                                               self._listener.secret_key)

    def join(self):
        if self.generation == 0 and hvd.is_initialized():
            raise RuntimeError('Horovod is initialised already: remove hvd.init() from your script; hvd_dynamic.init() '
                               'stands in its place')
        if self.elastic and self._place_is_old:
            # The round that begins knows of all changes so far; one that comes from here on calls for another round.
            self._listener.changed.clear()
            slot = self._ask_slot()
            if slot.removed:
                self._listener.close()
                raise WorkerRemoved(f'{self.member.slot} has no place in the next round')
            slot.to_environment()
            self.rank, self.size = slot.rank, slot.size
        self._place_is_old = True
        if self.elastic:
            gather(self._rendezvous, self.rank, self.size, self._join_grace)
        before = open_sockets()
        elastic = os.environ.pop(ELASTIC, None)     # else hvd.init would ask a second time
        try:
            hvd.init()
        except Exception as error:
            if not self.elastic:
                raise
            raise JoinFailed(f'the workers of a new round did not find together: {error}') from error
        finally:
            if elastic is not None:
                os.environ[ELASTIC] = elastic
        after = open_sockets()
        self._connections = {fd: identity for fd, identity in after.items() if before.get(fd) != identity}
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.generation += 1
        self.joined = True

    def _ask_slot(self):
        # Said by one worker: all wait for the same.
        timer = threading.Timer(_SAY_AFTER, log.log, [
            logging.INFO if self.rank == 0 else logging.DEBUG, 'waiting for the elastic driver to begin a round: until '
            'there are --min-np slots, and newcomers have started (for at most %.0f s)', self._slot_timeout])
        timer.daemon = True
        timer.start()
        try:
            return self._rendezvous.ask_slot(self._host, self.local_rank, self._slot_timeout)
        finally:
            timer.cancel()

    def leave(self, failed=False):
        if failed:
            hang_up(self._connections)
        self._connections, self.joined = {}, False
        hvd.shutdown()

    def resize_pending(self):
        return self._listener is not None and self._listener.changed.is_set()

    def allreduce_(self, array, name, priority=0):
        if self.size > 1:
            hvd.allreduce_(array, op=hvd.Sum, name=name, priority=priority)
        return array

    def allreduce_group_(self, arrays, name):
        if self.size > 1:
            hvd.grouped_allreduce_(arrays, op=hvd.Sum, name=name)

    def allgather_bytes(self, data, name):
        if self.size == 1:
            return [data]
        lengths = np.zeros(self.size, 'int64')
        lengths[self.rank] = len(data)
        lengths = self.allreduce_sum(lengths, name + '.lengths')
        mine = mx.nd.array(np.frombuffer(data, 'uint8'), dtype='uint8')
        joined = hvd.allgather(mine, name=name).asnumpy().tobytes()
        ends = np.cumsum(lengths)
        return [joined[end - length:end] for end, length in zip(ends, lengths)]

    def allreduce_sum(self, array, name='sum'):
        array = np.array(array)
        if self.size == 1:
            return array
        work = mx.nd.array(array.reshape(-1), dtype=array.dtype)
        return self.allreduce_(work, name).asnumpy().reshape(array.shape)


def _keep_failures_apart():
    """Have Horovod's coordination and its data use different channels, where Gloo carries both; and time-outs that fit.

    With the response cache, each cycle begins with an allreduce of a few bytes among all workers. Gloo does not tell it from
    an allreduce of gradients. A worker whose allreduce of gradients failed goes on to the next cycle, while its neighbours
    are still in the old one: its bytes are then taken for gradients, or theirs for its own, and the process is aborted
    (status 134; "op.preamble.length <= op.nbytes" or a corrupt heap; horovod issues 2484 and 3264). Without the cache the
    workers coordinate by gather and broadcast, which cannot be mixed up with an allreduce.

    In a gather, a worker that waits for the first one to take its bytes is not told when that one is gone: Gloo wakes those
    that wait for bytes to come, but not those that wait for theirs to be taken. It notices by the time-out only, which is
    therefore shorter than Gloo's 30 s: all other waits are told at once, or last no longer than a cycle.
    """
    if not hvd.nccl_built():
        os.environ.setdefault('HOROVOD_CACHE_CAPACITY', '0')
        os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', '15')
