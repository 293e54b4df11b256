"""Batch size scaling, merging and the cut into mega-batches: the rules that are pure functions."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dynamic.adaptive import BatchScaling, ByLocalBatch, EqualMerging, NormalizedMerging
from hvd_dynamic.adaptive.megabatches import MegaBatches
from hvd_dynamic.adaptive.scaling import fair_batch

WORKERS = st.integers(1, 8)
POSITIVE = st.integers(1, 1000)


@st.composite
def situations(draw):
    """A scaling, and workers whose batches are in its range."""
    low, high = sorted([draw(POSITIVE), draw(POSITIVE)])
    count = draw(WORKERS)
    scaling = BatchScaling(low, high, draw(st.none() | st.floats(0, 500)), draw(st.sampled_from(['skip', 'clip'])))
    batches = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    updates = draw(st.lists(st.integers(0, 200), min_size=count, max_size=count))
    return scaling, batches, updates


@given(situations())
def test_batches_stay_in_range_and_move_the_way_that_the_updates_say(situation):
    scaling, batches, updates = situation
    mean = sum(updates) / len(updates)
    for old, new, done in zip(batches, scaling(batches, updates), updates):
        assert scaling.min_batch <= new <= scaling.max_batch
        assert isinstance(new, int)
        assert (new - old) * (done - mean) >= 0


@given(situations())
def test_equal_updates_change_nothing(situation):
    scaling, batches, _ = situation
    assert scaling(batches, [7] * len(batches)) == batches


@given(situations())
def test_skip_takes_a_step_in_full_or_not_at_all(situation):
    scaling, batches, updates = situation
    scaling = BatchScaling(scaling.min_batch, scaling.max_batch, scaling.beta)
    beta = scaling.min_batch / 2 if scaling.beta is None else scaling.beta
    mean = sum(updates) / len(updates)
    for old, new, done in zip(batches, scaling(batches, updates), updates):
        wanted = round(old + beta * (done - mean))
        assert new == (wanted if scaling.min_batch <= wanted <= scaling.max_batch else old)


def mega_batch(batches, speeds, samples):
    """Updates of workers that take batches from one cursor whenever they are free."""
    free, updates, left = [0.0] * len(batches), [0] * len(batches), samples
    while left > 0:
        i = min(range(len(free)), key=lambda worker: free[worker])
        count = min(batches[i], left)
        free[i] += count / speeds[i]
        updates[i] += 1
        left -= count
    return updates


@settings(deadline=None)
@given(st.lists(st.floats(0.25, 1.0), min_size=2, max_size=4))
def test_steady_state_has_equal_updates_on_workers_of_unequal_speed(speeds):
    scaling, batches = BatchScaling(16, 256, beta=2), [128] * len(speeds)
    spread = []
    for _ in range(60):
        updates = mega_batch(batches, speeds, 128 * 12 * len(speeds))
        spread.append(max(updates) - min(updates))
        batches = scaling(batches, updates)
    assert max(spread[-10:]) <= 2, (speeds, spread)
    # and the batches have come to the proportions of the speeds
    ratio = [batch / speed for batch, speed in zip(batches, speeds)]
    assert max(ratio) / min(ratio) < 1.35 or 256 in batches, (speeds, batches)


def test_default_beta_is_half_the_smallest_batch():
    assert BatchScaling(20, 500)([100, 100], [12, 8]) == [120, 80]
    assert BatchScaling(20, 500, beta=3)([100, 100], [12, 8]) == [106, 94]
    assert BatchScaling(20, 500, beta=0)([100, 100], [12, 8]) == [100, 100]


@given(st.lists(POSITIVE, min_size=1), POSITIVE)
def test_newcomers_get_the_mean(batches, default):
    assert min(batches) <= fair_batch(batches, default) <= max(batches)
    assert fair_batch([], default) == default


@pytest.mark.parametrize('arguments, name', [
    ((0, 8), 'min_batch'), ((8, 0), 'max_batch'), ((True, 8), 'min_batch'), ((9, 8), 'min_batch=9'), ((1, 8, -1), 'beta'),
    ((1, 8, math.nan), 'beta'), ((1, 8, 'much'), 'beta'), ((1, 8, None, 'bounce'), 'at_bounds')])
def test_bad_scaling_is_told(arguments, name):
    with pytest.raises(ValueError, match=name):
        BatchScaling(*arguments)


# -- merging -------------------------------------------------------------------------------------------------------

@st.composite
def replicas(draw):
    count = draw(WORKERS)

    def numbers(values):
        return draw(st.lists(values, min_size=count, max_size=count))
    return numbers(st.integers(1, 100)), numbers(POSITIVE), numbers(st.floats(0, 10))


@given(replicas())
def test_unperturbed_weights_are_shares_of_updates_or_of_batches(situation):
    updates, batches, norms = situation
    alphas = NormalizedMerging(threshold=0).weights(updates, batches, norms)
    assert math.isclose(sum(alphas), 1, rel_tol=1e-9) and min(alphas) > 0
    shares = batches if len(set(updates)) == 1 else updates
    for alpha, share in zip(alphas, shares):
        assert math.isclose(alpha, share / sum(shares), rel_tol=1e-9)


@given(replicas(), st.floats(0, 0.5))
def test_perturbation_raises_the_most_and_lowers_the_fewest(situation, d):
    updates, batches, _ = situation
    small = [0.05] * len(updates)
    plain = NormalizedMerging(threshold=0).weights(updates, batches, small)
    perturbed = NormalizedMerging(perturbation=d).weights(updates, batches, small)
    changed = [i for i in range(len(updates)) if perturbed[i] != plain[i]]
    if len(set(updates)) == 1:
        assert not changed
        return
    most, fewest = updates.index(max(updates)), updates.index(min(updates))
    assert set(changed) <= {most, fewest}
    assert math.isclose(perturbed[most], plain[most] * (1 + d)) and math.isclose(perturbed[fewest], plain[fewest] * (1 - d))


@given(replicas())
def test_one_large_replica_stops_the_perturbation(situation):
    updates, batches, norms = situation
    norms[0] = 0.1
    assert NormalizedMerging().weights(updates, batches, norms) == \
        NormalizedMerging(perturbation=0).weights(updates, batches, norms)


def test_defaults_are_the_papers():
    assert NormalizedMerging() == NormalizedMerging(threshold=0.1, perturbation=0.1, momentum=0.9)
    assert EqualMerging().weights([5, 1], [3, 9], [1, 1]) == [0.5, 0.5]


@pytest.mark.parametrize('options', [{'threshold': -1}, {'perturbation': 1}, {'momentum': 1.0}, {'momentum': math.inf},
                                     {'momentum': '0.9'}])
def test_bad_merging_is_told(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        NormalizedMerging(**options)


# -- mega-batches, learning rate -------------------------------------------------------------------------------------

@given(st.integers(1, 5000), st.integers(1, 6000))
def test_mega_batches_cover_each_epoch_evenly(length, size):
    mega = MegaBatches(length, size)
    at, sizes = length, []          # the second epoch
    while at < 2 * length:
        part = mega.at(at)
        assert part.start == at and part.number == mega.per_epoch + len(sizes)
        assert mega.at(part.end - 1) == part
        sizes.append(part.end - part.start)
        at = part.end
    assert at == 2 * length and len(sizes) == mega.per_epoch
    assert max(sizes) <= size and max(sizes) - min(sizes) <= 1 and min(sizes) == mega.smallest


def test_learning_rate_follows_the_own_batch():
    assert ByLocalBatch().local(0.25) == 0.25 and ByLocalBatch().local(0.25, 'sqrt') == 0.5
    assert ByLocalBatch(scaling='sqrt').local(4.0) == 2.0 and ByLocalBatch().target(40.0) == 1.0
