"""The recipes in real jobs: the contracts of elastic training, a job that is stopped and gone on with, bad data."""

import os
import signal
import subprocess
import sys

import cv2
import mxnet as mx
import numpy as np
import pytest
from harness import ROOT, Job, read_lines, used_samples

SCENES = ['--scenes', 200, '--save-samples', 2]
SMALL = ['--batch-size', 4, '--log-interval', 20, '--audit-samples']
TASKS = {
    'classification': ([], 1500, 3, {'accuracy', 'loss'}),
    'detection': (SCENES, 200, 8, {'map'}),
    'segmentation': (SCENES, 200, 8, {'pixel_accuracy', 'miou'}),
}


def recipe(folder, task, arguments, hosts):
    module = f'gluon_examples.{task}.train'
    # Growth does not wait for newcomers while training goes on, so that the number of updates needs not fit the machine.
    return Job(folder, hosts, script='-m', arguments=[module, '--run-dir', folder / 'run', *arguments],
               environment={'HVD_DYNAMIC_WARM_TIMEOUT': '0'})


@pytest.mark.parametrize('task', list(TASKS))
def test_recipe_goes_on_from_2_to_3_to_1_workers_and_uses_each_sample_once(task, tmp_path):
    flags, length, epochs, metrics = TASKS[task]
    with recipe(tmp_path, task, [*SMALL, *flags, '--num-epochs', epochs], {'localhost': 2}) as job:
        for update, workers in ((5, 3), (15, 1)):
            job.wait_for_update(update)
            job.set_hosts({'localhost': workers})
            job.wait_for_size(workers)
        assert job.finish(300) == 0, job.log()[-3000:]
        assert 'Traceback' not in job.worker_log(), job.worker_log()
        resizes = [(e['old_size'], e['new_size'], e['rolled_back_updates']) for e in job.events('resized', 'failed_over')]
        assert resizes == [(2, 3, 0), (3, 1, 0)]
        assert all(np.isfinite(line['loss']) for line in job.metrics())
        evaluated = job.events('evaluated')
        assert [e['epoch'] for e in evaluated] == list(range(epochs))
        assert all(set(e['metrics']) == metrics and np.isfinite(list(e['metrics'].values())).all() for e in evaluated)
        used = used_samples(job.audit())
        assert len(used) == len(set(used))
        # Fewer samples than workers may be left over at the end of an epoch, for the next.
        assert epochs * length - 3 < len(used) <= epochs * length
        losses = [line['loss'] for line in job.metrics()]
        assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
        assert list(job.run_dir.glob('*-best.params')) and list(job.run_dir.glob('*-last.params'))
        if task != 'classification':
            assert len(list((job.run_dir / 'samples').glob('*.png'))) == 2


def alone(task, *arguments):
    """The recipe without horovodrun, to its end."""
    command = [sys.executable, '-m', f'gluon_examples.{task}.train', *map(str, arguments)]
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and 'Traceback' not in done.stderr, done.stderr[-3000:]
    return done.stderr


