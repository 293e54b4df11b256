"""The loop around training: resizes, failures, events, and what passes through it."""
import logging

import mxnet as mx
import pytest
from helpers import Job, at_update, lose_worker, read_lines, resizes, small_net
from mxnet.base import MXNetError

import hvd_dynamic as dynamic
from hvd_dynamic import elastic, policies
from hvd_dynamic.schedule import DynamicSchedule


def events_of(job, **arguments):
    events = []
    job.state.register_callback(events.append)
    job.train(**arguments)
    return events


def test_callbacks_are_told_what_a_resize_did():
    job = Job(world=2, base=0.1, policy=policies.Smooth(updates=4))
    epochs = []
    job.state.register_callback(lambda event: epochs.append(job.state.epoch))
    grown, shrunk = events_of(job, epochs=2, after_update=resizes({2: 4, 6: 1}))
    assert (grown.old_size, grown.new_size, grown.update, grown.epoch) == (2, 4, 2, 0)
    assert (grown.added, grown.removed) == (['virtual:2', 'virtual:3'], [])
    assert (grown.old_global_batch, grown.global_batch) == (8, 16)
    assert (grown.old_lr, grown.lr, grown.lr_scale, grown.transition_updates) == (0.1, 0.2, 2.0, 4)
    assert (grown.rolled_back_updates, grown.failed) == (0, False) and 0 < grown.pause_seconds < 5
    assert (shrunk.old_size, shrunk.new_size, shrunk.update, shrunk.epoch) == (4, 1, 6, 1)
    assert (shrunk.added, shrunk.removed) == ([], ['virtual:1', 'virtual:2', 'virtual:3'])
    assert (shrunk.old_lr, shrunk.lr) == (0.2, 0.05)
    assert epochs == [0, 1]
    assert str(grown).startswith('resized: 2 -> 4 workers at update 2 (epoch 0) +virtual:2 +virtual:3; batch 8 -> 16, '
                                 'lr 0.1 -> 0.2 over 4 updates; pause ')


def test_start_of_a_job_is_no_resize():
    assert events_of(Job(world=3)) == []


def test_failure_is_told_from_a_resize():
    job = Job(world=3)

    def lose(job):
        job.world.resize(2)
        lose_worker(job)
    event, = events_of(job, epochs=1, after_update=at_update(2, lose), commit_every=100)
    assert event.failed and event.update == 0 and event.rolled_back_updates == 2
    assert (event.old_size, event.new_size, event.removed) == (3, 2, ['virtual:2'])
    assert 'lost a worker: 3 -> 2 workers at update 0' in str(event) and '2 updates to do again' in str(event)


def test_graceful_resizes_roll_nothing_back_and_use_each_sample_once(tmp_path):
    job = Job(world=2, samples=37, batch=3, run_log=dynamic.RunLog(tmp_path, audit_samples=True))
    job.train(epochs=3, after_update=resizes({2: 4, 5: 1, 9: 3}))
    metrics = read_lines(tmp_path / 'metrics.jsonl')
    assert [m['update'] for m in metrics] == list(range(1, job.state.updates + 1))
    assert [m['world_size'] for m in metrics][:10] == [2, 2, 4, 4, 4, 1, 1, 1, 1, 3]
    lines = [line for path in sorted(tmp_path.glob('samples-virtual-*.jsonl')) for line in read_lines(path)]
    used = [[] for _ in range(3)]
    for line in lines:
        if line['carried']:
            used[line['epoch'] - 1] += line['indices'][:line['carried']]
        used[line['epoch']] += line['indices'][line['carried']:]
    assert [sorted(epoch) for epoch in used[:2]] == [list(range(37))] * 2
    assert len(set(used[2])) == len(used[2]) >= 37 - 2
    assert sum(m['global_batch'] for m in metrics) == metrics[-1]['samples'] == job.schedule.samples_seen
    events = read_lines(tmp_path / 'events.jsonl')
    assert [(e['kind'], e['update']) for e in events] == [
        ('started', 0), ('resized', 2), ('resized', 5), ('resized', 9), ('finished', job.state.updates)]
    assert [(e['old_size'], e['new_size'], e['rolled_back_updates']) for e in events[1:4]] == [
        (2, 4, 0), (4, 1, 0), (1, 3, 0)]
    assert events[1]['added'] == ['virtual:2', 'virtual:3'] and events[1]['downtime_seconds'] >= 0


@pytest.mark.parametrize('policy', [policies.Smooth(updates=5), policies.Linear(), policies.Compensated()], ids=repr)
def test_learning_rate_in_the_log_is_the_policys_to_the_last_digit(tmp_path, policy):
    plan, base = {2: 4, 4: 1, 9: 3}, lambda: mx.lr_scheduler.CosineScheduler(20, 0.1, 0.003, warmup_steps=3)
    job = Job(policy=policy, base=base(), reference=8, run_log=dynamic.RunLog(tmp_path))
    job.train(epochs=3, after_update=resizes(plan))
    metrics = read_lines(tmp_path / 'metrics.jsonl')
    scale = previous = policy.target(4 / 8)
    size, samples, start, target, done, updates = 1, 0, None, None, 0, 0
    for line in metrics:
        if done < updates:
            done += 1
            scale = target if done == updates else start + (target - start) * done / updates
        rho = policy.momentum_scale(previous, scale) if scale != previous else 1.0
        assert line['lr'] == base()(min(samples / 8, 20)) * scale
        assert (line['lr_scale'], line['momentum_scale']) == (scale, rho)
        samples, previous = samples + line['global_batch'], scale
        if line['update'] in plan:
            start, target, done = scale, policy.target(plan[line['update']] * 4 / 8), 0
            updates = policy.transition_updates(plan[line['update']] / size)
            size = plan[line['update']]
    assert len(metrics) == 15 and previous != policy.target(4 / 8)


