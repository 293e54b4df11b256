"""The data sets of the classification recipe: right data from whole files, one clear line from broken ones."""

import gzip
import pickle
import struct

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.data import DataLoader

from gluon_examples.classification import datasets
from gluon_examples.classification.formats import cifar, digits, folder, records
from gluon_examples.common.errors import DamagedDataError, MissingDataError, RecipeError

RANDOM = np.random.RandomState(7)


def pixels(*shape):
    return RANDOM.randint(0, 256, shape).astype('uint8')


# -- digits ----------------------------------------------------------------------------------------------------


def test_digits_are_split_into_1500_and_297_with_all_classes_in_proportion():
    (train_images, train_labels), (test_images, test_labels) = digits.read()
    assert (len(train_images), len(test_images)) == (1500, 297)
    assert train_images.min() == 0 and train_images.max() == 1
    whole = np.bincount(np.concatenate([train_labels, test_labels]))
    assert np.abs(np.bincount(test_labels) - whole * 297 / 1797).max() < 1


def test_digits_split_has_every_image_once_and_never_changes():
    from sklearn.datasets import load_digits

    labels = load_digits().target
    test = digits.stratified(labels, 297, 0)
    assert len(set(test)) == 297
    # A new split would make accuracies of older and newer runs incomparable.
    assert test[:8].tolist() == [3, 7, 13, 19, 36, 43, 48, 53]


def test_digits_are_normalised_by_the_training_images_and_need_no_folder():
    data = datasets.load('digits')
    assert data.classes == 10 and data.input_shape == (1, 8, 8)
    image, label = data.train[0]
    assert image.dtype == np.float32 and image.shape == (1, 8, 8) and label.dtype == np.int32
    assert abs(data.train.images.mean()) < 1e-4 and abs(data.train.images.std() - 1) < 1e-4


def test_grey_images_are_repeated_for_networks_that_want_colour():
    image, _ = datasets.load('digits', channels=3).test[5]
    assert image.shape == (3, 8, 8) and (image[0] == image[2]).all()


# -- what holds for all ----------------------------------------------------------------------------------------


def test_unknown_dataset_lists_the_known_ones():
    with pytest.raises(
        RecipeError, match='mnist: no such data set; choose one of digits, idx, cifar10, folder, rec'
    ):
        datasets.load('mnist')


@pytest.mark.parametrize('name', ['idx', 'cifar10', 'folder', 'rec'])
def test_missing_data_dir_is_named_and_nothing_is_downloaded(name, tmp_path):
    with pytest.raises(MissingDataError, match=f'--dataset {name} needs --data-dir.*nothing is downloaded'):
        datasets.load(name)
    with pytest.raises(FileNotFoundError, match='nowhere: no such folder'):
        datasets.load(name, tmp_path / 'nowhere')


# -- idx -------------------------------------------------------------------------------------------------------


def idx_bytes(array):
    return struct.pack(f'>HBB{array.ndim}I', 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path):
    for part, count in (('train', 20), ('t10k', 10)):
        labels = np.arange(count, dtype='uint8') % 5
        (tmp_path / f'{part}-images-idx3-ubyte').write_bytes(idx_bytes(pixels(count, 6, 7)))
        (tmp_path / f'{part}-labels-idx1-ubyte').write_bytes(idx_bytes(labels))
    return tmp_path


def rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


def test_idx_files_become_images_and_classes(idx_folder):
    data = datasets.load('idx', idx_folder)
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (20, 10, 5, (1, 6, 7))
    assert [label for _, label in (data.test[i] for i in range(6))] == [0, 1, 2, 3, 4, 0]


def test_idx_files_may_be_gzipped_or_have_a_dot_in_their_names(idx_folder):
    plain = datasets.load('idx', idx_folder)
    images, labels = idx_folder / 'train-images-idx3-ubyte', idx_folder / 't10k-labels-idx1-ubyte'
    rewrite(images, gzip.compress)
    images.rename(idx_folder / 'train-images-idx3-ubyte.gz')
    labels.rename(idx_folder / 't10k-labels.idx1-ubyte')
    other = datasets.load('idx', idx_folder)
    assert (plain.train.images == other.train.images).all() and (plain.test.labels == other.test.labels).all()


