"""Checkpoints of a state: what is written and when, what is taken up again, what is refused."""
import errno
import json
import logging
import os
import threading
import time

import mxnet as mx
import numpy as np
import pytest
from helpers import Group, Job, Meter, half_net, raise_errors, read_lines, small_net
from mxnet import gluon
from test_sync import jobs_of, meet, same, train

import hvd_dynamic as dynamic
from hvd_dynamic import checkpointfile, policies
from hvd_dynamic.checkpoint import CheckpointFolder, Checkpoints
from hvd_dynamic.runlog import RunLog


class Stopped(Exception):
    """Ends a training where a job would have been lost."""


def job(folder=None, keep=3, **arguments):
    """A job whose state has a folder for checkpoints."""
    return Job(checkpoint_dir=folder, keep_checkpoints=keep, **arguments)


def saved_at(*updates, stop=None):
    """An `after_update` that saves after these updates, and leaves training after `stop`."""
    def hook(job):
        if job.state.updates in updates:
            job.state.save_checkpoint()
        if job.state.updates == stop:
            raise Stopped
    return hook


def train_until(job, saves, stop):
    """Train until `stop`, when the job is lost; the files are written to their end."""
    with pytest.raises(Stopped):
        job.train(2, saved_at(*saves, stop=stop))
    job.state.wait_for_checkpoint()


def files(folder):
    return sorted(os.listdir(folder))


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def header(path):
    with checkpointfile.CheckpointFile(path) as file:
        return file.header


# -- as if it had not stopped -------------------------------------------------------------------------------------

CASES = {
    'sgd': {'optimizer_params': {}}, 'momentum': {}, 'nag': {'optimizer': 'nag'}, 'adam': {'optimizer': 'adam'},
    'nadam': {'optimizer': 'nadam'}, 'lars': {'optimizer': 'lars', 'optimizer_params': {'momentum': 0.9}},
    'multi-precision': {'dtype': 'float16', 'optimizer_params': {'momentum': 0.9, 'multi_precision': True}},
    'several workers': {'world': 3},
    'accumulation': {'policy': policies.FixedGlobalBatch(max_local_batch=2), 'reference': 6},
}


def resumable(case, folder=None, **arguments):
    arguments = {**CASES[case], **arguments}
    arguments['net'] = half_net() if arguments.get('dtype') else small_net(batchnorm=True)
    return job(folder, base=mx.lr_scheduler.MultiFactorScheduler([4, 12], 0.5, base_lr=0.01), table=np.zeros(2), best=0.5,
               array=mx.nd.zeros(2), meter=Meter(), pair=(1, None), **arguments)


def count(job):
    state = job.state
    state.table = state.table + 1
    state.array += 1
    state.meter.total += 2
    state.meter.table += 2


def counted(job):
    state = job.state
    return state.table.tolist(), state.array.asnumpy().tolist(), state.meter.total, state.meter.table.asnumpy().tolist()


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('saved', [1, 5])
def test_resumed_training_is_bit_for_bit_one_that_did_not_stop(case, saved, tmp_path):
    def lines(folder):
        return [{k: v for k, v in line.items() if k not in ('time', 'step_seconds')}
                for line in read_lines(folder / 'metrics.jsonl')]

    def hook(until):
        def after_update(job):
            count(job)
            saved_at(saved, stop=until)(job)
        return after_update
    whole = resumable(case, tmp_path / 'a', run_log=RunLog(tmp_path / 'run-a', audit_samples=True))
    whole.train(2, hook(None))
    stopped = resumable(case, tmp_path / 'b', run_log=RunLog(tmp_path / 'run-b', audit_samples=True))
    with pytest.raises(Stopped):
        stopped.train(2, hook(saved + 2))
    assert stopped.state.wait_for_checkpoint() == tmp_path / 'b' / f'checkpoint-{saved}.hvd'
    resumed = resumable(case, tmp_path / 'b', run_log=RunLog(tmp_path / 'run-b', audit_samples=True))
    mx.random.seed(99)
    assert resumed.state.resume() is True and resumed.state.updates == saved
    resumed.train(2, lambda job: count(job))
    assert resumed.everything() == whole.everything() and counted(resumed) == counted(whole)
    assert resumed.state.best == 0.5 and resumed.state.pair == (1, None)
    assert lines(tmp_path / 'run-b') == lines(tmp_path / 'run-a')
    for path in (tmp_path / 'run-a').glob('samples-*'):
        assert (tmp_path / 'run-b' / path.name).read_text() == path.read_text()


def test_parameters_without_shapes_get_those_of_the_checkpoint(tmp_path):
    def deferred(value):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(5), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
        net.initialize(mx.init.Constant(value))
        return job(tmp_path, net=net)
    first = deferred(0.1)
    first.train(1, saved_at(10))
    again = deferred(0.7)
    assert again.net[0].weight._data is None and again.state.resume()
    assert again.net[0].weight.shape == (5, 3) and again.everything() == first.everything()


