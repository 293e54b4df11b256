"""Notes that the workers of one round of the driver leave for each other in its key-value store.

The driver clears the store when it begins a round, and begins the next one when all workers of the present one have asked
for it (or died). So a worker that has not asked reads and writes notes of its own round only, and no key needs a round in
its name. The store lists nothing: a reader must know the key.
"""

from __future__ import annotations

import json

__all__ = ['Board', 'ASK_AGAIN', 'WHEN_READY', 'OVER', 'FAILED']

_SCOPE = 'hvd_dynamic'

# What is said of a round as a whole.
ASK_AGAIN = 'ask again'             # given up: all ask for the next one at once, also those that are still starting
WHEN_READY = 'ask when ready'       # given up: those that are still starting ask when they are ready
OVER = 'over'                       # training has ended
FAILED = 'failed: '                 # a worker ends the job with an error of its own, which follows


class Board:
    """The notes of the present round.

    Parameters
    ----------
    rendezvous : Rendezvous
    """

    def __init__(self, rendezvous):
        self._rendezvous = rendezvous

    def _put(self, key, value):
        self._rendezvous.put(_SCOPE, key, json.dumps(value).encode())

    def _get(self, key):
        data = self._rendezvous.get(_SCOPE, key)
        return None if data is None else json.loads(data.decode())

    def set_fate(self, fate):
        """Say of this round that it was given up, or that training is over."""
        self._put('fate', fate)

    def fate(self):
        """`ASK_AGAIN`, `WHEN_READY`, `OVER`, `FAILED` and a text, or an empty string while nothing was said."""
        return self._get('fate') or ''

    def set_member(self, rank, slot, token, ready):
        """Say that the worker with this rank of the driver's is there."""
        self._put(f'member.{rank}', {'slot': slot, 'token': token, 'ready': ready})

    def member(self, rank):
        """What `set_member` said, or None."""
        return self._get(f'member.{rank}')

    def set_place(self, crew, old_rank, rank, local_size):
        """Say which rank a worker of the old world has in this round (-1: none), and how many workers its host has."""
        self._put(f'place.{crew}.{old_rank}', [rank, local_size])

    def place(self, crew, old_rank):
        """What `set_place` said, or None."""
        return self._get(f'place.{crew}.{old_rank}')

    def set_lead(self, lead):
        """What the leader says: ``beat``, and ``proposal``, ``decided`` and ``go`` when it has come so far."""
        self._put('lead', lead)

    def lead(self):
        """What `set_lead` said, or an empty dict."""
        return self._get('lead') or {}

    def accept(self, proposal, rank):
        """Say that this worker is there for a world that was proposed."""
        self._put(f'accepted.{proposal}.{rank}', True)

    def accepted(self, proposal, rank):
        """Whether a worker said so."""
        return self._get(f'accepted.{proposal}.{rank}') is not None
