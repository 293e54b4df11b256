"""Sums of float32 numbers that depend neither on the order nor on the grouping in which they are added."""

from __future__ import annotations

import math

import numpy as np

__all__ = ['ExactSum']

_BLOCK = 1 << 15        # numbers at a time: a block and its float64 copy stay in a core's cache
_STEP = 24              # binary digits between two ranges
_FIRST = -74            # exponent of a tensor of which no sum is known yet
_HEADROOM = 8           # binary digits that a number may be larger than the largest of the last sum
_MOST = 1024


class ExactSum:
    """A sum of at most `count` float32 tensors, the same to the last bit in whatever order and grouping they are added.

    Floating point sums depend on the order because each addition rounds. Here each number is rounded once, by itself, to a
    multiple of a power of two that all workers know beforehand, the unit u = 2^e. After that all additions are exact:
    float64 holds every multiple of u below 2^53 u. (So they are integers; but in float64, which is converted from and to
    float32 more quickly than int64 is, and in which infinity and NaN keep their ordinary meaning.) The buffer can be summed
    by any allreduce of float64, also among workers that have added different numbers of tensors.

    **Range.** Let W = 51 - ceil(log2(count)). A number x with |x| <= 2^(e+W) is in range. The sum of at most `count` of them
    is at most 2^(e+51), and so is every partial sum: exact. A larger number (the gradients have grown more than 256-fold
    since the last update) goes to a range of its own, b = 1, 2, ..., with the unit 2^(e+24b): the first in which it fits.
    Which one depends on the number and e alone. Each range is summed exactly by itself, and the sums are added in a fixed
    order at the end; a further allreduce is needed only in an update in which some number was out of range. So nothing is
    ever lost or done again, up to the largest float32.

    **Error.** Rounding x to the nearest multiple of u errs by at most u/2. So for a sum S of n numbers in range, the result
    R before the one rounding to float32 at the end has

        |R - S| <= n 2^(e-1),

    and each number in range b >= 1, which is larger than 2^(e+24(b-1)+W), adds at most 2^(e+24b-1), less than 2^(23-W) of
    its own size: 2^-25 of it for 8 summands, half the last digit of a float32.

    **The unit.** e follows from the largest absolute value m < 2^k of the tensor's last sum, which is the same on all
    workers: e = k + 8 - W, but it falls by at most 1 an update, lest a sum that happens to be near zero set it too low. With
    8 summands u is then at most 2^-39 m while m does not shrink, so that the error above is below 8 * 2^-40 m = 2^-37 m; a
    plain float32 sum errs by up to 2^-24 for each addition to a number of the size of m. Of a tensor whose sum is not known
    yet e = -74: numbers up to 2^-26 are rounded to multiples of 2^-74, larger ones keep 24 digits or more.

    **Infinity and NaN** travel as in any float sum: one infinity makes the sum infinite, two of opposite sign or a NaN make
    it NaN, always the same one (its sign and payload would depend on the order). A sum beyond the largest float32 becomes
    infinite.

    Parameters
    ----------
    sizes : dict of str to int
        Numbers in each tensor, by name.
    count : int
        The most tensors that are added up under one name, over all workers: 1 to 1024.
    extra : int, default 0
        Further float64 numbers at the end of the buffer, for the caller, zero after `begin`.
    exponents : dict of str to int, optional
        What another ExactSum knew (`exponents`).

    Attributes
    ----------
    buffer : ndarray of float64, 1-D
        To be summed over the workers in place, between the last `add` and the first `total`.
    exponents : dict of str to int
        e of each tensor whose sum is known: the whole state, to be the same on all workers.

    Raises
    ------
    ValueError
        For a count out of range.

    References ---------- J. Demmel, H. D. Nguyen: Parallel Reproducible Summation, IEEE Transactions on Computers 64 (2015),
    from where the idea of ranges with units known beforehand comes.

    Examples
    --------
    >>> numbers = np.array([1e8, 1.0, -1e8], 'float32')
    >>> numbers[0] + numbers[1] + numbers[2], numbers[0] + numbers[2] + numbers[1]      # a plain sum
    (0.0, 1.0)
    >>> for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0]):
    ...     sums = ExactSum({'a': 1}, count=3)
    ...     sums.begin()
    ...     for i in order:
    ...         sums.add('a', numbers[i:i + 1])
    ...     print(sums.total('a'))
    [1.]
    [1.]
    [1.]
    """

    def __init__(self, sizes, count, extra=0, exponents=None):
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= _MOST:
            raise ValueError(f'count must be an integer from 1 to {_MOST}, the most tensors in one sum, got {count!r}')
        self._digits = 51 - math.ceil(math.log2(count))         # W
        self.exponents = dict(exponents or {})
        self._places, end = {}, 0
        for name, size in sizes.items():
            self._places[name] = slice(end, end + size)
            end += size
        self.buffer = np.zeros(end + extra + 1)
        self.extra = self.buffer[end:end + extra]
        self._numbers = {name: number for number, name in enumerate(self._places)}
        self._work = np.empty(min(_BLOCK, max(end, 1)))
        self._added = set()
        self._outside = {}          # (name, range) -> float64 array

    def begin(self):
        """Begin a new sum, with nothing in it."""
        self._added.clear()
        self._outside.clear()
        self.extra[:] = 0.0
        self.buffer[-1] = 0.0

    def add(self, name, values):
        """Add a tensor.

        Parameters
        ----------
        name : str
        values : ndarray of float32, 1-D
            Of the size given.
        """
        exponent, target = self._exponent(name), self.buffer[self._places[name]]
        limit = math.ldexp(1.0, exponent + self._digits)
        first = name not in self._added
        self._added.add(name)
        for start in range(0, len(values), _BLOCK):
            block, out = values[start:start + _BLOCK], target[start:start + _BLOCK]
            if not (block.max() <= limit and block.min() >= -limit):
                with np.errstate(invalid='ignore'):         # of infinities
                    self._add(self._within(name, block, start, exponent), out, exponent, first)
            else:
                self._add(block, out, exponent, first)

    def _exponent(self, name):
        return self.exponents.get(name, _FIRST)

    def _add(self, block, out, exponent, first):
        work = self._work[:len(block)]
        # Next to 1.5 * 2^52 units, float64 has a spacing of one unit: adding it rounds, taking it away again is exact.
        magic = math.ldexp(1.5, 52 + exponent)
        np.copyto(work, block)
        np.add(work, magic, out=work)
        if first:
            np.subtract(work, magic, out=out)
        else:
            np.subtract(work, magic, out=work)
            np.add(out, work, out=out)

    def _within(self, name, block, start, exponent):
        """Put numbers that are out of range into the ranges above; the others, and those that are not finite."""
        sizes = np.abs(block, dtype='float64')
        rest = np.isfinite(block) & (sizes > math.ldexp(1.0, exponent + self._digits))
        inside, number = np.where(rest, np.float32(0), block), 0
        while rest.any():
            number += 1
            exponent += _STEP
            here = rest & (sizes <= math.ldexp(1.0, exponent + self._digits))
            if here.any():
                if (name, number) not in self._outside:
                    self._outside[name, number] = np.zeros(self._size(name))
                    self.buffer[-1] += 1
                self._add(np.where(here, block, np.float32(0)), self._outside[name, number][start:start + len(block)],
                          exponent, False)
            rest &= ~here
        return inside

    def _size(self, name):
        place = self._places[name]
        return place.stop - place.start

    def finish_adding(self):
        """All that this worker has is added: the buffer is complete."""
        for name, place in self._places.items():
            if name not in self._added:
                self.buffer[place] = 0.0

    # -- what was out of range ---------------------------------------------------------------------------------

    @property
    def anything_outside(self):
        """Whether any worker had numbers out of range; known once the buffer has been summed."""
        return self.buffer[-1] > 0

    def outside(self):
        """Which ranges this worker has used: pairs of name and range, as JSON."""
        return [[name, number] for name, number in self._outside]

    def outside_buffer(self, everyone):
        """What is to be summed over the workers, once more.

        Parameters
        ----------
        everyone : list of list
            What `outside` gave on each worker.

        Returns
        -------
        ndarray of float64
            The same length on all workers; give its sum to `take_outside`.
        """
        self._agreed = sorted({(name, number) for pairs in everyone for name, number in pairs},
                              key=lambda pair: (self._numbers[pair[0]], pair[1]))
        return np.concatenate([self._outside.get(pair, np.zeros(self._size(pair[0]))) for pair in self._agreed])

    def take_outside(self, buffer):
        """Take up the sum of what `outside_buffer` gave."""
        self._outside, start = {}, 0
        for pair in self._agreed:
            size = self._size(pair[0])
            self._outside[pair] = buffer[start:start + size]
            start += size

    # -- the result --------------------------------------------------------------------------------------------

    def total(self, name, factor=1.0, out=None):
        """The sum, times `factor`, rounded to float32; sets the exponent for the next sum. Once for each name.

        Parameters
        ----------
        name : str
        factor : float, default 1
            In (0, inf); multiplied in float64.
        out : ndarray of float32, 1-D, optional
            Where to write it.

        Returns
        -------
        ndarray of float32
            `out`, or a new array.
        """
        source = self.buffer[self._places[name]]
        if out is None:
            out = np.empty(len(source), 'float32')
        outside = [self._outside[pair] for pair in sorted(pair for pair in self._outside if pair[0] == name)]
        largest, finite = 0.0, True
        with np.errstate(over='ignore', invalid='ignore'):
            for array in outside:
                source += array
            for start in range(0, len(source), _BLOCK):
                block, here = source[start:start + _BLOCK], out[start:start + _BLOCK]
                if factor != 1.0:
                    block = np.multiply(block, factor, out=self._work[:len(block)])
                np.copyto(here, block, casting='same_kind')
                most = max(float(here.max()), -float(here.min()))
                if not math.isfinite(most):
                    finite = False
                    here[np.isnan(here)] = np.nan
                largest = max(largest, most)
        if finite and largest > 0:
            self._follow(name, largest / factor)
        return out

    def _follow(self, name, largest):
        exponent = math.frexp(largest)[1] + _HEADROOM - self._digits
        known = self.exponents.get(name)
        self.exponents[name] = exponent if known is None else max(exponent, known - 1)
