"""The run's folder: what is written, by whom, and what happens if it cannot be."""
import json
import logging

import pytest
from helpers import Job, read_lines, resizes

import hvd_dynamic as dynamic
from hvd_dynamic.runlog import RunLog
from hvd_dynamic.sampler import ElasticSampler
from hvd_dynamic.schedule import Decision
from hvd_dynamic.trainer import UpdateRecord


def sampler(size=2):
    sampler = ElasticSampler(20, 2, shuffle=False)
    sampler.set_world(size, [0])
    return sampler


def record(sampler, update, loss=0.5):
    cut = sampler.next_update()
    sampler.advance()
    return UpdateRecord(update, cut, Decision(0.1, 2.0, 0.5), sampler.size, 4 * update, 0.0, loss=loss,
                        seconds=0.01)


def begun(log, updates, sampler, slots=('a:0', 'b:1')):
    for update in updates:
        log.started(record(sampler, update), list(slots))


def audited(folder, name):
    path = folder / f'samples-{name}.jsonl'
    return [line['update'] for line in read_lines(path)] if path.exists() else []


def test_metrics_line_has_all_fields(tmp_path):
    log = RunLog(tmp_path)
    log.metrics(record(sampler(), 1))
    line, = read_lines(tmp_path / 'metrics.jsonl')
    assert line.pop('time') > 1.6e9
    assert line == {'update': 1, 'epoch': 0, 'samples': 4, 'world_size': 2, 'global_batch': 4, 'lr': 0.1, 'lr_scale': 2.0,
                    'momentum_scale': 0.5, 'loss': 0.5, 'step_seconds': 0.01, 'noise_scale': None}


@pytest.mark.parametrize('loss', [None, float('nan'), float('inf')])
def test_loss_that_is_no_number_is_null(tmp_path, loss):
    RunLog(tmp_path).metrics(record(sampler(), 1, loss))
    assert json.loads((tmp_path / 'metrics.jsonl').read_text())['loss'] is None


def test_event_line(tmp_path):
    RunLog(tmp_path / 'deep' / 'folder').event('resized', 7, old_size=2, new_size=3)
    line, = read_lines(tmp_path / 'deep' / 'folder' / 'events.jsonl')
    assert line.pop('time') > 1.6e9 and line == {'update': 7, 'kind': 'resized', 'old_size': 2, 'new_size': 3}


def test_run_that_goes_on_appends(tmp_path):
    for update in (1, 2):
        RunLog(tmp_path).event('started', update)
    assert [line['update'] for line in read_lines(tmp_path / 'events.jsonl')] == [1, 2]


def test_line_that_a_death_cut_off_does_not_swallow_the_next_one(tmp_path):
    (tmp_path / 'events.jsonl').write_text('{"time": 1, "upd')
    log = RunLog(tmp_path)
    log.event('started', 3)
    log.event('finished', 4)
    lines = (tmp_path / 'events.jsonl').read_text().splitlines()
    assert lines[0] == '{"time": 1, "upd' and [json.loads(line)['update'] for line in lines[1:]] == [3, 4]


# -- the audit ---------------------------------------------------------------------------------------------------

def test_audit_has_committed_updates_only(tmp_path):
    log, s = RunLog(tmp_path, audit_samples=True), sampler()
    begun(log, [1, 2, 3], s)
    log.settle(2, s, [1])
    assert audited(tmp_path, 'b-1') == [1, 2] and audited(tmp_path, 'a-0') == []
    assert read_lines(tmp_path / 'samples-b-1.jsonl')[1] == {'update': 2, 'epoch': 0, 'carried': 0, 'indices': [6, 7]}
    log.settle(2, s, [1])
    log.settle(3, s, [1])
    assert audited(tmp_path, 'b-1') == [1, 2, 3]


def test_without_audit_nothing_is_written(tmp_path):
    log, s = RunLog(tmp_path), sampler()
    begun(log, [1], s)
    log.settle(1, s, [0])
    assert not list(tmp_path.glob('samples*'))


def test_carried_samples_are_told_apart(tmp_path):
    log, s = RunLog(tmp_path, audit_samples=True), ElasticSampler(11, 1, shuffle=False)
    s.set_world(4, [0])
    s.advance()
    s.advance()
    s.set_epoch(1)
    begun(log, [3], s, ['h:0', 'h:1', 'h:2', 'h:3'])
    log.settle(3, s, [0, 1, 2, 3])
    lines = [read_lines(tmp_path / f'samples-h-{rank}.jsonl')[0] for rank in range(4)]
    assert [(line['carried'], line['indices']) for line in lines] == [(1, [8]), (1, [9]), (1, [10]), (0, [0])]


