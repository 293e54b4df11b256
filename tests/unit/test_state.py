"""GluonState: what is kept, what is put back, what is refused."""
import collections
import json

import mxnet as mx
import numpy as np
import pytest
from helpers import Job, Meter, at_update, bits, lose_worker, read_lines, resizes, small_net
from mxnet import gluon

import hvd_dynamic as dynamic
from hvd_dynamic import policies


def attributes():
    return {'best': 0.5, 'seen': 0, 'history': [], 'table': np.zeros(2), 'array': mx.nd.zeros(2), 'meter': Meter(),
            'pair': (1, None)}


def count(job):
    """What a training function does to its own attributes."""
    state = job.state
    state.seen += 1
    state.history.append(state.updates)
    state.table = state.table + 1
    state.array += 1
    state.meter.total += 2
    state.meter.table += 2


def counted(job):
    state = job.state
    return (state.seen, list(state.history), state.table.tolist(), state.array.asnumpy().tolist(), state.meter.total,
            state.meter.table.asnumpy().tolist(), state.pair)


# -- a lost worker -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize('optimizer, arguments, lost_at', [
    ('sgd', {'momentum': 0.9}, 1), ('sgd', {'momentum': 0.9}, 7), ('sgd', {'momentum': 0.9}, 10), ('sgd', {}, 7),
    ('nag', {'momentum': 0.9}, 7), ('adam', {}, 7), ('nadam', {}, 5), ('lars', {'momentum': 0.9}, 7)])
def test_training_after_a_failure_is_bit_for_bit_what_it_was_without(optimizer, arguments, lost_at):
    def job():
        return Job(optimizer=optimizer, optimizer_params=arguments, net=small_net(batchnorm=True),
                   base=mx.lr_scheduler.MultiFactorScheduler([4, 12], 0.5, base_lr=0.01), **attributes())

    def lose(job):
        count(job)
        failure(job)
    plain, failed, failure = job(), job(), at_update(lost_at, lose_worker)
    plain.train(epochs=2, after_update=count)
    failed.train(epochs=2, after_update=lose)
    assert failed.everything() == plain.everything()
    assert counted(failed) == counted(plain) and failed.state.seen == 20


def test_everything_is_as_it_was_at_the_commit():
    """Weights, momentum, counts, running statistics, schedule, sampler and attributes."""
    job = Job(net=small_net(batchnorm=True), **attributes())
    seen, at = {}, []

    def hook(job):
        count(job)
        if job.state.updates == 4 and 'then' not in seen:
            seen['then'] = job.everything(), counted(job)
        if job.state.updates == 7 and len(at) == 0:
            at.append(7)
            lose_worker(job)

    def train(state):
        if at and 'after' not in seen:
            seen['after'] = job.everything(), counted(job)
        return job.loop(1, hook, commit_every=4)(state)
    job.run(train)
    assert seen['after'] == seen['then']


def test_attribute_made_after_the_commit_is_gone():
    job = Job()
    job.train(epochs=1, commit_every=5,
              after_update=lambda job: at_seven(job))
    assert not hasattr(job.state, 'note')


def at_seven(job):
    if job.state.updates == 7 and not hasattr(job, 'lost'):
        job.state.note, job.lost = 'x', True
        lose_worker(job)


def test_updates_since_the_last_commit_are_done_again_and_no_more(tmp_path):
    job = Job(run_log=dynamic.RunLog(tmp_path, audit_samples=True))
    job.train(epochs=1, after_update=at_update(8, lose_worker), commit_every=3)
    updates = [line['update'] for line in read_lines(tmp_path / 'metrics.jsonl')]
    # the commit at update 6 was stored when update 7 began; update 8 was never confirmed
    assert updates == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10]
    audit = read_lines(tmp_path / 'samples-virtual-0.jsonl')
    assert [line['update'] for line in audit] == list(range(1, 11))
    assert sorted(sum((line['indices'] for line in audit), [])) == list(range(40))
    failed = [e for e in read_lines(tmp_path / 'events.jsonl') if e['kind'] == 'failed_over']
    assert [(e['update'], e['rolled_back_updates'], e['old_size'], e['new_size']) for e in failed] == [(6, 2, 1, 1)]