def test_missing_idx_files_are_all_named(idx_folder):
    (idx_folder / 'train-images-idx3-ubyte').unlink()
    (idx_folder / 't10k-labels-idx1-ubyte').unlink()
    with pytest.raises(MissingDataError, match='lacks train-images-idx3-ubyte, t10k-labels-idx1-ubyte .*gz'):
        datasets.load('idx', idx_folder)


IDX_FAULTS = {
    'another magic': (
        'train-images-idx3-ubyte',
        lambda data: b'\0\0\x0d\x03' + data[4:],
        'not an idx file.*begins with 0x00000d03, expected 0x00000803',
    ),
    'labels in place of images': (
        'train-images-idx3-ubyte',
        lambda data: b'\0\0\x08\x01' + data[4:],
        'in 3 dimensions.*expected 0x00000803',
    ),
    'images in place of labels': (
        'train-labels-idx1-ubyte',
        lambda data: b'\0\0\x08\x03' + data[4:],
        'in 1 dimension: .*expected 0x00000801',
    ),
    'empty': ('train-images-idx3-ubyte', lambda data: b'', 'cut off: it has 0 bytes'),
    'header cut off': (
        'train-images-idx3-ubyte',
        lambda data: data[:9],
        r'cut off within its header \(9 bytes',
    ),
    'content cut off': (
        'train-images-idx3-ubyte',
        lambda data: data[:-5],
        'cut off: its header promises 20x6x7 values, 856 bytes in all, but there are 851',
    ),
    'too long': ('train-labels-idx1-ubyte', lambda data: data + b'\0', 'bytes left over'),
    'absurd size': (
        'train-images-idx3-ubyte',
        lambda data: data[:4] + b'\xff' * 12 + data[16:],
        'promises 4294967295x4294967295x4294967295 values',
    ),
    'gzip cut off': (
        'train-images-idx3-ubyte',
        lambda data: gzip.compress(data)[:-20],
        'cannot be uncompressed',
    ),
    'gzip damaged': (
        'train-images-idx3-ubyte',
        lambda data: gzip.compress(data)[:40] + b'\0' * 90,
        'cannot be uncompressed',
    ),
    'a label too few': (
        'train-labels-idx1-ubyte',
        lambda data: idx_bytes(np.zeros(19, 'uint8')),
        'has 20 images, but .* has 19 labels',
    ),
    'no images': (
        't10k-images-idx3-ubyte',
        lambda data: idx_bytes(np.zeros((0, 6, 7), 'uint8')),
        'has 0 images, but',
    ),
    'images of another size': (
        't10k-images-idx3-ubyte',
        lambda data: idx_bytes(pixels(10, 7, 6)),
        'has images of 6x7, but .* of 7x6',
    ),
    'a label that is never trained': (
        't10k-labels-idx1-ubyte',
        lambda data: data[:-1] + b'\x09',
        'label 9 of a test image is outside 0 to 4',
    ),
    'one class only': (
        'train-labels-idx1-ubyte',
        lambda data: idx_bytes(np.zeros(20, 'uint8')),
        'nothing can be learnt from one class',
    ),
    'blank images': (
        'train-images-idx3-ubyte',
        lambda data: idx_bytes(np.zeros((20, 6, 7), 'uint8')),
        'all pixels .* are equal',
    ),
}


@pytest.mark.parametrize('fault', IDX_FAULTS)
def test_faulty_idx_file_is_refused_when_loading(fault, idx_folder):
    name, change, message = IDX_FAULTS[fault]
    rewrite(idx_folder / name, change)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('idx', idx_folder)


# -- cifar10 ---------------------------------------------------------------------------------------------------

CIFAR_NAMES = [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']


def write_cifar(place, kind):
    place.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CIFAR_NAMES):
        rows, labels = pixels(4, 3072), (np.arange(4) + number) % 10
        if kind == 'bin':
            content = np.concatenate([labels[:, None].astype('uint8'), rows], axis=1).tobytes()
            (place / f'{name}.bin').write_bytes(content)
        else:
            batch = {b'data': rows, b'labels': labels.tolist(), b'batch_label': b'x', b'filenames': [b'y']}
            (place / name).write_bytes(pickle.dumps(batch, protocol=kind))


