"""Adaptive SGD on real jobs: unequal speed, workers that join, and the death of the one that deals out the samples."""

from pathlib import Path

import pytest
from harness import Job, used_samples

WORKER = Path(__file__).resolve().parent / 'adaptive_worker.py'
EPOCHS, SAMPLES = 10, 1000


@pytest.fixture(scope='module')
def job(tmp_path_factory):
    """Two workers; the one with the dispatcher dies in the middle of a mega-batch; then two join, and one leaves."""
    with Job(tmp_path_factory.mktemp('adaptive'), {'localhost': 1, '127.0.0.1': 1}, script=WORKER,
             environment={'EPOCHS': str(EPOCHS), 'SAMPLES': str(SAMPLES)}) as job:
        job.wait_for_update(5)
        job.first = next(r for r in job.reports('entered') if r['rank'] == 0)
        job.wait_for(lambda: all(r['batches'] >= 3 for r in last_batches(job)), 'all were in the middle of a mega-batch')
        job.make('hold')
        job.kill(job.first['slot'])
        job.remove('hold')
        job.survivor = next(r['slot'] for r in job.reports('entered') if r['slot'] != job.first['slot'])
        job.wait_for_size(1)
        host = job.survivor.split(':')[0]
        job.resize({host: 3})
        job.wait_for_update(job.last_update() + 3)
        job.resize({host: 2})     # a shrink, in fact
        job.status = job.finish()
        yield job


def last_batches(job):
    """The last batch that each worker has reported."""
    return list({r['slot']: r for r in job.reports('batch')}.values())


def test_job_ends_well(job):
    assert job.status == 0, job.log()[-3000:]
    assert 'Traceback' not in job.worker_log()
    kinds = [(e['kind'], e['old_size'], e['new_size']) for e in job.events('resized', 'failed_over')]
    assert kinds == [('failed_over', 2, 1), ('resized', 1, 3), ('resized', 3, 2)], job.log()[-3000:]
    assert all(e['rolled_back_updates'] == 0 for e in job.events('resized', 'failed_over'))


def test_every_sample_exactly_once_an_epoch(job):
    used = used_samples(job.audit())
    assert len(used) == len(set(used))
    assert sorted(used) == [(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)]


def test_merges_follow_each_other_without_a_gap(job):
    metrics = job.metrics()
    assert [m['update'] for m in metrics] == list(range(1, EPOCHS * SAMPLES // 250 + 1))
    assert [m['samples'] for m in metrics] == [250 * m['update'] for m in metrics]
    for m in metrics:
        assert sum(r['samples'] for r in m['replicas']) == 250 and len(m['replicas']) == m['world_size']
    assert metrics[-1]['loss'] < 0.5 * metrics[0]['loss']


def test_survivor_keeps_what_it_had_computed(job):
    """What was in the dead worker's hands is handed out again; the survivor's own part of the mega-batch is not."""
    assert 'samples of the mega-batch were done' in job.worker_log()
    after = next(e for e in job.events('failed_over'))['update'] + 1
    before = [r for r in job.reports('batch') if r['slot'] == job.survivor and r['updates'] == after - 1
              and r['time'] < job.reports('entered')[2]['time']]
    merged = next(m for m in job.metrics() if m['update'] == after)
    own = merged['replicas'][0]['updates']
    during = [r for r in job.reports('batch') if r['slot'] == job.survivor and r['updates'] == after - 1
              and r['time'] > job.reports('entered')[2]['time']]
    assert before and len({r['batches'] for r in before + during}) == len(before + during), (before, during)
    assert own == max(r['batches'] for r in before + during) + 1


def test_all_go_on_from_the_same_model(job):
    rounds = {}
    for r in [*job.reports('entered'), *job.reports('end')]:
        rounds.setdefault((r['update'], r.get('size')), set()).add(r['digest'])
    entered = [key for key in rounds if key[1] is not None and key[0] > 0]
    assert len(entered) >= 3 and all(len(digests) == 1 for digests in rounds.values()), rounds
    assert len({r['digest'] for r in job.reports('end')}) == 1 and len(job.reports('end')) == 2


def test_newcomers_begin_with_a_fair_batch(job):
    metrics = job.metrics()
    grown = next(m for m in metrics if m['world_size'] == 3)
    before = next(m for m in metrics if m['update'] == grown['update'] - 1)
    assert before['world_size'] == 1
    assert {r['batch'] for r in grown['replicas']} == {before['replicas'][0]['batch']}


def test_slow_worker_does_less_and_gets_smaller_batches(tmp_path):
    with Job(tmp_path, {'localhost': 2}, script=WORKER,
             environment={'EPOCHS': '4', 'SAMPLES': str(SAMPLES), 'SLOW': 'localhost:1'}) as job:
        assert job.finish() == 0, job.log()[-3000:]
        by_slot = [{r['slot']: r for r in m['replicas']} for m in job.metrics()]
        fast, slow = [[m[f'localhost:{i}'] for m in by_slot] for i in (0, 1)]
        assert sum(r['samples'] for r in slow) < 0.6 * sum(r['samples'] for r in fast)
        assert slow[-1]['batch'] < fast[-1]['batch']
        assert abs(sum(r['updates'] for r in slow[-4:]) - sum(r['updates'] for r in fast[-4:])) < \
            sum(r['updates'] for r in fast[:1])
        used = used_samples(job.audit())
        assert sorted(used) == [(epoch, index) for epoch in range(4) for index in range(SAMPLES)]
