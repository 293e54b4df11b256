"""One copy in memory of arrays that belong together."""

from __future__ import annotations

import operator
import zlib

import mxnet as mx
import numpy as np

__all__ = ['Backup']


class Backup:
    """Copies of NDArrays by key, made and put back without waiting.

    Parameters
    ----------
    ctx : mx.Context, optional
        Where the copies are. Default: each on the device of its original.
    """

    def __init__(self, ctx=None):
        self._ctx = ctx
        self._copies = {}
        self._sources, self._copy_all = [], copier([], [])     # what `store` copied last, and how

    def __contains__(self, key):
        return key in self._copies

    def store(self, arrays):
        """Make the copies those of `arrays` (a dict of key to NDArray), and of nothing else.

        Memory is allocated once for each array, not at each call.
        """
        sources = list(arrays.values())
        if arrays.keys() != self._copies.keys() or not all(map(operator.is_, sources, self._sources)):
            self._copies = {key: self._place_for(key, array) for key, array in arrays.items()}
            self._sources, self._copy_all = sources, copier(sources, list(self._copies.values()))
        self._copy_all()

    def restore(self, arrays):
        """Put the copies back into those of `arrays` (a dict of key to NDArray) that have one."""
        for key, array in arrays.items():
            if key in self._copies:
                self._copies[key].copyto(array)

    def items(self):
        """Pairs of key and copy, in the order in which they were stored."""
        return self._copies.items()

    def checksum(self):
        """A CRC-32 of all copies."""
        crc = 0
        for key in sorted(self._copies):
            crc = zlib.crc32(self._copies[key].asnumpy().tobytes(), crc)
        return crc

    def nbytes(self):
        """Bytes held."""
        return sum(c.size * np.dtype(c.dtype).itemsize for c in self._copies.values())

    def _place_for(self, key, array):
        old = self._copies.get(key)
        if old is not None and old.shape == array.shape and old.dtype == array.dtype:
            return old
        return mx.nd.empty(array.shape, ctx=self._ctx or array.context, dtype=array.dtype)


def copier(sources, targets):
    """A function that copies each of `sources` to its target, without waiting.

    Arrays of one device are copied by one cached operation (what a hybridized block is made of): on the host it takes an
    eighth of the time of a call for each array. It reads weights in MKL-DNN's layout, too, and is good for any type.
    """
    groups, others = {}, []
    for source, target in zip(sources, targets):
        if source.context == target.context:
            groups.setdefault(source.context, []).append((source, target))
        else:
            others.append((source, target))
    calls = []
    for pairs in groups.values():
        identities = [mx.sym.identity(mx.sym.Variable(f'array{i}')) for i in range(len(pairs))]
        group_sources, group_targets = zip(*pairs)
        calls.append((mx.nd.CachedOp(mx.sym.Group(identities)), group_sources, list(group_targets)))

    def copy_all():
        for operation, group_sources, group_targets in calls:
            operation(*group_sources, out=group_targets)
        for source, target in others:
            source.copyto(target)
    return copy_all