@pytest.mark.parametrize('sub', ['', 'cifar-10-batches-bin'])
def test_cifar_binary_files_are_read_from_the_folder_or_its_usual_subfolder(sub, tmp_path):
    write_cifar(tmp_path / sub, 'bin')
    data = datasets.load('cifar10', tmp_path)
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (20, 4, 10, (3, 32, 32))
    for part in (data.train, data.test):
        image, label = part[1]
        assert image.shape == (3, 32, 32) and image.dtype == np.float32 and 0 <= label < 10


@pytest.mark.parametrize('protocol', [3, 4, 5])
def test_cifar_pickles_hold_what_the_binary_files_do(protocol, tmp_path):
    write_cifar(tmp_path / 'cifar-10-batches-py', protocol)
    (images, labels), test = cifar.read(tmp_path)
    batch = pickle.loads((tmp_path / 'cifar-10-batches-py' / 'data_batch_2').read_bytes())
    assert images.shape == (20, 32, 32, 3) and test[0].shape == (4, 32, 32, 3)
    assert images[4, 5, 6, 2] == batch[b'data'][0, 2 * 1024 + 5 * 32 + 6] and labels[4] == batch[b'labels'][0]


def test_cifar_pickle_of_python_2_is_read(tmp_path):
    write_cifar(tmp_path, 3)
    # As Python 2 wrote it: strings of bytes, protocol 2.
    parts = [
        b'\x80\x02}(U\x04data',
        b'cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01',
        b'K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff',
        b'J\xff\xff\xff\xffK\x00tb\x89',
        b'T\x00\x18\x00\x00' + bytes(6144),
        b'tbU\x06labels](K\x03K\x07eu.',
    ]
    (tmp_path / 'test_batch').write_bytes(b''.join(parts))
    _, (images, labels) = cifar.read(tmp_path)
    assert images.shape == (2, 32, 32, 3) and labels.tolist() == [3, 7]


class Harmful:
    def __init__(self, target, *arguments):
        self.call = target, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize('target', [print, eval, np.load, bytearray])
def test_cifar_pickle_may_call_nothing_but_what_rebuilds_arrays(target, tmp_path, capsys):
    write_cifar(tmp_path, 4)
    (tmp_path / 'data_batch_3').write_bytes(
        pickle.dumps({b'data': Harmful(target, 'print(1)'), b'labels': []})
    )
    with pytest.raises(DamagedDataError, match='data_batch_3 was not read: it asks for .*only numpy arrays'):
        datasets.load('cifar10', tmp_path)
    assert capsys.readouterr().out == ''


CIFAR_FAULTS = {
    'cut off': ('data_batch_2.bin', lambda data: data[:-1], '12291 bytes are not a multiple of 3073'),
    'empty': ('data_batch_2.bin', lambda data: b'', 'cut off: 0 bytes'),
    'label out of range': (
        'test_batch.bin',
        lambda data: b'\x0a' + data[1:],
        'test_batch.bin has the label 10, outside 0 to 9',
    ),
    'pickle cut off': ('data_batch_2', lambda data: data[:50], 'data_batch_2 is damaged or no pickle'),
    'no pickle': ('data_batch_2', lambda data: b'\xff\xd8\xff picture', 'damaged or no pickle'),
    'pickle of something else': ('data_batch_2', lambda data: pickle.dumps([1, 2]), "holds no b'data'"),
    'labels missing': (
        'data_batch_2',
        lambda data: pickle.dumps({b'data': pixels(2, 3072)}),
        "holds no b'labels'",
    ),
    'a label too few': (
        'data_batch_2',
        lambda data: pickle.dumps({b'data': pixels(2, 3072), b'labels': [1]}),
        'has 2 images, but 1 labels',
    ),
    'pickled label out of range': (
        'data_batch_2',
        lambda data: pickle.dumps({b'data': pixels(2, 3072), b'labels': [1, -1]}),
        'label -1, outside 0 to 9',
    ),
}


