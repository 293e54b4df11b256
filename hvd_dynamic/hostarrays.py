"""NDArrays read and written by NumPy, without a copy where they are in the host's memory."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

__all__ = ['read', 'write']


def read(array):
    """The values of a float32 NDArray, once they are there.

    Parameters
    ----------
    array : NDArray

    Returns
    -------
    ndarray of float32, 1-D
        On a host a view, good until the next operation with the array; else a copy.
    """
    array.wait_to_read()
    return _view(array) if array.context.device_type == 'cpu' else array.asnumpy().reshape(-1)


def write(array, fill):
    """Give a float32 NDArray new values, once nobody uses the old ones.

    Parameters
    ----------
    array : NDArray
    fill : callable
        Writes all values to the 1-D ndarray of float32 that it gets.
    """
    if array.context.device_type == 'cpu':
        check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
        fill(_view(array))
        return
    values = np.empty(array.size, 'float32')
    fill(values)
    array[:] = mx.nd.array(values.reshape(array.shape), ctx=array.context)


def _view(array):
    pointer = ctypes.c_void_p()
    # Asked each time: it takes the array out of MKL-DNN's layout, and gives it other memory.
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return np.frombuffer((ctypes.c_float * array.size).from_address(pointer.value), 'float32')