STEADY = ('update', 'epoch', 'samples', 'lr')


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_recipe_gone_on_with_at_the_end_of_an_epoch_ends_like_one_that_was_not_stopped(task, tmp_path):
    flags = ['--scenes', 40, '--num-epochs', 3, '--batch-size', 8]
    whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
    alone(task, *flags, '--run-dir', whole)
    kept = sorted((whole / 'checkpoints').glob('*.hvd'), key=lambda path: int(path.stem.split('-')[1]))
    assert [int(path.stem.split('-')[1]) for path in kept] == [5, 10, 15]
    alone(task, *flags, '--run-dir', resumed, '--seed', 0, '--resume', kept[1])
    lines = [read_lines(folder / 'metrics.jsonl') for folder in (whole, resumed)]
    assert [line['update'] for line in lines[1]] == [11, 12, 13, 14, 15]
    assert [[line[key] for key in STEADY] for line in lines[1]] == [[line[key] for key in STEADY] for line in lines[0][10:]]
    evaluated = [[e for e in read_lines(folder / 'events.jsonl') if e['kind'] == 'evaluated'] for folder in (whole, resumed)]
    assert [e['epoch'] for e in evaluated[1]] == [1, 2]     # the second epoch's checkpoint is from before its evaluation
    name = next(whole.glob('*-last.params')).name
    weights = [mx.nd.load(str(folder / name)) for folder in (whole, resumed)]
    if task == 'detection':     # nothing is random: to the last bit
        assert all((weights[0][key] == weights[1][key]).asnumpy().all() for key in weights[0])
        assert [e['metrics'] for e in evaluated[1]] == [e['metrics'] for e in evaluated[0][1:]]
        assert [line['loss'] for line in lines[1]] == [line['loss'] for line in lines[0][10:]]
    else:       # dropout goes on with other random numbers, the first evaluation is of the same weights
        assert evaluated[1][0]['metrics'] == evaluated[0][1]['metrics']
        np.testing.assert_allclose([line['loss'] for line in lines[1]], [line['loss'] for line in lines[0][10:]], rtol=0.3)


@pytest.mark.parametrize('task', list(TASKS))
def test_recipe_measures_the_noise_scale_if_asked(task, tmp_path):
    flags, length, *_ = TASKS[task]
    flags = [*flags, '--batch-size', 10, '--num-epochs', 1]
    with recipe(tmp_path, task, [*flags, '--noise-scale'], {'localhost': 2}) as job:
        assert job.finish() == 0, job.log()[-3000:]
    scales = [line['noise_scale'] for line in job.metrics()]
    # An estimate is made of all updates before; where noise drowns the gradient there is no number.
    assert len(scales) == length // 20 and scales[0] is None
    assert any(scale is not None and scale >= 0 for scale in scales)
    alone(task, *flags, '--run-dir', tmp_path / 'without')
    assert {line['noise_scale'] for line in read_lines(tmp_path / 'without' / 'metrics.jsonl')} == {None}


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_job_of_two_that_was_told_to_end_is_gone_on_with_by_one_worker(task, tmp_path):
    length, epochs = 120, 8     # some seconds are left of it when it is told to end
    flags = ['--scenes', length, '--num-epochs', epochs, '--batch-size', 4, '--audit-samples']
    with recipe(tmp_path, task, flags, {'localhost': 2}) as job:
        job.wait_for_update(20)     # the second epoch, or later
        job._process.send_signal(signal.SIGTERM)
        assert job.finish() != 0
        assert 'Traceback' not in job.worker_log(), job.worker_log()
    stopped_at = job.last_update()
    said = alone(task, *flags, '--run-dir', job.run_dir, '--resume', 'auto')
    assert 'best test m' in said
    (resumed,) = job.events('resumed')
    assert resumed['update'] == stopped_at < epochs * length // 8
    assert [line['update'] for line in job.metrics()] == list(range(1, job.last_update() + 1))
    assert [line['world_size'] for line in job.metrics()] == [2] * stopped_at + [1] * (job.last_update() - stopped_at)
    assert [e['epoch'] for e in job.events('evaluated')] == list(range(epochs))
    used = used_samples(job.audit())
    assert len(used) == len(set(used)) == epochs * length
    assert job.metrics()[-1]['lr'] < 0.1 * max(line['lr'] for line in job.metrics())   # the schedule has come to its end


@pytest.fixture
def voc(tmp_path):
    """Pascal VOC's layout, with one image of those to train with that is none."""
    root = tmp_path / 'VOCdevkit'
    for year, split in (('VOC2007', 'trainval'), ('VOC2012', 'trainval'), ('VOC2007', 'test')):
        folders = [root / year / name for name in ('ImageSets/Main', 'JPEGImages', 'Annotations')]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        names = [f'{split}{i}' for i in range(12)]
        (folders[0] / f'{split}.txt').write_text('\n'.join(names))
        for name in names:
            cv2.imwrite(str(folders[1] / f'{name}.jpg'), np.zeros((64, 64, 3), 'uint8'))
            (folders[2] / f'{name}.xml').write_text(
                '<annotation><size><width>64</width><height>64</height></size><object><name>cat</name><difficult>0</difficult>'
                '<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>40</xmax><ymax>40</ymax></bndbox></object></annotation>')
    (root / 'VOC2012' / 'JPEGImages' / 'trainval7.jpg').write_bytes(b'no picture')
    return root