@pytest.mark.parametrize('fault', CIFAR_FAULTS)
def test_faulty_cifar_file_is_refused_when_loading(fault, tmp_path):
    name, change, message = CIFAR_FAULTS[fault]
    write_cifar(tmp_path, 'bin' if name.endswith('.bin') else 4)
    rewrite(tmp_path / name, change)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('cifar10', tmp_path)


def test_missing_cifar_files_are_named(tmp_path):
    with pytest.raises(
        MissingDataError, match='no CIFAR-10 files: neither data_batch_1.bin to .* cifar-10-batches-py'
    ):
        datasets.load('cifar10', tmp_path)
    write_cifar(tmp_path, 'bin')
    (tmp_path / 'data_batch_4.bin').unlink()
    with pytest.raises(MissingDataError, match='lacks data_batch_4.bin; put all six'):
        datasets.load('cifar10', tmp_path)


# -- folder ----------------------------------------------------------------------------------------------------


def picture(ending='.png', height=20, width=30):
    return mx.recordio.pack_img(mx.recordio.IRHeader(0, 0, 0, 0), pixels(height, width, 3), 95, ending)[24:]


@pytest.fixture
def picture_folder(tmp_path):
    for part in ('train', 'val'):
        for name in ('cat', 'dog'):
            place = tmp_path / part / name
            place.mkdir(parents=True)
            for number, ending in enumerate(['.png', '.jpg', '.JPG']):
                (place / f'{number}{ending}').write_bytes(picture(ending.lower()))
            (place / '.hidden.png').write_bytes(b'x')
            (place / 'notes.txt').write_text('not a picture')
    return tmp_path


def test_folder_of_pictures_is_read_with_classes_by_name(picture_folder):
    data = datasets.load('folder', picture_folder, input_size=16)
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (6, 6, 2, (3, 16, 16))
    for part in (data.train, data.test):
        images, labels = zip(*(part[i] for i in range(6)), strict=True)
        assert all(image.shape == (3, 16, 16) and image.dtype == np.float32 for image in images)
        assert list(labels) == [0, 0, 0, 1, 1, 1]


def test_test_pictures_are_the_same_each_time_and_training_pictures_are_not(picture_folder):
    data = datasets.load('folder', picture_folder, input_size=16)
    assert (data.test[0][0] == data.test[0][0]).asnumpy().all()
    assert not (data.train[0][0] == data.train[0][0]).asnumpy().all()


def test_folder_called_test_serves_as_val(picture_folder):
    (picture_folder / 'val').rename(picture_folder / 'test')
    assert len(datasets.load('folder', picture_folder).test) == 6


def test_one_level_of_folders_is_answered_with_the_layout_expected(picture_folder):
    with pytest.raises(
        MissingDataError, match='has no folder train; expected .*/train/CLASS/.*jpg and .*/val/CLASS'
    ):
        datasets.load('folder', picture_folder / 'train')
    for place in list((picture_folder / 'train').iterdir()):
        for path in list(place.iterdir()):
            path.rename(picture_folder / 'train' / f'{place.name}{path.name}')
        place.rmdir()
    with pytest.raises(MissingDataError, match='has pictures, but no folders of classes; expected'):
        datasets.load('folder', picture_folder)


def test_missing_val_folder_is_named(picture_folder):
    (picture_folder / 'val').rename(picture_folder / 'other')
    with pytest.raises(MissingDataError, match='neither a folder val nor test'):
        datasets.load('folder', picture_folder)


@pytest.mark.parametrize('part', ['train', 'val'])
def test_class_without_pictures_is_named(part, picture_folder):
    for path in (picture_folder / part / 'dog').iterdir():
        path.unlink()
    with pytest.raises(MissingDataError, match=f'{part}/dog has no pictures'):
        datasets.load('folder', picture_folder)


def test_class_that_is_only_tested_is_named(picture_folder):
    (picture_folder / 'val' / 'cow').mkdir()
    with pytest.raises(RecipeError, match='val has the class cow, which .*train lacks'):
        datasets.load('folder', picture_folder)


