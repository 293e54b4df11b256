"""The text format of the Extreme Classification Repository, read into compressed sparse rows.

The first line is ``samples features labels``; then one line a sample, ``label,label index:value index:value ...``. A sample
may have no labels (its line begins with a space) or no features. Indices and labels count from 0.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse
from tqdm import tqdm

from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.extreme_classification.digits import PAD, Runs

__all__ = ['Samples', 'read']

_CHUNK = 1 << 20        # bytes: an array for each step stays in the processor's cache
_NEWLINE, _SPACE, _COMMA, _COLON, _POINT = b'\n ,:.'
_SEPARATOR, _IN_NUMBER, _BAD = 1, 2, 3
_KINDS = np.full(256, _BAD, 'uint8')
_KINDS[list(b'0123456789')] = 0
_KINDS[[_NEWLINE, _SPACE, _COMMA, _COLON]] = _SEPARATOR
_KINDS[list(b'.eE+-')] = _IN_NUMBER

_LABEL, _INDEX, _VALUE, _NOTHING = 1, 2, 3, 4
# What stands between two separators; 0 where the two cannot follow each other.
_CODES = np.zeros(256, 'uint8')
_CODES[[_NEWLINE, _SPACE, _COMMA, _COLON]] = range(4)
_BETWEEN = np.array([
    # newline  space    comma    colon      after, and before:
    [_LABEL,   _LABEL,  _LABEL,  0],      # newline
    [_NOTHING, 0,       0,       _INDEX],   # space; with a newline, at the end of a line
    [_LABEL,   _LABEL,  _LABEL,  0],      # comma
    [_VALUE,   _VALUE,  0,       0],      # colon
], 'uint8').reshape(-1)


class Samples(NamedTuple):
    """Samples with sparse features and several labels each.

    Attributes
    ----------
    features : scipy.sparse.csr_matrix of float32
        Samples x features.
    labels : scipy.sparse.csr_matrix of float32
        Samples x labels; 1 where a sample has the label.
    """

    features: sparse.csr_matrix
    labels: sparse.csr_matrix

    def __len__(self):
        return self.features.shape[0]


def read(path):
    """Read a file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Samples

    Raises
    ------
    MissingDataError
        There is no such file.
    DamagedDataError
        A line is malformed (it is named by its number), an index or label is out of range, or there are more or fewer lines
        than the first one says.
    """
    path = Path(path)
    try:
        with open(path, 'rb') as file:
            head = file.readline(200)
            shape = _header(path, head)
            size = path.stat().st_size
            with tqdm(total=size, initial=len(head), unit='B', unit_scale=True, desc=path.name, leave=False,
                      disable=None if size > 50 * _CHUNK else True) as bar:
                return _join(path, shape, list(_chunks(path, file, shape, bar)))
    except OSError as fault:
        raise MissingDataError(f'{path}: cannot be read ({fault.strerror}); give a file in the text format of the Extreme '
                               f'Classification Repository') from None


def _header(path, line):
    numbers = line.split()
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers) or not line.endswith(b'\n'):
        raise DamagedDataError(f'{path}, line 1: must be "samples features labels", three numbers, got '
                               f'{line.strip()[:60].decode(errors="replace")!r}')
    shape = tuple(map(int, numbers))
    if not all(0 < number < 2**31 for number in shape):
        raise DamagedDataError(f'{path}, line 1: samples, features and labels must be from 1 to {2**31 - 1}, got {shape}')
    return shape


def _chunks(path, file, shape, bar):
    """Parsed pieces of whole lines."""
    line, rest = 2, b''
    while True:
        read = file.read(_CHUNK)
        bar.update(len(read))
        text = rest + read
        if read:
            end = text.rfind(b'\n') + 1
            text, rest = text[:end], text[end:]
        elif text and not text.endswith(b'\n'):
            text += b'\n'
        if b'\r' in text:
            text = text.replace(b'\r\n', b'\n')
        if text:
            piece = _parse(path, text, line, shape)
            line += len(piece[0])
            yield piece
        if not read:
            return


def _parse(path, text, first_line, shape):
    """Labels and features of some lines: counts a line, and all of them in a row."""
    padded = np.empty(PAD + len(text), 'uint8')
    padded[PAD:] = np.frombuffer(text, 'uint8')
    runs = Runs(padded)
    characters = padded[runs.ends]
    kinds = _KINDS[characters]

    def malformed(place, what):
        number = first_line + np.count_nonzero(padded[PAD:place] == _NEWLINE)
        shown = text.split(b'\n')[number - first_line][:60].decode(errors='replace')
        raise DamagedDataError(f'{path}, line {number}: {what}; it begins with {shown!r}')

    if kinds.max() == _BAD:
        bad = np.argmax(kinds == _BAD)
        malformed(runs.ends[bad], f'{chr(characters[bad])!r} is no part of "label,label index:value ..."')
    ends = np.flatnonzero(kinds == _SEPARATOR)          # numbers among the runs, of those that end something
    separators = characters[ends]
    codes = _CODES[separators]
    roles = _BETWEEN[codes[:-1] * 4 + codes[1:]]
    steps, ends, starts = np.diff(ends), ends[1:], ends[:-1]
    empty = (steps == 1) & (runs.lengths[ends] == 0)
    wrong = roles == 0
    wrong |= empty & (roles != _NOTHING) & ~((roles == _LABEL) & (separators[:-1] == _NEWLINE) & (separators[1:] != _COMMA))
    wrong |= (roles == _NOTHING) & ~empty
    if wrong.any():
        malformed(runs.ends[ends[np.argmax(wrong)]], 'must be "label,label index:value index:value ..."')
    roles[empty] = _NOTHING

    def whole_numbers(role, limit, what):
        which = np.flatnonzero(roles == role)
        numbers = runs.whole(ends[which])
        wrong = (steps[which] != 1) | (runs.lengths[ends[which]] > 10) | (numbers >= limit)
        if wrong.any():
            at = ends[which[np.argmax(wrong)]]
            token = text[runs.ends[starts[which[np.argmax(wrong)]]] + 1 - PAD : runs.ends[at] - PAD].decode()
            malformed(runs.ends[at], f'{what} {token} is not a whole number from 0 to {limit - 1}')
        return which, numbers.astype('int32')

    which_labels, labels = whole_numbers(_LABEL, shape[2], 'label')
    which_indices, indices = whole_numbers(_INDEX, shape[1], 'index')
    which = np.flatnonzero(roles == _VALUE)
    last = ends[which]
    values = runs.whole(last).astype('float64')
    decimal = np.flatnonzero((steps[which] == 2) & (characters[last - 1] == _POINT))
    values[decimal] = runs.whole(last[decimal] - 1) + runs.fractions(last[decimal])
    plain = steps[which] == 1
    plain[decimal] = (runs.lengths[last[decimal]] + runs.lengths[last[decimal] - 1]) > 0
    plain &= runs.lengths[last] <= 16
    for i in np.flatnonzero(~plain):        # signs, exponents, very many digits
        token = text[runs.ends[starts[which[i]]] + 1 - PAD : runs.ends[last[i]] - PAD]
        try:
            values[i] = float(token)
        except ValueError:
            malformed(runs.ends[last[i]], f'{token.decode()!r} is no number')
    line_ends = np.flatnonzero(separators[1:] == _NEWLINE)
    counts = [np.diff(np.searchsorted(which, line_ends, 'right'), prepend=0) for which in (which_labels, which_indices)]
    return (*counts, labels, indices, values.astype('float32'))


def _join(path, shape, pieces):
    label_counts, counts, labels, indices, values = [np.concatenate(parts) for parts in zip(*pieces)] if pieces else [
        np.zeros(0, 'int32')] * 5
    samples, features, classes = shape
    if len(counts) != samples:
        raise DamagedDataError(f'{path}: line 1 says {samples} samples, but {len(counts)} lines follow; copy it again, '
                               f'or mend its first line')

    def matrix(values, indices, counts, width):
        made = sparse.csr_matrix((values, indices, np.concatenate([[0], np.cumsum(counts)])), (samples, width))
        made.sum_duplicates()       # and sorts
        return made
    labels = matrix(np.ones(len(labels), 'float32'), labels, label_counts, classes)
    labels.data[:] = 1
    return Samples(matrix(values, indices, counts, features), labels)
