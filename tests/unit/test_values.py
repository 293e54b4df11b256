"""Values that are carried to other workers: JSON and arrays, never pickles."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dynamic import values

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                   | st.lists(inner, max_size=3).map(tuple)), max_leaves=5)


class Meter:
    def __init__(self, total=0.0):
        self.total, self.table = total, mx.nd.zeros(2)

    def state_dict(self):
        return {'total': self.total, 'table': self.table}

    def load_state_dict(self, state):
        self.total, self.table = state['total'], state['table']


@given(json_values)
def test_json_values_come_back_as_they_were(value):
    there = values.from_bytes(values.to_bytes(value))
    assert there == value and repr(there) == repr(value)


@pytest.mark.parametrize('array', [
    np.array([0.0, -0.0, np.nan, np.inf, 1e-45], 'float32'), np.arange(6, dtype='int64').reshape(2, 3),
    np.array([True, False]), np.float64(0.1), np.int8(-3), np.array(2.5), np.array([1.5, -2.5], 'float16'),
    np.arange(4, dtype='>i4'), np.arange(12.0).reshape(3, 4).T, np.zeros(0), np.zeros((3, 0), 'int32')],
    ids=lambda a: f'{a.dtype} {a.shape}')
def test_numpy_arrays_come_back_bit_for_bit(array):
    there = values.from_bytes(values.to_bytes({'a': [array]}))['a'][0]
    assert type(there) is type(array) and there.dtype == array.dtype and there.shape == array.shape
    assert there.tobytes() == array.tobytes()


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'int8', 'uint8', 'int32', 'int64'])
def test_ndarrays_come_back_as_ndarrays_bit_for_bit(dtype):
    array = mx.nd.array(np.array([[3, 1, 2]]), dtype=dtype)
    there = values.from_bytes(values.to_bytes((array,)))[0]
    assert isinstance(there, mx.nd.NDArray) and there.dtype == array.dtype and there.shape == (1, 3)
    assert there.asnumpy().tobytes() == array.asnumpy().tobytes()


def test_what_was_packed_is_a_copy():
    array, numbers, table = mx.nd.zeros(2), np.zeros(2), [1]
    skeleton, arrays = values.pack({'a': array, 'n': numbers, 't': table})
    array += 1
    numbers += 1
    table.append(2)
    once, again = values.unpack(skeleton, arrays), values.unpack(skeleton, arrays)
    assert once['a'].sum().asscalar() == 0 and once['n'].sum() == 0 and once['t'] == [1]
    once['a'] += 1
    once['n'] += 1
    assert again['a'].sum().asscalar() == 0 and again['n'].sum() == 0


def test_object_with_state_dict_is_carried_as_that():
    there = values.from_bytes(values.to_bytes(Meter(0.5)))
    assert there['total'] == 0.5 and isinstance(there['table'], mx.nd.NDArray)
    values.check('meter', Meter())


@pytest.mark.parametrize('value, what', [
    ({1, 2}, 'a set'), (object(), 'a object'), (b'bytes', 'a bytes'), (1j, 'a complex'), ([1, {2}], 'a set'),
    ({1: 2}, 'a dict with other keys than str'), (np.array(['text']), 'a ndarray'), (len, 'a builtin'),
    (np.array([None]), 'a ndarray'), ([Meter()], 'a Meter')])
def test_what_cannot_be_carried_is_refused_by_name(value, what):
    with pytest.raises(TypeError) as caught:
        values.check('mine', value)
    assert f"state attribute 'mine' holds {what}" in str(caught.value)
    assert 'use JSON values (None, bool, int, float, str, lists, tuples, dicts with str keys)' in str(caught.value)


def test_dict_that_looks_like_a_mark_is_refused_not_misread():
    with pytest.raises(TypeError):
        values.pack({'__numpy__': 0})
