"""Training goes on while newcomers get ready, whatever becomes of them; and what happens to a job that is told to end."""

import os
import signal
from pathlib import Path

import harness
import pytest
from harness import used_samples

EPOCHS, SAMPLES = 40, 203


class Job(harness.Job):
    """Whose workers are held up, as long as the test wants them to be."""

    def __init__(self, folder, hosts, **options):
        super().__init__(folder, hosts, script=Path(__file__).with_name('growth_worker.py'), **options)

    def wait_for_more(self, updates):
        """Training must be seen to go on."""
        self.wait_for_update(self.last_update() + updates)


def check_samples(job):
    used = used_samples(job.audit())
    assert len(used) == len(set(used)) and EPOCHS * SAMPLES - len(used) < 2


def check_same_on_all(job):
    by_update = {}
    for report in job.reports('entered') + job.reports('end'):
        by_update.setdefault((report['kind'], report['update']), set()).add(report['digest'])
    assert by_update and all(len(digests) == 1 for digests in by_update.values())


@pytest.fixture(scope='module')
def slow_newcomers(tmp_path_factory):
    """2 workers; two newcomers are held up, and meanwhile the hosts change once more; at last one worker gets SIGTERM."""
    with Job(tmp_path_factory.mktemp('growth'), {'localhost': 2},
             environment={'EPOCHS': str(EPOCHS), 'PAUSE': '0.02'}) as job:
        job.make('hold-127.0.0.1:0')
        job.wait_for_update(20)
        job.set_hosts({'localhost': 2, '127.0.0.1': 1})
        job.wait_for(lambda: '127.0.0.1:0' in job.workers(), 'a newcomer was started')
        job.wait_for_more(50)
        job.set_hosts({'localhost': 2, '127.0.0.1': 1, '127.1': 1})
        job.wait_for_more(50)
        job.alone_until = job.last_update()
        job.make('slow')
        job.remove('hold-127.0.0.1:0')
        job.wait_for_size(4)
        job.remove('slow')
        job.kill('127.1:0', signal.SIGTERM)
        job.wait_for_size(3)
        job.status = job.finish()
        return job


def test_training_goes_on_until_newcomers_are_ready(slow_newcomers):
    job = slow_newcomers
    assert job.status == 0, job.log()[-3000:]
    assert 'Traceback' not in job.worker_log()
    assert job.events('resized')[0]['update'] >= job.alone_until > 120


def test_hosts_that_change_once_more_meanwhile_make_one_resize(slow_newcomers):
    events = [(e['old_size'], e['new_size'], e['rolled_back_updates']) for e in slow_newcomers.events('resized')]
    assert events[0] == (2, 4, 0), events


def test_worker_that_is_told_to_end_leaves_at_a_commit(slow_newcomers):
    event = slow_newcomers.events('resized')[1]
    assert (event['old_size'], event['new_size'], event['removed'], event['rolled_back_updates']) == (4, 3, ['127.1:0'], 0)
    assert not slow_newcomers.events('failed_over')
    assert '127.1:0 leaves the job: it was told to end (SIGTERM)' in slow_newcomers.worker_log()


def test_state_and_samples_are_right_after_all_this(slow_newcomers):
    check_samples(slow_newcomers)
    check_same_on_all(slow_newcomers)


def test_newcomers_that_are_not_ready_are_taken_in_later(tmp_path):
    """Of two newcomers one is ready at once, the other after the time-out."""
    environment = {'EPOCHS': '40', 'PAUSE': '0.02', 'HVD_DYNAMIC_WARM_TIMEOUT': '1'}
    with Job(tmp_path, {'localhost': 1}, environment=environment) as job:
        job.make('hold-127.1:0')
        job.wait_for_update(10)
        job.make('slow')
        job.set_hosts({'localhost': 1, '127.0.0.1': 1, '127.1': 1})
        job.wait_for_size(2)
        job.remove('hold-127.1:0')
        job.wait_for_size(3)
        job.remove('slow')
        assert job.finish() == 0, job.log()[-3000:]
        assert [(e['old_size'], e['new_size'], e['added']) for e in job.events('resized')] == [
            (1, 2, ['127.0.0.1:0']), (2, 3, ['127.1:0'])]
        check_same_on_all(job)


def test_newcomers_for_whom_there_is_no_sample_wait(tmp_path):
    environment = {'EPOCHS': '40', 'PAUSE': '0.02', 'REFERENCE': '2', 'POLICY': '["fixed-global-batch", {}]', 'BATCH': '1'}
    with Job(tmp_path, {'localhost': 1}, environment={**environment, 'SAMPLES': '40'}) as job:
        job.wait_for_update(10)
        job.make('slow')
        job.set_hosts({'localhost': 1, '127.0.0.1': 1, '127.1': 1})
        job.wait_for_size(2)
        job.remove('slow')
        assert job.finish() == 0, job.log()[-3000:]
        assert [(e['old_size'], e['new_size']) for e in job.events('resized')] == [(1, 2)]


