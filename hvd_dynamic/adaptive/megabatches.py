"""Where the mega-batches of an epoch begin and end."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ['MegaBatches', 'MegaBatch']


@dataclass(frozen=True)
class MegaBatch:
    """Samples from `start` up to `end`, counted in the stream of all epochs."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class MegaBatches:
    """Cuts each epoch into mega-batches of nearly equal size, at most `size` samples each.

    Parameters
    ----------
    length : int
        Samples in an epoch.
    size : int
        The most samples in a mega-batch, >= 1.

    Examples
    --------
    >>> mega = MegaBatches(length=10, size=4)
    >>> mega.per_epoch, mega.smallest
    (3, 3)
    >>> [mega.at(position) for position in (0, 3, 6)]
    [MegaBatch(number=0, start=0, end=3), MegaBatch(number=1, start=3, end=6), MegaBatch(number=2, start=6, end=10)]
    """

    length: int
    size: int

    @property
    def per_epoch(self):
        """Mega-batches in an epoch."""
        return -(-self.length // self.size)

    @property
    def smallest(self):
        """Samples in the smallest one."""
        return self.length // self.per_epoch

    def at(self, position):
        """The mega-batch that a position of the stream is in."""
        epoch, offset = divmod(position, self.length)
        number = ((offset + 1) * self.per_epoch - 1) // self.length
        return MegaBatch(epoch * self.per_epoch + number, epoch * self.length + self._start(number),
                         epoch * self.length + self._start(number + 1))

    def _start(self, number):
        return number * self.length // self.per_epoch
