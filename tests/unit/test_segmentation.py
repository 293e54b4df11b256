"""The segmentation recipe: loss, evaluation, masks on disk, flags."""

import contextlib
import json
import struct
import zlib

import mxnet as mx
import numpy as np
import pytest
from helpers import Group, raise_errors
from mxnet import autograd, gluon
from PIL import Image

from gluon_examples.common.bad_data import BadData
from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.common.normalization import normalized
from gluon_examples.common.scenes import DigitScenes
from gluon_examples.common.setup import initialize
from gluon_examples.segmentation import arguments, datasets, networks, pictures
from gluon_examples.segmentation.evaluation import SegmentationEvaluator
from gluon_examples.segmentation.losses import PixelCrossEntropy
from hvd_dynamic import VirtualWorld

CROP = 32


# -- loss --------------------------------------------------------------------------------------------------------

def by_hand(scores, mask):
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    return [sum(-np.log(probabilities[b, mask[b, y, x], y, x]) for y, x in np.argwhere(mask[b] >= 0))
            for b in range(len(mask))]


@pytest.mark.parametrize('hybrid', [False, True])
def test_loss_is_summed_over_labelled_pixels_with_the_auxiliary_weight_and_so_is_its_gradient(hybrid):
    random = np.random.RandomState(0)
    scores, aux = random.randn(2, 3, 4, 5).astype('float32'), random.randn(2, 3, 4, 5).astype('float32')
    mask = random.randint(-1, 3, (2, 4, 5)).astype('int32')
    mask[1] = -1
    loss_fn = PixelCrossEntropy(0.25)
    loss_fn.hybridize(hybrid)
    arrays = mx.nd.array(scores), mx.nd.array(aux), mx.nd.array(mask, dtype='int32')
    for array in arrays[:2]:
        array.attach_grad()
    with autograd.record():
        loss, labelled = loss_fn(*arrays)
    loss.backward()
    np.testing.assert_allclose(loss.asnumpy(), np.add(by_hand(scores, mask), 0.25 * np.array(by_hand(aux, mask))), rtol=1e-5)
    assert labelled.shape == (1,) and labelled.asscalar() == (mask >= 0).sum()
    assert loss.asnumpy()[1] == 0 and not arrays[0].grad[1].asnumpy().any()
    # The gradient of a cross-entropy: probability, less one for the label; GluonCV's leaves the weight out.
    gradient = arrays[1].grad.asnumpy()
    exponentials = np.exp(aux)
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    expected = 0.25 * (probabilities - (np.arange(3)[None, :, None, None] == mask[:, None])) * (mask >= 0)[:, None]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


# -- evaluation --------------------------------------------------------------------------------------------------

class Oracle:
    """Scores that depend on the pixels of an image alone."""

    def __call__(self, images):
        ramp = mx.nd.array(np.linspace(-1, 1, 11).reshape(1, 11, 1, 1))
        return -(mx.nd.broadcast_sub(ramp, images[:, :1] / 2)) ** 2, None


def test_evaluation_gives_the_number_of_one_worker_at_any_world_size():
    test_set = DigitScenes('test', 13).transform(datasets.with_mask)

    def evaluate(world):
        if world.size > 1:
            world.join()
        return SegmentationEvaluator(test_set, 11, 4, mx.cpu())(Oracle(), world)
    alone = evaluate(VirtualWorld(1))
    correct = total = 0
    intersections, unions = np.zeros(11), np.zeros(11)
    for image, mask in (test_set[i] for i in range(13)):
        found = Oracle()(mx.nd.array(image[None]))[0].argmax(axis=1).asnumpy()[0]
        correct, total = correct + (found == mask).sum(), total + mask.size
        for c in range(11):
            intersections[c] += ((found == c) & (mask == c)).sum()
            unions[c] += ((found == c) | (mask == c)).sum()
    assert alone.pixel_accuracy == correct / total > 0
    np.testing.assert_allclose(alone.miou, (intersections[unions > 0] / unions[unions > 0]).mean(), rtol=1e-12)
    for size in (2, 3, 5, 16):
        assert raise_errors(Group(size).each(evaluate)) == [alone] * size


# -- masks on disk -----------------------------------------------------------------------------------------------

def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def picture(path, size=(30, 40)):
    save(path, np.random.RandomState(1).randint(0, 255, (*size, 3)).astype('uint8'))