def test_checkpoint_before_the_first_update_leaves_unknown_parameters_to_the_first_pass(tmp_path):
    def deferred():
        net = gluon.nn.Dense(1)
        net.initialize(mx.init.Constant(0.1))
        return job(tmp_path, net=net)
    first = deferred()
    first.run(lambda state: state.save_checkpoint())
    assert files(tmp_path) == ['checkpoint-0.hvd']
    again = deferred()
    assert again.state.resume() and again.net.weight._data is None
    again.train(1)
    (tmp_path / 'checkpoint-0.hvd').unlink()
    whole = deferred()
    whole.train(1)
    assert again.everything()[0] == whole.everything()[0] and again.state.updates == 10


def test_resume_with_another_number_of_workers_is_a_resize_for_the_schedule(tmp_path):
    first = job(tmp_path, world=2, reference=8, policy=policies.Smooth(updates=4))
    train_until(first, [2], stop=3)
    again = job(tmp_path, world=4, reference=8, policy=policies.Smooth(updates=4), run_log=RunLog(tmp_path / 'run'))
    assert again.state.resume()
    again.train(2)
    assert [line['lr_scale'] for line in read_lines(tmp_path / 'run' / 'metrics.jsonl')][:5] == [1.25, 1.5, 1.75, 2.0, 2.0]


def test_frozen_layers_and_multipliers_come_back(tmp_path):
    first, again = job(tmp_path), job(tmp_path)
    first.net[0].weight.grad_req = 'null'
    first.net[1].weight.lr_mult = 0.5
    first.train(1, saved_at(3))
    again.state.resume()
    assert again.net[0].weight.grad_req == 'null' and again.net[1].weight.lr_mult == 0.5


def test_attribute_that_the_script_has_got_since_keeps_its_first_value(tmp_path):
    first = job(tmp_path, seen=3)
    first.train(1, saved_at(3))
    again = job(tmp_path, seen=0, new=[7])
    again.state.resume()
    assert again.state.seen == 3 and again.state.new == [7]


# -- what the field reported --------------------------------------------------------------------------------------

def on_device(number, folder, optimizer):
    with mx.cpu(number):
        return job(folder, net=small_net(), optimizer=optimizer, array=mx.nd.ones(2),
                   base=mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.05))


@pytest.mark.parametrize('optimizer', ['adam', 'sgd', 'nadam'])
def test_mxnet_issue_17357_counts_go_on_on_another_device(optimizer, tmp_path):
    """Update counts are kept by device: on another one learning rates and Adam's bias correction began anew."""
    whole = on_device(0, tmp_path / 'whole', optimizer)
    whole.train(2)
    stopped = on_device(3, tmp_path, optimizer)
    with mx.cpu(3):
        train_until(stopped, [7], stop=8)
    resumed = on_device(0, tmp_path, optimizer)
    resumed.state.resume()
    assert set(resumed.trainer.optimizer._index_update_count.values()) == {7} and resumed.trainer.optimizer.num_update == 7
    resumed.train(2)
    assert resumed.everything() == whole.everything()


def test_mxnet_issue_10910_state_of_a_device_that_is_not_there_is_loaded(tmp_path):
    """State that was saved on the fourth device could not be loaded where there are fewer."""
    stopped = on_device(3, tmp_path, 'adam')
    with mx.cpu(3):
        train_until(stopped, [7], stop=8)
    path = tmp_path / 'checkpoint-7.hvd'
    assert b'cpu' not in path.read_bytes() and b'device' not in path.read_bytes()
    resumed = on_device(0, tmp_path, 'adam')
    resumed.state.resume()
    arrays = [p.data() for p in resumed.net.collect_params().values()] + resumed.trainer.state_arrays()
    arrays.append(resumed.state.array)
    assert {array.context for array in arrays} == {mx.cpu(0)}


def test_horovod_issue_1897_trainers_are_restored_on_all_workers(tmp_path):
    """All workers load; momentum and counts are the same on all, also on those that have no file."""
    group = Group(2)
    jobs = jobs_of(group, checkpoint_dir=tmp_path / 'disk')
    raise_errors(train(group, jobs, epochs=1, hooks=dict.fromkeys(range(2), saved_at(3))))
    for owners in ({0, 1, 2}, {1}):
        group = Group(3)
        again = jobs_of(group, checkpoint_dir=tmp_path / 'none')
        folders = [tmp_path / ('disk' if rank in owners else 'none') for rank in range(3)]
        assert [j.state.resume(folder) for j, folder in zip(again, folders)] == [rank in owners for rank in range(3)]
        meetings = raise_errors(meet(group, again))
        assert same(again) and all(any(a.asnumpy().any() for a in j.trainer.state_arrays()) for j in again)
        assert [set(j.trainer.optimizer._index_update_count.values()) for j in again] == [{3}] * 3
        assert [(m.old, m.survivor, m.update) for m in meetings] == [({}, False, 3)] * 3
        assert {m.resumed_from for m in meetings} == {str(tmp_path / 'disk' / 'checkpoint-3.hvd')}
        assert any(name.startswith('sync.arrays') for name, _ in group.sent) == (owners == {1})


