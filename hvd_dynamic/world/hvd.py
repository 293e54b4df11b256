"""HorovodWorld: the workers of a horovodrun job, elastic or of fixed size."""

from __future__ import annotations

import atexit
import logging
import os
import time

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from ..errors import JoinFailed
from .base import World
from .listener import listen
from .membership import Membership, place_in
from .rendezvous import Rendezvous, Slot
from .sockets import hang_up, open_sockets
from .starting import check_usable, initialise

__all__ = ['HorovodWorld']

log = logging.getLogger('hvd_dynamic')

ELASTIC = 'HOROVOD_ELASTIC'
ROUND_IS_USED = 'HVD_DYNAMIC_ROUND_IS_USED'
_SAY_EVERY = 10         # seconds


class HorovodWorld(World):
    """One worker a process, one process a Horovod rank.

    The driver starts workers; which of them train together is agreed on among them (`hvd_dynamic.world.membership`), so that
    training goes on until newcomers are ready, and a worker that was removed gets a plain answer, where Horovod itself would
    abort the process with status 134 (horovod issues 2484 and 3264).

    Only allreduce and allgather are used: under MXNet, Horovod's broadcast and alltoall read a name that may be freed.

    Parameters
    ----------
    warm_timeout : float, optional
        Seconds for which training goes on, after hosts have changed, while some newcomers are ready and others are not. 0:
        training stops at once and waits for them. Default: HVD_DYNAMIC_WARM_TIMEOUT, else 120.
    slot_timeout : float, optional
        Seconds to wait for a new world without a sign that anybody is at work on it. Default: HOROVOD_ELASTIC_TIMEOUT, else
        600.
    join_grace : float, optional
        Seconds in which the workers of a new world wait for each other; after that they leave the waiting for those that are
        still starting to the driver. Default: HVD_DYNAMIC_JOIN_GRACE, else 5.

    Raises
    ------
    ValueError
        For a negative number of seconds.
    """

    def __init__(self, warm_timeout=None, slot_timeout=None, join_grace=None):
        super().__init__()
        self.elastic = os.environ.get(ELASTIC) == '1'
        warm_timeout = _seconds('warm_timeout', warm_timeout, 'HVD_DYNAMIC_WARM_TIMEOUT', 120)
        join_grace = _seconds('join_grace', join_grace, 'HVD_DYNAMIC_JOIN_GRACE', 5)
        self._slot_timeout = _seconds('slot_timeout', slot_timeout, 'HOROVOD_ELASTIC_TIMEOUT', 600)
        self._stop_at_once = warm_timeout == 0
        self.rank = int(os.environ.get('HOROVOD_RANK', 0))
        self.size = int(os.environ.get('HOROVOD_SIZE', 1))
        self.local_rank = int(os.environ.get('HOROVOD_LOCAL_RANK', 0))
        self._failed = self._over = False
        self._connections = {}
        self._listener = self._members = None
        if self.elastic:
            _keep_failures_apart()
            host = self.member.slot.rsplit(':', 1)[0]
            # Registered before anything else is built, so that no change of hosts goes unheard meanwhile.
            rendezvous = Rendezvous.from_environment()
            self._listener = listen()
            rendezvous.register_listener(host, self.local_rank, self._listener.addresses, self._listener.secret_key)
            self._members = Membership(rendezvous, host, self.local_rank, self.member.token,
                                       Slot(self.rank, self.size, self.local_rank, 1, 0, 1), warm_timeout, join_grace,
                                       round_is_used=os.environ.pop(ROUND_IS_USED, '') == '1')
            self._members.fits = lambda size: self.fits(size)
            if not self._stop_at_once:
                self._members.take_announcement = self._listener.take
            atexit.register(self._close)

    def join(self):
        if self.generation == 0 and hvd.is_initialized():
            raise RuntimeError('Horovod is initialised already: remove hvd.init() from your script; hvd_dynamic.init() '
                               'stands in its place')
        if self.elastic:
            if self._stop_at_once:
                # The round that begins knows of all changes so far; one that comes from here on calls for another round.
                self._listener.clear()
            self._members.enter(self._failed)
            crew = self._wait()
            place_in(crew.slots, crew.rank).to_environment()
        before = open_sockets()
        elastic = os.environ.pop(ELASTIC, None)     # else hvd.init would ask the driver a second time
        try:
            if self.elastic:
                initialise(lambda: self._members.given_up)
            else:
                hvd.init()
        except JoinFailed:
            check_usable()
            raise
        finally:
            if self.elastic:
                self._members.connected(hvd.is_initialized())
            if elastic is not None:
                os.environ[ELASTIC] = elastic
        after = open_sockets()
        self._connections = {fd: identity for fd, identity in after.items() if before.get(fd) != identity}
        self.rank, self.size = hvd.rank(), hvd.size()
        self.generation += 1
        self.joined, self._failed = True, False

    def _wait(self):
        start = said = time.monotonic()
        while True:
            crew = self._members.wait(1)
            if crew is not None:
                return crew
            left = self._slot_timeout - self._members.idle_seconds
            if left < 0:
                raise ConnectionError(f'{self.member.slot} has waited {time.monotonic() - start:.0f} s for '
                                      f'{self._members.waiting_for}; HOROVOD_ELASTIC_TIMEOUT sets how long it may take')
            if time.monotonic() - said > _SAY_EVERY:
                said = time.monotonic()
                # Said by one worker: all wait for the same.
                log.log(logging.INFO if self.rank == 0 else logging.DEBUG, '%s waits for %s (for %.0f s more at most)',
                        self.member.slot, self._members.waiting_for, left)

    def leave(self, failed=False, incomplete=False):
        if failed:
            hang_up(self._connections)
        self._connections, self.joined, self._failed = {}, False, failed or incomplete
        hvd.shutdown()

    def change_announced(self):
        return (self._members is not None and not self._stop_at_once
                and (self._listener.due() or self._members.change_found))

    def prepare(self):
        self._listener.clear()
        self._members.prepare()

    def resize_pending(self):
        if self._members is None:
            return False
        return self._listener.changed.is_set() if self._stop_at_once else self._members.ready

    def fail(self, error):
        if self._members is not None:
            self._members.fail(error)

    def end(self):
        self._over = True
        if self._members is not None:
            self._members.settle(self._slot_timeout)

    def replacement(self):
        """The environment for a process that takes this one's place in the job."""
        self._listener.close()
        return {**os.environ, **self._members.driver_place(), ELASTIC: '1', ROUND_IS_USED: '1'}

    def _close(self):
        self._members.close(self._over)
        self._listener.close()

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


def _seconds(name, value, variable, default):
    given, value = f'{name}={value!r}', value if value is not None else os.environ.get(variable, default)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:
        given = given if f'{value!r}' in given else f'{variable}={value!r}'
        raise ValueError(f'{given} is no number of seconds; give 0 or more, such as {default}')
    return seconds


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
