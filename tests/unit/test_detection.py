"""The detection recipe: scenes, annotations on disk, losses, evaluation, flags."""

import json

import cv2
import mxnet as mx
import numpy as np
import pytest
from helpers import Group, raise_errors
from mxnet import autograd, gluon

from gluon_examples.common.bad_data import BadData
from gluon_examples.common.errors import DamagedDataError, MissingDataError, RecipeError
from gluon_examples.common.pretrained import weights_from
from gluon_examples.common.scenes import CLASSES, DigitScenes
from gluon_examples.common.setup import initialize
from gluon_examples.detection import arguments, datasets, networks
from gluon_examples.detection.evaluation import VOC07, DetectionEvaluator
from gluon_examples.detection.tasks import FixedSize, task_for
from hvd_dynamic import VirtualWorld

SIDE = networks.TINY_SIDE


# -- scenes ------------------------------------------------------------------------------------------------------

def test_scene_is_a_function_of_part_seed_and_number_alone():
    one, again, other = DigitScenes('train', 50, 3), DigitScenes('train', 9, 3), DigitScenes('train', 50, 4)
    one[0], one[1]      # what was asked for before makes no difference
    for a, b in zip(one[7], again[7]):
        np.testing.assert_array_equal(a, b)
    assert (one[7].image != other[7].image).any() and (one[7].image != DigitScenes('test', 50, 3)[7].image).any()


def test_boxes_hold_the_digits_and_masks_agree_with_them():
    for scene in map(DigitScenes('test', 40).__getitem__, range(40)):
        assert 1 <= len(scene.boxes) <= 4 and scene.image.shape == (64, 64, 3) and scene.image.dtype == np.uint8
        covered = np.zeros(scene.mask.shape, bool)
        for (left, top, right, bottom), label in zip(scene.boxes.astype(int), scene.labels):
            assert 0 <= left < right <= 64 and 0 <= top < bottom <= 64
            assert (scene.mask[top:bottom, left:right] == 1 + label).mean() > 0.1
            covered[top:bottom, left:right] = True
        assert not scene.mask[~covered].any()


def test_scene_beyond_the_end_ends_a_loop():
    assert len(list(DigitScenes('test', 3))) == 3


# -- what each image adds to the loss ----------------------------------------------------------------------------

def gradients(net, task, samples):
    batch = [part.as_in_context(mx.cpu()) for part in task.batchify(samples)]
    with autograd.record():
        loss, count = task.loss(net, *batch)
    loss.backward()
    assert loss.shape == (len(samples),)
    trained = [p.grad().asnumpy().copy() for p in net.collect_params().values() if p.grad_req != 'null']
    return trained, loss.asnumpy(), float(count.asscalar())


def test_ssd_gradients_of_workers_add_up_to_those_of_one_also_when_one_has_no_match():
    """GluonCV's loss is divided by a batch's own matches, so that the sum over workers would be another."""
    mx.random.seed(1)
    net = networks.create('ssd_tiny', CLASSES)
    initialize(net, mx.cpu())
    task = task_for(net, SIDE, augment=False)
    net.apply(lambda b: b._kwargs.update(use_global_stats=True) if isinstance(b, gluon.nn.BatchNorm) else None)
    scenes = DigitScenes('train', 8).transform(datasets.with_boxes)
    samples = [task.transform(*scenes[i]) for i in range(5)]
    empty = task.transform(scenes[5][0], np.zeros((0, 6), 'float32'))
    whole, loss, matches = gradients(net, task, [*samples, empty, empty])
    parts = [gradients(net, task, part) for part in (samples[:3], samples[3:], [empty, empty])]
    assert [count for *_, count in parts][-1] == 0 and sum(count for *_, count in parts) == matches > 10
    np.testing.assert_allclose(np.concatenate([loss for _, loss, _ in parts]), loss, rtol=1e-4, atol=1e-4)
    for total, *added in zip(whole, *[grads for grads, _, _ in parts]):
        np.testing.assert_allclose(sum(added), total, rtol=1e-3, atol=1e-3 * np.abs(total).max() + 1e-6)
    assert not parts[-1][1].any() and not any(grad.any() for grad in parts[-1][0])