# -- several workers ----------------------------------------------------------------------------------------------

def test_every_sample_is_used_once_an_epoch_through_a_lost_job_of_other_size(tmp_path):
    def some(size):
        group = Group(size)
        jobs = jobs_of(group, checkpoint_dir=tmp_path / 'checkpoints')
        for job in jobs:
            job.state._run_log = RunLog(tmp_path / 'run', audit_samples=True)
        return group, jobs
    group, jobs = some(2)
    results = train(group, jobs, epochs=2, hooks=dict.fromkeys(range(2), saved_at(2, stop=4)))
    assert [type(r) for r in results] == [Stopped] * 2
    jobs[0].state.wait_for_checkpoint()
    group, jobs = some(3)
    assert all([j.state.resume() for j in jobs])
    raise_errors(train(group, jobs, epochs=2))
    lines = [line for path in sorted((tmp_path / 'run').glob('samples-*')) for line in read_lines(path)]
    metrics = read_lines(tmp_path / 'run' / 'metrics.jsonl')
    assert [m['update'] for m in metrics] == sorted({line['update'] for line in lines}) == list(range(1, len(metrics) + 1))
    used = [[], []]
    for line in sorted(lines, key=lambda line: line['update']):
        for i, index in enumerate(line['indices']):
            used[line['epoch'] - (i < line['carried'])].append(index)
    assert sorted(used[0]) == list(range(40)) and len(used[1]) == len(set(used[1])) >= 38
    events = read_lines(tmp_path / 'run' / 'events.jsonl')
    assert [e['kind'] for e in events] == ['started', 'checkpointed', 'resumed', 'finished']
    resumed = events[2]
    assert (resumed['update'], resumed['world_size'], resumed['global_batch']) == (2, 3, 12)
    assert resumed['path'] == str(tmp_path / 'checkpoints' / 'checkpoint-2.hvd') and resumed['undone_updates'] == 1


def test_audit_of_all_workers_is_written_before_the_checkpoint(tmp_path, monkeypatch):
    """Or a job that is lost at that moment lacks what one of its workers used."""
    group = Group(2)
    jobs = jobs_of(group, checkpoint_dir=tmp_path / 'c')
    for job in jobs:
        job.state._run_log = RunLog(tmp_path / 'run', audit_samples=True)
    begin, settle, slow = Checkpoints.begin, RunLog.settle, jobs[1].state._run_log
    audited = []

    def late(log, *arguments):
        if log is slow:
            time.sleep(0.1)
        settle(log, *arguments)

    def begins(*arguments):
        audited.append([line['update'] for line in read_lines(tmp_path / 'run' / 'samples-thread-1.jsonl')])
        begin(*arguments)
    monkeypatch.setattr(RunLog, 'settle', late)
    monkeypatch.setattr(Checkpoints, 'begin', begins)
    raise_errors(train(group, jobs, epochs=1, hooks=dict.fromkeys(range(2), saved_at(3))))
    assert audited == [[1, 2, 3]]


def test_running_statistics_in_a_checkpoint_are_the_mean_over_the_workers(tmp_path):
    group = Group(2)
    jobs = jobs_of(group, checkpoint_dir=tmp_path)
    seen = {}

    def hook(job):
        if job.state.updates == 3:
            seen[job.world.rank] = [a.asnumpy() for a in job.state._statistics().values()]
            job.state.save_checkpoint()
    raise_errors(train(group, jobs, epochs=1, hooks=dict.fromkeys(range(2), hook)))
    again = jobs_of(Group(1), checkpoint_dir=None)[0]
    again.state.resume(tmp_path)
    for a, b, mean in zip(seen[0], seen[1], again.state._statistics().values(), strict=True):
        assert (a != b).any()
        np.testing.assert_allclose(mean.asnumpy(), (a + b) / 2, rtol=1e-6)