@pytest.mark.parametrize(
    ('content', 'message'), [(b'', '1.jpg is empty'), (b'GIF89a', '1.jpg is neither a JPEG nor')]
)
def test_file_that_is_no_picture_is_named_when_loading(content, message, picture_folder):
    (picture_folder / 'train' / 'dog' / '1.jpg').write_bytes(content)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('folder', picture_folder)


def test_picture_that_cannot_be_decoded_is_named_when_it_is_read(picture_folder):
    rewrite(picture_folder / 'train' / 'dog' / '0.png', lambda data: data[:12])
    train, _, _ = folder.read(picture_folder)
    with pytest.raises(DamagedDataError, match='dog/0.png cannot be decoded'):
        train[3]


# -- rec -------------------------------------------------------------------------------------------------------

MAGIC = struct.pack('<I', 0xCED7230A)


def write_records(place, name, labels, contents=None, with_index=True):
    writer = mx.recordio.MXIndexedRecordIO(str(place / f'{name}.idx'), str(place / f'{name}.rec'), 'w')
    for number, label in enumerate(labels):
        content = contents[number] if contents else picture('.jpg')
        writer.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, label, number, 0), content))
    writer.close()
    if not with_index:
        (place / f'{name}.idx').unlink()


@pytest.fixture
def record_folder(tmp_path):
    write_records(tmp_path, 'train', [0, 2, 1, 2, 0])
    write_records(tmp_path, 'val', [1, 0, 2])
    return tmp_path


def test_records_are_read_in_any_order(record_folder):
    data = datasets.load('rec', record_folder, input_size=16)
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (5, 3, 3, (3, 16, 16))
    assert [data.train[i][1] for i in (4, 0, 3, 1)] == [0, 0, 2, 2]
    assert data.train[4][0].shape == (3, 16, 16)


def test_records_without_an_index_are_found_and_hold_the_same(record_folder):
    indexed, _ = records.read(record_folder)
    images = [indexed[i][0].asnumpy() for i in range(5)]
    (record_folder / 'train.idx').unlink()
    walked, _ = records.read(record_folder)
    assert all(
        (walked[i][0].asnumpy() == images[i]).all() and walked[i][1] == indexed[i][1] for i in range(5)
    )


def test_record_with_the_magic_in_it_is_put_together_again(tmp_path):
    # Comments at the end of a JPEG do not show; aligned magics make the writer cut the record in parts.
    plain = picture('.jpg')
    marked = plain + b'\0' * (-len(plain) % 4) + MAGIC + b'abcd' + MAGIC
    write_records(tmp_path, 'train', [0, 1, 0], [plain, marked, plain], with_index=False)
    write_records(tmp_path, 'val', [1])
    train, _ = records.read(tmp_path)
    assert len(train) == 3 and [train[i][1] for i in range(3)] == [0, 1, 0]
    assert (train[1][0].asnumpy() == train[0][0].asnumpy()).all()
    reader = mx.recordio.MXRecordIO(str(tmp_path / 'train.rec'), 'r')
    for offset in train._offsets:
        assert train._content(int(offset)) == reader.read()


def test_records_survive_a_copy_into_another_process(record_folder):
    train, _ = records.read(record_folder)
    again = pickle.loads(pickle.dumps(train))
    assert again[3][1] == 2 and (again[3][0] == train[3][0]).asnumpy().all()


def test_label_in_an_array_of_one_is_a_class(tmp_path):
    for name in ('train', 'val'):
        write_records(tmp_path, name, [np.array([1.0]), np.array([0.0])])
    assert [records.read(tmp_path)[0][i][1] for i in range(2)] == [1, 0]


def test_missing_record_files_are_named(tmp_path):
    with pytest.raises(MissingDataError, match='lacks train.rec and val.rec; make them with'):
        datasets.load('rec', tmp_path)


def index_line(text):
    return lambda data: data + text