def ade_folder(root):
    for part in ('training', 'validation'):
        for i in (2, 1, 3):
            picture(root / 'images' / part / f'{i}.jpg')
            save(root / 'annotations' / part / f'{i}.png', np.full((30, 40), i, 'uint8'))
    return root / 'annotations' / 'training' / '2.png', 1, 151


def voc_folder(root):
    root = root / 'VOC2012'
    for part in ('train', 'val'):
        lists = root / 'ImageSets' / 'Segmentation'
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f'{part}.txt').write_text(''.join(f'{part}{i}\n' for i in range(3)))
        for i in range(3):
            picture(root / 'JPEGImages' / f'{part}{i}.jpg')
            mask = np.full((30, 40), i, 'uint8')
            mask[:5] = 255
            save(root / 'SegmentationClass' / f'{part}{i}.png', mask)
    return root / 'SegmentationClass' / 'train1.png', 1, 21


def city_folder(root):
    for part in ('train', 'val'):
        for i, label in enumerate((7, 26, 0)):
            picture(root / 'leftImg8bit' / part / 'ulm' / f'ulm_{i}_leftImg8bit.png')
            save(root / 'gtFine' / part / 'ulm' / f'ulm_{i}_gtFine_labelIds.png', np.full((30, 40), label, 'uint8'))
    return root / 'gtFine' / 'train' / 'ulm' / 'ulm_1_gtFine_labelIds.png', 13, 77


FOLDERS = {'ade20k': ade_folder, 'pascal_voc': voc_folder, 'citys': city_folder}


def load(name, root, bad=None):
    return datasets.load(name, root, 48, CROP, bad=bad)


@pytest.mark.parametrize('name', list(FOLDERS))
def test_data_set_is_read_and_cropped_with_its_own_labels(name, tmp_path):
    _, label, _ = FOLDERS[name](tmp_path)
    data = load(name, tmp_path)
    assert len(data.train) == len(data.test) == 3
    assert [item.path.name for item in data.train.items] == sorted(item.path.name for item in data.train.items)
    for dataset in (data.train, data.test):
        image, mask = dataset[1]
        assert image.shape == (3, CROP, CROP) and image.dtype == np.float32
        assert mask.shape == (CROP, CROP) and mask.dtype == np.int32 and set(np.unique(mask)) <= {-1, label}
    assert (data.test[1][1] == label).any()


FAULTS = {
    'label beyond the classes': (lambda path, over: save(path, np.full((30, 40), over, 'uint8')), 'the mask has the label'),
    'another size': (lambda path, over: save(path, np.zeros((10, 10), 'uint8')), 'the mask has 10x10 pixels, its image'),
    'no picture': (lambda path, over: path.write_bytes(b'none'), 'the mask cannot be decoded .it is no picture.'),
    'cut off': (lambda path, over: path.write_bytes(path.read_bytes()[:50]), 'the mask cannot be decoded .*truncated'),
    'colours': (lambda path, over: save(path, np.zeros((30, 40, 3), 'uint8')), 'the mask cannot be .* .it has 3 channels'),
    '16 bits': (lambda path, over: save(path, np.full((30, 40), 256 + 7, 'uint16')), 'the mask has the label 26[23]'),
}


@pytest.mark.parametrize('fault', list(FAULTS))
@pytest.mark.parametrize('name', list(FOLDERS))
def test_bad_mask_is_an_error_or_adds_nothing_and_is_counted(name, fault, tmp_path):
    path, _, over = FOLDERS[name](tmp_path)
    change, message = FAULTS[fault]
    change(path, over)
    with pytest.raises(DamagedDataError, match=f'{path.name}.*{message}.*or give --skip-bad'):
        load(name, tmp_path).train[1]
    bad = BadData(skip=True)
    image, mask = load(name, tmp_path, bad).train[1]
    assert (mask == -1).all() and not image.any() and bad.images_since(VirtualWorld(1)) == 1


def png_header(width, height):
    parts = (b'IHDR', struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)), (b'IDAT', b'')
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data)) for kind, data in parts)


