"""CIFAR-10 as its authors publish it: the binary files, or the pickles for Python."""

import io
import pickle
from pathlib import Path

import numpy as np

from gluon_examples.common.errors import DamagedDataError, MissingDataError

CLASSES = 10
_IMAGE_BYTES = 3 * 32 * 32
_TRAIN = [f'data_batch_{number}' for number in range(1, 6)]
_TEST = ['test_batch']
_SUBFOLDERS = ('', 'cifar-10-batches-bin', 'cifar-10-batches-py')
# All that numpy names in a pickled array, in its versions 1 and 2.
_ARRAY_PARTS = {
    (f'numpy.{core}.{module}', name)
    for core in ('core', '_core')
    for module, name in (('multiarray', '_reconstruct'), ('numeric', '_frombuffer'))
}
_ARRAY_PARTS |= {('numpy', 'ndarray'), ('numpy', 'dtype')}


def read(folder):
    """Images and labels for training and testing.

    Parameters
    ----------
    folder : str or Path
        Holds data_batch_1.bin to data_batch_5.bin and test_batch.bin, or data_batch_1 to data_batch_5
        and test_batch (pickles); itself, or in cifar-10-batches-bin or cifar-10-batches-py.

    Returns
    -------
    (train_images, train_labels), (test_images, test_labels)
        uint8 images of shape (N, 32, 32, 3), int32 labels.

    Raises
    ------
    MissingDataError
        Files are not there; the message says which were looked for.
    DamagedDataError
        A file does not hold what its name promises.
    """
    folder = Path(folder)
    for place in (folder / sub for sub in _SUBFOLDERS):
        for end, read_file in (('.bin', read_binary), ('', read_pickle)):
            names = [name + end for name in _TRAIN + _TEST]
            present = [name for name in names if (place / name).is_file()]
            if not present:
                continue
            missing = [name for name in names if name not in present]
            if missing:
                raise MissingDataError(
                    f'{place} lacks {", ".join(missing)}; put all six files of CIFAR-10 there'
                )
            parts = [read_file(place / name) for name in names]
            return _joined(parts[:-1]), parts[-1]
    raise MissingDataError(
        f'{folder} has no CIFAR-10 files: neither data_batch_1.bin to data_batch_5.bin and test_batch.bin, '
        'nor data_batch_1 to data_batch_5 and test_batch, also not in cifar-10-batches-bin or '
        'cifar-10-batches-py; they are not downloaded'
    )


def _joined(parts):
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_binary(path):
    """Images and labels of one binary file: for each image its label, then its red, green and blue planes."""
    content = np.frombuffer(Path(path).read_bytes(), np.uint8)
    images, rest = divmod(content.size, 1 + _IMAGE_BYTES)
    if rest or not images:
        raise DamagedDataError(
            f'{path} is cut off: {content.size} bytes are not a multiple of {1 + _IMAGE_BYTES}, the '
            'bytes of one image with its label; copy the file again'
        )
    rows = content.reshape(images, 1 + _IMAGE_BYTES)
    return _checked(path, rows[:, 1:], rows[:, 0])


def read_pickle(path):
    """Images and labels of one pickle: a dict with b'data' (uint8, one row an image) and b'labels'.

    A pickle can name any function for the reader to call; here it may name only what rebuilds an array.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(Path(path).read_bytes()), encoding='bytes').load()
    except _Refused as fault:
        raise DamagedDataError(f'{path} was not read: {fault}') from None
    except Exception as fault:  # bytes that are no pickle can raise anything
        raise DamagedDataError(
            f'{path} is damaged or no pickle ({type(fault).__name__}: {fault}); copy the file again'
        ) from None
    if isinstance(batch, dict):
        batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
    else:
        batch = {}
    images, labels = batch.get(b'data'), batch.get(b'labels')
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (_IMAGE_BYTES,):
        raise DamagedDataError(
            f"{path} holds no b'data' of unsigned bytes, {_IMAGE_BYTES} an image; is it a file of CIFAR-10?"
        )
    if not isinstance(labels, (list, np.ndarray)) or not all(
        isinstance(label, (int, np.integer)) for label in labels
    ):
        raise DamagedDataError(f"{path} holds no b'labels' that are whole numbers; is it a file of CIFAR-10?")
    return _checked(path, images, np.asarray(labels, 'int64'))


class _Refused(Exception):
    pass


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ARRAY_PARTS:
            raise _Refused(
                f'it asks for {module}.{name}, and only numpy arrays are let through; '
                'get CIFAR-10 from its authors'
            )
        return super().find_class(module, name)


def _checked(path, rows, labels):
    if len(rows) != len(labels):
        raise DamagedDataError(
            f'{path} has {len(rows)} images, but {len(labels)} labels; copy the file again'
        )
    outside = labels[(labels < 0) | (labels >= CLASSES)]
    if outside.size:
        raise DamagedDataError(
            f'{path} has the label {outside[0]}, outside 0 to {CLASSES - 1}; is it a file of CIFAR-10?'
        )
    images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype('int32')