def test_unreadable_image_ends_the_job_with_its_name_or_is_counted(voc, tmp_path):
    flags = ['--dataset', 'voc', '--data-dir', voc, '--model', 'ssd_tiny', '--num-epochs', 2, '--batch-size', 3,
             '--num-workers', 1]
    message = f'train: error: {voc}/VOC2012/JPEGImages/trainval7.jpg: the image cannot be decoded'
    with recipe(tmp_path / 'stop', 'detection', flags, {'localhost': 2}) as job:
        assert job.finish() != 0
        assert f'{message}; mend it, or give --skip-bad' in job.log(), job.log()[-3000:]
    with recipe(tmp_path / 'skip', 'detection', [*flags, '--skip-bad'], {'localhost': 2}) as job:
        assert job.finish(300) == 0, job.log()[-3000:]
        assert 'left out: 0 annotations, and 2 times an image that could not be used' in job.log(), job.log()[-3000:]


def test_annotation_that_cannot_be_used_is_told_by_all_workers(voc, tmp_path):
    path = voc / 'VOC2007' / 'Annotations' / 'trainval3.xml'
    path.write_text(path.read_text().replace('<xmax>40', '<xmax>400'))
    flags = ['--dataset', 'voc', '--data-dir', voc, '--model', 'ssd_tiny', '--num-epochs', 1]
    with recipe(tmp_path / 'stop', 'detection', flags, {'localhost': 2}) as job:
        assert job.finish() != 0
        message = f'train: error: {path}: the box (4, 4, 399, 39) reaches beyond the image of 64x64; mend it, or give'
        told = {line[:3] for line in job.log().splitlines() if message in line}
        assert told == {'[0]', '[1]'}, job.log()[-3000:]
        assert 'Traceback' not in job.worker_log(), job.worker_log()


@pytest.fixture
def ade(tmp_path):
    """ADE20K's layout, with one mask of those to train with that has a label beyond the classes."""
    root = tmp_path / 'ade'
    for part in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (root / kind / part).mkdir(parents=True)
        for i in range(12):
            cv2.imwrite(str(root / 'images' / part / f'{i:02d}.jpg'), np.zeros((48, 64, 3), 'uint8'))
            cv2.imwrite(str(root / 'annotations' / part / f'{i:02d}.png'), np.full((48, 64), 1 + i, 'uint8'))
    cv2.imwrite(str(root / 'annotations' / 'training' / '07.png'), np.full((48, 64), 200, 'uint8'))
    return root


def test_mask_with_labels_beyond_the_classes_ends_the_job_with_its_name_or_is_counted(ade, tmp_path):
    flags = ['--dataset', 'ade20k', '--data-dir', ade, '--model', 'fcn_tiny', '--base-size', 48, '--crop-size', 32,
             '--num-epochs', 2, '--batch-size', 3, '--num-workers', 1]
    message = f'train: error: {ade}/annotations/training/07.png: the mask has the label 199, outside 0 to 149'
    with recipe(tmp_path / 'stop', 'segmentation', flags, {'localhost': 2}) as job:
        assert job.finish() != 0
        assert f'{message}; mend it, or give --skip-bad' in job.log(), job.log()[-3000:]
    with recipe(tmp_path / 'skip', 'segmentation', [*flags, '--skip-bad'], {'localhost': 2}) as job:
        assert job.finish(300) == 0, job.log()[-3000:]
        assert 'left out: 0 annotations, and 2 times an image that could not be used' in job.log(), job.log()[-3000:]
        assert all(np.isfinite(line['loss']) for line in job.metrics())
