"""Numbers from text, many at once: an array operation for each step in place of a loop over characters."""

import numpy as np

__all__ = ['Runs', 'PAD']

PAD = 16        # bytes that must come before the text

_KEEP_LAST = np.array([0] + [(2**64 - 1) ^ (2 ** (8 * (8 - n)) - 1) for n in range(1, 9)], 'uint64')
_POWERS = 10.0 ** np.arange(17)


def _eight(words):
    """The numbers that eight characters each spell; zero bytes count as zeros.

    The characters are in the bytes of a little-endian integer. Neighbours are joined: digits to pairs, pairs to fours, fours
    to eight.
    """
    words = words & np.uint64(0x0F0F0F0F0F0F0F0F)
    words *= np.uint64(10 * 2**8 + 1)
    words >>= np.uint64(8)
    words &= np.uint64(0x00FF00FF00FF00FF)
    words *= np.uint64(100 * 2**16 + 1)
    words >>= np.uint64(16)
    words &= np.uint64(0x0000FFFF0000FFFF)
    words *= np.uint64(10000 * 2**32 + 1)
    words >>= np.uint64(32)
    return words


class Runs:
    """The runs of digits in a text, one before each character that is no digit.

    Parameters
    ----------
    text : array of uint8
        Begins with `PAD` bytes that are no digits; ends with one.

    Attributes
    ----------
    ends : array of int64
        Where the characters are that are no digits, the last of the padding included.
    lengths : array of int64
        Digits just before each of them; at most 16 count, the last ones.
    """

    def __init__(self, text):
        text[:PAD] = 10
        self.ends = np.flatnonzero(text - np.uint8(48) > np.uint8(9))[PAD - 1 :]
        self.lengths = np.diff(self.ends, prepend=self.ends[:1] - 1) - 1
        words = np.ndarray(len(text) - 7, '<u8', text, strides=(1,))
        values = _eight(words[self.ends - 8] & _KEEP_LAST[np.minimum(self.lengths, 8)])
        long = np.flatnonzero(self.lengths > 8)
        if len(long):
            more = words[self.ends[long] - 16] & _KEEP_LAST[np.minimum(self.lengths[long] - 8, 8)]
            values[long] += _eight(more) * np.uint64(10**8)
        self._values = values.view('int64')

    def whole(self, which):
        """The values of some runs, as int64."""
        return self._values[which]

    def fractions(self, which):
        """The values of some runs that come after a decimal point, as float64."""
        return self._values[which] / _POWERS[np.minimum(self.lengths[which], 16)]