@pytest.mark.parametrize('change, message', [
    (lambda path: path.write_bytes(path.read_bytes()[:-200]), 'the image cannot be decoded .*truncated'),
    (lambda path: path.write_bytes(png_header(30000, 30000)), 'the image cannot be decoded .*exceeds limit'),
    (lambda path: (picture(path, (1, 900)), save(path.parents[2] / 'annotations' / 'training' / '2.png',
                                                 np.ones((1, 900), 'uint8'))), 'the image has 900x1 pixels, too slender'),
], ids=['cut off', 'huge', 'slender'])
def test_image_that_cannot_be_used_is_told_with_the_reason(change, message, tmp_path):
    ade_folder(tmp_path)
    change(tmp_path / 'images' / 'training' / '2.jpg')
    with pytest.raises(DamagedDataError, match='2.jpg: ' + message):
        load('ade20k', tmp_path).train[1]


def test_data_set_to_test_with_that_has_no_label_is_told_on_all_workers():
    test_set = [(np.zeros((3, CROP, CROP), 'float32'), np.full((CROP, CROP), -1, 'int32'))] * 3

    def evaluate(world):
        world.join()
        with pytest.raises(DamagedDataError, match='no pixel of any image to test with has a label'):
            SegmentationEvaluator(gluon.data.SimpleDataset(test_set), 11, 10**9, mx.cpu())(Oracle(), world)
    raise_errors(Group(2).each(evaluate))


def test_unreadable_image_is_told_from_a_loader_process_too(tmp_path):
    ade_folder(tmp_path)
    (tmp_path / 'images' / 'training' / '2.jpg').write_bytes(b'none')
    for num_workers in (0, 2):
        loader = gluon.data.DataLoader(load('ade20k', tmp_path).train, batch_size=1, num_workers=num_workers)
        with pytest.raises(DamagedDataError, match='2.jpg: the image cannot be decoded'):
            list(loader)
        bad = BadData(skip=True)
        loader = gluon.data.DataLoader(load('ade20k', tmp_path, bad).train, batch_size=1, num_workers=num_workers)
        assert len(list(loader)) == 3 and bad.images_since(VirtualWorld(1)) == 1


@pytest.mark.parametrize('name, missing, message', [
    ('ade20k', 'annotations/validation/1.png', r'1.png is not there \(1 of 3 masks are missing\)'),
    ('pascal_voc', 'VOC2012/ImageSets/Segmentation/val.txt', '--data-dir must be VOCdevkit, with VOC2012 in it'),
    ('pascal_voc', 'VOC2012/JPEGImages/val1.jpg', 'val1.jpg is not there, though .*val.txt names it'),
    ('citys', 'gtFine/val/ulm/ulm_1_gtFine_labelIds.png', r'labelIds.png is not there \(1 of 3 masks'),
])
def test_missing_files_are_named(name, missing, message, tmp_path):
    FOLDERS[name](tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(MissingDataError, match=message):
        load(name, tmp_path)


@pytest.mark.parametrize('name', ['ade20k', 'pascal_voc', 'citys', 'coco'])
def test_empty_or_missing_folder_is_told(name, tmp_path):
    with pytest.raises(MissingDataError):
        load(name, tmp_path)
    with pytest.raises(MissingDataError, match='nowhere: no such folder'):
        load(name, tmp_path / 'nowhere')


def test_coco_masks_are_painted_from_polygons_and_run_lengths(tmp_path):
    for part in ('train2017', 'val2017'):
        picture(tmp_path / part / '1.jpg', (60, 80))
        # class 5 of COCO (airplane) is 1 of VOC's, 2 (bicycle) is 2; the polygon comes first and stays on top
        annotations = [
            {'image_id': 1, 'category_id': 5, 'area': 1300, 'segmentation': [[10, 10, 49, 10, 49, 39, 10, 39]]},
            {'image_id': 1, 'category_id': 2, 'area': 900, 'iscrowd': 1,
             'segmentation': {'counts': [60 * 40, 60 * 20, 60 * 20]}},
            {'image_id': 1, 'category_id': 90, 'area': 900, 'segmentation': []},
        ]
        path = tmp_path / 'annotations' / f'instances_{part}.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({'images': [{'id': 1, 'width': 80, 'height': 60, 'file_name': '1.jpg'}],
                                    'categories': [{'id': 5, 'name': 'airplane'}], 'annotations': annotations}))
    data = load('coco', tmp_path)
    mask = data.train._read_mask(data.train.items[0].mask)
    assert data.classes == 21 and mask.shape == (60, 80)
    assert (mask[10:40, 10:50] == 1).all() and (mask[:10, 40:60] == 2).all() and not mask[:, :10].any()
    assert (mask == 1).sum() == 30 * 40 and not mask[:, 60:].any()

    file = tmp_path / 'annotations' / 'instances_val2017.json'
    content = file.read_text()
    for old, new, message in (
        ('"airplane"', '"car"', "category 5 must be airplane, as in COCO, and is 'car'"),
        ('"area": 1300', '"area": "much"', 'the annotation of image 1 is not whole .ValueError'),
        ('"area": 900, "segmentation": []', '"area": 900', None),       # of a class that is not used
        ('"category_id": 90', '"category_id": 2', None),
        ('"segmentation": [[', '"other": [[', "the annotation of image 1 is not whole .KeyError: 'segmentation'"),
    ):
        assert old in content
        file.write_text(content.replace(old, new))
        with pytest.raises(DamagedDataError, match=message) if message else contextlib.nullcontext():
            load('coco', tmp_path)


