"""A real job that follows a trace, and the same training simulated in one process: they must agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import ROOT, WORKER, Job, read_lines, used_samples

from hvd_dynamic import traces

SETTINGS = {'EPOCHS': '14', 'SAMPLES': '203', 'BASE': 'cosine', 'PAUSE': '0.05', 'BATCH': '4', 'SAVE_WEIGHTS': '1',
            'ACTIVATION': 'tanh'}
MEASURED = ('update', 'epoch', 'samples', 'world_size', 'global_batch', 'lr', 'lr_scale', 'momentum_scale')


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """The folders of the real run and of the simulated one, and the trace."""
    folder = tmp_path_factory.mktemp('trace')
    trace = traces.Trace('epochs', [(0, 2), (0.5, 3), (8, 1)])
    (folder / 'trace.csv').write_text(trace.to_csv())
    command = (f'{sys.executable} -m hvd_dynamic.cli discover --trace {folder}/trace.csv --run-dir {folder}/job/run '
               f'--hosts localhost:3')
    with Job(folder / 'job', {'localhost': 2}, environment=SETTINGS, discovery=command) as job:
        job.make('slow')                # until the newcomer is there, however long it takes to start
        job.wait_for_size(3, timeout=200)
        job.remove('slow')
        job.wait_for(lambda: job.metrics()[-1]['samples'] >= 8 * 203, 'the progress of the next change')
        job.make('slow')                # until it is noticed
        job.wait_for_size(1)
        job.remove('slow')
        job.status = job.finish()
        log = job.log()
    assert job.status == 0 and 'Traceback' not in log, log
    environment = {**os.environ, **SETTINGS, 'PAUSE': '0', 'RUN_DIR': str(folder / 'simulated'),
                   'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
    done = subprocess.run([sys.executable, '-m', 'hvd_dynamic.cli', 'simulate', str(folder / 'job' / 'run'), str(WORKER)],
                          env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / 'job' / 'run', folder / 'simulated', trace


def test_real_job_has_the_sizes_of_the_trace_once_it_is_at_their_progress(runs):
    real, _, trace = runs
    happened = traces.of_run(real)
    assert happened.sizes == trace.sizes
    for (at, _), (planned, _) in zip(happened.points, trace.points):
        assert at >= planned * 203


def test_every_update_has_the_same_lr_and_batch(runs):
    real, simulated = ([[line[name] for name in MEASURED] for line in read_lines(folder / 'metrics.jsonl')]
                       for folder in runs[:2])
    assert real == simulated and len(real) > 200


def test_samples_have_the_same_order(runs):
    real, simulated = (used_samples({path.stem: read_lines(path) for path in sorted(folder.glob('samples-*.jsonl'))})
                       for folder in runs[:2])
    assert real == simulated


def test_losses_and_final_weights_agree_but_for_the_order_of_float32_sums(runs):
    real, simulated = ([line['loss'] for line in read_lines(folder / 'metrics.jsonl')] for folder in runs[:2])
    np.testing.assert_allclose(real, simulated, rtol=1e-3, atol=1e-4)
    real, simulated = (np.load(next(Path(folder).glob('weights-*.npz'))) for folder in runs[:2])
    assert list(real) == list(simulated) and any('running' in name for name in real)
    for name in real:
        np.testing.assert_allclose(real[name], simulated[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_event_that_begins_a_run_says_how_long_an_epoch_is(runs):
    for folder in runs[:2]:
        first = json.loads((folder / 'events.jsonl').read_text().splitlines()[0])
        assert first['kind'] == 'started' and first['samples_per_epoch'] == 203