def grown(tmp_path, prepare):
    """A job of 2 workers that a third one joins, which has done `prepare` before."""
    group = Group(2)
    jobs = jobs_of(group, checkpoint_dir=tmp_path / 'disk')
    raise_errors(train(group, jobs, epochs=1, hooks=dict.fromkeys(range(2), saved_at(3))))
    newcomer, = group.announce(3)
    jobs.append(Job(world=newcomer, net=small_net(batchnorm=True, seed=9), reference=8, checkpoint_dir=tmp_path / 'own'))
    group.worlds.append(newcomer)
    expected = jobs[0].everything()
    prepare(jobs[2])
    meetings = raise_errors(meet(group, jobs))
    assert same(jobs) and jobs[2].everything()[0] == expected[0]
    assert [m.survivor for m in meetings] == [True, True, False] and meetings[0].resumed_from is None
    assert len(meetings[0].old) == 2 and jobs[2].state.updates == 5
    return jobs


def test_newcomer_that_resumes_gets_the_survivors_state(tmp_path):
    grown(tmp_path, lambda newcomer: newcomer.state.resume(tmp_path / 'disk'))


def test_newcomer_with_a_later_checkpoint_of_another_job_gets_the_survivors_state(tmp_path):
    """The disk of a new host may hold what it likes."""
    other = Job(net=small_net(batchnorm=True, seed=5), reference=8, checkpoint_dir=tmp_path / 'own', batch=2)
    other.train(1, saved_at(20))

    def prepare(newcomer):
        assert newcomer.state.resume() and newcomer.state.updates == 20
    grown(tmp_path, prepare)


def on_disk(folder, update, start=None, shift=0.0):
    """Have a checkpoint of `update` there, of a job that went on from the checkpoint in `start`."""
    job = Job(net=small_net(batchnorm=True), reference=8, checkpoint_dir=folder)
    if start is not None:
        job.state.resume(start)
        job.net[0].weight.data()[:] += shift
        job.state._keep_as_commit()
    job.train(1, saved_at(update))


def test_disks_with_checkpoints_of_different_trainings_are_refused(tmp_path):
    """Else the one with more updates, whatever it is, would be taken for the latest."""
    for name, update in (('a', 4), ('b', 6)):
        on_disk(tmp_path / name, update)
    group = Group(2)
    jobs = jobs_of(group)
    for j, name in zip(jobs, 'ab'):
        j.state.resume(tmp_path / name)
    messages = [str(error) for error in meet(group, jobs)]
    assert messages == [
        f'workers have taken up checkpoints of different trainings, such as {tmp_path}/a/checkpoint-4.hvd and {tmp_path}/b/'
        f'checkpoint-6.hvd: move those that do not belong here to another place'] * 2


def test_two_disks_with_different_checkpoints_of_one_update_give_one_state(tmp_path):
    on_disk(tmp_path / 'first', 2)
    for name in 'ab':
        on_disk(tmp_path / name, 4, tmp_path / 'first', shift=0.1 * (name == 'b'))
    group = Group(2)
    jobs = jobs_of(group)
    for j, name in zip(jobs, 'ab'):
        j.state.resume(tmp_path / name)
    assert not same(jobs)
    raise_errors(meet(group, jobs))
    assert same(jobs)


def test_the_later_of_two_disks_wins(tmp_path):
    on_disk(tmp_path / 'a', 4)
    on_disk(tmp_path / 'b', 6, tmp_path / 'a')
    group = Group(2)
    jobs = [Job(world=w, net=small_net(batchnorm=True), reference=8, checkpoint_dir=tmp_path / n)
            for w, n in zip(group.worlds, 'ab')]
    assert all([j.state.resume() for j in jobs])
    meetings = raise_errors(meet(group, jobs))
    assert same(jobs) and {m.update for m in meetings} == {6}


# -- writing ------------------------------------------------------------------------------------------------------

def test_last_few_are_kept(tmp_path):
    job(tmp_path, keep=2).train(2, saved_at(2, 5, 9, 12))
    assert files(tmp_path) == ['checkpoint-12.hvd', 'checkpoint-9.hvd']


def test_nothing_but_own_checkpoints_up_to_this_update_is_removed(tmp_path):
    folder, precious = CheckpointFolder(tmp_path / 'folder', keep=1), tmp_path / 'precious'
    precious.write_text('precious')
    (tmp_path / 'folder' / 'checkpoint-1.hvd').symlink_to(precious)
    (tmp_path / 'folder' / 'checkpoint-2.hvd').mkdir()
    for name in ('checkpoint-03.hvd', 'checkpoint-4.hvd.old', 'notes.txt', 'checkpoint-9.hvd', 'checkpoint-5.hvd'):
        (tmp_path / 'folder' / name).write_text('')
    path, length = folder.save(6, {}, [])
    assert path.name == 'checkpoint-6.hvd' and length == path.stat().st_size
    assert files(tmp_path / 'folder') == [
        'checkpoint-03.hvd', 'checkpoint-1.hvd', 'checkpoint-2.hvd', 'checkpoint-4.hvd.old', 'checkpoint-6.hvd',
        'checkpoint-9.hvd', 'notes.txt']
    assert precious.read_text() == 'precious'