@pytest.mark.parametrize('augment', [False, True])
def test_yolo_trains_on_ragged_boxes_and_an_image_without_any_adds_nothing(augment):
    mx.random.seed(1)
    net = networks.create('yolo3_mobilenet0.25', CLASSES)
    initialize(net, mx.cpu())
    task = task_for(net, 96, augment)
    scenes = DigitScenes('train', 8).transform(datasets.with_boxes)
    samples = [task.transform(*scenes[i]) for i in range(3)]
    assert len({len(scenes[i][1]) for i in range(3)}) > 1
    empty = task.transform(scenes[3][0], np.zeros((0, 6), 'float32'))
    _, loss, count = gradients(net, task, [*samples, empty])
    assert count == 3 and (loss[:3] > 0).all() and loss[3] == 0


# -- evaluation --------------------------------------------------------------------------------------------------

class Oracle:
    """Finds what is there, but for mistakes that depend on the image alone."""

    def __init__(self, test_set):
        self._known = {self._key(image): boxes for image, boxes in test_set}

    @staticmethod
    def _key(image):
        return image.asnumpy().tobytes()

    def __call__(self, images):
        answers = np.full((len(images), 6, 6), -1, 'float32')
        for i, image in enumerate(images):
            truth = self._known.get(self._key(image))
            if truth is None:
                continue        # one that fills up a batch
            mistakes = np.random.RandomState(len(self._key(image)) + int(truth.sum())).uniform(size=len(truth))
            for j, (box, wrong) in enumerate(zip(truth, mistakes)):
                answers[i, j] = [(box[4] + (wrong < 0.3)) % 10, wrong, *(box[:4] + (wrong > 0.8) * 9)]
        answers = mx.nd.array(answers)
        return answers[:, :, :1], answers[:, :, 1:2], answers[:, :, 2:]


def test_evaluation_gives_the_number_of_one_worker_at_any_world_size():
    test_set = datasets.Transformed(DigitScenes('test', 13).transform(datasets.with_boxes), FixedSize(SIDE))
    net = Oracle([test_set[i] for i in range(13)])

    def evaluate(world):
        if world.size > 1:
            world.join()
        return DetectionEvaluator(test_set, VOC07(CLASSES), 4, SIDE, mx.cpu())(net, world).map
    alone = evaluate(VirtualWorld(1))
    assert 0.1 < alone < 0.9
    for size in (2, 3, 5):
        assert raise_errors(Group(size).each(evaluate)) == [alone] * size
    assert raise_errors(Group(16).each(evaluate)) == [alone] * 16       # three of them have no image


# -- annotations on disk -----------------------------------------------------------------------------------------

def picture(path, width=40, height=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.RandomState(0).randint(0, 255, (height, width, 3)).astype('uint8'))


def voc_annotation(path, boxes, size=(40, 30)):
    objects = ''.join(
        f'<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax>'
        f'<ymax>{d}</ymax></bndbox></object>' for name, a, b, c, d in boxes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{objects}</annotation>')


@pytest.fixture
def voc_folder(tmp_path):
    for year, split in (('VOC2007', 'trainval'), ('VOC2012', 'trainval'), ('VOC2007', 'test')):
        names = [f'{split}{i}' for i in range(3)]
        lists = tmp_path / year / 'ImageSets' / 'Main'
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f'{split}.txt').write_text('\n'.join(names) + '\n')
        for name in names:
            picture(tmp_path / year / 'JPEGImages' / f'{name}.jpg')
            voc_annotation(tmp_path / year / 'Annotations' / f'{name}.xml', [('dog', 2, 3, 20, 25), ('cat', 5, 5, 40, 30)])
    return tmp_path


def test_voc_is_read_with_boxes_counted_from_0(voc_folder):
    data = datasets.load('voc', voc_folder, BadData())
    assert (len(data.train), len(data.test), len(data.classes)) == (6, 3, 20)
    image, boxes = data.train[0]
    assert image.shape == (30, 40, 3)
    np.testing.assert_array_equal(boxes[:, :4], [[1, 2, 19, 24], [4, 4, 39, 29]])
    assert [data.classes[int(label)] for label in boxes[:, 4]] == ['dog', 'cat']


VOC_FAULTS = {
    'no area': ([('dog', 9, 3, 9, 25)], r'trainval1.xml: the box \(8, 2, 8, 24\) has no area'),
    'outside': ([('dog', 2, 3, 60, 25)], r'the box \(1, 2, 59, 24\) reaches beyond the image of 40x30'),
    'no number': ([('dog', 'nan', 3, 20, 25)], r'the box \(nan, 2, 19, 24\) is not of numbers'),
    'no object': ([], r'trainval1.jpg: an image to train with without any object'),
}