def test_resize_with_the_last_update_of_an_epoch_goes_on_with_the_next():
    job = Job(world=2, samples=16, batch=4)
    job.train(epochs=3, after_update=resizes({2: 4, 3: 1}))
    assert job.state.updates == 2 + 1 + 4 and job.schedule.samples_seen == 48


def test_resize_announced_between_commits_waits_for_the_next_one():
    job = Job()
    event, = events_of(job, epochs=1, after_update=resizes({2: 2}), commit_every=4)
    assert event.update == 4


def test_training_is_left_even_through_a_broad_except():
    job = Job()

    def train(state):
        for batch in job.sampler:
            job.backward(batch)
            job.trainer.step(len(batch))
            if job.trainer.in_update:
                continue
            if state.updates == 2:
                job.world.resize(2)
            try:
                state.commit()
            except Exception:       # a user's clumsy one
                pytest.fail('a resize is no Exception')
    job.run(train)
    assert job.world.size == 2


def test_what_the_function_returns_is_returned_and_its_arguments_are_passed():
    job = Job()
    assert job.run(lambda state: 'done') == 'done'

    @dynamic.run
    def train(state, a, b=0):
        """Trains."""
        return a, b
    assert train(job.state, 1, b=2) == (1, 2)
    assert (train.__name__, train.__doc__) == ('train', 'Trains.')


def test_second_training_function_goes_on_without_an_imaginary_resize():
    job = Job()
    events = events_of(job, epochs=1)
    job.train(epochs=2)
    assert job.state.updates == 20 and events == []


class Boom(Exception):
    pass


@pytest.mark.parametrize('error', [ValueError('bad label'), MXNetError('Shape inconsistent'), Boom(), KeyError('x'),
                                   KeyboardInterrupt()], ids=repr)
def test_users_own_error_passes_through_unchanged(error):
    job = Job()
    calls = []

    def fail(job):
        calls.append(1)
        raise error
    with pytest.raises(type(error)) as caught:
        job.train(after_update=at_update(3, fail))
    assert caught.value is error and calls == [1]


def test_error_of_mxnet_itself_passes_through_unchanged():
    job = Job()
    with pytest.raises(MXNetError, match='[Ss]hape'):
        job.train(after_update=at_update(3, lambda job: job.net(mx.nd.ones((2, 7)))))


def test_error_of_a_callback_passes_through():
    job = Job()

    def callback(event):
        raise Boom
    job.state.register_callback(callback)
    with pytest.raises(Boom):
        job.train(after_update=resizes({2: 2}))


def test_job_of_fixed_size_cannot_go_on_after_a_failure():
    job = Job()
    job.world.elastic = False
    with pytest.raises(RuntimeError, match='this job cannot go on without it: it was not started as an elastic one'):
        job.train(after_update=at_update(3, lose_worker))


def test_run_before_init_says_what_to_do():
    job = Job()
    with pytest.raises(RuntimeError, match=r'hvd_dynamic.init\(\) has not been called: call it first, in place of'):
        dynamic.run(lambda state: None)(job.state)
    with pytest.raises(RuntimeError, match=r'hvd_dynamic.init\(\) has not been called'):
        dynamic.rank()


@pytest.mark.parametrize('state', [None, 'state', {}])
def test_run_without_a_state_says_what_to_do(state):
    dynamic.init(dynamic.VirtualWorld())
    with pytest.raises(TypeError, match='the first argument of a function decorated with hvd_dynamic.run must be a'):
        dynamic.run(lambda state: None)(state)


def test_init_outside_of_a_job_is_a_world_of_one():
    dynamic.init()
    world = elastic.current_world()
    assert isinstance(world, dynamic.VirtualWorld)
    assert (dynamic.rank(), dynamic.size(), dynamic.local_rank()) == (0, 1, 0)
    dynamic.init()
    assert elastic.current_world() is world, 'a second call changes nothing'
    with pytest.raises(TypeError, match=r'world must be a World, such as VirtualWorld\(4\), got 4'):
        dynamic.init(4)


def test_leaver_exits_with_status_0_and_one_line(caplog):
    from hvd_dynamic.world import WorkerRemoved
    job = Job()

    class Removed(dynamic.VirtualWorld):
        def join(self):
            if self.generation:
                raise WorkerRemoved('its slot was taken away')
            super().join()
    job.world = Removed(1)
    with caplog.at_level(logging.INFO, 'hvd_dynamic'), pytest.raises(SystemExit) as caught:
        job.train(after_update=resizes({2: 2}))
    assert caught.value.code == 0
    assert sum('leaves the job: its slot was taken away' in r.getMessage() for r in caplog.records) == 1


def test_epochs_without_the_attribute_work_through_resizes():
    """A script that counts epochs itself: the sampler goes on to the next one at the end of each loop."""
    job = Job()
    job.sampler._follows_epoch = False
    del job.state._attributes['epoch']
    job.state.done = 0

    def train(state):
        while state.done < 3:
            for batch in job.sampler:
                loss = job.backward(batch)
                job.trainer.step(len(batch), loss=loss)
                if not job.trainer.in_update:
                    resizes({4: 2, 9: 1, 13: 3})(job)
                    state.commit()
            state.done += 1
    job.run(train)
    assert job.schedule.samples_seen >= 3 * 40 - 2 and job.sampler.epoch == 2


def test_schedule_object_is_that_of_the_trainer():
    job = Job(net=small_net())
    assert isinstance(job.trainer.schedule, DynamicSchedule) and job.trainer.schedule is job.schedule
