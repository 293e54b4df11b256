"""The workers of a new round meet before `hvd.init`, where a wait cannot be ended.

Inside `hvd.init` a worker waits for the others in C++, for a limited time, and then aborts the process (status 134): all
survivors of a resize would die of one newcomer that is slow to start, or that was killed meanwhile. So they meet before it,
over the driver's key-value store.

They wait there for a short while only. If somebody is still missing, all that are there ask the driver for the next round:
it answers when those that are missing have asked as well, or have died, which it is the only one to know. A newcomer that
comes to a round that was given up sees so, and asks too. By then all are ready, and the next meeting takes no time.
"""

from __future__ import annotations

import http.client
import logging
import time

from ..errors import JoinFailed

__all__ = ['gather']

log = logging.getLogger('hvd_dynamic')

_SCOPE = 'hvd_dynamic'
# Rank 0 decides: `go` or `void`. It says `intent` before it looks for the last time whether somebody has `given_up`; who
# gives up looks for `intent` after having said so. So at least one of the two sees the other, and nobody goes alone.
_GO, _VOID, _INTENT, _GIVEN_UP = 'go', 'void', 'intent', 'given_up'
_POLL_SECONDS = 0.05
_DECISION_SECONDS = 60


def gather(rendezvous, rank, size, grace):
    """Return when all `size` workers of this round are here, ready for `hvd.init`.

    The driver clears the store when it begins a round, so the keys need no round in their names.

    Parameters
    ----------
    rendezvous : Rendezvous
    rank, size : int
        This worker's place.
    grace : float
        Seconds that rank 0 waits for those that are missing.

    Raises
    ------
    JoinFailed
        If the round was given up: ask for a place in the next one.
    ConnectionError
        If the driver is gone.
    """
    if size == 1:
        return
    store = _Store(rendezvous)
    try:
        store.say(str(rank))
        if rank == 0:
            _lead(store, size, grace)
        else:
            _follow(store, grace)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f'the elastic driver cannot be reached any more: {error}') from None


class _Store:
    def __init__(self, rendezvous):
        self._rendezvous = rendezvous

    def say(self, key):
        self._rendezvous.put(_SCOPE, key, b'1')

    def said(self, key):
        return self._rendezvous.get(_SCOPE, key) is not None


def _lead(store, size, grace):
    end = time.monotonic() + grace
    missing = list(range(1, size))
    while True:
        missing = [rank for rank in missing if not store.said(str(rank))]
        if not missing:
            store.say(_INTENT)
        if store.said(_GIVEN_UP) or (missing and time.monotonic() > end):
            store.say(_VOID)
            if missing:
                log.info('waiting for %s of %d workers to start', len(missing), size)
            raise JoinFailed(f'{len(missing)} of {size} workers were not there yet')
        if not missing:
            store.say(_GO)
            return
        time.sleep(_POLL_SECONDS)


def _follow(store, grace):
    start = time.monotonic()
    while not store.said(_GO):
        if store.said(_VOID):
            raise JoinFailed('rank 0 gave up this round')
        waited = time.monotonic() - start
        patience = _DECISION_SECONDS if store.said('0') else grace
        if waited > patience and not store.said(_GIVEN_UP):
            store.say(_GIVEN_UP)
        if store.said(_GIVEN_UP) and (not store.said(_INTENT) or waited > 2 * _DECISION_SECONDS):
            raise JoinFailed('rank 0 did not come')
        time.sleep(_POLL_SECONDS)
