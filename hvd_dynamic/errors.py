"""The one place where MXNet's and Horovod's failures are told from the user's own."""

from __future__ import annotations

import re

import mxnet as mx
from mxnet.base import MXNetError

__all__ = ['is_collective_failure', 'drain', 'make_room_for_failures', 'JoinFailed', 'SetupError', 'HorovodStuck',
           'JobFailed', 'PeerLost']

# A peer that dies shows up as an MXNetError, at whatever waits next, with the text of Horovod, Gloo or NCCL in it. Names of
# layers stand in such texts too, so a bare "gloo" is no sign.
_SIGNS = re.compile(r'Horovod has been shut down|Horovod has not been initialized|HorovodInternalError|/gloo/|gloo::'
                    r'|\bnccl[A-Z]\w*(Error|Abort|failed)|NCCL error|Connection (reset|closed) by peer')


class SetupError(ValueError):
    """Arguments, data and world do not fit together; the message says which, and what to do.

    Raised by all workers when a round begins, before any training in it: at the start, or at a growth beyond what fits.
    """


class JoinFailed(RuntimeError):
    """A round of the job could not be entered, because another worker was lost while it began."""


class PeerLost(RuntimeError):
    """Another worker was lost, as something else than a collective has shown."""


class JobFailed(Exception):
    """Another worker ends the job with an error of the user's own code."""


class HorovodStuck(RuntimeError):
    """Horovod cannot be initialised in this process any more; one that takes its place can."""


def is_collective_failure(error):
    """Whether an exception comes from a collective that a lost peer broke (also as the cause of another one).

    Parameters
    ----------
    error : BaseException

    Returns
    -------
    bool

    Examples
    --------
    >>> is_collective_failure(ValueError('bad label'))
    False
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (JoinFailed, PeerLost)) or type(error).__name__ == 'HorovodInternalError':
            return True
        if isinstance(error, MXNetError) and _SIGNS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def drain():
    """Wait until nothing is in flight, and take the failures that are kept in arrays off them.

    MXNet stores an operation's failure in the arrays that it would have written and raises it again at every later
    wait, also at interpreter exit. `waitall` raises one at a time.
    """
    for _ in range(100000):
        try:
            mx.nd.waitall()
            return
        except MXNetError as error:
            if not is_collective_failure(error):
                raise


def make_room_for_failures(count=1024):
    """Have MXNet's engine set memory aside for the failures of `count` operations.

    The engine keeps all failures in one list that grows without a lock. When a peer dies, many operations fail at once, on
    several threads, and while one of them moves the list to a larger place, another writes past its end or into the old
    place: "double free or corruption", status 134, now and then, on a worker that should have survived (horovod issues
    2484 and 3264). The list never shrinks, so it is made large here, by failures that come one after the other.
    """
    not_positive_definite = mx.nd.array([[-1.0]])
    for _ in range(count):
        try:
            mx.nd.linalg.potrf(not_positive_definite).wait_to_read()
        except MXNetError:
            pass
    drain()