def test_leftovers_are_removed_at_the_next_save(tmp_path):
    (tmp_path / '.checkpoint-5.hvd.0123456789abcdef.tmp').write_text('half')
    CheckpointFolder(tmp_path).save(6, {}, [])
    assert files(tmp_path) == ['checkpoint-6.hvd']


def test_event_says_what_was_written(tmp_path):
    one = job(tmp_path / 'c', run_log=RunLog(tmp_path / 'run'))
    one.train(1, saved_at(4))
    event, = [e for e in read_lines(tmp_path / 'run' / 'events.jsonl') if e['kind'] == 'checkpointed']
    path = tmp_path / 'c' / 'checkpoint-4.hvd'
    assert event['path'] == str(path) and event['bytes'] == path.stat().st_size and event['seconds'] >= 0
    assert event['update'] >= 4


def test_header_is_json_that_says_what_it_is(tmp_path):
    job(tmp_path, world=2, best=0.5).train(2, saved_at(7))
    said = header(tmp_path / 'checkpoint-7.hvd')
    assert (said['library'], said['update'], said['samples'], said['epoch'], said['world_size']) == (
        dynamic.__version__, 7, 56, 1, 2)
    assert [shape for _, shape, _, _ in said['parameters']] == [[5, 3], [5], [1, 5], [1]]
    assert said['attributes'] == {'best': 0.5, 'epoch': 1}


@pytest.fixture
def gate(monkeypatch):
    """Holds writes back until it is set; `gate.begun` is set when one has come to it."""
    gate, write = threading.Event(), checkpointfile.write
    gate.begun = threading.Event()

    def held(*arguments):
        gate.begun.set()
        assert gate.wait(60)
        return write(*arguments)
    monkeypatch.setattr(checkpointfile, 'write', held)
    yield gate
    gate.set()


def test_training_goes_on_while_the_file_is_written_and_the_file_has_the_old_state(gate, tmp_path):
    seen = {}

    def hook(job):
        saved_at(3)(job)
        if job.state.updates == 3:
            seen['then'] = job.everything()
        if job.state.updates == 8:
            assert gate.begun.wait(60) and files(tmp_path) == []
            gate.set()
            assert job.state.wait_for_checkpoint() == tmp_path / 'checkpoint-3.hvd'
            seen['done'] = True
    job(tmp_path).train(1, hook)
    again = job(tmp_path)
    again.state.resume()
    assert seen['done'] and again.everything() == seen['then']


def test_next_save_waits_for_the_write_before(gate, tmp_path):
    timer = threading.Timer(0.3, gate.set)
    one, order = job(tmp_path), []

    def hook(job):
        if job.state.updates in (3, 4):
            job.state.save_checkpoint()
            order.append((job.state.updates, gate.is_set()))
        if job.state.updates == 3:
            timer.start()
    one.train(1, hook)
    assert order == [(3, False), (4, True)] and files(tmp_path) == ['checkpoint-3.hvd', 'checkpoint-4.hvd']


def test_end_of_training_waits_for_the_write(gate, tmp_path):
    def hook(job):
        saved_at(10)(job)
        if job.state.updates == 10:
            threading.Timer(0.3, gate.set).start()
    job(tmp_path).train(1, hook)
    assert files(tmp_path) == ['checkpoint-10.hvd']


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'No space left on device'), MemoryError(),
                                   PermissionError(13, 'Permission denied'), RuntimeError('a surprise')])
def test_failed_write_is_told_and_training_goes_on(error, tmp_path, monkeypatch, caplog):
    one, write = job(tmp_path / 'c', run_log=RunLog(tmp_path / 'run')), checkpointfile.write

    def fails_once(path, *arguments):
        if path.name == 'checkpoint-5.hvd':
            raise error
        return write(path, *arguments)
    monkeypatch.setattr(checkpointfile, 'write', fails_once)
    with caplog.at_level(logging.WARNING, 'hvd_dynamic'):
        one.train(1, saved_at(3, 5, 8))
    assert one.state.updates == 10 and files(tmp_path / 'c') == ['checkpoint-3.hvd', 'checkpoint-8.hvd']
    why = str(error) or 'MemoryError'
    message, = [r.getMessage() for r in caplog.records if 'could not be written' in r.getMessage()]
    assert message == (f"the checkpoint {tmp_path}/c/checkpoint-5.hvd could not be written: {why}; the previous checkpoint "
                       f"{tmp_path}/c/checkpoint-3.hvd is still good, and training goes on")
    events = [e for e in read_lines(tmp_path / 'run' / 'events.jsonl') if 'checkpoint' in e['kind']]
    assert [e['kind'] for e in events] == ['checkpointed', 'checkpoint_failed', 'checkpointed']
    assert events[1]['error'] == why and events[1]['path'].endswith('checkpoint-5.hvd')


