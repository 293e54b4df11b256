"""Merging of Adaptive SGD (arXiv 2110.07029): by how much each worker's replica counts in the common model."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ['NormalizedMerging', 'EqualMerging']


def _check(name, value, below=None):
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if not good or (below is not None and value >= below):
        limit = '' if below is None else f' and below {below}'
        raise ValueError(f'{name} must be a number of at least 0{limit}, got {value!r}')


@dataclass(frozen=True)
class NormalizedMerging:
    """Normalized model merging with perturbation and momentum.

    A replica counts by its worker's updates, u_i / sum u; if all did the same number, by its batch, b_i / sum b. If the
    replicas are small (all norms divided by the number of weights below `threshold`), the weight of the worker with the
    most updates is multiplied by 1 + `perturbation`, and that of the one with the fewest by 1 - `perturbation`. The merged
    model is ``sum alpha_i w_i + momentum (w - w_previous)`` with the last two merged models.

    Parameters
    ----------
    threshold : float, default 0.1
        On each replica's L2 norm divided by its number of weights, >= 0. 0: never perturb.
    perturbation : float, default 0.1
        >= 0, < 1.
    momentum : float, default 0.9
        >= 0, < 1.

    Examples
    --------
    >>> merging = NormalizedMerging()
    >>> merging.weights(updates=[6, 3, 1], batches=[32, 32, 32], norms=[1, 1, 1])
    [0.6, 0.3, 0.1]
    >>> merging.weights(updates=[4, 4], batches=[48, 16], norms=[0.01, 0.01])
    [0.75, 0.25]
    >>> [round(w, 3) for w in merging.weights(updates=[6, 3, 1], batches=[32, 32, 32], norms=[0.01, 0.01, 0.01])]
    [0.66, 0.3, 0.09]
    """

    threshold: float = 0.1
    perturbation: float = 0.1
    momentum: float = 0.9

    def __post_init__(self):
        _check('threshold', self.threshold)
        _check('perturbation', self.perturbation, 1)
        _check('momentum', self.momentum, 1)

    def weights(self, updates, batches, norms):
        """The factors alpha_i on the replicas; they sum to 1 unless perturbed.

        Parameters
        ----------
        updates : sequence of int
            Updates that each worker did since the last merge; not all 0.
        batches : sequence of int
            Local batch of each, in samples.
        norms : sequence of float
            L2 norm of each replica divided by its number of weights.

        Returns
        -------
        list of float
        """
        if len(set(updates)) == 1:
            # Nobody has the most updates or the fewest, so there is nobody to perturb.
            return [batch / sum(batches) for batch in batches]
        alphas = [done / sum(updates) for done in updates]
        if all(norm < self.threshold for norm in norms):
            alphas[updates.index(max(updates))] *= 1 + self.perturbation
            alphas[updates.index(min(updates))] *= 1 - self.perturbation
        return alphas


@dataclass(frozen=True)
class EqualMerging:
    """Plain model averaging: every replica counts alike.

    Parameters
    ----------
    momentum : float, default 0
        As in `NormalizedMerging`.
    """

    momentum: float = 0.0

    def __post_init__(self):
        _check('momentum', self.momentum, 1)

    def weights(self, updates, batches, norms):
        """As `NormalizedMerging.weights`; 1 / number of workers each."""
        return [1 / len(updates)] * len(updates)
