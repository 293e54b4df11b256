"""RecordIO files of pictures, as im2rec makes them, read by position.

MXNet's ImageRecordIter walks through such a file in an order of its own. Here any record can be read at any
time, so that the one global order of the elastic sampler holds. Reads carry their own position (pread), so
loader processes share one open file without disturbing each other.

A record is: magic, a word with 3 bits of kind and 29 bits of length, the content, zeros up to a multiple
of 4. Kind 0 is a whole record; one whose content has the magic in it is cut there into parts of the
kinds 1, 2, ..., 2, 3.
"""

import math
import os
import struct
from pathlib import Path

import numpy as np
from mxnet import gluon

from gluon_examples.classification.formats.pictures import decode
from gluon_examples.common.errors import DamagedDataError, MissingDataError

_MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack('<I', _MAGIC)
_WHOLE, _LAST = 0, 3
_FRAME = struct.Struct('<II')  # magic, kind and length
_HEADER = struct.Struct('<IfQQ')  # number of further labels, label, id, second id
# How many records are looked at when loading if the number of classes is given.
SOME_RECORDS = 1000


class RecordFile(gluon.data.Dataset):
    """The pictures of one .rec file, each with its class; decoded when asked for.

    Parameters
    ----------
    path : str or Path
        Beside it, NAME.idx tells where the records are; without one, the file is walked through once.
    classes : int, optional
        Given, only some records are checked when loading, which matters with a million of them on a slow
        disk; the others are checked as they are read. Else all are, and the highest label tells the number.

    Raises
    ------
    DamagedDataError
        The file is cut off, is none of this format, or has labels that are no classes.
    """

    def __init__(self, path, classes=None):
        self.path = Path(path)
        self._open()
        index = self.path.with_suffix('.idx')
        self._offsets = self._read_index(index) if index.is_file() else self._walk()
        if not len(self._offsets):
            raise DamagedDataError(f'{self.path} has no records; make it anew with im2rec')
        self._check_end(index)
        self.classes = classes
        some = range(0, len(self), 1 if classes is None else -(-len(self) // SOME_RECORDS))
        labels = [self._label(record) for record in some]
        if classes is None:
            self.classes = max(labels) + 1

    def _open(self):
        try:
            self._file = open(self.path, 'rb')
        except OSError as fault:
            raise MissingDataError(f'{self.path} cannot be opened ({fault.strerror})') from None
        self._bytes = os.fstat(self._file.fileno()).st_size

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != '_file'}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._open()

    def __len__(self):
        return len(self._offsets)

    def __getitem__(self, record):
        label = self._label(record)
        content = self._content(int(self._offsets[record]))
        further = _HEADER.unpack_from(content)[0]
        return decode(content[_HEADER.size + 4 * further :], f'{self.path}, record {record},'), label

    # -- where records are ---------------------------------------------------------------------------------

    def _read_index(self, index):
        offsets = []
        for number, line in enumerate(index.read_text(encoding='utf-8', errors='replace').splitlines(), 1):
            fields = line.split()
            if len(fields) != 2 or not fields[1].isdecimal():
                raise DamagedDataError(
                    f'{index}, line {number}, is not a key and an offset; '
                    'remove the file, the records are found without it'
                )
            offsets.append(int(fields[1]))
        if offsets and max(offsets) >= self._bytes:
            raise DamagedDataError(
                f'{self.path} is cut off, or {index} belongs to another file: a record is said to be at '
                f'{max(offsets)}, but it has {self._bytes} bytes; copy both files again'
            )
        return np.array(offsets, 'int64')

    def _walk(self):
        offsets, at = [], 0
        while at < self._bytes:
            offsets.append(at)
            at = self._end(at)
        return np.array(offsets, 'int64')

    def _check_end(self, index):
        end = self._end(int(self._offsets.max()))
        if end != self._bytes:
            raise DamagedDataError(
                f'{index} does not cover {self.path}: its last record ends at {end} of {self._bytes} bytes; '
                'remove the .idx file, the records are found without it'
            )

    # -- what is in them -----------------------------------------------------------------------------------

    def _read(self, at, count):
        content = os.pread(self._file.fileno(), count, at)
        if len(content) < count:
            raise DamagedDataError(
                f'{self.path} is cut off: a record needs {count} bytes at {at}, '
                f'but the file has {self._bytes}; copy it again'
            )
        return content

    def _frame(self, at):
        """Kind of the part at an offset, where its content begins, and its length."""
        magic, word = _FRAME.unpack(self._read(at, _FRAME.size))
        if magic != _MAGIC:
            raise DamagedDataError(
                f'{self.path} is damaged or no RecordIO file: at {at} stands 0x{magic:08x}, '
                f'where a record begins with 0x{_MAGIC:08x}; make it anew with im2rec'
            )
        begin, length = at + _FRAME.size, word & ((1 << 29) - 1)
        if begin + length > self._bytes:
            raise DamagedDataError(
                f'{self.path} is cut off: the record at {at} has {length} bytes, '
                f'but the file ends at {self._bytes}; copy it again'
            )
        return word >> 29, begin, length

    def _parts(self, at):
        """Where the contents of a record's parts begin, and their lengths."""
        while True:
            kind, begin, length = self._frame(at)
            yield begin, length
            if kind in (_WHOLE, _LAST):
                return
            at = begin + (length + 3) // 4 * 4

    def _end(self, at):
        for begin, length in self._parts(at):
            end = begin + (length + 3) // 4 * 4
        return end

    def _content(self, at):
        # The magic at which a record was cut is not stored.
        return _MAGIC_BYTES.join(self._read(begin, length) for begin, length in self._parts(at))

    def _label(self, record):
        at = int(self._offsets[record])
        _, begin, length = self._frame(at)
        # With the magic among the header's numbers, the record is cut there and must be put together.
        whole = length >= _HEADER.size + 4
        content = self._read(begin, _HEADER.size + 4) if whole else self._content(at)
        if len(content) < _HEADER.size:
            raise DamagedDataError(
                f'{self.path}, record {record}, has {len(content)} bytes, too few for its header; '
                'make the file anew with im2rec'
            )
        further, label = _HEADER.unpack_from(content)[:2]
        if further > 1:
            raise DamagedDataError(
                f'{self.path}, record {record}, has {further} labels; a picture needs exactly one '
                'class (is it a file for detection?)'
            )
        if further == 1:
            (label,) = struct.unpack_from('<f', content, _HEADER.size)
        if not (math.isfinite(label) and label >= 0 and label == int(label)):
            raise DamagedDataError(
                f'{self.path}, record {record}, has the label {label:g}; classes are whole numbers from 0'
            )
        if self.classes is not None and label >= self.classes:
            raise DamagedDataError(
                f'{self.path}, record {record}, has the label {label:g}, outside 0 to {self.classes - 1} '
                f'(there are {self.classes} classes)'
            )
        return int(label)


def read(folder, classes=None):
    """Pictures for training and testing.

    Parameters
    ----------
    folder : str or Path
        Holds train.rec and val.rec, and train.idx and val.idx if there are any.
    classes : int, optional
        See `RecordFile`.

    Returns
    -------
    train, test : RecordFile

    Raises
    ------
    MissingDataError
        A file is not there.
    DamagedDataError
        See `RecordFile`.
    """
    folder = Path(folder)
    missing = [name for name in ('train.rec', 'val.rec') if not (folder / name).is_file()]
    if missing:
        raise MissingDataError(
            f"{folder} lacks {' and '.join(missing)}; make them with MXNet's tools/im2rec.py "
            '(train.idx and val.idx are used if present)'
        )
    train = RecordFile(folder / 'train.rec', classes)
    test = RecordFile(folder / 'val.rec', train.classes)
    train[0], test[0]  # records of something else than pictures show at once
    return train, test
