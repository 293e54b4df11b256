"""One checkpoint file: written as a whole or not at all, and read only if every byte is what was written.

The format, all numbers little-endian::

    8 bytes     89 48 56 44 43 50 0d 0a ("\\x89HVDCP\\r\\n")
    4 bytes     version of the format, 1
    8 bytes     length of the header
    header      JSON in UTF-8; its "arrays" is a list of [type, shape]
    arrays      their bytes, one after the other, in C order
    32 bytes    SHA-256 of all that comes before
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
import struct
from pathlib import Path

import numpy as np

from .version import __version__

__all__ = ['CheckpointFault', 'CheckpointFile', 'write', 'remove_leftovers', 'check_dtype', 'file_name', 'update_of']

FORMAT = 1
_MAGIC = b'\x89HVDCP\r\n'
_HEAD = struct.Struct('<8sIQ')
_DIGEST = hashlib.sha256().digest_size
_CHUNK = 1 << 22
_DTYPES = {np.dtype(name).newbyteorder('<').str: np.dtype(name).newbyteorder('<')
           for name in ('bool', 'uint8', 'int8', 'uint16', 'int16', 'uint32', 'int32', 'uint64', 'int64',
                        'float16', 'float32', 'float64')}
_NAME = re.compile(r'checkpoint-(0|[1-9][0-9]{0,17})\.hvd', re.ASCII)
_LEFTOVER = re.compile(r'\.checkpoint-(0|[1-9][0-9]{0,17})\.hvd\.[0-9a-f]{16}\.tmp', re.ASCII)


class CheckpointFault(ValueError):
    """A file cannot be used as a checkpoint; the message names it and says why."""


def file_name(update):
    """What the checkpoint of an update is called.

    Examples
    --------
    >>> file_name(1200)
    'checkpoint-1200.hvd'
    """
    return f'checkpoint-{update}.hvd'


def update_of(name):
    """The update in a file name that `file_name` made; None for any other name.

    Examples
    --------
    >>> update_of('checkpoint-1200.hvd'), update_of('checkpoint-01.hvd'), update_of('../checkpoint-1.hvd')
    (1200, None, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def check_dtype(dtype, what):
    """Refuse arrays of a type that the format does not have.

    Raises
    ------
    TypeError
        Names `what` it is.
    """
    if np.dtype(dtype).newbyteorder('<').str not in _DTYPES:
        raise TypeError(f'{what} has the type {np.dtype(dtype)}, which a checkpoint cannot hold; use booleans, integers, '
                        f'float16, float32 or float64')


def write(path, header, arrays):
    """Write a checkpoint under a temporary name and give it its own when every byte is on the disk.

    Parameters
    ----------
    path : Path
        An older file of this name is replaced.
    header : dict
        JSON values; 'arrays' is added.
    arrays : list of ndarray

    Returns
    -------
    int
        The length of the file in bytes.

    Raises
    ------
    OSError
        The disk is full, say. What was there before is untouched, and nothing unfinished is left.
    """
    for number, array in enumerate(arrays):
        check_dtype(array.dtype, f'array {number}')
    described = [[a.dtype.newbyteorder('<').str, list(a.shape)] for a in arrays]
    text = json.dumps({**header, 'arrays': described}).encode()
    temporary = path.with_name(f'.{path.name}.{secrets.token_hex(8)}.tmp')
    # O_EXCL and O_NOFOLLOW: nobody can have us write through a link of theirs.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, 'wb') as file:
            _lock(file)
            hasher = hashlib.sha256()

            def put(data):
                for start in range(0, len(data), _CHUNK):
                    hasher.update(data[start:start + _CHUNK])
                    file.write(data[start:start + _CHUNK])
            put(_HEAD.pack(_MAGIC, FORMAT, len(text)))
            put(text)
            for array in arrays:
                if array.size:
                    flat = np.ascontiguousarray(array, array.dtype.newbyteorder('<')).reshape(-1)
                    put(memoryview(flat.view('uint8')))
            file.write(hasher.digest())
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)
    return length


