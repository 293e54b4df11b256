"""Jobs that are lost as a whole, and others that go on from their checkpoints."""

import os
import shutil
from pathlib import Path

import pytest
from harness import Job, used_samples

SCRIPT = Path(__file__).with_name('checkpoint_worker.py')
SAMPLES, EVERY = 101, 7


def start(folder, hosts, **knobs):
    knobs = {'EVERY': str(EVERY), 'CHECKPOINTS': str(folder / 'checkpoints'), **knobs}
    return Job(folder, hosts, script=SCRIPT, environment=knobs)


def lines_of(job):
    return [{k: v for k, v in line.items() if k not in ('time', 'step_seconds')} for line in job.metrics()]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A job of two workers that does not stop."""
    with start(tmp_path_factory.mktemp('whole'), {'localhost': 2}) as job:
        job.status = job.finish()
        yield job


@pytest.fixture(scope='module')
def killed(tmp_path_factory):
    """The same, all of it killed at once on its way, as by a power failure."""
    with start(tmp_path_factory.mktemp('killed'), {'localhost': 2}, PAUSE='0.02') as job:
        job.wait_for_update(24)
        job.stop()
        yield job


@pytest.fixture(scope='module')
def resumed(killed, tmp_path_factory):
    """Gone on with by two workers, which begin with other weights."""
    folder = tmp_path_factory.mktemp('resumed')
    shutil.copytree(killed.folder, folder, dirs_exist_ok=True)
    with start(folder, {'localhost': 2}, RESUME='yes', SEED='77') as job:
        job.status = job.finish()
        yield job


@pytest.fixture(scope='module')
def grown(killed, tmp_path_factory):
    """Gone on with by three workers on hosts with disks of their own: a good one, a damaged one, an empty one."""
    folder = tmp_path_factory.mktemp('grown')
    shutil.copytree(killed.run_dir, folder / 'run')
    disks = folder / 'checkpoints'
    for host in ('localhost', '127.0.0.1'):
        shutil.copytree(killed.folder / 'checkpoints', disks / host)
    newest = max((disks / 'localhost').glob('*.hvd'), key=lambda path: int(path.stem.split('-')[1])).name
    damaged = disks / '127.0.0.1' / newest
    damaged.write_bytes(damaged.read_bytes()[:-100])
    knobs = {'RESUME': 'yes', 'DISKS': 'yes', 'PAUSE': '0.02', 'UNTIL': str(folder / 'enough')}
    with start(folder, {'localhost': 1, '127.0.0.1': 1, '127.1': 1}, **knobs) as job:
        job.good, job.damaged = disks / 'localhost' / newest, damaged
        job.wait_for_update(30)
        job.set_hosts({'localhost': 1, '127.0.0.1': 1, '127.1': 2})
        job.wait_for_size(4)
        (folder / 'enough').touch()
        job.status = job.finish()
        yield job


@pytest.mark.parametrize('name', ['whole', 'killed', 'resumed', 'grown'])
def test_jobs_succeed_without_a_traceback(name, request):
    job = request.getfixturevalue(name)
    assert 'Traceback' not in job.worker_log(), job.log()
    assert name == 'killed' or job.status == 0, job.log()


def test_resumed_job_is_bit_for_bit_one_that_did_not_stop(whole, resumed):
    """Weights, running statistics, Adam's moments and counts, learning rates, losses, samples."""
    assert {r['digest'] for r in resumed.reports('end')} == {r['digest'] for r in whole.reports('end')}
    assert len(resumed.reports('end')) == 2
    assert lines_of(resumed) == lines_of(whole)
    assert {k: [{**line, 'time': 0} for line in v] for k, v in resumed.audit().items()} == {
        k: [{**line, 'time': 0} for line in v] for k, v in whole.audit().items()}


def test_checkpoints_are_the_same_before_and_after(whole, resumed):
    saved = {r['update']: r['digest'] for r in whole.reports('saved')}
    assert len(saved) >= 7 and all(saved[r['update']] == r['digest'] for r in resumed.reports('saved'))


def test_last_three_are_kept_and_nothing_unfinished_is_left(whole, resumed, grown):
    names = [f'checkpoint-{u}.hvd' for u in range(EVERY, whole.last_update() + 1, EVERY)]
    for job in (whole, resumed):
        assert sorted(os.listdir(job.folder / 'checkpoints')) == sorted(names[-3:])
    assert not list((grown.folder / 'checkpoints').glob('*/.*'))


def test_resumed_is_told_in_the_log_and_the_events_and_is_no_resize(resumed, grown):
    for job, workers in ((resumed, 2), (grown, 3)):
        event, = job.events('resumed')
        assert event['update'] % EVERY == 0 and event['world_size'] == workers and event['undone_updates'] > 0
        assert event['path'].endswith(f"checkpoint-{event['update']}.hvd")
        assert f'resumed from {event["path"]} at update {event["update"]} with {workers} workers' in job.worker_log()
    assert not resumed.events('resized', 'failed_over') and len(resumed.events('started')) == 1
    assert [(e['old_size'], e['new_size']) for e in grown.events('resized', 'failed_over')] == [(3, 4)]


def test_horovod_issue_1897_the_trainer_is_restored_on_all_workers(resumed, grown):
    """Optimizer state and counts on every worker, whether it has a file or not."""
    for job, size in ((resumed, 2), (grown, 3)):
        update = job.events('resumed')[0]['update']
        entered = [r for r in job.reports('entered') if r['update'] == update and r['resumed'] is not None]
        assert len(entered) == size and len({r['digest'] for r in entered}) == 1
        assert all(r['counts'] == [update] for r in entered)
    assert sorted(r['resumed'] for r in entered) == [False, True, True]


def test_every_sample_is_used_once_an_epoch_with_another_number_of_workers(grown):
    stream = used_samples(grown.audit())
    assert len(stream) == len(set(stream)) == grown.metrics()[-1]['samples']
    assert stream[-1][0] >= 3
    for epoch in range(stream[-1][0]):
        assert sorted(i for e, i in stream if e == epoch) == list(range(SAMPLES))
    updates = [m['update'] for m in grown.metrics()]
    assert updates == list(range(1, updates[-1] + 1))


def test_learning_rate_follows_the_new_number_of_workers(grown):
    """As at a resize: smoothly, from where it was."""
    update = grown.events('resumed')[0]['update']
    scales = [m['lr_scale'] for m in grown.metrics()]
    assert scales[update - 1] == 1 < scales[update] < scales[update + 3] == pytest.approx(1.5 ** 0.5)
    assert scales == sorted(scales)


def test_damaged_file_is_named_and_the_one_before_is_taken(grown):
    assert f'{grown.damaged} is damaged' in grown.worker_log()
    assert grown.events('resumed')[0]['path'] == str(grown.good)


def test_newcomer_that_resumes_gets_the_state_of_the_running_job(grown):
    entered = [r for r in grown.reports('entered') if r['size'] == 4]
    assert len(entered) == 4 and len({r['digest'] for r in entered}) == 1
    assert {r['update'] for r in entered} == {grown.events('resized')[0]['update']}


def test_misfit_is_told_on_all_workers_before_training(resumed, tmp_path):
    shutil.copytree(resumed.folder / 'checkpoints', tmp_path / 'checkpoints')
    with start(tmp_path, {'localhost': 2}, RESUME='yes', OPTIMIZER='sgd') as job:
        assert job.finish() != 0
    assert "does not fit: optimizer was 'Adam' when it was written and is 'SGD' here" in job.worker_log()
    assert not job.metrics()
