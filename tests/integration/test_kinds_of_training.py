"""Networks, optimizers, types and ways to start, each through a growth and a shrink where it matters."""

import json
import os
import subprocess
import sys

import pytest
from harness import ROOT, WORKER, Job, read_lines, used_samples

KINDS = {
    'float16 with multi-precision, not hybridized': {
        'DTYPE': 'float16', 'HYBRIDIZE': '0', 'OPTIMIZER': '["sgd", {"momentum": 0.9, "multi_precision": true}]'},
    'nag, shared and frozen parameters': {
        'OPTIMIZER': '["nag", {"momentum": 0.9}]', 'SHARED': '1', 'FREEZE': '1', 'BASE': 'epochs'},
    'adam with square-root scaling': {'OPTIMIZER': '["adam", {}]', 'POLICY': '["smooth-compensated", {}]'},
    'lars with accumulation': {
        'OPTIMIZER': '["lars", {"momentum": 0.9}]', 'POLICY': '["fixed-global-batch", {"max_local_batch": 5}]'},
}


@pytest.mark.parametrize('kind', KINDS)
def test_newcomer_continues_bit_for_bit_as_a_survivor_does(kind, tmp_path):
    settings = {'EPOCHS': '8', 'PAUSE': '0.03', **KINDS[kind]}
    with Job(tmp_path, {'localhost': 1}, environment=settings) as job:
        for update, slots in ((10, 3), (35, 2)):
            job.wait_for_update(update)
            job.resize({'localhost': slots})
        assert job.finish() == 0, job.log()[-3000:]
        assert 'Traceback' not in job.worker_log()
        rounds = {}
        for r in [*job.reports('entered'), *job.reports('end')]:
            rounds.setdefault((r['update'], r['size']), set()).add(r['digest'])
        assert len(rounds) >= 4 and all(len(digests) == 1 for digests in rounds.values()), rounds
        assert [(e['old_size'], e['new_size'], e['rolled_back_updates']) for e in job.events('resized')] == [
            (1, 3, 0), (3, 2, 0)]
        used = used_samples(job.audit())
        assert len(used) == len(set(used))


def alone(folder, **settings):
    """The same script started with plain python."""
    folder.mkdir()
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'RUN_DIR': str(folder), 'PAUSE': '0',
                   **settings}
    done = subprocess.run([sys.executable, str(WORKER)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: read_lines(folder / f'{name}.jsonl') for name in ('metrics', 'events')}


def test_fixed_global_batch_has_the_loss_curve_of_one_worker_over_all_resizes_and_a_loss(tmp_path):
    """The bound: 1e-4 relative in every update's loss. Sums of float32 in another order differ by about 1e-7 of their
    terms, and some hundred updates let that grow; a sample too many or too few in one update would show as about 1e-2."""
    settings = {'EPOCHS': '24', 'SAMPLES': '200', 'BATCHNORM': '0', 'REFERENCE': '20', 'BASE': 'cosine',
                'ACTIVATION': 'tanh', 'POLICY': '["fixed-global-batch", {"max_local_batch": 8}]'}
    single = alone(tmp_path / 'alone', **settings)['metrics']
    with Job(tmp_path / 'job', {'localhost': 2}, environment={**settings, 'PAUSE': '0.04'}) as job:
        for update, slots in ((15, 3), (45, 1)):
            job.wait_for_update(update)
            job.resize({'localhost': slots})
        job.wait_for_update(60)
        job.resize({'localhost': 1, '127.0.0.1': 1})
        job.wait_for_update(job.last_update() + 8)
        job.kill('127.0.0.1:0')
        assert job.finish() == 0, job.log()[-3000:]
        elastic = job.metrics()
        assert len(job.events('failed_over')) == 1
    assert {m['world_size'] for m in elastic} == {1, 2, 3}
    assert len(single) == len(elastic) == 240
    for a, b in zip(single, elastic):
        for name in ('update', 'samples', 'global_batch', 'lr'):
            assert a[name] == b[name]
    # Every worker initialises alike here only because rank 0 of the job draws what a single worker draws.
    worst = max(abs(a['loss'] - b['loss']) / a['loss'] for a, b in zip(single, elastic))
    assert worst < 1e-4, worst


def test_script_runs_with_plain_python(tmp_path):
    run = alone(tmp_path / 'alone', EPOCHS='2')
    assert {m['world_size'] for m in run['metrics']} == {1}
    assert [e['kind'] for e in run['events']] == ['started', 'finished']


def test_script_runs_under_horovodrun_of_a_fixed_size(tmp_path):
    with Job(tmp_path, {'localhost': 2}, environment={'EPOCHS': '2'}, elastic=False) as job:
        assert job.finish() == 0, job.log()[-3000:]
        assert {m['world_size'] for m in job.metrics()} == {2}
        assert len({r['digest'] for r in job.reports('end')}) == 1 and len(job.reports('end')) == 2
        assert 'Traceback' not in job.worker_log()


@pytest.mark.parametrize('settings, message', [
    ({'MISMATCH': '1'}, 'differs in shape between workers'),
    ({'SAMPLES': '2'}, 'the data set has 2 samples, fewer than the 3 workers'),
    ({'POLICY': json.dumps(['fixed-global-batch', {}]), 'REFERENCE': '2'},
     'reference_batch=2 cannot be formed by 3 workers under FixedGlobalBatch'),
])
def test_what_does_not_fit_is_told_on_all_workers_before_training(settings, message, tmp_path):
    with Job(tmp_path, {'localhost': 3}, environment=settings) as job:
        assert job.finish() != 0
        assert job.log().count(f'ValueError: {message}') + job.log().count(message) >= 3, job.log()[-3000:]
        assert not job.metrics()
