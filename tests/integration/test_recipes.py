"""The contracts of elastic training, on the recipes: 2 -> 3 -> 1 workers; and bad data in the middle of an epoch."""

import cv2
import numpy as np
import pytest
from harness import Job, used_samples

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