RECORD_FAULTS = {
    'no records in it': ('train.rec', lambda data: b'\xff\xd8\xff\xe0' + data[4:], 'at 0 stands 0xe0ffd8ff'),
    'cut off': ('train.rec', lambda data: data[:-40], 'cut off: the record at .* but the file ends at'),
    'cut off before the last record': (
        'train.rec',
        lambda data: data[:200],
        'cut off, or .*idx belongs to another file',
    ),
    'bytes left over': ('train.rec', lambda data: data + b'\0' * 8, 'idx does not cover .*train.rec'),
    'empty': ('train.rec', lambda data: b'', 'is cut off'),
    'index of something else': (
        'train.idx',
        lambda data: b'<html>',
        'train.idx, line 1, is not a key and an offset',
    ),
    'offset between records': (
        'train.idx',
        lambda data: b'0\t4\n' + data,
        'damaged or no RecordIO file: at 4 stands',
    ),
}


@pytest.mark.parametrize('fault', RECORD_FAULTS)
def test_faulty_record_file_is_refused_when_loading(fault, record_folder):
    name, change, message = RECORD_FAULTS[fault]
    rewrite(record_folder / name, change)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('rec', record_folder)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda data: data[:-40], 'cut off: the record at'),
        (lambda data: data + b'\1\2\3', 'is cut off'),
        (lambda data: data + b'\1' * 8, 'damaged or no RecordIO file'),
        (lambda data: b'', 'has no records'),
    ],
)
def test_faulty_record_file_without_an_index_is_refused_too(change, message, record_folder):
    (record_folder / 'train.idx').unlink()
    rewrite(record_folder / 'train.rec', change)
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('rec', record_folder)


@pytest.mark.parametrize(
    ('label', 'message'),
    [
        (0.5, 'record 1, has the label 0.5; classes are whole numbers'),
        (-1, 'has the label -1'),
        (float('nan'), 'has the label nan'),
        (float('inf'), 'has the label inf'),
        (np.array([1.0, 2.0]), 'record 1, has 2 labels; a picture needs exactly one class'),
    ],
)
def test_label_that_is_no_class_is_refused_when_loading(label, message, record_folder):
    write_records(record_folder, 'train', [0, label])
    with pytest.raises(DamagedDataError, match=message):
        datasets.load('rec', record_folder)


def test_test_label_beyond_the_classes_is_refused_when_loading(record_folder):
    write_records(record_folder, 'val', [0, 3])
    with pytest.raises(
        DamagedDataError, match=r'val.rec, record 1, has the label 3, outside 0 to 2 \(there are 3 classes\)'
    ):
        datasets.load('rec', record_folder)


def test_number_of_classes_given_is_held_against_the_labels(record_folder):
    assert datasets.load('rec', record_folder, classes=7).classes == 7
    with pytest.raises(DamagedDataError, match='label 2, outside 0 to 1'):
        datasets.load('rec', record_folder, classes=2)


def test_record_that_is_no_picture_is_named(record_folder):
    write_records(record_folder, 'train', [2, 1], [picture('.jpg'), b'something else'])
    train, _ = records.read(record_folder)
    with pytest.raises(DamagedDataError, match='train.rec, record 1, cannot be decoded'):
        train[1]


# -- loading in several processes --------------------------------------------------------------------------------


def test_loader_processes_give_the_same_images_and_make_different_random_choices(record_folder):
    data = datasets.load('rec', record_folder, input_size=16)
    batches = [[0], [0], [0], [0], [1], [2]]
    alone = [
        image.asnumpy() for image, _ in DataLoader(data.test, batch_sampler=[[0], [1], [2]], num_workers=0)
    ]
    shared = [
        image.asnumpy() for image, _ in DataLoader(data.test, batch_sampler=[[0], [1], [2]], num_workers=2)
    ]
    assert all((a == b).all() for a, b in zip(alone, shared, strict=True))
    crops = {
        image.asnumpy().tobytes()
        for image, _ in DataLoader(data.train, batch_sampler=batches[:4], num_workers=2)
    }
    assert len(crops) == 4


def test_fault_in_a_loader_process_arrives_with_its_message(record_folder):
    write_records(record_folder, 'train', [2, 1], [picture('.jpg'), b'something else'])
    data = datasets.load('rec', record_folder, input_size=16)
    with pytest.raises(DamagedDataError, match='record 1, cannot be decoded'):
        list(DataLoader(data.train, batch_sampler=[[1]], num_workers=1))