def test_second_failure_before_the_round_has_begun_writes_no_line_twice(tmp_path):
    job = Job(run_log=dynamic.RunLog(tmp_path, audit_samples=True))
    joins = []

    class Unlucky(dynamic.VirtualWorld):
        def join(self):
            joins.append(1)
            super().join()
            if len(joins) in (2, 3):
                lose_worker(None)
    job.world = Unlucky(1)
    job.train(epochs=1, after_update=at_update(4, lose_worker))
    assert len(joins) == 4
    assert [line['update'] for line in read_lines(tmp_path / 'samples-virtual-0.jsonl')] == list(range(1, 11))
    events = read_lines(tmp_path / 'events.jsonl')
    assert [e['kind'] for e in events] == ['started', 'failed_over', 'finished']
    assert events[1]['rolled_back_updates'] == 1 and events[1]['downtime_seconds'] > 0


def test_failure_in_the_middle_of_an_updates_passes_loses_that_update_alone():
    def lose(job):
        job.state.seen += 1
        if job.state.seen == 1 and job.state.updates == 3:
            lose_worker(job)
    plain, failed = (Job(policy=policies.FixedGlobalBatch(max_local_batch=3), reference=8) for _ in range(2))
    plain.train(epochs=1)
    hit = []

    def train(state):
        for state.epoch in range(state.epoch, 1):
            for batch in failed.sampler:
                loss = failed.backward(batch)
                failed.trainer.step(len(batch), loss=loss)
                if failed.trainer.in_update and state.updates == 2 and not hit:
                    hit.append(1)
                    lose_worker(failed)
                state.commit()
    failed.run(train)
    assert hit and failed.everything() == plain.everything()


def test_commit_between_the_passes_of_an_update_does_nothing():
    job = Job(world=2)
    before = []

    def train(state):
        for batch in job.sampler:
            job.backward(batch)
            job.trainer.step(len(batch))
            pending = state._pending
            state.commit()
            if job.trainer.in_update:
                before.append(state._pending is pending)
    job.run(train)
    assert before == [True] * 5


@pytest.mark.parametrize('hybridize', [False, True])
def test_commit_that_is_older_than_the_first_forward_pass(hybridize):
    """Deferred initialisation: after the failure the parameters are initialised anew, as nothing had been done."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    net.initialize(mx.init.Constant(0.3))
    if hybridize:
        net.hybridize()
    job, known = Job(net=net), []

    def train(state):
        known.append([p._data is not None for p in net.collect_params().values()])
        for batch in job.sampler:
            loss = job.backward(batch)
            if len(known) == 1:
                lose_worker(job)
            job.trainer.step(len(batch), loss=loss)
            state.commit()
    job.run(train)
    assert not all(known[0]) and all(known[1])
    assert job.state.updates == 10
    twin = gluon.nn.HybridSequential()
    twin.add(gluon.nn.Dense(5, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    twin.initialize(mx.init.Constant(0.3))
    plain = Job(net=twin)
    plain.train(epochs=1)
    assert job.everything()[0] == plain.everything()[0]


@pytest.mark.parametrize('rounds', [1, 3])
def test_failures_before_the_first_forward_pass_change_nothing(rounds):
    """Shapes are not known yet: there is nothing to initialise anew."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    net.initialize(mx.init.Constant(0.3))
    job, begun = Job(net=net), []

    def train(state):
        begun.append(1)
        if len(begun) <= rounds:
            lose_worker(job)
        return job.loop(1)(state)
    assert job.run(train) == 10 and len(begun) == rounds + 1


def test_failure_after_initialisation_was_committed_keeps_it():
    net = gluon.nn.Dense(1)
    net.initialize(mx.init.Constant(0.3))
    twin = gluon.nn.Dense(1)
    twin.initialize(mx.init.Constant(0.3))
    job, plain = Job(net=net), Job(net=twin)
    job.train(epochs=1, after_update=at_update(3, lose_worker))
    plain.train(epochs=1)
    assert job.everything() == plain.everything()


@pytest.mark.parametrize('make', [
    lambda net: net.hybridize(),
    lambda net: net.hybridize(static_alloc=True, static_shape=True),
    lambda net: setattr(net[0].bias, 'grad_req', 'null'),
    lambda net: setattr(net[0].weight, 'lr_mult', 0.1),
    lambda net: setattr(net[0].weight, 'wd_mult', 0.0)],
    ids=['hybrid', 'static', 'grad_req null', 'lr_mult', 'wd_mult'])
