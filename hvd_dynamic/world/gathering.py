"""The workers of a new round wait for each other before `hvd.init`, where a wait cannot be ended.

Inside `hvd.init` a worker waits for the others in C++, for 30 s by default, and then aborts the process (status 134): all
survivors of a resize would die of one newcomer that is slow to start, or that was killed meanwhile. So they meet before it,
over the driver's key-value store, where waiting can be explained, limited and given up.
"""

from __future__ import annotations

import http.client
import logging
import time

from ..errors import JoinFailed

__all__ = ['gather']

log = logging.getLogger('hvd_dynamic')

_SCOPE = 'hvd_dynamic'
_GO, _GIVEN_UP = 'go', 'given_up'
_POLL_SECONDS = 0.05
_SAY_AFTER = 10.0


def gather(rendezvous, rank, size, timeout):
    """Return when all `size` workers of this round are here, ready for `hvd.init`.

    Rank 0 watches for the others and gives the sign. The driver clears the store when it begins a round, so the keys need no
    round in their names.

    Parameters
    ----------
    rendezvous : Rendezvous
    rank, size : int
        This worker's place.
    timeout : float
        Seconds to wait before the round is given up, by all.

    Raises
    ------
    JoinFailed
        If the round was given up, here or by another worker: ask for a place in the next one.
    ConnectionError
        If the driver is gone.
    """
    if size == 1:
        return
    start, said = time.monotonic(), False
    missing = list(range(1, size))
    try:
        rendezvous.put(_SCOPE, str(rank), b'here')
        while True:
            if rank == 0:
                missing = [r for r in missing if rendezvous.get(_SCOPE, str(r)) is None]
                if not missing:
                    rendezvous.put(_SCOPE, _GO, b'go')
                    return
            elif rendezvous.get(_SCOPE, _GO) is not None:
                return
            if rendezvous.get(_SCOPE, _GIVEN_UP) is not None:
                raise JoinFailed('another worker gave up this round')
            waited = time.monotonic() - start
            what = f'rank {", ".join(map(str, missing))}' if rank == 0 else 'rank 0, which gathers all workers'
            if waited > timeout:
                rendezvous.put(_SCOPE, _GIVEN_UP, b'given up')
                log.warning('rank %d of %d gives up waiting for %s after %.0f s and asks for a new round',
                            rank, size, what, waited)
                raise JoinFailed(f'{what} did not come within {timeout:.0f} s')
            if waited > _SAY_AFTER and not said:
                said = True
                if rank == 0:
                    log.info('waiting for %s to start (for at most %.0f s more)', what, timeout - waited)
            time.sleep(_POLL_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f'the elastic driver cannot be reached any more: {error}') from None
