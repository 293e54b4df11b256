"""How workers come to the same state, and whole trainings on several workers; the workers are threads here."""
import functools
import threading

import mxnet as mx
import numpy as np
import pytest
from helpers import Group, Job, ThreadWorld, at_update, bits, raise_errors, read_lines, small_net
from mxnet import gluon

import hvd_dynamic as dynamic
from hvd_dynamic import elastic, policies
from hvd_dynamic.errors import JoinFailed
from hvd_dynamic.sync import synchronise


def jobs_of(group, seeds=None, **arguments):
    """A job for each worker, whose networks begin with different weights."""
    return [Job(world=world, net=small_net(batchnorm=True, seed=world.rank if seeds is None else seeds),
                **{'reference': 8, **arguments}) for world in group.worlds]


def meet(group, jobs, failed=False):
    """Enter a round and synchronise, as the loop does; what each worker came to know."""
    def work(world):
        job = jobs[world.rank]
        job.state.bind(world)
        world.join()
        meeting = synchronise(job.state, failed)
        job.state.begin_round(meeting)
        return meeting
    return group.each(work)


def train(group, jobs, epochs=2, hooks=None, commit_every=1):
    """`hvd_dynamic.run` on every worker."""
    def work(world):
        job = jobs[world.rank]
        job.state.bind(world)
        hook = (hooks or {}).get(world.rank)
        return elastic._loop(world, job.state, functools.partial(job.loop(epochs, hook, commit_every), job.state))
    return group.each(work, [job.world for job in jobs])


def same(jobs):
    first = jobs[0].everything()
    return all(job.everything() == first for job in jobs[1:])


def commit_anew(job):
    job.state._store(job.state._take())


# -- the start ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('size', [2, 3, 4])
def test_workers_that_start_differently_start_from_rank_0(size):
    group = Group(size)
    jobs = jobs_of(group, optimizer='adam')
    weights = [bits(w) for w in jobs[0].weights()]
    meetings = raise_errors(meet(group, jobs))
    assert same(jobs) and [bits(w) for w in jobs[-1].weights()] == weights
    assert all(m.old == {} and not m.survivor and m.update == 0 and len(m.new) == size for m in meetings)
    assert meetings[0].slots == [f'thread:{rank}' for rank in range(size)]


def test_worker_that_knows_more_parameters_gives_them():
    group = Group(3)
    jobs = []
    for world in group.worlds:
        net = gluon.nn.Dense(2) if world.rank != 1 else gluon.nn.Dense(2, in_units=3)
        net.initialize(mx.init.Constant(0.1 * (world.rank + 1)))
        jobs.append(Job(world=world, net=net, reference=8))
    raise_errors(meet(group, jobs))
    assert same(jobs) and jobs[0].net.weight.shape == (2, 3)
    np.testing.assert_allclose(jobs[0].net.weight.data().asnumpy(), 0.2, rtol=1e-6)


def test_parameters_that_no_worker_knows_get_one_value_when_they_are_first_used():
    group = Group(3)
    jobs = []
    for world in group.worlds:
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(5), gluon.nn.Dense(1))
        net.initialize(mx.init.Constant(0.1 * (world.rank + 1)))
        jobs.append(Job(world=world, net=net, reference=12))
    raise_errors(train(group, jobs, epochs=1))
    assert same(jobs) and jobs[0].state.updates == 4


# -- the freshest wins -------------------------------------------------------------------------------------------

def at_same_place(group, **arguments):
    jobs = jobs_of(group, **arguments)
    raise_errors(train(group, jobs, epochs=1))
    return jobs


def again(group):
    group.announce(group.next.size)
    group.sent.clear()


@pytest.mark.parametrize('size', [2, 3, 4])
def test_nothing_but_the_greetings_is_sent_when_all_are_equal(size):
    group = Group(size)
    jobs = at_same_place(group, best=0.5)
    again(group)
    meetings = raise_errors(meet(group, jobs))
    assert {name for name, _ in group.sent} == {'sync.greeting'}
    assert group.bytes_of('sync.greeting') < 10000
    assert all(m.survivor and m.update == jobs[0].state.updates and m.rolled_back == 0 for m in meetings)
    assert [m.first_survivor for m in meetings] == [True] + [False] * (size - 1)