@pytest.mark.parametrize('fault', VOC_FAULTS)
def test_boxes_that_cannot_be_used_are_an_error_or_left_out_and_counted(fault, voc_folder):
    boxes, message = VOC_FAULTS[fault]
    path = voc_folder / 'VOC2012' / 'Annotations' / 'trainval1.xml'
    voc_annotation(path, boxes)
    with pytest.raises(DamagedDataError, match=message + '; mend it, or give --skip-bad'):
        datasets.load('voc', voc_folder, BadData())
    bad = BadData(skip=True)
    assert len(datasets.load('voc', voc_folder, bad).train) == 5
    assert bad.annotations == (1 if fault == 'no object' else 2)        # the box, and the image that is left without any
    if boxes:       # the others of the image are kept
        voc_annotation(path, [*boxes, ('cat', 5, 5, 40, 30)])
        bad = BadData(skip=True)
        data = datasets.load('voc', voc_folder, bad)
        assert (len(data.train), len(data.train[4][1]), bad.annotations) == (6, 1, 1)


def test_class_that_the_network_does_not_have_is_named(voc_folder):
    voc_annotation(voc_folder / 'VOC2012' / 'Annotations' / 'trainval1.xml', [('unicorn', 2, 3, 20, 25)])
    with pytest.raises(DamagedDataError, match="the class 'unicorn' is none of the 20 of Pascal VOC"):
        datasets.load('voc', voc_folder, BadData(skip=True))


@pytest.mark.parametrize('name, message', [
    ('VOC2012/ImageSets/Main/trainval.txt', 'trainval.txt cannot be read .*--data-dir must be VOCdevkit'),
    ('VOC2012/Annotations/trainval2.xml', 'trainval2.xml is not there, though the list of images names it'),
    ('VOC2007/JPEGImages/test1.jpg', r'test1.jpg is not there \(1 of 9 images are missing\)'),
])
def test_missing_files_are_named(name, message, voc_folder):
    (voc_folder / name).unlink()
    with pytest.raises(MissingDataError, match=message):
        datasets.load('voc', voc_folder, BadData(skip=True))


def test_annotation_that_is_none_is_named_with_what_it_lacks(voc_folder):
    path = voc_folder / 'VOC2012' / 'Annotations' / 'trainval1.xml'
    whole = path.read_text()
    for content, lacks in (
        ('<annotation><size>', 'no element found'),
        ('<annotation></annotation>', 'it has no size/width'),
        (whole.replace('<ymin>3</ymin>', ''), 'it has no bndbox/ymin'),
        (whole.replace('<ymin>3<', '<ymin>three<'), "its bndbox/ymin is 'three'"),
        (whole.replace('<width>40<', '<width>inf<'), 'infinity'),
    ):
        path.write_text(content)
        with pytest.raises(DamagedDataError, match=f'trainval1.xml is no annotation of Pascal VOC .*{lacks}'):
            datasets.load('voc', voc_folder, BadData())
    path.unlink()
    path.mkdir()
    with pytest.raises(DamagedDataError, match='trainval1.xml cannot be read .Is a directory'):
        datasets.load('voc', voc_folder, BadData())
    (voc_folder / 'VOC2012' / 'ImageSets' / 'Main' / 'trainval.txt').write_bytes(b'\xff\x81')
    with pytest.raises(DamagedDataError, match='trainval.txt is no text'):
        datasets.load('voc', voc_folder, BadData())


@pytest.mark.parametrize('part, message', [('trainval', 'no image to train with has an object'),
                                           ('test', 'no image to test with has an object that counts')])
def test_data_set_without_any_object_is_told_before_training(part, message, voc_folder):
    for path in voc_folder.glob(f'*/Annotations/{part}*.xml'):
        # difficult ones do not count in a test
        old, new = ('<difficult>0', '<difficult>1') if part == 'test' else ('object>', 'thing>')
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('voc', voc_folder, BadData(skip=True))


@pytest.mark.parametrize('size', [(0, 0), (40, 1)])
def test_image_said_to_have_hardly_any_pixels_is_an_error_or_left_out(size, voc_folder):
    voc_annotation(voc_folder / 'VOC2012' / 'Annotations' / 'trainval1.xml', [('dog', 1, 1, 20, 2)], size)
    with pytest.raises(DamagedDataError, match=f'trainval1.xml: the image is said to have {size[0]}x{size[1]} pixels'):
        datasets.load('voc', voc_folder, BadData())
    assert len(datasets.load('voc', voc_folder, BadData(skip=True)).train) == 5