def test_newcomer_with_another_network_ends_alone(tmp_path):
    with Job(tmp_path, {'localhost': 1}, environment={'EPOCHS': '20', 'PAUSE': '0.02', 'MISFIT_SLOT': '127.0.0.1:0'}) as job:
        job.wait_for_update(10)
        job.make('slow')
        job.set_hosts({'localhost': 1, '127.0.0.1': 1})
        job.wait_for(lambda: 'a newcomer does not fit' in job.worker_log(), 'a newcomer was refused')
        job.remove('slow')
        assert job.finish() == 0, job.log()[-3000:]
        assert 'differs in shape between workers' in job.worker_log()
        end, = job.reports('end')
        assert end['slot'] == 'localhost:0'


def test_job_that_ends_while_newcomers_start_succeeds(tmp_path):
    with Job(tmp_path, {'localhost': 1}, environment={'EPOCHS': '14', 'PAUSE': '0.01'}) as job:
        job.make('hold-127.0.0.1:0')
        job.wait_for_update(10)
        job.set_hosts({'localhost': 1, '127.0.0.1': 1})
        job.wait_for(lambda: job.events('finished'), 'training had ended')
        job.remove('hold-127.0.0.1:0')
        assert job.finish() == 0, job.log()[-3000:]
        assert not job.events('resized') and 'Traceback' not in job.worker_log()


def test_job_succeeds_though_a_newcomer_died_before_it_was_heard_of(tmp_path):
    environment = {'EPOCHS': '14', 'PAUSE': '0.01', 'DIE_AT_START': '127.0.0.1:0'}
    with Job(tmp_path, {'localhost': 2}, environment=environment) as job:
        job.wait_for_update(10)
        job.make('slow')
        job.set_hosts({'localhost': 2, '127.0.0.1': 1})
        job.wait_for(lambda: 'dies at its start' in job.log(), 'a newcomer died')
        job.remove('slow')
        assert job.finish() == 0, job.log()[-3000:]
        assert not job.events('resized', 'failed_over') and job.events('finished')


@pytest.mark.parametrize('when, stuck', [
    ('0', ''), ('0.06', ''), ('0', 'localhost:0'), ('0', 'localhost:1'), ('0', 'localhost:0 localhost:1')])
def test_death_while_the_others_connect_after_another_death(when, stuck, tmp_path):
    """horovod issues 2484 and 3264, at the worst moment: a survivor is killed inside `hvd.init`.

    Those that are `stuck` cannot start Horovod again, and begin their script anew.
    """
    environment = {'EPOCHS': '25', 'PAUSE': '0.02', 'DIE_IN_INIT': '127.1:0', 'DIE_AFTER': when, 'STUCK': stuck,
                   'HOROVOD_GLOO_TIMEOUT_SECONDS': '5'}
    with Job(tmp_path, {'localhost': 2, '127.0.0.1': 1, '127.1': 1}, environment=environment) as job:
        job.wait_for_update(20)
        pids = job.workers()
        job.kill('127.0.0.1:0')
        assert job.finish() == 0, job.log()[-3000:]
        ends = {report['slot']: report for report in job.reports('end')}
        assert {slot: report['pid'] for slot, report in ends.items()} == {
            slot: pid for slot, pid in pids.items() if slot.startswith('localhost')}
        assert len({report['digest'] for report in ends.values()}) == 1
        assert job.worker_log().count('begins its script anew') >= len(stuck.split())
        assert sum(e['rolled_back_updates'] for e in job.events('failed_over')) <= 2
        used = used_samples(job.audit())
        assert len(used) == len(set(used)) and 25 * SAMPLES - len(used) < 2


def test_job_that_is_told_to_end_commits_and_goes_on_where_it_stopped(tmp_path):
    environment = {'EPOCHS': '14', 'PAUSE': '0.02', 'CHECKPOINT_DIR': str(tmp_path / 'checkpoints')}
    with Job(tmp_path, {'localhost': 2}, environment=environment) as job:
        job.wait_for_update(25)
        job._process.send_signal(signal.SIGTERM)
        assert job.finish() != 0
        stopped, = job.events('stopped')
        assert 'Traceback' not in job.worker_log()
        assert os.path.exists(stopped['path']) and stopped['update'] == job.last_update()
    with Job(tmp_path, {'localhost': 3}, environment=environment) as job:
        assert job.finish() == 0, job.log()[-3000:]
        resumed, = job.events('resumed')
        assert resumed['update'] == stopped['update'] and resumed['undone_updates'] == 0
        used = used_samples(job.audit())
        assert len(used) == len(set(used)) and 14 * SAMPLES - len(used) < 3
        updates = [metric['update'] for metric in job.metrics()]
        assert updates == list(range(1, len(updates) + 1))
