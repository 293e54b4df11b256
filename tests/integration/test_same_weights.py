"""Real jobs with five logical workers: the same weights, bit for bit, however many workers there were and whatever became of
them."""

import shutil
from pathlib import Path

import pytest
from harness import Job

SCRIPT = Path(__file__).with_name('same_weights_worker.py')
UPDATES = 11 * 203 // 20 + 1


def start(folder, hosts, **knobs):
    return Job(folder, hosts, script=SCRIPT, environment={'LOG_LEVEL': 'INFO', **knobs})


def finished(job):
    assert job.finish() == 0, job.log()
    assert 'Traceback' not in job.worker_log(), job.log()
    return trained(job)


def trained(job):
    """What was computed in each update, and the digest at the end of each epoch."""
    lines = [{name: m.get(name) for name in ('update', 'epoch', 'samples', 'global_batch', 'lr', 'loss', 'digest')}
             for m in job.metrics()]
    assert len({line['update'] for line in lines}) == len(lines)
    return lines


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """One worker hosts them all."""
    with start(tmp_path_factory.mktemp('alone'), {'localhost': 1}) as job:
        return finished(job)


def test_run_has_a_hundred_updates_and_a_digest_an_epoch(alone):
    assert len(alone) >= 100
    assert [line['epoch'] for line in alone if line['digest']] == list(range(11))
    assert len({line['digest'] for line in alone}) == 12        # and None, of all other updates
    assert alone[-1]['loss'] < 0.9 * alone[0]['loss']


@pytest.mark.parametrize('workers', [2, 3, 4])
def test_any_number_of_workers(alone, workers, tmp_path):
    with start(tmp_path, {'localhost': workers}) as job:
        assert finished(job) == alone


def test_resizes(alone, tmp_path):
    with start(tmp_path, {'localhost': 2}, PAUSE='0.02') as job:
        for slots in (4, 1, 3):
            job.wait_for_update(job.last_update() + 15)
            job.resize({'localhost': slots})
        assert finished(job) == alone
        assert [e['new_size'] for e in job.events('resized')] == [4, 1, 3]


def test_two_kills(alone, tmp_path):
    with start(tmp_path, {'localhost': 1, '127.0.0.1': 1, '127.1': 1}, PAUSE='0.02') as job:
        job.wait_for_update(20)
        job.kill('127.0.0.1:0')
        job.wait_for_size(2)
        job.wait_for_update(job.last_update() + 20)
        job.kill('127.1:0')
        job.wait_for_size(1)
        assert finished(job) == alone
        assert [e['new_size'] for e in job.events('failed_over')] == [2, 1]


def test_stopped_and_resumed_with_another_number_of_workers(alone, tmp_path):
    with start(tmp_path / 'a', {'localhost': 3}, STOP_AT='47') as job:
        assert finished(job) == alone[:47]
    shutil.copytree(tmp_path / 'a', tmp_path / 'b')
    with start(tmp_path / 'b', {'localhost': 2}, RESUME='1') as job:
        assert finished(job) == alone


def test_normalizers_augmentation_in_loader_processes_and_adam(tmp_path):
    knobs = {'NORMALIZED': '1', 'LOADERS': '1', 'EPOCHS': '3', 'OPTIMIZER': '["adam", {}]'}
    runs = []
    for workers, loaders in ((1, 2), (3, 1)):
        with start(tmp_path / str(workers), {'localhost': workers}, **{**knobs, 'LOADERS': str(loaders)}) as job:
            runs.append(finished(job))
    assert runs[0] == runs[1] and len(runs[0]) >= 30