def test_folder_that_vanishes_is_a_failed_write(tmp_path, caplog):
    one = job(tmp_path / 'c')

    def hook(job):
        if job.state.updates == 4:
            os.rmdir(tmp_path / 'c')
        if job.state.updates == 6:
            job.world.resize(2)
        saved_at(5)(job)
        if job.state.updates == 5:
            assert job.state.wait_for_checkpoint() is None
    one.train(1, hook)
    assert one.world.size == 2 and 'could not be written' in caplog.text and 'there is no earlier one' in caplog.text


def test_resize_right_after_a_save_takes_place(tmp_path):
    def hook(job):
        if job.state.updates == 4:
            job.world.resize(2)
            job.state.save_checkpoint()
    one = job(tmp_path, run_log=RunLog(tmp_path / 'run'))
    one.train(1, hook)
    assert [line['world_size'] for line in read_lines(tmp_path / 'run' / 'metrics.jsonl')] == [1] * 4 + [2] * 3
    assert header(tmp_path / 'checkpoint-4.hvd')['world_size'] == 1


def test_folder_can_be_given_to_each_call(tmp_path):
    one = job()
    one.train(1, lambda j: j.state.save_checkpoint(tmp_path / 'x') if j.state.updates == 4 else None)
    assert files(tmp_path / 'x') == ['checkpoint-4.hvd'] and job().state.resume(tmp_path / 'x')


# -- calls at the wrong place -------------------------------------------------------------------------------------

def test_without_a_folder_the_remedy_is_told(tmp_path):
    with pytest.raises(ValueError, match=r'no folder for checkpoints is known: give GluonState\(..., checkpoint_dir='):
        job().train(1, saved_at(1))
    with pytest.raises(ValueError, match='no folder for checkpoints is known'):
        job().state.resume()


def test_save_outside_of_training_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match='only inside a function decorated with hvd_dynamic.run'):
        job(tmp_path).state.save_checkpoint()


def test_save_between_the_passes_of_an_update_is_refused(tmp_path):
    one = job(tmp_path, policy=policies.FixedGlobalBatch(max_local_batch=2), reference=4)

    def loop(state):
        for batch in one.sampler:
            one.backward(batch)
            one.trainer.step(len(batch))
            state.save_checkpoint()
    with pytest.raises(RuntimeError, match='in the middle of an update: call it after trainer.step.., when'):
        one.run(loop)


def test_save_between_allreduce_and_update_is_refused(tmp_path):
    one = job(tmp_path)

    def loop(state):
        one.backward(next(iter(one.sampler)))
        one.trainer.allreduce_grads()
        state.save_checkpoint()
    with pytest.raises(RuntimeError, match='in the middle of an update: call it after'):
        one.run(loop)


def test_resume_after_training_has_begun_is_refused(tmp_path):
    one = job(tmp_path)
    one.train(1)
    with pytest.raises(RuntimeError, match='before the training function'):
        one.state.resume()


@pytest.mark.parametrize('keep', [0, -1, True, 2.0, '3'])
def test_keep_must_be_a_positive_integer(keep, tmp_path):
    with pytest.raises(ValueError, match='keep_checkpoints must be an integer of at least 1, got '):
        job(None, keep=keep)


def test_folder_that_cannot_be_used_is_refused(tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    with pytest.raises(ValueError, match='cannot be used for checkpoints: .*; give one that can be written to'):
        job(tmp_path / 'file')
    monkeypatch.setattr('os.access', lambda *_: False)
    with pytest.raises(ValueError, match='cannot be used for checkpoints: it is not writable'):
        job(tmp_path)


def test_attribute_of_a_type_that_files_do_not_have_is_named(tmp_path):
    with pytest.raises(TypeError, match="state attribute 'precise' has the type .*, which a checkpoint cannot hold"):
        job(tmp_path, precise=np.zeros(1, 'longdouble')).train(1, saved_at(1))


# -- what does not fit --------------------------------------------------------------------------------------------

def wide(units=6, inputs=3):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(units, in_units=inputs), gluon.nn.Dense(1, in_units=units))
    net.initialize()
    return net