@pytest.mark.parametrize('fresh', [0, 1, 2])
def test_freshest_commit_wins_whatever_its_rank(fresh):
    group = Group(3)
    jobs = at_same_place(group, batch=4, seen=0)
    job = jobs[fresh]
    for param in job.net.collect_params().values():
        param.data()[:] += 0.25
    job.trainer.update_count += 1
    job.state.seen = 7
    commit_anew(job)
    expected = [bits(w) for w in job.weights()]
    again(group)
    meetings = raise_errors(meet(group, jobs))
    assert same(jobs) and [bits(w) for w in jobs[0].weights()] == expected
    assert {m.update for m in meetings} == {job.state.updates} and {j.state.seen for j in jobs} == {7}


def halving():
    return mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)


def test_newcomer_becomes_what_the_survivors_are_also_with_deferred_parameters():
    group = Group(2)
    jobs = at_same_place(group, optimizer='adam', table=np.zeros(2), base=halving())
    newcomer, = group.announce(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    net.initialize()
    job = Job(world=newcomer, net=net, optimizer='adam', reference=8, table=np.ones(2), base=halving())
    group.worlds.append(newcomer)
    jobs.append(job)
    meetings = raise_errors(meet(group, jobs))
    assert same(jobs) and len(job.trainer.state_arrays()) == len(jobs[0].trainer.state_arrays()) > 0
    assert job.state.table.tolist() == [0, 0] and job.schedule.base_lr() == jobs[0].schedule.base_lr()
    assert [m.survivor for m in meetings] == [True, True, False]
    assert meetings[2].old == meetings[0].old and len(meetings[2].old) == 2


@pytest.mark.parametrize('change', [
    lambda job: setattr(job.state, 'best', 0.75), lambda job: setattr(job.state, 'note', 'mine'),
    lambda job: setattr(job.trainer.optimizer, 'wd', 0.5)], ids=['value', 'new', 'optimizer'])
def test_difference_in_the_numbers_forces_a_transfer(change):
    group = Group(3)
    jobs = at_same_place(group, best=0.5)
    change(jobs[2])
    commit_anew(jobs[2])
    again(group)
    raise_errors(meet(group, jobs))
    assert same(jobs) and 'sync.numbers' in [name for name, _ in group.sent]
    assert {j.state.best for j in jobs} == {0.5} and not hasattr(jobs[2].state, 'note')
    assert len({j.trainer.optimizer.wd for j in jobs}) == 1


def test_difference_in_the_arrays_after_a_failure_forces_a_transfer_from_the_majority():
    group = Group(3)
    jobs = at_same_place(group)
    jobs[0].net[0].weight.data()[:] += 1
    commit_anew(jobs[0])
    again(group)
    raise_errors(meet(group, jobs, failed=True))
    assert same(jobs)


# -- running statistics ------------------------------------------------------------------------------------------

def statistics(job):
    return [a.asnumpy() for a in job.state._statistics().values()]


def spread(jobs):
    """Running statistics as after a round in which each worker saw other data, committed."""
    for rank, job in enumerate(jobs):
        for array in job.state._statistics().values():
            array[:] = rank + 1
        commit_anew(job)


def test_running_statistics_are_averaged_over_those_who_had_the_freshest_commit():
    group = Group(3)
    jobs = at_same_place(group)
    spread(jobs)
    again(group)
    raise_errors(meet(group, jobs))
    assert same(jobs)
    for array in statistics(jobs[0]):
        np.testing.assert_allclose(array, 2.0, rtol=1e-6)


def test_running_statistics_of_survivors_are_averaged_when_a_newcomer_comes_too():
    group = Group(2)
    jobs = at_same_place(group)
    spread(jobs)
    newcomer, = group.announce(3)
    group.worlds.append(newcomer)
    jobs += [Job(world=newcomer, net=small_net(batchnorm=True, seed=9), reference=8)]
    raise_errors(meet(group, jobs))
    assert same(jobs)
    for array in statistics(jobs[2]):
        np.testing.assert_allclose(array, 1.5, rtol=1e-6)


def test_running_statistics_are_averaged_before_an_evaluation():
    group = Group(2)
    jobs = jobs_of(group)
    seen = []

    def hook(job):
        if job.state.updates == 3:
            before = statistics(job)
            job.state.average_running_stats()
            seen.append((before, statistics(job)))
    raise_errors(train(group, jobs, epochs=1, hooks={0: hook, 1: hook}))
    (before_0, after_0), (before_1, after_1) = seen
    for a, b, mean, other in zip(before_0, before_1, after_0, after_1):
        assert not np.array_equal(a, b) and mean.tobytes() == other.tobytes()
        np.testing.assert_allclose(mean, (a + b) / 2, rtol=1e-5)


def test_parameters_that_are_no_statistics_are_not_touched_by_averaging():
    """Constants are the same everywhere: adding up thirds of them must not change them."""
    class Scaled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.scale = self.params.get_constant('scale', mx.nd.array([[0.1, 0.7, 1 / 3]]))
                self.out = gluon.nn.Dense(1, in_units=3)

        def hybrid_forward(self, F, x, scale):
            return self.out(F.broadcast_mul(x, scale))
    group = Group(3)
    jobs = []
    for world in group.worlds:
        net = Scaled()
        net.initialize()
        jobs.append(Job(world=world, net=net, reference=12))
    raise_errors(train(group, jobs, epochs=1))
    assert same(jobs) and bits(jobs[0].net.scale.data()) == bits(mx.nd.array([[0.1, 0.7, 1 / 3]]))


# -- what does not fit together ----------------------------------------------------------------------------------

def wide(world):
    net = gluon.nn.Dense(2 if world.rank == 2 else 1, in_units=3)
    net.initialize()
    return net


def longer(world):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(1, in_units=3, use_bias=world.rank != 2))
    net.initialize()
    return net