def test_all_kinds_of_networks_come_through_resizes_and_failures_alike(make):
    """Failures and resizes that lead back to one worker before the next update change nothing."""
    def job():
        net = small_net(batchnorm=True)
        make(net)
        return Job(net=net)
    plain, tried = job(), job()
    plain.train(epochs=2)
    failure = at_update(6, lose_worker)
    tried.train(epochs=2, after_update=failure)
    assert tried.everything() == plain.everything()
    if tried.net[0].bias.grad_req == 'null':
        np.testing.assert_array_equal(tried.net[0].bias.data().asnumpy(), job().net[0].bias.data().asnumpy())


def test_shared_parameters_are_kept_once():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=3, activation='tanh'))
    net.add(gluon.nn.Dense(3, in_units=3, activation='tanh', params=net[0].params), gluon.nn.Dense(1, in_units=3))
    net.initialize(mx.init.Constant(0.2))
    job = Job(net=net)
    job.train(epochs=1, after_update=at_update(4, lose_worker))
    assert len(job.trainer.state_arrays()) == 4 and net[0].weight is net[1].weight


def test_parameters_outside_of_the_trainer_are_kept_too():
    def job():
        job = Job(net=small_net())
        job.trainer = dynamic.DynamicTrainer(job.net[1].collect_params(), 'sgd', schedule=job.schedule)
        job.state = dynamic.GluonState(net=job.net, trainer=job.trainer, sampler=job.sampler, epoch=0)
        return job
    failed, plain = job(), job()

    def lose(job):
        job.net[0].bias.data()[:] += 1
        failure(job)
    failure = at_update(5, lose_worker)
    failed.train(epochs=1, after_update=lose)
    failure = at_update(50, lose_worker)
    plain.train(epochs=1, after_update=lose)
    assert failed.everything() == plain.everything()


# -- fixed global batch over resizes -----------------------------------------------------------------------------

def losses(folder):
    return [line['loss'] for line in read_lines(folder / 'metrics.jsonl')]


def test_fixed_global_batch_over_resizes_has_the_loss_curve_of_one_worker(tmp_path):
    """To 1e-5 of the loss: the same samples, summed in another order, in float32, over 24 updates."""
    plan = {3: 4, 7: 1, 8: 3, 15: 8, 19: 2, 22: 5}
    elastic = Job(world=2, policy=policies.FixedGlobalBatch(), reference=10, run_log=dynamic.RunLog(tmp_path / 'a'))
    alone = Job(policy=policies.FixedGlobalBatch(), reference=10, run_log=dynamic.RunLog(tmp_path / 'b'))
    elastic.train(epochs=6, after_update=resizes(plan))
    alone.train(epochs=6)
    assert len(losses(tmp_path / 'a')) == 24
    np.testing.assert_allclose(losses(tmp_path / 'a'), losses(tmp_path / 'b'), rtol=1e-5)


# -- attributes --------------------------------------------------------------------------------------------------

def test_attributes_are_read_and_set_like_any_other():
    state = Job(**attributes()).state
    state.best = 0.75
    state.best += 0.125
    assert state.best == 0.875 and state.meter.total == 0
    with pytest.raises(AttributeError, match=r"GluonState has no attribute 'worst'; give it to GluonState\(worst="):
        _ = state.worst
    assert not hasattr(state, 'worst')


@pytest.mark.parametrize('value', [{1, 2}, object(), b'x', lambda: 0, {1: 2}])
def test_attribute_that_cannot_be_carried_is_refused_at_once(value):
    with pytest.raises(TypeError, match="state attribute 'mine' holds .* which cannot be carried to other workers"):
        Job(mine=value)
    state = Job().state
    with pytest.raises(TypeError, match='mine'):
        state.mine = value
    assert not hasattr(state, 'mine')


def test_attribute_that_became_uncarriable_is_refused_at_the_commit():
    job = Job(history=[])
    with pytest.raises(TypeError, match="state attribute 'history' holds a set"):
        job.train(after_update=lambda job: job.state.history.append({1}))


@pytest.mark.parametrize('name', ['commit', 'restore', 'world', 'updates', 'callbacks', 'digest'])
def test_attribute_named_like_a_part_of_the_state_is_refused(name):
    with pytest.raises(AttributeError, match=f'{name!r} is a part of GluonState itself; choose another name'):
        setattr(Job().state, name, 1)


def test_attribute_with_an_underscore_is_not_silently_left_behind():
    """Private names are the state's own: one of the user's would not be carried, or break the state."""
    with pytest.raises((AttributeError, TypeError, ValueError)):
        Job(_seen=0)


