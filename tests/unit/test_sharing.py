"""Arrays that go from one worker to all, bit for bit, and means; workers are threads here."""
import mxnet as mx
import numpy as np
import pytest
from helpers import Group, bits, raise_errors, share

from hvd_dynamic import sharing
from hvd_dynamic.sharing import average_arrays, share_arrays

ODD = {
    'float16': np.array([0.0, -0.0, np.nan, np.inf, 6e-8, 65504], 'float16'),
    'float32': np.array([0x80000000, 0x7fc12345, 0xffc00001, 1, 0x7f800000, 0x3f800000], 'uint32').view('float32'),
    'float64': np.array([-0.0, np.nan, -np.inf, 5e-324, 0.1]),
    'int8': np.array([-128, 127, 0], 'int8'), 'uint8': np.array([255, 0, 1], 'uint8'),
    'int32': np.array([-2 ** 31, 2 ** 31 - 1, -1], 'int32'), 'int64': np.array([-2 ** 63, 2 ** 62, 1], 'int64'),
}


@pytest.mark.parametrize('size, source', [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_every_type_arrives_bit_for_bit(size, source):
    rank_arrays = [[mx.nd.array(value if rank == source else np.full_like(value, 3), dtype=dtype)
                    for dtype, value in ODD.items()] for rank in range(size)]
    share(Group(size), rank_arrays, source)
    for arrays in rank_arrays:
        for array, value in zip(arrays, ODD.values()):
            assert array.dtype == value.dtype and bits(array) == value.tobytes()


@pytest.mark.parametrize('chunk', [1, 3, 5, 100])
def test_large_arrays_travel_in_pieces(monkeypatch, chunk):
    monkeypatch.setattr(sharing, '_CHUNK', chunk)
    shapes = [(2, 3), (1,), (4,), (7, 1), (2,)]
    rank_arrays = [[mx.nd.array(np.arange(np.prod(shape)).reshape(shape) * (1 - rank), dtype=dtype)
                    for shape, dtype in zip(shapes, ['float32', 'float16', 'float64', 'int8', 'float32'])]
                   for rank in range(2)]
    expected = [bits(a) for a in rank_arrays[0]]
    group = Group(2)
    share(group, rank_arrays, 0)
    assert [bits(a) for a in rank_arrays[1]] == expected
    assert max(nbytes for _, nbytes in group.sent) <= max(4 * chunk, 4)
    names = [name for name, _ in group.sent]
    assert len(set(names)) == len(names), 'a name may be in flight once only'


def test_weights_in_another_layout_are_sent_and_written():
    """MKL-DNN reorders the weights of a convolution in the first forward pass outside of training."""
    weights = []
    for value in (1, 2):
        layer = mx.gluon.nn.Conv2D(32, 3, in_channels=32)
        layer.initialize(mx.init.Constant(value))
        layer.hybridize()
        layer(mx.nd.ones((1, 32, 8, 8))).wait_to_read()
        weights.append(layer.weight.data())
    with pytest.raises(mx.MXNetError):
        weights[1][:] = np.zeros(weights[1].shape, 'float32')       # it is in such a layout
    share(Group(2), [[weight] for weight in weights], 0)
    assert [weight.asnumpy().min() for weight in weights] == [weight.asnumpy().max() for weight in weights] == [1, 1]


def test_one_worker_sends_nothing():
    group = Group(1)
    share(group, [[mx.nd.ones(3)]], 0)
    assert group.sent == []
    group.each(lambda world: average_arrays(world, [mx.nd.ones(3)]))
    assert group.sent == []


def test_nothing_to_share():
    share(Group(2), [[], []], 0)


@pytest.mark.parametrize('size', [2, 3, 4])
def test_mean_is_over_all_workers_and_the_same_on_all(size):
    group = Group(size)
    values = [mx.nd.array([rank, 10.0 * rank, 0.1]) for rank in range(size)]

    def work(world):
        world.join()
        average_arrays(world, [values[world.rank]])
    raise_errors(group.each(work))
    mean = (size - 1) / 2
    np.testing.assert_allclose(values[0].asnumpy(), [mean, 10 * mean, 0.1], rtol=1e-6)
    assert len({bits(v) for v in values}) == 1


def test_workers_that_do_not_take_part_do_not_count_even_with_nan():
    group = Group(3)
    values = [mx.nd.array([v]) for v in (2.0, float('nan'), 4.0)]

    def work(world):
        world.join()
        average_arrays(world, [values[world.rank]], world.rank != 1, 2)
    raise_errors(group.each(work))
    assert [v.asscalar() for v in values] == [3.0] * 3


def test_array_stays_the_same_object():
    array = [mx.nd.ones(2), mx.nd.zeros(2)]
    view = array[1]
    share(Group(2), [[a] for a in array], 0)
    assert view.asnumpy().tolist() == [1, 1]


def test_error_on_one_worker_ends_the_others_wait():
    def work(world):
        world.join()
        if world.rank == 1:
            raise ValueError('mine')
        share_arrays(world, [mx.nd.ones(1)], 0)
    results = Group(2).each(work)
    assert type(results[0]).__name__ == 'JoinFailed' and type(results[1]) is ValueError
