"""Traces: how many workers there are, as a function of the progress of the training. Pure Python, as `discover` runs often.

A trace is a CSV file of two columns. The first line says in what progress is counted::

    epochs,size
    0,8
    10,128
    20,8

or ``samples,size``. From each line on, until the next one, there are so many workers.
"""

from __future__ import annotations

import csv
import difflib
import math
import random
from dataclasses import dataclass
from pathlib import Path

__all__ = ['Trace', 'read', 'ready', 'of_run', 'READY']

UNITS = ('epochs', 'samples')


@dataclass(frozen=True)
class Trace:
    """World sizes over the progress of a training.

    Parameters
    ----------
    unit : {'epochs', 'samples'}
        In what progress is counted; a fraction of an epoch is possible.
    points : sequence of (float, int)
        Progress and world size (>= 1): ascending, the first at 0.

    Raises
    ------
    ValueError
        Says which point is wrong, and how.

    Examples
    --------
    >>> trace = Trace('epochs', [(0, 8), (1.5, 128)])
    >>> [trace.size_at(samples, samples_per_epoch=1000) for samples in (0, 1499, 1500)]
    [8, 8, 128]
    """

    unit: str
    points: tuple

    def __post_init__(self):
        object.__setattr__(self, 'points', tuple((at, size) for at, size in self.points))
        if self.unit not in UNITS:
            raise ValueError(f"unit must be 'epochs' or 'samples', got {self.unit!r}")
        if not self.points:
            raise ValueError('points must have at least one point, (0, size)')
        before = None
        for at, size in self.points:
            if not math.isfinite(at) or at < 0:
                raise ValueError(f'progress must be a number of {self.unit} of at least 0, got {at!r}')
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f'size must be a positive integer, the number of workers, got {size!r} at {at:g} '
                                 f'{self.unit}')
            if before is None and at != 0:
                raise ValueError(f'the first point must be at 0 {self.unit}, where training starts, got {at:g}')
            if before is not None and at <= before:
                raise ValueError(f'progress must ascend from point to point, got {at:g} after {before:g} {self.unit}')
            before = at

    @property
    def sizes(self):
        """The world sizes, in their order."""
        return tuple(size for _, size in self.points)

    @property
    def largest(self):
        """The largest world size."""
        return max(self.sizes)

    def position(self, samples, samples_per_epoch=None):
        """Progress in the trace's own unit."""
        if self.unit == 'samples':
            return samples
        if not samples_per_epoch:
            raise ValueError('samples_per_epoch must be given for a trace in epochs: the length of the data set')
        return samples / samples_per_epoch

    def size_at(self, samples, samples_per_epoch=None):
        """The world size once `samples` have been seen.

        Parameters
        ----------
        samples : int
        samples_per_epoch : int, optional
            Length of the data set; needed for a trace in epochs.

        Returns
        -------
        int
        """
        here = self.position(samples, samples_per_epoch)
        return [size for at, size in self.points if at <= here][-1]

    def to_csv(self):
        """The trace as the text of a CSV file.

        Examples
        --------
        >>> print(Trace('samples', [(0, 2), (600, 4)]).to_csv(), end='')
        samples,size
        0,2
        600,4
        """
        return ''.join([f'{self.unit},size\n', *(f'{at:.10g},{size}\n' for at, size in self.points)])


def read(path):
    """Read a trace from a CSV file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Trace

    Raises
    ------
    ValueError
        Names the file and the line, and says what should be there.
    OSError
        If the file cannot be read.
    """
    with open(path, newline='', encoding='utf-8') as file:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for reader in [csv.reader(file)] for row in reader if row]
    if not rows or len(rows[0][1]) != 2 or rows[0][1][0] not in UNITS or rows[0][1][1] != 'size':
        raise ValueError(f"{path}: the first line must be 'epochs,size' or 'samples,size'")
    points = []
    for number, row in rows[1:]:
        try:
            at, size = row
            points.append((float(at), int(size)))
        except ValueError:
            raise ValueError(f'{path}, line {number}: needs a number and a whole number such as 10,128, '
                             f'got {",".join(row)!r}') from None
    try:
        return Trace(rows[0][1][0], points)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None


