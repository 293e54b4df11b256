"""What is said of MXNet's optimizers, against what they do."""
import json
import logging

import mxnet as mx
import numpy as np
import pytest

from hvd_dynamic import optimizers

# By name: arguments. Each is run once with a learning rate and once with the double of it.
CASES = {
    'sgd': {'momentum': 0.9}, 'ccsgd': {'momentum': 0.9}, 'nag': {'momentum': 0.9}, 'lars': {'momentum': 0.9},
    'lbsgd': {'momentum': 0.9}, 'adam': {}, 'adamax': {}, 'nadam': {}, 'adagrad': {}, 'adadelta': {},
    'rmsprop': {}, 'signum': {'momentum': 0.9}, 'sgld': {}, 'lamb': {}, 'groupadagrad': {},
}
HOLD_LR = {'sgd', 'ccsgd', 'nag', 'lars', 'lbsgd'}
# They depend on the learning rate in ways that no factor corrects.
NO_CORRECTION = {'ftml': {}, 'ftrl': {}}


def one_update(name, arguments, lr, dtype='float32', steps=1):
    optimizer = mx.optimizer.create(name, learning_rate=lr, multi_precision=dtype == 'float16', **arguments)
    weight = mx.nd.array([[0.5, -1.5], [0.25, 1.0]], dtype=dtype)
    gradient = mx.nd.array([[0.5, 1.0], [-2.0, 0.25]], dtype=dtype)
    state = optimizer.create_state_multi_precision(0, weight)
    for _ in range(steps):
        optimizer.update_multi_precision(0, weight, gradient, state)
    return optimizer, weight, state


def arrays(state):
    return [a.asnumpy() for a in optimizers.flatten_state(state) if a is not None]


def test_every_optimizer_of_mxnet_is_tried_here():
    known = {*CASES, *NO_CORRECTION, 'test', 'dcasgd'}
    assert set(mx.optimizer.Optimizer.opt_registry) == known


@pytest.mark.parametrize('name', sorted(HOLD_LR))
@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_momentum_that_holds_the_learning_rate_is_found(name, dtype):
    optimizer, weight, state = one_update(name, CASES[name], 0.25, dtype)
    _, _, doubled = one_update(name, CASES[name], 0.5, dtype)
    find = optimizers.momentum_rule(optimizer)
    np.testing.assert_allclose(find(doubled).asnumpy(), 2 * find(state).asnumpy(), rtol=1e-6)
    assert np.abs(find(state).asnumpy()).min() > 1e-6
    others = [a for a in optimizers.flatten_state(state) if a is not None and a is not find(state)]
    assert len(others) == (dtype == 'float16')
    for copy in others:                     # the float32 weight, which no factor may touch
        np.testing.assert_allclose(copy.asnumpy(), weight.asnumpy(), rtol=1e-3)


@pytest.mark.parametrize('name', sorted(set(CASES) - HOLD_LR))
def test_state_without_the_learning_rate_is_left_alone(name, caplog):
    optimizer, _, state = one_update(name, CASES[name], 0.25)
    _, _, doubled = one_update(name, CASES[name], 0.5)
    for one, other in zip(arrays(state), arrays(doubled)):
        np.testing.assert_array_equal(one, other)
    assert optimizers.momentum_rule(optimizer) is None and not caplog.records


@pytest.mark.parametrize('name', sorted(NO_CORRECTION))
def test_state_that_no_factor_corrects_is_left_alone(name, caplog):
    optimizer, _, state = one_update(name, {}, 0.25)
    _, _, doubled = one_update(name, {}, 0.5)
    pairs = [b / a for a, b in zip(arrays(state), arrays(doubled)) if not np.array_equal(a, b)]
    assert pairs and not any(np.allclose(ratio, 2) for ratio in pairs)
    assert optimizers.momentum_rule(optimizer) is None and not caplog.records


