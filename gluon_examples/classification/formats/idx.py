"""MNIST's format: big-endian idx files, gzipped or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from gluon_examples.common.errors import DamagedDataError, MissingDataError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b'\x1f\x8b'
_PARTS = {'train': ('train-images', 'train-labels'), 'test': ('t10k-images', 't10k-labels')}
_DIMENSIONS = {'images': 3, 'labels': 1}


def read(folder):
    """Images and labels for training and testing.

    Parameters
    ----------
    folder : str or Path
        Holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
        t10k-labels-idx1-ubyte, each with or without .gz, and with '-' or '.' before 'idx'.

    Returns
    -------
    (train_images, train_labels), (test_images, test_labels)
        uint8 images of shape (N, height, width), int32 labels.

    Raises
    ------
    MissingDataError
        A file is not there; the message names all that are missing.
    DamagedDataError
        A file is no idx file, is cut off, or does not fit the others.
    """
    paths = _find(Path(folder))
    train, test = (_read_part(*paths[part]) for part in ('train', 'test'))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DamagedDataError(
            f'{paths["train"][0]} has images of {_size(train[0])}, '
            f'but {paths["test"][0]} of {_size(test[0])}; '
            'both must come from the same data set'
        )
    return train, test


def _size(images):
    return 'x'.join(str(side) for side in images.shape[1:])


def _names(stem):
    kind = f'idx{_DIMENSIONS[stem.split("-")[1]]}-ubyte'
    return [f'{stem}{joint}{kind}{end}' for joint in '-.' for end in ('', '.gz')]


def _find(folder):
    found, missing = {}, []
    for part, stems in _PARTS.items():
        for stem in stems:
            path = next((folder / name for name in _names(stem) if (folder / name).is_file()), None)
            if path is None:
                missing.append(_names(stem)[0])
            found.setdefault(part, []).append(path)
    if missing:
        raise MissingDataError(
            f"{folder} lacks {', '.join(missing)} (each may also end in .gz, or have '.' in place of '-' "
            "before 'idx'); put the four files of the data set there, they are not downloaded"
        )
    return found


def _read_part(images_path, labels_path):
    images, labels = read_file(images_path, dimensions=3), read_file(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise DamagedDataError(
            f'{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels; '
            'both must come from the same data set'
        )
    if not images.size:
        raise DamagedDataError(f'{images_path} has no images; copy the file again')
    return images, labels.astype('int32')


def read_file(path, dimensions):
    """The array in one idx file.

    Parameters
    ----------
    path : str or Path
    dimensions : int
        How many the array must have.

    Returns
    -------
    array of uint8

    Raises
    ------
    DamagedDataError
        The content does not agree with the format or with itself.
    """
    content = _uncompressed(path)
    if len(content) < 4:
        raise DamagedDataError(
            f'{path} is cut off: it has {len(content)} bytes, too few for an idx header; copy the file again'
        )
    zeros, kind, found = struct.unpack_from('>HBB', content)
    if zeros != 0 or kind != _UNSIGNED_BYTE or found != dimensions:
        raise DamagedDataError(
            f'{path} is not an idx file of unsigned bytes in {dimensions} dimension{"s"[: dimensions > 1]}: '
            f'it begins with 0x{content[:4].hex()}, expected 0x0000{_UNSIGNED_BYTE:02x}{dimensions:02x}; '
            'check which file this is'
        )
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DamagedDataError(
            f'{path} is cut off within its header ({len(content)} bytes); copy the file again'
        )
    shape = struct.unpack_from(f'>{dimensions}I', content, 4)
    expected = header + math.prod(shape)
    if len(content) != expected:
        what = 'is cut off' if len(content) < expected else 'has bytes left over'
        raise DamagedDataError(
            f'{path} {what}: its header promises {"x".join(map(str, shape))} values, {expected} bytes '
            f'in all, but there are {len(content)}; copy the file again'
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _uncompressed(path):
    content = Path(path).read_bytes()
    if content[:2] != _GZIP_MAGIC:
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as fault:
        raise DamagedDataError(f'{path} cannot be uncompressed ({fault}); copy the file again') from None