@pytest.mark.parametrize('arguments, message', [
    ({'net': None}, 'net must be a gluon.Block, got None'),
    ({'trainer': 'sgd'}, "trainer must be a DynamicTrainer, got 'sgd'"),
    ({'sampler': [1]}, r'sampler must be a ElasticSampler, got \[1\]'),
    ({'run_log': 'folder'}, "run_log must be a RunLog or None, got 'folder'")])
def test_arguments_of_the_wrong_kind_are_refused(arguments, message):
    job = Job()
    with pytest.raises(TypeError, match=message):
        dynamic.GluonState(**{'net': job.net, 'trainer': job.trainer, 'sampler': job.sampler, **arguments})


def test_plain_gluon_trainer_is_refused():
    job = Job()
    with pytest.raises(TypeError, match='trainer must be a DynamicTrainer'):
        dynamic.GluonState(job.net, gluon.Trainer(job.net.collect_params(), 'sgd'), job.sampler)


def test_epoch_attribute_tells_the_sampler():
    job = Job()
    job.state.epoch = 3
    assert job.sampler.epoch == 3
    with pytest.raises(ValueError, match='epoch must be an integer'):
        job.state.epoch = -1
    assert job.state.epoch == 3


def test_schedule_by_epochs_learns_the_length_of_the_data_set():
    assert Job(base=lambda epoch: 0.1).schedule.samples_per_epoch == 40


def test_reference_batch_that_the_sizes_cannot_form_is_refused():
    with pytest.raises(ValueError, match='reference_batch=41 is larger than the data set'):
        Job(policy=policies.FixedGlobalBatch(), reference=41)
    with pytest.raises(ValueError, match='reference_batch=3 cannot be formed by 4 workers'):
        Job(world=4, policy=policies.FixedGlobalBatch(), reference=3).train()


def test_commit_and_world_outside_of_run_say_so():
    state = Job().state
    with pytest.raises(RuntimeError, match=r'state.commit\(\) works only inside a function decorated'):
        state.commit()
    with pytest.raises(RuntimeError, match='GluonState.world is known only inside a function decorated'):
        _ = state.world


def test_callback_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="a callback must be callable, got 'log'"):
        Job().state.register_callback('log')


def test_commit_is_one_copy_of_the_arrays_in_memory():
    job = Job(optimizer='adam')
    job.train(epochs=1)
    state = job.state
    held = state._weights.nbytes() + state._optimizer_state.nbytes()
    originals = [p.data() for p in job.net.collect_params().values()] + job.trainer.state_arrays()
    assert held == sum(a.size * 4 for a in originals)


def test_running_statistics_of_a_virtual_world_are_left_alone_by_averaging():
    job = Job(world=2, net=small_net(batchnorm=True))
    before = [bits(a) for a in job.state._statistics().values()]
    job.run(lambda state: state.average_running_stats())
    assert [bits(a) for a in job.state._statistics().values()] == before


def test_digest_tells_states_apart():
    job, other = Job(best=0.5), Job(best=0.5)
    other.state._training = job.state._training
    job.run(lambda state: None)
    other.run(lambda state: None)
    assert job.state.digest(arrays=False) == other.state.digest(arrays=False)
    other.run(lambda state: setattr(state, 'best', 0.25))
    assert job.state.digest(arrays=False) != other.state.digest(arrays=False)
    assert json.dumps(job.state._committed.numbers)


class Holder:
    def __init__(self, content):
        self.content = content

    def state_dict(self):
        return {'content': self.content}

    def load_state_dict(self, state):
        self.content = state['content']


def test_rollback_undoes_freezing_and_multipliers():
    job, seen = Job(), []

    def change(job):
        if not seen:
            seen.append(1)
            job.net[0].weight.grad_req, job.net[0].bias.lr_mult = 'null', 0.1
            lose_worker(job)
        else:
            seen.append((job.net[0].weight.grad_req, job.net[0].bias.lr_mult))
    job.train(epochs=1, after_update=change)
    assert set(seen[1:]) == {('write', 1.0)}


@pytest.mark.parametrize('value', [collections.namedtuple('Best', 'accuracy')(1), collections.OrderedDict(a=1),
                                   collections.defaultdict(int), np.ma.masked_array([1, 2], [True, False]), Holder({1, 2})])
def test_value_that_would_come_back_as_another_type_is_refused_when_it_is_set(value):
    with pytest.raises(TypeError, match="state attribute 'best' holds a"):
        Job(best=value)
