"""Values that can be carried to other workers: JSON, arrays, and what is made of them. No pickle."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np

__all__ = ['plain', 'pack', 'unpack', 'check', 'to_bytes', 'from_bytes']

_ARRAY, _NDARRAY, _SCALAR, _TUPLE = '__numpy__', '__ndarray__', '__scalar__', '__tuple__'
_MARKS = {_ARRAY, _NDARRAY, _SCALAR, _TUPLE}


def check(name, value):
    """Refuse a value that cannot be carried.

    Raises
    ------
    TypeError
        Names the attribute, the type got, and what is possible.

    Examples
    --------
    >>> check('best', 0.97)
    >>> check('seen', {1, 2})
    Traceback (most recent call last):
        ...
    TypeError: state attribute 'seen' holds a set, which cannot be carried to other workers; use JSON values (None, bool, \
int, float, str, lists, tuples, dicts with str keys), NumPy or NDArray arrays, or an object with state_dict and \
load_state_dict
    """
    pack(value, name)


def _is_stateful(value):
    return callable(getattr(value, 'state_dict', None)) and callable(getattr(value, 'load_state_dict', None))


def plain(value):
    """The value itself, or what an object's `state_dict` gives."""
    return value.state_dict() if _is_stateful(value) else value


def pack(value, name='value'):
    """Take a value apart into JSON and arrays; an object with `state_dict` gives that.

    Returns
    -------
    skeleton : JSON value
    arrays : list of ndarray or NDArray
        Copies, which later changes of the value leave alone.
    """
    arrays = []

    def take(v):
        if v is None or isinstance(v, (bool, str)) or type(v) in (int, float):
            return v
        if isinstance(v, mx.nd.NDArray):
            arrays.append(v.copy())
            return {_NDARRAY: len(arrays) - 1}
        if (type(v) is np.ndarray or isinstance(v, np.generic)) and v.dtype.kind in 'biuf':
            arrays.append(np.array(v))
            return {_ARRAY if isinstance(v, np.ndarray) else _SCALAR: len(arrays) - 1}
        # Exactly these: what is derived from them (namedtuple, defaultdict) would come back as another type.
        if type(v) is list:
            return [take(x) for x in v]
        if type(v) is tuple:
            return {_TUPLE: [take(x) for x in v]}
        if type(v) is dict and all(isinstance(k, str) for k in v) and not _MARKS & set(v):
            return {k: take(x) for k, x in v.items()}
        what = 'a dict with other keys than str' if type(v) is dict else f'a {type(v).__name__}'
        raise TypeError(f'state attribute {name!r} holds {what}, which cannot be carried to other workers; use JSON values '
                        f'(None, bool, int, float, str, lists, tuples, dicts with str keys), NumPy or NDArray arrays, or '
                        f'an object with state_dict and load_state_dict')

    return take(plain(value)), arrays


def unpack(skeleton, arrays):
    """What `pack` took apart, put together again from copies."""
    def put(v):
        if isinstance(v, list):
            return [put(x) for x in v]
        if isinstance(v, dict):
            if _NDARRAY in v:
                a = arrays[v[_NDARRAY]]
                return a.copy() if isinstance(a, mx.nd.NDArray) else mx.nd.array(a, dtype=a.dtype)
            if _ARRAY in v:
                return _numpy(arrays[v[_ARRAY]]).copy()
            if _SCALAR in v:
                return _numpy(arrays[v[_SCALAR]])[()]
            if _TUPLE in v:
                return tuple(put(x) for x in v[_TUPLE])
            return {k: put(x) for k, x in v.items()}
        return v
    return put(skeleton)


def _numpy(array):
    return array.asnumpy() if isinstance(array, mx.nd.NDArray) else array


def to_bytes(value):
    """A JSON value, with arrays beside it, as bytes.

    Examples
    --------
    >>> from_bytes(to_bytes({'best': 0.5, 'seen': np.arange(3)}))
    {'best': 0.5, 'seen': array([0, 1, 2])}
    """
    skeleton, arrays = pack(value)
    arrays = [_numpy(a) for a in arrays]
    head = json.dumps({'value': skeleton, 'arrays': [[a.dtype.str, list(a.shape)] for a in arrays]}).encode()
    return b''.join([len(head).to_bytes(8, 'little'), head] + [a.tobytes() for a in arrays])


def from_bytes(data):
    """The inverse of `to_bytes`."""
    end = 8 + int.from_bytes(data[:8], 'little')
    head = json.loads(data[8:end].decode())
    arrays = []
    for dtype, shape in head['arrays']:
        count = int(np.prod(shape, dtype='int64'))
        arrays.append(np.frombuffer(data, dtype, count, end).reshape(shape).copy())
        end += count * np.dtype(dtype).itemsize
    return unpack(head['value'], arrays)
