"""How the learning rate follows the batch of each worker by itself."""

from __future__ import annotations

from dataclasses import dataclass

from ..policies import Policy

__all__ = ['ByLocalBatch']


@dataclass(frozen=True)
class ByLocalBatch(Policy):
    """The policy for `AdaptiveTrainer`: the learning rate follows each worker's own batch, not the number of workers.

    The schedule's `reference_batch` is then the local batch, in samples, for which its base was tuned.

    Parameters
    ----------
    scaling : {'auto', 'linear', 'sqrt'}, default 'auto'
        ``linear``: as in arXiv 2110.07029, a worker whose batch is half the reference batch has half the learning rate.
        ``auto``: square root for Adam and its like, linear for all others.

    Examples
    --------
    >>> ByLocalBatch().target(50.0), ByLocalBatch().local(0.5)
    (1.0, 0.5)
    """

    def target(self, k, default_scaling='linear'):
        """1: the size of a mega-batch changes nothing."""
        return 1.0

    def local(self, k, default_scaling='linear'):
        """The factor on a worker's learning rate, for k = its batch / reference batch."""
        return super().target(k, default_scaling)
