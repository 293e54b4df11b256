"""Collectives that a sync is made of: arrays from one worker to all, bit for bit, and means of running statistics."""

from __future__ import annotations

import mxnet as mx
import numpy as np

__all__ = ['share_arrays', 'average_arrays']

_CHUNK = 1 << 24        # int32 elements in one message: 64 MiB


def share_arrays(world, arrays, source, name='share'):
    """Give the values of `arrays` on rank `source` to all workers, bit for bit; blocks.

    The bytes travel as integers in an allreduce to which all others add zero: exact for every type, sign of zero and
    NaN included. (Horovod's broadcast is not safe under MXNet.)

    Parameters
    ----------
    world : World
    arrays : list of NDArray
        The same shapes and types on all workers.
    source : int
    """
    if not world.collective:
        return
    sizes = [_words(a) for a in arrays]
    first = 0
    part = 0
    while first < len(arrays):
        last, total = first, 0
        while last < len(arrays) and (last == first or total + sizes[last] <= _CHUNK):
            total += sizes[last]
            last += 1
        _share_part(world, arrays[first:last], sizes[first:last], source, f'{name}.{part}')
        first, part = last, part + 1


def _words(array):
    return -(-array.size * np.dtype(array.dtype).itemsize // 4)


def _share_part(world, arrays, sizes, source, name):
    buffer = np.zeros(sum(sizes), 'int32')
    places = np.cumsum([0] + sizes)
    if world.rank == source:
        for array, start in zip(arrays, places):
            data = np.frombuffer(array.asnumpy().tobytes(), 'uint8')
            buffer[start:].view('uint8')[:len(data)] = data
    for start in range(0, len(buffer), _CHUNK):
        piece = mx.nd.array(buffer[start:start + _CHUNK], dtype='int32')
        buffer[start:start + _CHUNK] = world.allreduce_(piece, f'{name}.{start}').asnumpy()
    if world.rank != source:
        for array, start in zip(arrays, places):
            nbytes = array.size * np.dtype(array.dtype).itemsize
            data = buffer[start:].view('uint8')[:nbytes].tobytes()
            array[:] = mx.nd.array(np.frombuffer(data, array.dtype).reshape(array.shape), dtype=array.dtype)


def average_arrays(world, arrays, takes_part=True, count=None, name='average'):
    """Set each array to its mean over the workers that take part; blocks. All workers get the same values.

    Parameters
    ----------
    world : World
    arrays : list of NDArray
    takes_part : bool
        Whether this worker's values count.
    count : int, optional
        How many workers take part. Default: all.
    """
    if not world.collective or not arrays:
        return
    count = world.size if count is None else count
    arrays = [array for array in arrays if np.dtype(array.dtype).kind == 'f']       # of integers there is no mean
    for i, array in enumerate(arrays):
        # multiplied by zero, a NaN of a worker that does not take part would stay one
        array[:] = array / count if takes_part else mx.nd.zeros_like(array)
        world.allreduce_(array, f'{name}.{i}')
    for array in arrays:
        array.wait_to_read()