@pytest.mark.parametrize('arguments, message', [
    ({'net': wide()}, r'the shape of parameter \w*weight was \(5, 3\) when it was written and is \(6, 3\) here'),
    ({'net': small_net(batchnorm=True)}, r'the number of parameters was 4 when it was written and is 8 here'),
    ({'net': small_net(dtype='float64'), 'dtype': 'float64'}, r'the type of parameter \w* was float32 .* float64 here'),
    ({'optimizer': 'adam'}, r"optimizer was 'SGD' when it was written and is 'Adam' here"),
    ({'samples': 44}, r'length of the data set was 40 when it was written and is 44 here'),
    ({'seed': 5}, r'seed of the sampler was 3 when it was written and is 5 here'),
    ({'reference': 8}, r'reference_batch was 4 when it was written and is 8 here'),
    ({'policy': policies.Linear()}, r'policy was .*[Ss]mooth.* when it was written and is .*[Ll]inear.* here'),
])
def test_misfit_is_one_error_that_names_what_differs(arguments, message, tmp_path):
    job(tmp_path).train(1, saved_at(4))
    other = job(tmp_path, **arguments)
    before = other.everything()
    with pytest.raises(ValueError, match=f'checkpoint-4.hvd does not fit: {message}; start with the same arguments, or'):
        other.state.resume()
    assert other.everything() == before


def test_network_that_was_not_initialised_is_told(tmp_path):
    job(tmp_path).train(1, saved_at(4))
    other = job(tmp_path)
    other.net[0].weight._data = None        # as one that the trainer does not have may be
    with pytest.raises(ValueError, match=r'has not been initialised: call net.initialize\(\) before state.resume\(\)'):
        other.state.resume()


def test_what_may_differ_is_told(tmp_path, caplog):
    job(tmp_path, base=0.05).train(1, saved_at(4))
    other = job(tmp_path, base=0.1, batch=8, reference=4, optimizer_params={'momentum': 0.5, 'wd': 0.01})
    assert other.state.resume()
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        'base schedule was 0.05 when the checkpoint was written; it is 0.1 from now on',
        'batch_size of the sampler was 4 when the checkpoint was written; it is 8 from now on',
        "the optimizer's momentum stays 0.9 as in the checkpoint, not 0.5"]
    other.train(1)
    assert 0.1 < other.trainer.learning_rate < 0.2      # on its way to that of twice the batch


# -- files that cannot be used ------------------------------------------------------------------------------------

@pytest.fixture
def folder(tmp_path):
    """Checkpoints of updates 3, 5 and 8."""
    job(tmp_path).train(1, saved_at(3, 5, 8))
    return tmp_path


def test_no_checkpoint_is_no_error(tmp_path):
    assert job(tmp_path).state.resume() is False
    assert job().state.resume(tmp_path / 'not' / 'there') is False
    (tmp_path / 'notes.txt').write_text('')
    assert job(tmp_path).state.resume() is False


def test_newest_is_taken_by_its_number(folder):
    os.utime(folder / 'checkpoint-3.hvd')
    os.rename(folder / 'checkpoint-8.hvd', folder / 'checkpoint-10.hvd')
    one = job(folder)
    assert one.state.resume() and one.state.updates == 8


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def newer_format(path):
    path.write_bytes(path.read_bytes()[:8] + b'\2' + path.read_bytes()[9:])


def foreign(path):
    path.write_text('something else altogether')


def linked(path):
    os.rename(path, path.with_name('elsewhere'))
    path.symlink_to(path.with_name('elsewhere'))


def nonsense(path):
    checkpointfile.write(path, {'update': 8}, [])


FAULTS = {damage: 'is damaged: the SHA-256', cut_off: 'is damaged', newer_format: 'has version 2 of the format',
          foreign: 'is not a checkpoint of hvd_dynamic', linked: 'it is a symbolic link', nonsense: 'its header lacks what'}


@pytest.mark.parametrize('spoil', FAULTS)
def test_spoilt_newest_checkpoint_is_named_and_the_one_before_is_used(spoil, folder, caplog):
    spoil(folder / 'checkpoint-8.hvd')
    one = job(folder)
    assert one.state.resume() and one.state.updates == 5
    message, = [r.getMessage() for r in caplog.records]
    assert message.startswith(f'{folder}/checkpoint-8.hvd ') and FAULTS[spoil] in message
    assert message.endswith('; going back to the checkpoint before it')
    one.train(1, saved_at(9))           # and the spoilt one is no hindrance
    assert 'checkpoint-9.hvd' in files(folder)


def test_spoilt_checkpoint_is_no_hindrance_whatever_its_folder_is_called(folder, monkeypatch):
    damage(folder / 'checkpoint-8.hvd')
    monkeypatch.chdir(folder.parent)
    one = job(folder)
    assert one.state.resume(folder.name) and one.state.updates == 5
    one.train(1, saved_at(9))
    assert 'checkpoint-9.hvd' in files(folder)


def test_all_damaged_is_an_error_that_says_how_to_begin_anew(folder):
    for update in (3, 5, 8):
        damage(folder / f'checkpoint-{update}.hvd')
    with pytest.raises(ValueError, match=r'none of the 3 checkpoints in .* can be used \(.*checkpoint-8.hvd is damaged.*\); '
                                         'to begin anew, move them to another place or give another folder'):
        job(folder).state.resume()


