"""The interface between training and the processes that share it."""

from __future__ import annotations

import abc
import os
import socket
from dataclasses import dataclass

import numpy as np


class WorkerRemoved(Exception):
    """This worker's slot was taken away: it leaves the job, which is no failure."""


@dataclass(frozen=True)
class Member:
    """A worker as others see it: `slot` is ``host:local_rank``; `token` tells processes in the same slot apart."""

    slot: str
    token: str


class World(abc.ABC):
    """The workers of a job. All collectives are called by all workers in the same order.

    Attributes
    ----------
    rank, size : int
        This worker's rank, and the number of workers. Before `join`, what the launcher said.
    ranks : tuple of int
        The ranks that this process serves: its own, or all of them in a `VirtualWorld`.
    elastic : bool
        Whether the world can be joined again after a failure or a resize.
    member : Member
        This worker.
    generation : int
        How often the world has been joined.
    joined : bool
        Whether this worker is in a world at present.
    fits : callable
        Whether training is possible with a number of workers; newcomers that are too many wait.
    one_pass : bool
        Whether this process computes all its workers' batches in one pass (only in a `VirtualWorld`).
    position : callable
        Where the training is: samples seen, and samples an epoch.
    """

    elastic = False
    one_pass = False

    def __init__(self):
        self.rank, self.size, self.local_rank = 0, 1, 0
        self.generation = 0
        self.joined = False
        self.fits = lambda size: True
        self.position = lambda: (0, 1)
        host = os.environ.get('HOROVOD_HOSTNAME') or socket.gethostname()
        slot = os.environ.get('HOROVOD_LOCAL_RANK', '0')
        self.member = Member(f'{host}:{slot}', os.urandom(8).hex())

    @property
    def ranks(self):
        return (self.rank,)

    @property
    def shard(self):
        """``(number, count)``: which part of an evaluation this process computes, of how many."""
        return self.rank, self.size

    @property
    def collective(self):
        """Whether other processes take part, so that collectives are needed at all."""
        return self.size > 1

    def members(self):
        """The workers that this process serves, in rank order: token to ``host:slot``."""
        return {self.member.token: self.member.slot}

    @abc.abstractmethod
    def join(self):
        """Enter the job, at first or again after `leave`; blocks until all workers of the new world have.

        Raises
        ------
        WorkerRemoved
            If this worker has no place in the new world.
        """

    @abc.abstractmethod
    def leave(self, failed=False, incomplete=False):
        """Leave the present world; whatever is in flight is ended with an error. `join` enters the next one.

        Parameters
        ----------
        failed : bool
            Because a collective failed: pass the news on to the others.
        incomplete : bool
            Some of the others end now: the next world is formed without them.
        """

    def change_announced(self):
        """Whether this worker was told that the set of hosts has changed (true on at least one worker)."""
        return False

    def prepare(self):      # noqa: B027
        """All workers know by now that the hosts have changed: prepare the next world while training goes on in this one."""

    @abc.abstractmethod
    def resize_pending(self):
        """Whether the next world is prepared, so that this one should be left (true on at least one worker)."""

    def fail(self, error):  # noqa: B027
        """This worker ends with an error of the user's own code (a text), and the job with it."""

    def end(self):          # noqa: B027
        """Training is over; nobody will join any more."""

    @abc.abstractmethod
    def allreduce_(self, array, name, priority=0):
        """Sum an NDArray over the workers, in place and asynchronously (as any MXNet operation)."""

    def allreduce_group_(self, arrays, name):
        """Sum NDArrays of one type as a single operation: each in place, once all are ready on all workers."""
        for i, array in enumerate(arrays):
            self.allreduce_(array, f'{name}.{i}')

    @abc.abstractmethod
    def allgather_bytes(self, data, name):
        """What every worker gives, by rank; blocks.

        Parameters
        ----------
        data : bytes
        name : str

        Returns
        -------
        list of bytes
        """

    def allreduce_sum(self, array, name='sum'):
        """Sum a NumPy array over the workers, in its own dtype (float64 and int64 are exact); blocks.

        For metrics of an evaluation, not for the step loop. Every worker gets the same values.

        Parameters
        ----------
        array : array_like of float32, float64, int32 or int64
            The same shape and dtype on all workers.

        Returns
        -------
        ndarray
            Same shape and dtype.

        Examples
        --------
        >>> from hvd_dynamic.world import VirtualWorld
        >>> VirtualWorld(1).allreduce_sum([3, 4])
        array([3, 4])
        """
        return np.array(array)

    def barrier(self):
        """Wait until all workers are here."""
        if self.collective:
            self.allreduce_sum(np.zeros(1, 'int32'), 'barrier')