# -- networks, pictures and flags --------------------------------------------------------------------------------

@pytest.mark.parametrize('name', networks.NAMES)
def test_every_network_answers_with_scores_of_the_size_of_the_image(name):
    net = networks.create(name, 5, 64, 'resnet50')
    initialize(net, mx.cpu())
    scores, aux = net(mx.nd.zeros((1, 3, 64, 64)))
    assert scores.shape == aux.shape == (1, 5, 64, 64)


def test_weights_of_the_backbone_come_from_the_folder(tmp_path):
    with pytest.raises(MissingDataError, match='resnet50_v1s-25a187fa.params is not there, the weights of resnet50_v1s'):
        networks.create('fcn', 5, 64, 'resnet50', tmp_path)


def test_pictures_are_written_for_as_many_images_as_asked_for(tmp_path):
    class Net:
        def __call__(self, images):
            return mx.nd.random.normal(shape=(1, 11, 64, 64)), None
    names = datasets.load('digits-scenes', train_scenes=10).names
    pictures.save(2, tmp_path, Net(), DigitScenes('test', 5).transform(datasets.with_mask), names, mx.cpu())
    assert sorted(path.name for path in (tmp_path / 'samples').iterdir()) == ['sample-000.png', 'sample-001.png']
    assert Image.open(tmp_path / 'samples' / 'sample-001.png').size[0] > 500
    pictures.save(0, tmp_path / 'none', Net(), DigitScenes('test', 5).transform(datasets.with_mask), names, mx.cpu())
    assert not (tmp_path / 'none').exists()


def test_image_is_normalised_by_imagenet():
    image = normalized(np.full((2, 3, 3), 255, 'uint8'))
    np.testing.assert_allclose(image[:, 0, 0], [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225], rtol=1e-5)


@pytest.mark.parametrize('argv, message', [
    (['--dataset', 'ade20'], "argument --dataset: got 'ade20'; did you mean ade20k?"),
    (['--dataset', 'citys'], 'argument --data-dir: needed with --dataset citys'),
    (['--crop-size', '64'], 'argument --crop-size: has no effect with --dataset digits-scenes'),
    (['--dataset', 'ade20k', '--data-dir', 'x', '--crop-size', '100'], "must be a multiple of 8, from 32 to 4096, got"),
    (['--dataset', 'ade20k', '--data-dir', 'x', '--crop-size', '104', '--model', 'fcn_tiny'],
     'argument --crop-size: must be a multiple of 16 with --network fcn_tiny, got 104'),
    (['--backbone', 'resnet50'], 'argument --backbone: has no effect with --network fcn_tiny'),
    (['--model', 'unet'], "invalid choice: 'unet'"),
    (['--dataset', 'ade20k', '--data-dir', 'x', '--base-size', '1'], "must be a whole number from 32 to 4096, got '1'"),
    (['--aux-weight', '-1'], "must be a number of at least 0, got '-1'"),
    (['--save-samples', 'all'], "must be a whole number from 0 to 2147483647, got 'all'"),
])
def test_flags_that_make_no_sense_are_refused_in_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as exit:
        arguments.parse(argv)
    assert exit.value.code == 2 and message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize('dataset', list(arguments.DEFAULTS))
def test_defaults_of_every_data_set_are_complete(dataset):
    args = arguments.parse([] if dataset == arguments.SCENES else ['--dataset', dataset, '--data-dir', 'x'])
    assert None not in (args.lr, args.batch_size, args.base_size, args.crop_size, args.backbone, args.network)