def test_one_file_is_taken_and_no_other(folder, tmp_path):
    one = job()
    assert one.state.resume(folder / 'checkpoint-3.hvd') and one.state.updates == 3
    damage(folder / 'checkpoint-8.hvd')
    with pytest.raises(ValueError, match='checkpoint-8.hvd is damaged'):
        job(folder).state.resume(folder / 'checkpoint-8.hvd')


def test_file_that_nobody_has_is_an_error_when_training_starts(folder):
    one = job()
    assert one.state.resume(str(folder / 'checkpoint-7.hvd')) is False
    with pytest.raises(dynamic.SetupError, match='there is no checkpoint .*checkpoint-7.hvd: give the path of one'):
        one.train(1)


def test_newcomer_whose_file_has_been_removed_since_joins_all_the_same(tmp_path):
    grown(tmp_path, lambda newcomer: newcomer.state.resume(tmp_path / 'disk' / 'checkpoint-1.hvd'))


@pytest.mark.parametrize('spoil', [
    lambda h: h.update(update='7'), lambda h: h.pop('numbers'), lambda h: h.update(numbers=3), lambda h: h.update(places=[]),
    lambda h: h['places'].__setitem__(0, ['parameter', 99]), lambda h: h['places'].__setitem__(0, ['parameter', -1]),
    lambda h: h['places'].__setitem__(0, ['elsewhere', 0]), lambda h: h['places'].__setitem__(0, ['attribute', 'x']),
    lambda h: h.update(parameters=None), lambda h: h.update(attributes=[]), lambda h: h['parameters'][0].pop()])
def test_whole_file_that_says_nonsense_is_refused_before_anything_is_changed(spoil, folder):
    with checkpointfile.CheckpointFile(folder / 'checkpoint-8.hvd') as file:
        said, arrays = json.loads(json.dumps(file.header)), list(file.arrays())
    spoil(said)
    checkpointfile.write(folder / 'checkpoint-8.hvd', said, arrays)
    one = job()
    before = one.everything()
    with pytest.raises(ValueError, match='checkpoint-8.hvd is damaged: its header lacks what a checkpoint must have'):
        one.state.resume(folder / 'checkpoint-8.hvd')
    assert one.everything() == before


# -- another training in the folder -------------------------------------------------------------------------------

def test_training_that_begins_anew_beside_later_checkpoints_is_refused(folder):
    """Its own would be taken for the older ones at the next resume."""
    with pytest.raises(dynamic.SetupError, match=r'there is a checkpoint .*checkpoint-8.hvd of an earlier training, but '
                                                 r'this one starts at update 0: go on from it with state.resume\(\) or'):
        job(folder).train(1)
    one = job(folder)
    one.state.resume(folder / 'checkpoint-3.hvd')
    with pytest.raises(dynamic.SetupError, match='this one starts at update 3'):
        one.train(1)


def test_going_back_to_an_older_one_works_with_another_folder(folder, tmp_path):
    one = job(tmp_path / 'new')
    one.state.resume(folder / 'checkpoint-3.hvd')
    one.train(1, saved_at(6))
    assert files(tmp_path / 'new') == ['checkpoint-6.hvd']


# -- the run's folder ---------------------------------------------------------------------------------------------

def test_log_is_cut_back_to_the_checkpoint(tmp_path):
    log = RunLog(tmp_path)
    lines = [3, 4, 5, 6, 4, 5, 6, 7]            # a failure went back from 6 to 3
    (tmp_path / 'metrics.jsonl').write_text(''.join(f'{{"update": {u}}}\n' for u in lines) + '{"upd')
    (tmp_path / 'samples-a-0.jsonl').write_text(''.join(f'{{"update": {u}}}\n' for u in range(1, 9)))
    (tmp_path / 'samples-b-0.jsonl').write_text('{"update": 7}\n')
    (tmp_path / 'events.jsonl').write_text('{"update": 8}\n')
    for _ in range(2):
        lost = log.rewind(5)
        assert [line['update'] for line in read_lines(tmp_path / 'metrics.jsonl')] == [3, 4, 5, 6, 4, 5]
        assert [line['update'] for line in read_lines(tmp_path / 'samples-a-0.jsonl')] == [1, 2, 3, 4, 5]
        assert (tmp_path / 'samples-b-0.jsonl').read_text() == ''
    assert (tmp_path / 'events.jsonl').read_text() and lost == 1


def test_log_that_is_not_there_needs_no_cutting(tmp_path):
    assert RunLog(tmp_path).rewind(5) == 0 and os.listdir(tmp_path) == []
