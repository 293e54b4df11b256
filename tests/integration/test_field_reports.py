"""Faults that users of elastic training reported in public: this package must be seen not to have them.

| report | where its test is |
| --- | --- |
| horovod 3399, 3143, 2844 | here, one job |
| horovod 3494 | `test_events.py`, `too_few` |
| horovod 2484 and 3264 | `test_events.py`, `killed` |
| horovod 1897, mxnet 17357 and 10910 | `test_checkpoints.py` |
| gluon-cv 891 and 1116 | here |
"""

from collections import Counter

import pytest
from harness import ROOT, Job, used_samples

SAMPLES = 1200


@pytest.fixture(scope='module')
def job(tmp_path_factory):
    """A host leaves, two come, one of them is lost: all in the middle of an epoch."""
    settings = {'EPOCHS': '100000', 'SAMPLES': str(SAMPLES), 'UNTIL_STOPPED': '1', 'PAUSE': '0.03'}
    with Job(tmp_path_factory.mktemp('reports'), {'localhost': 1, '127.0.0.1': 1}, environment=settings) as job:
        def mid_epoch():
            """Wait for the middle of an epoch."""
            job.wait_for(lambda: job.metrics() and 0.2 < job.metrics()[-1]['samples'] / SAMPLES % 1 < 0.5, 'mid epoch')

        def change(size, kind, act):
            mid_epoch()
            before = len(job.events(kind))
            act()
            job.wait_for(lambda: len(job.events(kind)) > before, f'there were {size} workers')
            job.wait_for_size(size)

        job.wait_for_update(SAMPLES // 8)
        change(1, 'resized', lambda: job.set_hosts({'localhost': 1}))
        change(3, 'resized', lambda: job.set_hosts({'localhost': 1, '127.1': 1, '127.0.1': 1}))
        change(2, 'failed_over', lambda: job.kill('127.1:0'))
        job.make('stop')
        job.status = job.finish()
        assert job.status == 0, job.log()[-3000:]
        yield job


def last_before(job, event):
    return [m for m in job.metrics() if m['update'] <= event['update']][-1]


def test_the_changes_happened_in_mid_epoch(job):
    """Else the other tests here would show nothing."""
    changes = job.events('resized', 'failed_over')
    assert [(e['kind'], e['old_size'], e['new_size']) for e in changes] == [
        ('resized', 2, 1), ('resized', 1, 3), ('failed_over', 3, 2)]
    assert all(last_before(job, e)['samples'] % SAMPLES >= 12 for e in changes)


def test_horovod_issue_3399_no_sample_is_served_again_after_a_host_left(job):
    leave = job.events('resized')[0]
    epoch = last_before(job, leave)['epoch']
    counts = Counter(index for e, index in used_samples(job.audit()) if e == epoch)
    assert set(counts.values()) == {1} and len(counts) == SAMPLES
    updates = [m['update'] for m in job.metrics() if m['epoch'] == epoch]
    assert min(updates) <= leave['update'] < max(updates), 'the epoch went on after the host had left'


def test_horovod_issue_3143_no_sample_is_lost_from_the_record_when_a_node_drops(job):
    lost, = job.events('failed_over')
    epoch = last_before(job, lost)['epoch']
    counts = Counter(used_samples(job.audit()))
    assert set(counts.values()) == {1}
    assert {index for e, index in counts if e == epoch} == set(range(SAMPLES))
    dropped = job.audit()['samples-127.1-0']
    assert dropped and dropped[-1]['update'] == lost['update'], 'the record of the dropped node is complete, too'


def test_horovod_issue_2844_the_epoch_after_a_scale_up_in_mid_epoch_is_the_one_that_training_had_reached(job):
    grown = next(e for e in job.events('resized') if e['new_size'] == 3)
    reached = last_before(job, grown)['epoch']
    assert reached > 0
    callback, = (r for r in job.reports('resize') if r['new_size'] == 3)
    assert callback['epoch'] == callback['trained_epoch'] == reached
    after = next(m for m in job.metrics() if m['update'] > grown['update'])
    assert after['epoch'] == reached and after['samples'] - last_before(job, grown)['samples'] == after['global_batch']


def test_gluon_cv_891_and_1116_lr_and_batch_of_the_recipe_follow_the_workers_that_there_are(tmp_path):
    """Also those of workers that were started when the job had another size."""
    batch, reference, lr = 16, 64, 0.1
    arguments = ['--batch-size', batch, '--reference-batch', reference, '--lr', lr, '--lr-mode', 'step',
                 '--policy', 'linear', '--warmup-epochs', 0, '--num-epochs', 4000,
                 '--audit-samples', '--run-dir', tmp_path / 'run']
    with Job(tmp_path, {'localhost': 2}, ROOT / 'gluon_examples' / 'classification' / 'train.py', arguments) as job:
        job.wait_for_update(20)
        for hosts in ({'localhost': 3}, {'localhost': 1}):
            job.set_hosts(hosts)
            job.wait_for_size(hosts['localhost'])
            job.wait_for_update(job.last_update() + 60)
        job.stop()
        metrics = job.metrics()
        assert {m['world_size'] for m in metrics} == {1, 2, 3}
        for m in metrics:
            assert m['lr'] == pytest.approx(lr * batch * m['world_size'] / reference), m
        full = [m for m in metrics if m['global_batch'] == batch * m['world_size']]
        ends = [m for m in metrics if m not in full]
        assert len(ends) <= metrics[-1]['epoch'] + 1, 'only the last update of an epoch may be smaller'
        # and what each worker really took, newcomers among them
        took = {name: {len(line['indices']) for line in lines} for name, lines in job.audit().items()}
        assert sorted(took) == ['samples-localhost-0', 'samples-localhost-1', 'samples-localhost-2']
        assert all(max(sizes) == batch for sizes in took.values())
