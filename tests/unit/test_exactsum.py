"""Sums that do not depend on order or grouping, against sums of fractions."""
import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dynamic import exactsum
from hvd_dynamic.exactsum import ExactSum

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
CLOSE = st.floats(-100, 100, width=32)
ANY = st.floats(width=32)


def summed(groups, count, exponents=None):
    """The sum over workers, of which each has added the tensors of its group in turn."""
    workers = [ExactSum({'a': len(groups[0][0])}, count, exponents=exponents) for _ in groups]
    for worker, group in zip(workers, groups):
        worker.begin()
        for values in group:
            worker.add('a', np.array(values, 'float32'))
        worker.finish_adding()
    with np.errstate(invalid='ignore'):
        total = sum(worker.buffer for worker in workers)
        everyone = [worker.outside() for worker in workers]
        outside = sum(worker.outside_buffer(everyone) for worker in workers) if total[-1] else None
    results = []
    for worker in workers:
        worker.buffer[:] = total
        if worker.anything_outside:
            worker.take_outside(outside.copy())
        results.append(worker.total('a'))
    assert len({result.tobytes() for result in results}) == 1
    assert all(worker.exponents == workers[0].exponents for worker in workers)
    return results[0], workers[0].exponents


def tensors(numbers):
    return st.integers(1, 4).flatmap(lambda length: st.lists(st.lists(numbers, min_size=length, max_size=length),
                                                             min_size=1, max_size=8))


@st.composite
def cut_in_two_ways(draw, numbers):
    everything = draw(tensors(numbers))
    ways = []
    for _ in range(2):
        order = draw(st.permutations(everything))
        cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1)))) if len(order) > 1 else []
        ways.append([order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)])])
    return ways


@pytest.mark.parametrize('exponents', [None, {'a': -3}, {'a': -180}, {'a': 80}])
@pytest.mark.parametrize('numbers', [NUMBERS, CLOSE, ANY], ids=['finite', 'close', 'any'])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_order_and_grouping_change_no_bit_of_the_sum_or_of_the_next_exponent(numbers, exponents, data):
    one, other = data.draw(cut_in_two_ways(numbers))
    first, second = (summed(way, 8, exponents) for way in (one, other))
    assert first[0].tobytes() == second[0].tobytes() and first[1] == second[1]


@pytest.mark.parametrize('exponent', [-74, -40, 0])
@settings(max_examples=80, deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=8))
def test_error_is_within_the_bound_of_the_docstring(exponent, numbers):
    result, _ = summed([[[x] for x in numbers]], 8, {'a': exponent})
    digits, bound = 48, Fraction(0)
    for x in numbers:
        size, range_ = abs(Fraction(x)), 0
        while size > Fraction(2) ** (exponent + 24 * range_ + digits):
            range_ += 1
        bound += Fraction(2) ** (exponent + 24 * range_ - 1)
        assert range_ == 0 or Fraction(2) ** (exponent + 24 * range_ - 1) <= size * Fraction(2) ** (23 - digits)
    true = sum(map(Fraction, numbers))
    if not math.isfinite(result[0]):
        assert abs(true) > Fraction(2) ** 127       # beyond the largest float32
        return
    # the last rounding: to a float32, after the ranges were added in float64
    sizes = sum(abs(Fraction(x)) for x in numbers)
    bound += abs(true) * Fraction(1, 2 ** 24) + Fraction(2) ** -149 + sizes * Fraction(1, 2 ** 50)
    assert abs(Fraction(float(result[0])) - true) <= bound


def test_sum_of_normal_gradients_is_as_good_as_float64_gives():
    rng = np.random.RandomState(0)
    values = (rng.randn(8, 40000) * np.exp(rng.randn(40000))).astype('float32')
    exponents = None
    for _ in range(2):
        result, exponents = summed([values[:3], values[3:]], 8, exponents)
        true = values.sum(0, dtype='float64')
        assert np.abs(result - true).max() <= np.abs(true).max() * 2.0 ** -24
        exact = np.abs(true) > np.abs(true).max() * 2.0 ** -12
        assert (result[exact] == true[exact].astype('float32')).mean() > 0.999


