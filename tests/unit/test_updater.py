import mxnet as mx
import numpy as np
import pytest

from hvd_dynamic.updater import LARGE, Updater

SHAPES = [(LARGE + 3,), (7,), (3, 5), (LARGE, 2), (1,)]


def arrays(seed):
    rng = np.random.RandomState(seed)
    return [mx.nd.array(rng.randn(*shape).astype('float32')) for shape in SHAPES]


@pytest.mark.parametrize('name, options', [
    ('sgd', {'momentum': 0.9, 'wd': 1e-3}),
    ('sgd', {'momentum': 0.9, 'clip_gradient': 0.5}),
    ('sgd', {}),
    ('nag', {'momentum': 0.9}),
    ('adam', {}),
    ('lars', {'momentum': 0.9, 'eta': 0.001}),
    ('lamb', {}),
])
def test_numbers_are_those_of_mxnets_updater(name, options):
    weights, counts = [], []
    for kind in (mx.optimizer.Updater, Updater):
        optimizer = mx.optimizer.create(name, learning_rate=0.1, param_idx2name=dict(enumerate('abcde')), **options)
        optimizer.set_lr_mult({'a': 0.5})
        updater, weight = kind(optimizer), arrays(0)
        for step in range(3):
            optimizer.set_learning_rate(0.1 / (step + 1))
            updater(tuple(range(5)), tuple(arrays(step + 1)), tuple(weight))
        weights.append(weight)
        counts.append(dict(optimizer._index_update_count))
    assert counts[0] == counts[1] == dict.fromkeys(range(5), 3)
    for expected, got in zip(*weights):
        np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=2e-6, atol=1e-7)


def test_frozen_layers_are_left_out_from_then_on():
    optimizer = mx.optimizer.create('sgd', learning_rate=0.1, momentum=0.9)
    updater, weight = Updater(optimizer), arrays(0)
    updater((0, 1, 2, 3, 4), arrays(1), weight)
    before = [w.asnumpy() for w in weight]
    updater((1, 3), [arrays(2)[1], arrays(2)[3]], [weight[1], weight[3]])
    changed = [bool((w.asnumpy() != b).any()) for w, b in zip(weight, before)]
    assert changed == [False, True, False, True, False]