@pytest.mark.parametrize('name', sorted(HOLD_LR))
@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_without_momentum_there_is_nothing_to_correct(name, dtype):
    optimizer, _, state = one_update(name, {'momentum': 0.0}, 0.25, dtype)
    assert optimizers.momentum_rule(optimizer)(state) is None


def test_unknown_optimizer_is_left_alone_with_one_warning(caplog):
    class Mine(mx.optimizer.Optimizer):
        pass

    with caplog.at_level(logging.WARNING):
        assert optimizers.momentum_rule(Mine()) is None
    assert [r.getMessage() for r in caplog.records] == [
        'the optimizer Mine is not known to hvd_dynamic: its state is left as it is when the learning rate scale '
        'changes (momentum_scale 1)']


def test_subclass_of_a_known_optimizer_is_treated_as_that_one(caplog):
    class MySGD(mx.optimizer.SGD):
        pass

    class MyAdam(mx.optimizer.Adam):
        pass

    assert optimizers.momentum_rule(MySGD(momentum=0.9)) is not None
    assert optimizers.momentum_rule(MyAdam()) is None and not caplog.records
    assert optimizers.default_scaling(MyAdam()) == 'sqrt'


@pytest.mark.parametrize('name, scaling', [('sgd', 'linear'), ('nag', 'linear'), ('lars', 'linear'),
                                           ('signum', 'linear'), ('adam', 'sqrt'), ('lamb', 'sqrt'),
                                           ('rmsprop', 'sqrt'), ('adagrad', 'sqrt'), ('nadam', 'sqrt')])
def test_scaling_is_square_root_where_the_step_is_normalised(name, scaling):
    assert optimizers.default_scaling(mx.optimizer.create(name)) == scaling


def test_flatten_state_keeps_the_order_and_the_gaps():
    a, b = mx.nd.ones(1), mx.nd.zeros(2)
    assert optimizers.flatten_state(None) == [None]
    assert optimizers.flatten_state(a) == [a]
    assert optimizers.flatten_state((None, [b, (a,)])) == [None, b, a]
    with pytest.raises(TypeError, match='optimizer state of type dict cannot be carried to other workers'):
        optimizers.flatten_state((a, {'momentum': b}))


@pytest.mark.parametrize('device', [0, 3])
@pytest.mark.parametrize('name', ['adam', 'nadam', 'ftml', 'lamb', 'sgd'])
def test_update_counts_go_to_another_device(name, device):
    """mxnet issue 17357: on another device a loaded optimizer would begin to count anew."""
    arguments = {'momentum': 0.9} if name == 'sgd' else {}
    here, weight, state = one_update(name, arguments, 0.1, steps=5)
    there = mx.optimizer.create(name, learning_rate=0.1)
    optimizers.load_settings(there, json.loads(json.dumps(optimizers.settings(here))), device)
    there._set_current_context(device)
    copy, gradient = weight.copy(), mx.nd.array([[0.1, 0.2], [0.3, -0.4]])
    copied = [None if a is None else a.copy() for a in optimizers.flatten_state(state)]
    here.update_multi_precision(0, weight, gradient, state)
    there.update_multi_precision(0, copy, gradient, tuple(copied) if isinstance(state, tuple) else copied[0])
    assert copy.asnumpy().tobytes() == weight.asnumpy().tobytes()
    assert there.num_update == here.num_update == 6 and there._index_update_count == {0: 6}


def test_settings_are_the_numbers_that_steer_and_count():
    nadam, _, _ = one_update('nadam', {'wd': 0.25}, 0.1, steps=3)
    saved = json.loads(json.dumps(optimizers.settings(nadam)))
    other = mx.optimizer.create('nadam', learning_rate=0.5, rescale_grad=7.0)
    optimizers.load_settings(other, saved, 0)
    assert other.m_schedule == nadam.m_schedule != 1.0
    assert (other.wd, other.num_update) == (0.25, 3)
    assert (other.lr, other.rescale_grad) == (0.5, 7.0), 'these are not the optimizer\'s own'