@pytest.mark.parametrize('ending', ['.jpg', '.png'])
def test_image_that_is_cut_off_or_of_another_size_is_bad(ending, voc_folder):
    path = voc_folder / 'VOC2007' / 'JPEGImages' / 'trainval1.jpg'
    data = datasets.load('voc', voc_folder, BadData())
    other = voc_folder / f'other{ending}'
    picture(other)
    whole = other.read_bytes()
    for content in (whole, whole + b'\0\0'):
        path.write_bytes(content)
        assert data.train[1][0].shape == (30, 40, 3)
    for length in (len(whole) // 2, len(whole) - 10):       # of the last, each decoder makes a whole picture
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedDataError, match='trainval1.jpg: the image (is cut off|cannot be decoded)'):
            data.train[1]
    picture(path, 60, 30)
    with pytest.raises(DamagedDataError, match='trainval1.jpg: the image has 60x30 pixels, and its annotation says 40x30'):
        data.train[1]
    bad = BadData(skip=True)
    image, boxes = datasets.load('voc', voc_folder, bad).train[1]
    assert image.shape == (30, 40, 3) and len(boxes) == 0 and bad.images_since(VirtualWorld(1)) == 1


@pytest.mark.parametrize('num_workers', [0, 2])
def test_unreadable_image_is_an_error_or_replaced_and_counted_also_in_loader_processes(num_workers, voc_folder):
    (voc_folder / 'VOC2007' / 'JPEGImages' / 'trainval1.jpg').write_bytes(b'no picture')
    for skip in (False, True):
        bad = BadData(skip)
        data = datasets.load('voc', voc_folder, bad)
        loader = gluon.data.DataLoader(datasets.Transformed(data.train, FixedSize(32)), batch_size=1,
                                       num_workers=num_workers)
        if skip:
            boxes = [boxes.asnumpy()[0] for _, boxes in loader]
            assert [len(one) if one[0, 4] >= 0 else 0 for one in boxes] == [2, 0, 2, 2, 2, 2]
            assert bad.images_since(VirtualWorld(1)) == 1 and bad.images_since(VirtualWorld(1)) == 0
        else:
            with pytest.raises(DamagedDataError, match='trainval1.jpg: the image cannot be decoded; mend it, or give'):
                list(loader)


@pytest.fixture
def coco_folder(tmp_path):
    categories = [{'id': 2 * i + 1, 'name': name} for i, name in enumerate(datasets.COCODetection.CLASSES)]
    for split in ('train2017', 'val2017'):
        images = [{'id': 7 - i, 'width': 40, 'height': 30, 'file_name': f'{i}.jpg'} for i in range(2)]
        for image in images:
            picture(tmp_path / split / image['file_name'])
        annotations = [{'image_id': 7 - i, 'category_id': 5, 'bbox': [1, 2, 10, 20], 'area': 200} for i in range(2)]
        path = tmp_path / 'annotations' / f'instances_{split}.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({'images': images, 'categories': categories, 'annotations': annotations}))
    return tmp_path


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_coco_is_read_in_the_order_of_ids_without_pycocotools(coco_folder):
    data = datasets.load('coco', coco_folder, BadData())
    assert [item.id for item in data.train.items] == [6, 7] and len(data.classes) == 80
    np.testing.assert_array_equal(data.train[0][1], [[1, 2, 11, 22, 2, 0]])


@pytest.mark.parametrize('change, message', [
    (lambda c: c['annotations'][0].update(bbox=[1, 2, 0, 20]), r'image 7: the box \(1, 2, 1, 22\) has no area'),
    (lambda c: c['annotations'][0].update(bbox=[1, 2, 80, 20]), r'reaches beyond the image of 40x30'),
    (lambda c: c['annotations'].pop(), 'without any object'),
    (lambda c: c['categories'][3].update(name='unicorn'), "but the class 'unicorn' is none of them"),
    (lambda c: c['annotations'][0].update(category_id=2), r'the annotation of image 7 is not whole \(ValueError'),
    (lambda c: c['annotations'][0].update(bbox=['a', 'b', 'c', 'd']), r'the annotation of image 7 is not whole'),
    (lambda c: c['annotations'][0].update(iscrowd='x'), r'the annotation of image 7 is not whole'),
    (lambda c: c['annotations'][0].update(image_id=99), r'an annotation is of image 99, which is none of its images'),
    (lambda c: c['images'][0].update(file_name=3), r'image 7 has the file name 3'),
    (lambda c: c['images'][0].update(width=0), r'image 7 is said to have 0x30 pixels'),
    (lambda c: [one.update(id=-one['id']) for one in c['categories']], 'but their ids are in another order'),
    (lambda c: c.pop('images'), r"is no file of COCO instances \(KeyError: 'images'\)"),
])
def test_faults_of_coco_annotations_are_told(change, message, coco_folder):
    change_json(coco_folder / 'annotations' / 'instances_train2017.json', change)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('coco', coco_folder, BadData())