def double(world):
    net = gluon.nn.Dense(1, in_units=3)
    net.initialize()
    net.cast('float64' if world.rank == 2 else 'float32')
    return net


@pytest.mark.parametrize('make, message', [
    (lambda w: {'net': wide(w)}, r'weight differs in shape between workers: \(1, 3\) on rank 0, \(2, 3\) on rank 2'),
    (lambda w: {'net': double(w)}, 'weight differs in type between workers: .*float32.* on rank 0, .*float64.* on rank 2'),
    (lambda w: {'net': longer(w)}, 'the number of parameters differs between workers: 2 on rank 0, 1 on rank 2'),
    (lambda w: {'seed': w.rank // 2}, 'seed of the sampler differs between workers: 0 on rank 0, 1 on rank 2'),
    (lambda w: {'batch': 2 + w.rank // 2}, 'batch_size of the sampler differs between workers: 2 on rank 0, 3 on rank 2'),
    (lambda w: {'samples': 40 + w.rank // 2}, 'length of the data set differs between workers: 40 on rank 0, 41'),
    (lambda w: {'reference': 8 + w.rank // 2}, 'reference_batch differs between workers: 8 on rank 0, 9 on rank 2'),
    (lambda w: {'optimizer': 'adam' if w.rank == 2 else 'sgd'},
     "optimizer differs between workers: 'SGD' on rank 0, 'Adam'"),
    (lambda w: {'policy': policies.Linear() if w.rank == 2 else None},
     'policy differs between workers: .*Smooth.* on rank 0, .*Linear'),
    (lambda w: {'base': 0.1 + w.rank // 2}, 'base'),
], ids=['shape', 'type', 'number', 'seed', 'batch_size', 'length', 'reference_batch', 'optimizer', 'policy', 'base'])
def test_mismatch_is_the_same_error_on_all_workers(make, message):
    group = Group(3)
    jobs = [Job(world=world, **{'reference': 8, **make(world)}) for world in group.worlds]
    errors = meet(group, jobs)
    assert all(type(error) is ValueError for error in errors)
    assert len({str(error) for error in errors}) == 1
    pytest.raises(ValueError, raise_errors, errors).match(message)


def test_type_may_be_spelled_differently():
    """'float32' and numpy.float32 are one type: `cast` and `load_parameters` write the latter."""
    group = Group(2)
    jobs = [Job(world=world, net=small_net(), reference=8) for world in group.worlds]
    jobs[1].net[1].weight.cast(np.float32)
    raise_errors(meet(group, jobs))


# -- whole trainings ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize('size', [2, 3])
def test_several_workers_do_what_one_does_with_the_whole_batch(size):
    """Bit for bit the same on all; as one worker to the rounding of sums in another order."""
    group = Group(size)
    jobs = [Job(world=world, net=small_net(seed=5), batch=4, reference=4 * size) for world in group.worlds]
    raise_errors(train(group, jobs, epochs=2))
    assert same(jobs)
    alone = Job(net=small_net(seed=5), batch=4 * size)
    alone.train(epochs=2)
    for a, b in zip(jobs[0].weights(), alone.weights()):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('num_groups', [None, 0, 2, 3])
def test_gradients_travel_once_and_with_an_update_nothing_else_but_five_numbers(num_groups):
    group = Group(2)
    jobs = [Job(world=world, net=small_net(), reference=8) for world in group.worlds]
    plain = jobs[0].weights()
    for job in jobs:
        job.trainer = dynamic.DynamicTrainer(job.net.collect_params(), 'sgd', schedule=job.schedule,
                                             num_groups=num_groups)
        job.state = dynamic.GluonState(net=job.net, trainer=job.trainer, sampler=job.sampler, epoch=0)
    raise_errors(train(group, jobs, epochs=1))
    assert same(jobs) and not np.array_equal(plain[0], jobs[0].weights()[0])
    assert group.bytes_of('grad') == 5 * (sum(w.nbytes for w in plain) + 5 * 4)
    others = {name for name, _ in group.sent if not name.startswith(('grad', 'sync.'))}
    assert others == {'barrier', 'finish.weights'}


@pytest.mark.parametrize('num_groups', [-1, 1.5, True, 'two'])
def test_bad_number_of_groups_is_refused(num_groups):
    with pytest.raises(ValueError, match='num_groups must be an integer of at least 0, got'):
        dynamic.DynamicTrainer(small_net().collect_params(), 'sgd', schedule=dynamic.DynamicSchedule(0.1, 8),
                               num_groups=num_groups)


def test_workers_grow_and_shrink_and_stay_the_same_to_the_last_bit(tmp_path):
    """2 -> 3 -> 1, announced to rank 0 alone: all leave at the same update, nothing is rolled back."""
    group = Group(2)
    logs = [dynamic.RunLog(tmp_path, audit_samples=True) for _ in range(3)]
    jobs = [Job(world=world, net=small_net(batchnorm=True, seed=world.rank), reference=8, run_log=logs[world.rank])
            for world in group.worlds]
    newcomer = ThreadWorld(group, 2)
    jobs.append(Job(world=newcomer, net=small_net(batchnorm=True, seed=7), reference=8, run_log=logs[2]))
    events, digests, started = [], {}, threading.Event()
    jobs[0].state.register_callback(events.append)

    def grow(job):
        group.announce(3)
        started.set()
    at_start, at_end = at_update(2, grow), at_update(6, lambda job: group.announce(1))

    def hook(job):
        digests.setdefault(job.state.updates, []).append(job.everything()[0][0])
        if job is jobs[0]:
            at_start(job)
            at_end(job)

    def work(world):
        job = jobs[world.rank]
        if world is newcomer:
            assert started.wait(20)
        job.state.bind(world)
        return elastic._loop(world, job.state, functools.partial(job.loop(3, hook), job.state))
    results = group.each(work, [job.world for job in jobs])
    assert isinstance(results[1], SystemExit) and isinstance(results[2], SystemExit)
    assert results[1].code == results[2].code == 0
    assert results[0] == jobs[0].state.updates
    assert [(e.old_size, e.new_size, e.rolled_back_updates, e.failed) for e in events] == [
        (2, 3, 0, False), (3, 1, 0, False)]
    assert all(len(set(d)) == 1 for d in digests.values()) and len(digests[events[0].update + 1]) == 3
    # agreed with the gradients of the next update, so known to all with the one after it
    assert events[0].update in (3, 4) and events[1].update in (7, 8)
    assert [m['update'] for m in read_lines(tmp_path / 'metrics.jsonl')] == list(range(1, jobs[0].state.updates + 1))
    used = [i for path in tmp_path.glob('samples-*.jsonl') for line in read_lines(path)
            for i in line['indices'] if line['epoch'] == 0]
    assert sorted(used) == list(range(40))


@pytest.mark.parametrize('dies', [0, 2])
def test_survivors_of_a_lost_worker_go_on_from_the_last_commit(tmp_path, dies):
    """The lost one is rank 2, or rank 0, whose place another takes."""
    group = Group(3)
    logs = [dynamic.RunLog(tmp_path, audit_samples=True) for _ in range(3)]
    jobs = [Job(world=world, net=small_net(batchnorm=True), reference=8, run_log=logs[world.rank])
            for world in group.worlds]

    class Killed(BaseException):
        pass

    def die(job):
        if dies == 0:
            for world in group.worlds[1:]:
                world.rank -= 1
        group.announce(2)
        raise Killed
    events = []
    jobs[1].state.register_callback(events.append)
    results = train(group, jobs, epochs=2, hooks={dies: at_update(3, die)})
    survivors = [job for rank, job in enumerate(jobs) if rank != dies]
    assert type(results[dies]) is Killed and same(survivors)
    assert [job.state.updates for job in survivors] == [r for rank, r in enumerate(results) if rank != dies]
    event, = events
    assert event.failed and (event.old_size, event.new_size) == (3, 2) and event.removed == [f'thread:{dies}']
    assert event.update in (2, 3) and event.rolled_back_updates <= 2
    used = [i for path in tmp_path.glob('samples-*.jsonl') for line in read_lines(path)
            for i in line['indices'] if line['epoch'] == 0]
    assert sorted(used) == list(range(40))


def test_failure_while_a_round_begins_is_tried_again():
    group = Group(2)
    jobs = jobs_of(group)
    joins = []

    def work(world):
        job = jobs[world.rank]
        job.state.bind(world)
        join = world.join

        def unlucky():
            join()
            joins.append(world.rank)
            if joins.count(1) == 1 and world.rank == 1:
                group.announce(2)
                raise JoinFailed('lost')
        world.join = unlucky
        return elastic._loop(world, job.state, functools.partial(job.loop(1), job.state))
    assert raise_errors(group.each(work)) == [5, 5]
    assert sorted(joins) == [0, 0, 1, 1] and same(jobs)


def test_newcomer_gets_the_multipliers_that_the_script_has_set_on_its_way():
    group = Group(2)
    jobs = at_same_place(group)
    for job in jobs:
        job.state._params[0].lr_mult, job.state._params[1].wd_mult = 0.25, 3.0
        job.trainer.optimizer.set_lr_mult({job.state._params[1].name: 0.5})
        commit_anew(job)
    newcomer, = group.announce(3)
    group.worlds.append(newcomer)
    jobs += [Job(world=newcomer, net=small_net(batchnorm=True, seed=9), reference=8)]
    raise_errors(meet(group, jobs))
    param = jobs[2].state._params
    assert (param[0].lr_mult, param[1].wd_mult) == (0.25, 3.0)
    assert list(jobs[2].trainer.optimizer.lr_mult.values()) == [0.5]


def test_newcomer_in_another_training_function_leaves_and_takes_nothing_over():
    group = Group(2)
    jobs = at_same_place(group)
    newcomer, = group.announce(3)
    group.worlds.append(newcomer)
    jobs += [Job(world=newcomer, net=small_net(batchnorm=True, seed=9), reference=8)]
    before = jobs[2].everything()

    def work(world):
        jobs[world.rank].state.bind(world, 1 if world is newcomer else 2)
        world.join()
        synchronise(jobs[world.rank].state)
    first, second, third = group.each(work)
    assert type(first) is type(second) is JoinFailed
    assert type(third) is ValueError and 'training function number 1 of its script, the others are in number 2' in str(third)
    assert jobs[2].everything() == before


def test_weights_that_part_are_told_at_the_end(caplog):
    group = Group(2)
    jobs = jobs_of(group)

    def part(world):
        job = jobs[world.rank]
        job.state.bind(world)
        world.join()
        job.state.begin_round(synchronise(job.state))
        job.state._params[0].data()[:] += world.rank
        job.state.finish()
    raise_errors(group.each(part))
    assert 'the weights of the workers differ at the end' in caplog.text