def test_one_update_after_another_the_unit_follows_the_sums():
    result, exponents = summed([[[3.0, 1e-3]]], 8)
    assert exponents == {'a': 2 + 8 - 48}
    assert result[1] == np.float32(1e-3)
    for k in range(5):          # falls by one an update
        _, exponents = summed([[[1e-6, 0.0]]], 8, exponents)
        assert exponents == {'a': -38 - (k + 1)}
    _, exponents = summed([[[5e9, 0.0]]], 8, exponents)       # out of range; rises at once
    assert exponents == {'a': 33 + 8 - 48}


def test_sum_of_zeros_and_one_that_is_not_finite_leave_the_unit_alone():
    for values in ([0.0], [math.inf], [math.nan]):
        assert summed([[values]], 8, {'a': -38})[1] == {'a': -38}
        assert summed([[values]], 8)[1] == {}


@pytest.mark.parametrize('values, expected', [
    ([math.inf, 1.0], math.inf), ([-math.inf, 1.0, -math.inf], -math.inf), ([3e38, 3e38, -1.0], math.inf)])
def test_infinity_keeps_its_meaning(values, expected):
    assert summed([[[x] for x in values]], 8)[0].tolist() == [expected]


@pytest.mark.parametrize('values', [[math.inf, -math.inf], [math.nan, 1.0], [-math.nan, math.inf]])
def test_nan_is_always_the_same_nan(values):
    for way in ([[[x] for x in values]], [[[x]] for x in reversed(values)]):
        result, _ = summed(way, 8)
        assert result.tobytes() == np.float32(np.nan).tobytes()


def test_its_neighbours_do_not_notice_an_infinity():
    result, _ = summed([[[math.inf, 0.5, -2.0]], [[1.0, 0.25, 1e30]]], 8, {'a': -40})
    assert result.tolist() == [math.inf, 0.75, np.float32(1e30)]


def test_ties_are_not_rounded_by_what_was_added_before():
    # 0.5 units: to even if rounded by itself; to a running sum that is odd it would be rounded up
    result, _ = summed([[[1.0], [0.5]]], 2, {'a': 0})
    assert result.tolist() == [1.0]
    assert summed([[[0.5], [1.0]]], 2, {'a': 0})[0].tolist() == [1.0]


def test_a_worker_that_adds_nothing_to_a_tensor_adds_zero():
    sums = ExactSum({'a': 2, 'b': 1}, 4)
    for _ in range(2):
        sums.begin()
        sums.add('a', np.array([1, 2], 'float32'))
        if _ == 0:
            sums.add('b', np.array([3], 'float32'))
        sums.finish_adding()
    assert sums.total('b').tolist() == [0.0] and sums.total('a').tolist() == [1.0, 2.0]


def test_more_than_one_block_and_a_number_out_of_range_in_the_last():
    size = exactsum._BLOCK * 2 + 5
    values = (np.arange(size) / size).astype('float32')
    values[-1] = 1e20
    sums = ExactSum({'a': size}, 2, exponents={'a': -42})
    sums.begin()
    sums.add('a', values)
    sums.add('a', values)
    sums.finish_adding()
    assert sums.anything_outside
    np.testing.assert_array_equal(sums.total('a'), 2 * values)


def test_factor_is_multiplied_before_the_one_rounding():
    sums = ExactSum({'a': 1}, 3)
    sums.begin()
    for x in (1 / 3, 1 / 5, 1 / 7):
        sums.add('a', np.array([x], 'float32'))
    exact = sum(float(np.float32(x)) for x in (1 / 3, 1 / 5, 1 / 7))
    assert sums.total('a', factor=0.1)[0] == np.float32(exact * 0.1)
    assert sums.exponents == {'a': 0 + 8 - 49}       # of the sum without the factor


def test_extra_numbers_are_the_callers():
    sums = ExactSum({'a': 2}, 2, extra=3)
    sums.extra[:] = 1, 2, 3
    assert sums.buffer.tolist()[2:5] == [1, 2, 3] and sums.buffer.nbytes == 6 * 8
    sums.begin()
    assert sums.extra.tolist() == [0, 0, 0]


@pytest.mark.parametrize('count', [0, -1, 1025, 2.5, True])
def test_count_out_of_range_is_refused(count):
    with pytest.raises(ValueError, match=r'count must be an integer from 1 to 1024, the most tensors in one sum, got'):
        ExactSum({'a': 1}, count)


def test_docstrings_are_true():
    assert doctest.testmod(exactsum).failed == 0
