"""Copies in memory: bit for bit, and no more than one."""
import mxnet as mx
import numpy as np
import pytest
from helpers import bits

from hvd_dynamic.backup import Backup

ODD = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-7, 6e-8, 1.5])


@pytest.mark.parametrize('count', [1, 3])
@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'int8', 'uint8', 'int32', 'int64'])
def test_every_bit_comes_back(dtype, count):
    with np.errstate(invalid='ignore'):
        values = ODD.astype(dtype) if dtype[0] == 'f' else np.arange(8).astype(dtype)
    if dtype == 'float32':
        values = np.append(values, np.array([1, 0x7fc12345, 0x807fffff], 'uint32').view('float32'))   # subnormals
    arrays = {i: mx.nd.array(values, dtype=dtype) for i in range(count)}
    before = [bits(a) for a in arrays.values()]
    backup = Backup()
    backup.store(arrays)
    for array in arrays.values():
        array[:] = 1
    backup.restore(arrays)
    assert [bits(a) for a in arrays.values()] == before


def test_types_may_be_mixed():
    arrays = {i: mx.nd.array([i, -i, 3], dtype=d) for i, d in enumerate(['float32', 'float16', 'int32'] * 2)}
    before = [bits(a) for a in arrays.values()]
    backup = Backup(mx.cpu())
    backup.store(arrays)
    for array in arrays.values():
        array *= 0
    backup.restore(arrays)
    assert [bits(a) for a in arrays.values()] == before


def test_memory_is_allocated_once():
    arrays = {'w': mx.nd.ones((4, 5)), 'v': mx.nd.ones(3, dtype='float16')}
    backup = Backup()
    backup.store(arrays)
    copies = dict(backup._copies)
    arrays['w'] += 1
    backup.store(arrays)
    assert all(backup._copies[key] is copy for key, copy in copies.items())
    assert backup._copies['w'].asnumpy().max() == 2 and backup.nbytes() == 4 * 20 + 2 * 3


def test_only_what_was_stored_last_is_kept_and_only_that_is_put_back():
    a, b = mx.nd.ones(2), mx.nd.ones(2)
    backup = Backup()
    backup.store({'a': a, 'b': b})
    backup.store({'a': a})
    assert 'a' in backup and 'b' not in backup
    a[:] = b[:] = 5
    backup.restore({'a': a, 'b': b})
    assert (a.asnumpy().tolist(), b.asnumpy().tolist()) == ([1, 1], [5, 5])


def test_nothing_to_store():
    backup = Backup()
    backup.store({})
    backup.restore({})
    assert backup.nbytes() == 0


def test_array_that_was_replaced_by_one_of_another_shape():
    backup = Backup()
    backup.store({0: mx.nd.ones(3), 1: mx.nd.ones(2)})
    array = mx.nd.arange(4)
    backup.store({0: array, 1: mx.nd.ones(2)})
    array[:] = 0
    backup.restore({0: array})
    assert array.asnumpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'int64'])
def test_copies_that_wait_are_the_same(dtype):
    arrays = {i: mx.nd.array(ODD[i:], dtype=dtype) for i in range(3)}
    for turn in range(2):
        before = [bits(a) for a in arrays.values()]
        backup = Backup()
        backup.store(arrays, wait=True)
        for array in arrays.values():
            array[:] = turn
        backup.restore(arrays)
        assert [bits(a) for a in arrays.values()] == before


def test_copy_that_waits_is_of_what_is_queued_and_reads_weights_in_any_layout():
    conv = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    conv.initialize()
    conv.hybridize()
    weight, backup = conv.weight.data(), Backup()
    for turn in range(3):
        weight += turn
        expected = weight.copy().asnumpy()
        conv(mx.nd.ones((1, 16, 8, 8))).wait_to_read()      # which may put the weight in MKL-DNN's layout
        backup.store({0: weight}, wait=True)
        weight *= 2
        assert np.array_equal(dict(backup.items())[0].asnumpy(), expected)
        backup.restore({0: weight})


def test_what_went_wrong_in_an_array_is_raised_by_the_copy_that_waits():
    array, backup = mx.nd.ones((4,)), Backup()
    backup.store({0: array}, wait=True)
    array[:] = mx.nd.linalg.potrf(-mx.nd.ones((2, 2))).reshape(-1)      # no matrix of this kind: fails when it is its turn
    with pytest.raises(mx.MXNetError):
        backup.store({0: array}, wait=True)
    assert dict(backup.items())[0].asnumpy().tolist() == [1] * 4