def of_run(run_dir):
    """What the world sizes of a training were, from its run folder: the trace to simulate that very run.

    Parameters
    ----------
    run_dir : str or Path

    Returns
    -------
    Trace
        In samples.

    Raises
    ------
    FileNotFoundError, ValueError
        As `hvd_dynamic.runreader.read_run`.
    """
    from hvd_dynamic.runreader import read_run
    from hvd_dynamic.runseries import segments

    run = read_run(run_dir)
    if run.start > 0:
        raise ValueError(f'{Path(run_dir) / "metrics.jsonl"} begins at {run.start:.0f} samples; a trace begins at 0')
    sizes = run['world_size']
    return Trace('samples', [(int(run['samples'][begin - 1]) if begin else 0, int(sizes[begin]))
                             for begin, _ in segments(sizes)])


# -- ready ones ------------------------------------------------------------------------------------------------------
# Each: a function of the random generator, the smallest and the largest size, to a list of
# (part of the training that is over, size).

def _grow(rng, low, high):
    return [(0, low), (1 / 3, high)]


def _shrink(rng, low, high):
    return [(0, high), (1 / 3, low)]


def _grow_shrink(rng, low, high):
    return [(0, low), (1 / 4, high), (3 / 5, low)]


def _sawtooth(rng, low, high):
    """Three times: doubled from the smallest to the largest, then back at once."""
    steps = int(math.log2(high / low)) + 1
    return [((tooth + step / steps) / 3, low * 2 ** step) for tooth in range(3) for step in range(steps)]


def _random_walk(rng, low, high):
    """At 15 places doubled or halved, by chance, within the limits."""
    points, size = [(0, low)], low
    for place in range(1, 16):
        ways = [new for new in (size * 2, size // 2) if low <= new <= high]
        size = rng.choice(ways or [size])
        points.append((place / 16, size))
    return points


def _spot(rng, low, high):
    """Machines of a spot market: `high` are wanted. At random times (8 expected) the price rises and takes away 30 to 90 %
    of those that run, all at once; after it, one eighth of those wanted comes back at a time, with random waits."""
    points, size, at = [(0, high)], high, 0.0
    spike = rng.expovariate(8)
    while True:
        back = at + rng.expovariate(60) if size < high else math.inf
        at = min(spike, back)
        if at >= 1:
            return points
        if spike <= back:
            size = max(low, round(size * (1 - rng.uniform(0.3, 0.9))))
            spike = at + rng.expovariate(8)
        else:
            size = min(high, size + max(1, high // 8))
        points.append((at, size))


#: The ready traces by name.
READY = {'grow': _grow, 'shrink': _shrink, 'grow-shrink': _grow_shrink, 'sawtooth': _sawtooth,
         'random-walk': _random_walk, 'spot': _spot}


def ready(name, epochs, smallest=8, largest=128, seed=0):
    """One of the ready traces, stretched over a training.

    ``grow`` and ``shrink`` change once, after a third. ``grow-shrink`` does both. ``sawtooth`` doubles step by step and
    falls back, three times. ``random-walk`` doubles or halves at 15 places. ``spot`` is like a spot market, where many
    machines are lost at once and come back by and by.

    Parameters
    ----------
    name : str
        A key of `READY`.
    epochs : float
        Length of the training, > 0.
    smallest, largest : int, default 8 and 128
        World sizes; `smallest` < `largest`.
    seed : int, default 0
        For random-walk and spot.

    Returns
    -------
    Trace

    Raises
    ------
    ValueError
        For an unknown name and arguments out of range.

    Examples
    --------
    >>> ready('grow', epochs=30).points
    ((0, 8), (10.0, 128))
    """
    if name not in READY:
        close = difflib.get_close_matches(str(name), READY, n=1)
        hint = f' (did you mean {close[0]!r}?)' if close else ''
        raise ValueError(f"name must be one of {', '.join(READY)}, got {name!r}{hint}")
    if not math.isfinite(epochs) or epochs <= 0:
        raise ValueError(f'epochs must be a number above 0, the length of the training, got {epochs!r}')
    if not 1 <= smallest < largest:
        raise ValueError(f'smallest and largest must be world sizes with 1 <= smallest < largest, got {smallest} and '
                         f'{largest}')
    points, last = [], None
    for part, size in READY[name](random.Random(seed), smallest, largest):
        at = round(part * epochs, 4)
        if points and at == points[-1][0]:      # two changes of one moment are one
            points.pop()
            last = points[-1][1] if points else None
        if size != last:
            points.append((at, size))
        last = size
    return Trace('epochs', points)
