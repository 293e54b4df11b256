"""ElasticSampler: one order of samples whatever the world; every sample once an epoch."""
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet import gluon

from hvd_dynamic.sampler import ElasticSampler

lengths, local_batches = st.integers(1, 50), st.integers(1, 7)
seeds = st.integers(0, 2 ** 64 - 1)
plans = st.dictionaries(st.integers(0, 40), st.integers(1, 9), max_size=6)       # update -> world size
EPOCHS = 3


def made(length, batch, seed=0, size=1, fixed=None, limit=None, **arguments):
    sampler = ElasticSampler(length, batch, seed, **arguments)
    if fixed:
        sampler.fix_global_batch(fixed, limit)
    sampler.set_world(size, range(size))
    return sampler


def walk(sampler, plan=None, epochs=EPOCHS):
    """Do whole epochs, resized by a plan of update to size: the cuts, and the indices of each by rank."""
    done = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        while True:
            size = (plan or {}).get(len(done))
            if size:
                sampler.set_world(size, range(size))
            cut = sampler.next_update()
            if cut is None:
                break
            done.append((cut, [sampler.indices(cut, rank).tolist() for rank in range(sampler.size)]))
            sampler.advance()
    return done


def stream(done):
    return [i for _, parts in done for part in parts for i in part]


def by_epoch(done):
    """The samples of each epoch: the first `carried` of an update belong to the one before."""
    counts = [Counter() for _ in range(EPOCHS)]
    for cut, parts in done:
        samples = [i for part in parts for i in part]
        counts[cut.epoch - 1].update(samples[:cut.carried])
        counts[cut.epoch].update(samples[cut.carried:])
    return counts


@given(lengths, local_batches, seeds, plans, st.integers(1, 9))
def test_every_epoch_uses_every_sample_exactly_once_through_any_resizes(length, batch, seed, plan, size):
    assume(max([size, *plan.values()]) <= length)
    sampler = made(length, batch, seed, size)
    counts = by_epoch(walk(sampler, plan))
    for epoch, count in enumerate(counts):
        assert max(count.values()) == 1
        if epoch < EPOCHS - 1:
            assert len(count) == length
    left = length - len(counts[-1])         # what would be carried into the next epoch
    assert left == sampler.samples_left < sampler.size


@given(lengths, local_batches, seeds, plans, st.integers(1, 9))
def test_order_is_that_of_one_worker_who_never_resized(length, batch, seed, plan, size):
    assume(max([size, *plan.values()]) <= length)
    elastic, alone = stream(walk(made(length, batch, seed, size), plan)), stream(walk(made(length, 1, seed)))
    assert elastic == alone[:len(elastic)]
    assert len(alone) == EPOCHS * length


@given(lengths, local_batches, plans, st.integers(1, 9))
def test_updates_are_full_but_the_last_which_is_split_evenly(length, batch, plan, size):
    assume(max([size, *plan.values()]) <= length)
    for cut, parts in walk(made(length, batch, 1, size), plan):
        counts = [len(part) for part in parts]
        assert counts == list(cut.counts) and min(counts) >= 1
        if counts != [batch] * len(parts):
            assert max(counts) - min(counts) <= 1 and sum(counts) < batch * len(parts)
            assert counts == sorted(counts, reverse=True)


@given(lengths, local_batches, st.integers(1, 6), st.integers(0, 9), seeds)
def test_ranks_that_are_processes_get_disjoint_parts_in_rank_order(length, batch, size, done, seed):
    assume(size <= length)
    ranks = [made(length, batch, seed) for _ in range(size)]
    whole = made(length, batch, seed, size)
    for rank, sampler in enumerate(ranks):
        sampler.set_world(size, [rank])
    for sampler in [*ranks, whole]:
        for _ in range(done):
            if sampler.next_update() is not None:
                sampler.advance()
    batches = [list(sampler) for sampler in ranks]
    joined = [part for update in zip(*batches) for part in update]
    assert joined == list(whole)
    assert len({len(b) for b in batches}) == 1
    for first in range(0, len(joined), size):
        update = sum(joined[first:first + size], [])
        assert len(set(update)) == len(update) or whole.samples_left > length     # a sample that was carried over


@given(lengths, local_batches, st.integers(1, 6), st.integers(0, 12), st.integers(0, 60), st.integers(0, 5))
def test_len_is_the_number_of_batches_that_come(length, batch, size, done, fixed, limit):
    assume(size <= length)
    fixed = fixed if size <= fixed <= length else None
    sampler = made(length, batch, 0, size, fixed, limit or None)
    for ranks in ([0], [size - 1], range(size)):
        sampler.set_world(size, ranks)
        for _ in range(done):
            if sampler.next_update() is not None:
                sampler.advance()
        batches = list(sampler)
        assert len(sampler) == len(batches)
        if sampler.next_update() is not None:
            first = sampler.passes(sampler.next_update())
            assert [len(b) for b in batches[:len(first)]] == first


