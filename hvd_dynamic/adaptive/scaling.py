"""Batch size scaling of Adaptive SGD (arXiv 2110.07029): workers come to do the same number of updates."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ['BatchScaling', 'fair_batch']

_AT_BOUNDS = ('skip', 'clip')


@dataclass(frozen=True)
class BatchScaling:
    """How each worker's local batch follows from the updates that all did in a mega-batch.

    With U the mean of the updates u_i, a worker gets ``b_i + beta (u_i - U)``: who was fast takes more samples at a time,
    who was slow takes fewer. Where all do the same number of updates nothing changes any more.

    Parameters
    ----------
    min_batch, max_batch : int
        The range of local batches, in samples; 1 <= min_batch <= max_batch.
    beta : float, optional
        Samples for each update that a worker did more or less than the mean, >= 0; 0 keeps the batches as they are. Default:
        ``min_batch / 2``, as in the paper.
    at_bounds : {'skip', 'clip'}, default 'skip'
        What becomes of a step that would leave the range: ``skip`` does not take it (the paper), ``clip`` takes it as far as
        the bound.

    Raises
    ------
    ValueError
        For an empty range and arguments out of range.

    Examples
    --------
    >>> BatchScaling(16, 128)([64, 64, 64], [12, 12, 6])
    [80, 80, 32]
    >>> BatchScaling(16, 128)([64, 64, 64], [20, 20, 2])           # 112, 112, and -32, which is out of range
    [112, 112, 64]
    """

    min_batch: int
    max_batch: int
    beta: float | None = None
    at_bounds: str = 'skip'

    def __post_init__(self):
        for name in ('min_batch', 'max_batch'):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f'{name} must be a positive integer, a number of samples, got {value!r}')
        if self.min_batch > self.max_batch:
            raise ValueError(f'min_batch={self.min_batch} is larger than max_batch={self.max_batch}, so that no batch fits; '
                             f'choose min_batch <= max_batch')
        if self.beta is not None and not (isinstance(self.beta, (int, float)) and not isinstance(self.beta, bool)
                                          and math.isfinite(self.beta) and self.beta >= 0):
            raise ValueError(f'beta must be a finite number of at least 0, in samples for each update, got {self.beta!r}')
        if self.at_bounds not in _AT_BOUNDS:
            raise ValueError(f'at_bounds must be one of {", ".join(_AT_BOUNDS)}, got {self.at_bounds!r}')

    def __call__(self, batches, updates):
        """The local batches of the next mega-batch.

        Parameters
        ----------
        batches : sequence of int
            Local batch of each worker, in samples.
        updates : sequence of int
            Updates that each did in the mega-batch.

        Returns
        -------
        list of int
        """
        if len(batches) != len(updates) or not batches:
            raise ValueError(f'batches and updates must have one number for each worker, got {len(batches)} and '
                             f'{len(updates)}')
        beta = self.min_batch / 2 if self.beta is None else self.beta
        mean = sum(updates) / len(updates)
        return [self._step(batch, round(batch + beta * (done - mean))) for batch, done in zip(batches, updates)]

    def _step(self, old, new):
        if self.min_batch <= new <= self.max_batch:
            return new
        if self.at_bounds == 'skip':
            return old
        return min(max(new, self.min_batch), self.max_batch)


def fair_batch(batches, default):
    """The local batch of a newcomer: the mean of those of the workers that are there.

    Parameters
    ----------
    batches : sequence of int
    default : int
        Where there are none yet.

    Examples
    --------
    >>> fair_batch([80, 80, 32], 64), fair_batch([], 64)
    (64, 64)
    """
    return round(sum(batches) / len(batches)) if batches else default
