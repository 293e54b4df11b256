"""Collectives that a sync is made of: arrays from one worker to all, bit for bit, and means of running statistics."""

from __future__ import annotations

import mxnet as mx
import numpy as np

__all__ = ['share_arrays', 'average_arrays']

_CHUNK = 1 << 22        # int32 elements in one message: 16 MiB


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
    is_source = world.rank == source
    buffer = np.zeros(min(_CHUNK, sum(map(_words, arrays))), 'int32')
    held = {}       # number of array -> its values on the host, while it takes part in a message
    for number, message in enumerate(_messages(arrays)):
        for i, first, words, place in message:
            if i not in held:
                held[i] = arrays[i].asnumpy() if is_source else np.empty(arrays[i].shape, arrays[i].dtype)
            if is_source:
                mine, theirs = _bytes(held[i], first, words), _bytes(buffer, place, words)
                theirs[:len(mine)] = mine
        used = place + words
        # In place, in the buffer's own memory.
        world.allreduce_(mx.nd.from_numpy(buffer[:used]), f'{name}.{number}').wait_to_read()
        for i, first, words, place in message:
            if not is_source:
                mine, theirs = _bytes(held[i], first, words), _bytes(buffer, place, words)
                mine[:] = theirs[:len(mine)]
            if first + words == _words(arrays[i]):
                if not is_source:
                    # From one NDArray to another: nothing else can be written to weights in MKL-DNN's layout.
                    arrays[i][:] = mx.nd.array(held[i], dtype=held[i].dtype)
                del held[i]
        if not is_source:
            buffer[:used] = 0


def _messages(arrays):
    """All arrays in messages of at most `_CHUNK` words: lists of (number of array, first word, words, place)."""
    message, place = [], 0
    for i, array in enumerate(arrays):
        first, end = 0, _words(array)
        while first < end:
            words = min(end - first, _CHUNK - place)
            message.append((i, first, words, place))
            first, place = first + words, place + words
            if place == _CHUNK:
                yield message
                message, place = [], 0
    if message:
        yield message


def _bytes(values, first, words):
    return values.reshape(-1).view('uint8')[4 * first:4 * (first + words)]


def _words(array):
    return -(-array.size * np.dtype(array.dtype).itemsize // 4)


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