@given(st.integers(6, 50), st.integers(1, 6), plans, st.integers(1, 4))
def test_fixed_global_batch_is_cut_among_whatever_workers_there_are(length, fixed, plan, limit):
    assume(max([1, *plan.values()]) <= fixed <= length)
    sampler = made(length, 4, 0, 1, fixed, limit)
    assert sampler.global_batch == fixed
    done = walk(sampler, plan)
    assert stream(done) == stream(walk(made(length, 1)))[:len(stream(done))]
    for cut, parts in done:
        assert cut.global_batch == fixed or cut.global_batch < fixed
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_local_batch_that_does_not_fit_is_done_in_even_passes():
    sampler = made(40, 1, fixed=10, limit=4, shuffle=False)
    assert sampler.passes(sampler.next_update()) == [4, 3, 3]
    assert list(sampler)[:3] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    sampler.set_world(2, [0, 1])
    assert sampler.passes(sampler.next_update()) == [3, 2, 3, 2]
    sampler.set_world(3, [2])
    assert sampler.passes(sampler.next_update()) == [3]


def test_permutations_differ_by_epoch_and_seed_and_never_change():
    first, second = (stream(walk(made(30, 5, seed), epochs=2)) for seed in (0, 1))
    assert sorted(first[:30]) == sorted(first[30:]) == list(range(30))
    assert first[:30] != first[30:] and first != second
    assert stream(walk(made(30, 5, 2 ** 32), epochs=1)) != first[:30]
    # as they are on every machine and in every version: a run that goes on must find the order it had
    assert made(8, 8).indices(made(8, 8).next_update(), 0).tolist() == PERMUTATION_OF_8


PERMUTATION_OF_8 = np.random.RandomState([0, 0, 0]).permutation(8).tolist()


def test_without_shuffling_the_order_is_that_of_the_data_set():
    assert stream(walk(made(7, 2, shuffle=False), epochs=2)) == [*range(7)] * 2


def test_remainder_smaller_than_the_world_opens_the_next_epoch():
    sampler = made(11, 1, size=4, shuffle=False)
    done = walk(sampler, epochs=2)
    assert [(cut.epoch, cut.carried, cut.counts) for cut, _ in done][:4] == [
        (0, 0, (1, 1, 1, 1)), (0, 0, (1, 1, 1, 1)), (1, 3, (1, 1, 1, 1)), (1, 0, (1, 1, 1, 1))]
    assert sum(done[2][1], []) == [8, 9, 10, 0]


def test_remainder_is_used_in_its_own_epoch_if_the_world_shrinks_in_time():
    sampler = made(11, 1, size=4, shuffle=False)
    sampler.advance()
    sampler.advance()
    assert sampler.next_update() is None
    sampler.set_world(2, [0, 1])
    assert sampler.next_update().counts == (1, 1) and sampler.epoch == 0


def test_fetching_ahead_does_not_move_the_cursor():
    sampler = made(20, 4)
    batches = iter(sampler)
    first = [next(batches) for _ in range(4)]
    assert sampler.state_dict()['cursor'] == 0 and len(sampler) == 5
    sampler.advance()
    assert list(sampler)[0] == first[1]


@pytest.mark.parametrize('workers', [0, 1])
def test_loader_of_gluon_fetches_ahead_and_loses_nothing(workers):
    sampler = made(21, 4, size=2)
    sampler.set_world(2, [1])
    data = gluon.data.ArrayDataset(np.arange(21))
    loader = gluon.data.DataLoader(data, batch_sampler=sampler, num_workers=workers, thread_pool=True)
    seen = []
    for batch in loader:
        seen.append(batch.asnumpy().tolist())
        sampler.advance()
        if len(seen) == 2:
            break
    seen += [batch.asnumpy().tolist() for batch in loader]
    whole = made(21, 4, size=2)
    whole.set_world(2, [1])
    assert seen == list(whole)


@given(lengths, local_batches, seeds, st.integers(1, 9), st.integers(1, 9), st.integers(0, 30))
def test_state_is_json_and_takes_another_sampler_to_the_same_place(length, batch, seed, old, new, updates):
    assume(max(old, new) <= length)
    sampler = made(length, batch, seed, old)
    for _ in range(updates):
        if sampler.next_update() is None:
            sampler.set_epoch(sampler.epoch + 1)
        sampler.advance()
    other = made(length, batch, seed, new)
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    sampler.set_world(new, range(new))
    assert list(other) == list(sampler) and other.state_dict() == sampler.state_dict()
    assert len(other) == len(sampler) and other.epoch == sampler.epoch


# -- which epoch it is -------------------------------------------------------------------------------------------