def _lock(file):
    """Mark a file as being written for as long as this process lives; on file systems without locks it stays unmarked."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder):
    # The new name must survive a power failure, too. Some file systems cannot do this, and lose nothing by it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder):
    """Remove the unfinished files of writers that have died: regular files of exactly our temporary names."""
    for name in os.listdir(folder):
        if not _LEFTOVER.fullmatch(name):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    # A worker that has left the job may still be writing; its lock goes when it ends.
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
            finally:
                os.close(descriptor)


class CheckpointFile:
    """A checkpoint that has been found to be whole, open for reading; a context manager.

    Lengths and types are checked against the file before anything is allocated for them, and the SHA-256 before anything
    is used. Only one array is in memory at a time.

    Parameters
    ----------
    path : str or Path

    Attributes
    ----------
    path : Path
    header : dict

    Raises
    ------
    CheckpointFault
        It cannot be read, is a symbolic link or no regular file, no checkpoint, of a newer format, or damaged.
    """

    def __init__(self, path):
        self.path = Path(path)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            why = 'it is a symbolic link' if error.errno == errno.ELOOP else error.strerror
            raise self._fault(f'cannot be opened: {why}') from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._fault('is not a regular file')
        self._file = open(descriptor, 'rb')
        try:
            self._check()
        except OSError as error:
            self.close()
            raise self._fault(f'cannot be read: {error.strerror}') from None
        except BaseException:
            self.close()
            raise

    def _fault(self, what):
        return CheckpointFault(f'{self.path} {what}')

    def _check(self):
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(_HEAD.size)
        if not head.startswith(_MAGIC[:len(head)]) or not head:
            raise self._fault('is not a checkpoint of hvd_dynamic: it begins with other bytes' if head else 'is empty')
        if len(head) < _HEAD.size:
            raise self._fault(f'is damaged: it ends after {size} bytes')
        _, version, length = _HEAD.unpack(head)
        if version != FORMAT:
            raise self._fault(f'has version {version} of the format, and this hvd_dynamic ({__version__}) reads version '
                              f'{FORMAT}; use the hvd_dynamic that wrote it, or a newer one')
        room = size - _HEAD.size - _DIGEST
        if length > room:
            raise self._fault(f'is damaged: it ends after {size} bytes, within its header')
        self._check_digest(size)
        self._file.seek(_HEAD.size)
        try:
            self.header = json.loads(self._file.read(length).decode())
            self._arrays = [(_DTYPES[dtype], _checked_shape(shape)) for dtype, shape in self.header['arrays']]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise self._fault(f'is damaged: its header cannot be understood ({type(error).__name__}: {error})') from None
        self._start = _HEAD.size + length
        if self._start + sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._arrays) != size - _DIGEST:
            raise self._fault('is damaged: its arrays have other lengths than its header says')

    def _check_digest(self, size):
        self._file.seek(0)
        hasher, left = hashlib.sha256(), size - _DIGEST
        while left > 0:
            data = self._file.read(min(_CHUNK, left))
            if not data:
                raise self._fault('became shorter while it was read')
            hasher.update(data)
            left -= len(data)
        if self._file.read(_DIGEST) != hasher.digest():
            raise self._fault(f'is damaged: the SHA-256 of its {size} bytes is not the one at its end')

    def arrays(self):
        """Give the arrays in their order, one at a time; read-only."""
        self._file.seek(self._start)
        for dtype, shape in self._arrays:
            length = dtype.itemsize * math.prod(shape)
            try:
                data = self._file.read(length)
            except OSError as error:
                raise self._fault(f'cannot be read: {error.strerror}') from None
            if len(data) < length:
                raise self._fault('became shorter while it was read')
            yield np.frombuffer(data, dtype).reshape(shape)

    def __len__(self):
        return len(self._arrays)

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _checked_shape(shape):
    if type(shape) is not list or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f'{shape!r} is no shape')
    if 0 in shape:
        np.empty(0).reshape(shape)      # raises if a length is beyond what arrays can have
    return tuple(shape)