def test_missing_coco_file_is_named(coco_folder):
    (coco_folder / 'annotations' / 'instances_val2017.json').unlink()
    with pytest.raises(MissingDataError, match='instances_val2017.json is not there; --data-dir must have annotations/'):
        datasets.load('coco', coco_folder, BadData())


# -- networks and flags ------------------------------------------------------------------------------------------

def test_unknown_network_is_refused_with_those_that_are_like_it():
    with pytest.raises(RecipeError, match='did you mean .*ssd_512_mobilenet1.0.*--list-networks'):
        networks.check('ssd_512_mobilenet')


def test_network_of_another_data_set_gets_our_classes():
    net = networks.create('ssd_512_resnet18_v1', ['a', 'b', 'c'])
    initialize(net, mx.cpu())
    with autograd.train_mode():
        classes, boxes, anchors = net(mx.nd.zeros((1, 3, 512, 512)))
    assert classes.shape[1:] == (anchors.shape[1], 4)


def test_weights_come_from_the_folder_or_not_at_all(tmp_path):
    with pytest.raises(MissingDataError, match='--pretrained-root .*nowhere: no such folder'):
        networks.create('ssd_512_mobilenet1.0', CLASSES, tmp_path / 'nowhere')
    with pytest.raises(MissingDataError, match='mobilenet1.0-efbb2ca3.params is not there, the weights of mobilenet1.0'):
        networks.create('ssd_512_mobilenet1.0', CLASSES, tmp_path)
    (tmp_path / 'mobilenet1.0-efbb2ca3.params').write_bytes(b'other weights')
    with pytest.raises(DamagedDataError, match='is damaged: its checksum is not the one of GluonCV'):
        networks.create('ssd_512_mobilenet1.0', CLASSES, tmp_path)
    from gluoncv.model_zoo import model_store
    theirs = model_store.get_model_file
    with weights_from(tmp_path):
        assert model_store.get_model_file is not theirs
    assert model_store.get_model_file is theirs


@pytest.mark.parametrize('argv, message', [
    (['--dataset', 'vox'], "argument --dataset: got 'vox'; did you mean voc?"),
    (['--dataset', 'voc'], 'argument --data-dir: needed with --dataset voc'),
    (['--data-dir', 'x'], 'argument --data-dir: has no effect with --dataset digits-scenes'),
    (['--skip-bad'], 'argument --skip-bad: has no effect with --dataset digits-scenes'),
    (['--dataset', 'voc', '--data-dir', 'x', '--scenes', '50'], 'argument --scenes: has no effect with --dataset voc'),
    (['--scenes', '5'], "must be a whole number of at least 10, got '5'"),
    (['--metric', 'coco'], 'argument --metric: coco needs --dataset coco, got digits-scenes; use voc07'),
    (['--data-shape', '416'], 'argument --data-shape: has no effect with --network ssd_tiny'),
    (['--network', 'yolo3_darknet53', '--data-shape', '400'], "must be a multiple of 32, from 96 to 4096, got '400'"),
    (['--pretrained-root', 'x'], 'argument --pretrained-root: has no effect with --network ssd_tiny'),
    (['--dtype', 'float16'], 'argument --dtype: float16 needs a GPU'),
])
def test_flags_that_make_no_sense_are_refused_in_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as exit:
        arguments.parse(argv)
    assert exit.value.code == 2 and message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize('dataset', list(arguments.DEFAULTS))
def test_defaults_of_every_data_set_are_complete(dataset):
    args = arguments.parse([] if dataset == arguments.SCENES else ['--dataset', dataset, '--data-dir', 'x'])
    networks.check(args.network)
    assert None not in (args.lr, args.batch_size, args.reference_batch, args.optimizer, args.metric)