def drain(sampler):
    batches = []
    for batch in sampler:
        batches.append(batch)
        if len(batches) % len(sampler.ranks) == 0:
            sampler.advance()
    return batches


def test_loops_without_an_epoch_attribute_go_on_to_the_next_epoch():
    sampler = made(10, 3)
    assert sum(drain(sampler) + drain(sampler), []) == stream(walk(made(10, 3), epochs=2))
    assert sampler.epoch == 1


def test_loop_begun_anew_at_the_very_end_of_an_epoch_is_empty_and_the_next_one_goes_on():
    sampler = made(10, 5)
    drain(sampler)
    sampler.set_world(2, [0, 1])        # a resize with the epoch's last update
    assert (list(sampler), sampler.epoch) == ([], 0)
    assert len(drain(sampler)) == 2 and sampler.epoch == 1


def test_loop_begun_anew_after_restoring_the_end_of_an_epoch_is_empty_too():
    sampler, other = made(10, 5), made(10, 5)
    drain(sampler)
    other.advance()                     # as a survivor that did updates of its own
    other.load_state_dict(sampler.state_dict())
    assert (list(other), other.epoch) == ([], 0)


def test_epoch_attribute_alone_decides_once_it_is_set():
    sampler = made(10, 5)
    sampler.set_epoch(0)
    drain(sampler)
    assert list(sampler) == [] and sampler.epoch == 0
    sampler.set_epoch(1)
    assert len(drain(sampler)) == 2


def test_setting_the_present_epoch_again_changes_nothing():
    sampler = made(10, 2)
    sampler.advance()
    sampler.set_epoch(0)
    assert sampler.state_dict()['cursor'] == 2


@pytest.mark.parametrize('epoch, cursor', [(1, 11), (3, 33)])
def test_leaving_an_epoch_early_or_jumping_begins_at_the_first_sample(epoch, cursor):
    sampler = made(11, 2)
    sampler.advance()
    sampler.set_epoch(epoch)
    assert sampler.state_dict()['cursor'] == cursor and sampler.epoch == epoch


def test_going_back_an_epoch_repeats_it():
    sampler = made(12, 4)
    first = drain(sampler)
    sampler.set_epoch(1)
    sampler.set_epoch(0)
    assert drain(sampler) == first


# -- errors ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('arguments, message', [
    ((0, 4), 'length must be a positive integer, the number of samples in the data set, got 0'),
    ((10, 0), 'batch_size must be a positive integer, the samples that each worker takes in one update, got 0'),
    ((10, -1), 'batch_size must be a positive integer'),
    ((10, 2.0), 'got 2.0'),
    ((10, True), 'got True'),
    (('10', 2), "length must be a positive integer, the number of samples in the data set, got '10'"),
    ((10, 2, -1), 'seed must be an integer from 0 to 2**64 - 1, got -1'),
    ((10, 2, 2 ** 64), 'seed must be an integer'),
    ((10, 2, None), 'got None'),
])
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError) as caught:
        ElasticSampler(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize('call, message', [
    (lambda s: s.set_world(11, [0]), 'the data set has 10 samples, fewer than the 11 workers: each worker needs at '
     'least one sample an update; use fewer workers (--max-np 10) or more data'),
    (lambda s: s.fix_global_batch(11), 'reference_batch=11 is larger than the data set (10 samples), so no update '
     'could ever have that many; choose at most 10'),
    (lambda s: (s.fix_global_batch(3), s.set_world(4, [0])), 'reference_batch=3 cannot be formed by 4 workers '
     'under FixedGlobalBatch: each needs at least one sample an update; raise reference_batch or limit the '
     'workers (--max-np 3)'),
    (lambda s: (s.set_world(4, [0]), s.fix_global_batch(3)), 'reference_batch=3 cannot be formed by 4 workers'),
    (lambda s: s.set_epoch(-1), 'epoch must be an integer of at least 0, got -1'),
    (lambda s: s.set_epoch(1.5), 'epoch must be an integer of at least 0, got 1.5'),
])
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError) as caught:
        call(made(10, 2))
    assert message in str(caught.value)


def test_update_past_the_end_of_the_epoch_is_refused():
    sampler = made(4, 4)
    sampler.advance()
    with pytest.raises(RuntimeError, match='epoch 0 has no update left'):
        sampler.advance()


@pytest.mark.parametrize('arguments, name', [((9, 2, 0), 'length'), ((10, 2, 1), 'seed'),
                                             ((10, 2, 0, False), 'shuffle')])
def test_state_of_another_order_is_refused(arguments, name):
    with pytest.raises(ValueError, match=f'the sampler here has {name}=.*the same data set and arguments'):
        made(10, 2).load_state_dict(ElasticSampler(*arguments).state_dict())