def test_lines_of_a_lost_worker_are_recovered_once(tmp_path):
    """Rank 1 died having audited update 1 and a part of the line of update 2; updates 1 to 3 are committed."""
    log, s = RunLog(tmp_path, audit_samples=True), sampler()
    begun(log, [1, 2, 3, 4], s)
    (tmp_path / 'samples-b-1.jsonl').write_text('{"update": 1, "epoch": 0, "carried": 0, "indices": [2, 3]}\n{"update": 2, ')
    log.recover(3, s, ['b:1', 'never-started:0'])
    assert audited(tmp_path, 'b-1') == [1, 2, 3]
    assert read_lines(tmp_path / 'samples-b-1.jsonl')[2]['indices'] == [10, 11]


def test_metrics_that_a_lost_rank_0_could_not_write_are_recovered(tmp_path):
    log, s = RunLog(tmp_path), sampler()
    begun(log, [1, 2, 3, 4], s)
    log.metrics(log._recent[1][0])
    log.recover(3, s, [])
    log.recover(3, s, [])
    assert [line['update'] for line in read_lines(tmp_path / 'metrics.jsonl')] == [1, 2, 3]


def test_updates_that_were_rolled_back_are_forgotten(tmp_path):
    log, s = RunLog(tmp_path, audit_samples=True), sampler()
    begun(log, [1, 2, 3], s)
    log.settle(1, s, [0])
    log.begin_round(1)
    begun(log, [2], sampler())
    log.settle(2, s, [0])
    assert audited(tmp_path, 'a-0') == [1, 2]
    assert read_lines(tmp_path / 'samples-a-0.jsonl')[1]['indices'] == [0, 1]


def test_worker_that_is_lost_before_it_has_begun_a_round_has_its_lines_recovered(tmp_path):
    """Updates 1 to 3 were committed. Rank 0 has begun the next round, rank 1 is lost on its way into it."""
    log, s = RunLog(tmp_path, audit_samples=True), sampler()
    begun(log, [1, 2, 3, 4], s)
    log.settle(3, s, [0])
    log.begin_round(3)
    log.recover(3, s, ['b:1'])
    assert audited(tmp_path, 'a-0') == audited(tmp_path, 'b-1') == [1, 2, 3]


def test_process_that_takes_the_place_of_another_writes_what_that_one_had_not(tmp_path):
    old, s = RunLog(tmp_path, audit_samples=True), sampler()
    begun(old, [1, 2, 3], s)
    old.settle(1, s, [0])
    new = RunLog(tmp_path, audit_samples=True)
    new.unpack(old.pack())
    new.recover(2, s, ['a:0', 'b:1'])
    assert audited(tmp_path, 'a-0') == audited(tmp_path, 'b-1') == [1, 2]


def test_memory_of_updates_does_not_grow(tmp_path):
    log, s = RunLog(tmp_path), ElasticSampler(1000, 2)
    for update in range(1, 400):
        log.started(record(s, update), ['a:0'])
        log.settle(update - 1, s, [0])
    assert len(log._recent) < 5


def test_every_virtual_worker_has_its_file(tmp_path):
    job = Job(world=3, run_log=RunLog(tmp_path, audit_samples=True))
    job.train(epochs=1, after_update=resizes({2: 1}))
    files = {p.name: [line['update'] for line in read_lines(p)] for p in tmp_path.glob('samples-*')}
    assert files['samples-virtual-2.jsonl'] == [1, 2] == files['samples-virtual-1.jsonl']
    assert files['samples-virtual-0.jsonl'] == list(range(1, job.state.updates + 1))


def test_evaluations_are_logged(tmp_path):
    job = Job(run_log=RunLog(tmp_path))
    job.train(epochs=1)
    job.state.log_evaluation(accuracy=0.5)
    line = read_lines(tmp_path / 'events.jsonl')[-1]
    assert (line['kind'], line['metrics'], line['epoch'], line['samples']) == ('evaluated', {'accuracy': 0.5}, 0, 40)


# -- a folder that cannot be used --------------------------------------------------------------------------------

def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / 'file').write_text('')
    for path in (tmp_path / 'file', tmp_path / 'file' / 'run'):
        with pytest.raises(ValueError, match='run_dir=.* cannot be used: .*; give a folder that can be written to'):
            RunLog(path)


def test_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr('os.access', lambda path, mode: False)
    with pytest.raises(ValueError, match='cannot be used: it is not writable; give a folder'):
        RunLog(tmp_path)


def test_training_goes_on_when_the_folder_vanishes(tmp_path, caplog):
    import shutil
    job = Job(run_log=RunLog(tmp_path / 'run', audit_samples=True))
    with caplog.at_level(logging.WARNING):
        job.train(epochs=1, after_update=lambda job: shutil.rmtree(tmp_path / 'run', ignore_errors=True))
    assert job.state.updates == 10
    assert sum('cannot write' in r.getMessage() for r in caplog.records) == 1


def test_run_log_can_be_had_from_the_package():
    assert dynamic.RunLog is RunLog
