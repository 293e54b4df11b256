"""The gradient noise scale: how large a batch is still worth its samples (arXiv 1812.06162)."""

from __future__ import annotations

import math

__all__ = ['NoiseScale']


class NoiseScale:
    """Estimates tr(Sigma) / |G|^2 from the norms of local and global gradients.

    G is the true gradient of the mean loss, Sigma the covariance of one sample's gradient. With s_p the *sum* of the
    gradients of the b_p samples of pass p (a local batch), and s the sum over all P passes of an update, B samples,

        L = sum over p of |s_p|^2 / b_p         has the mean  B |G|^2 + P tr(Sigma)
        M = |s|^2 / B                           has the mean  B |G|^2 + tr(Sigma)

    so (L - M) / (P - 1) estimates tr(Sigma), and (M - that) / B estimates |G|^2, without bias, also when the b_p differ.
    Both are averaged over about `window` passes, as their ratio has a heavy tail; then they are divided (arXiv 1812.06162,
    appendix A). The weight of an update is its passes over `window`, as in AdaScale (arXiv 2007.05105).

    Parameters
    ----------
    window : int, default 1000
        Length of the average, in passes.

    Examples
    --------
    >>> noise = NoiseScale()
    >>> noise.value is None
    True
    >>> noise.observe(local=30.0, passes=2, samples=4, total=20.0)      # tr(Sigma) 10, |G|^2 2.5
    >>> noise.value
    4.0
    """

    def __init__(self, window=1000):
        self._window = window
        self._variance = self._square = self._weight = 0.0

    def observe(self, local, passes, samples, total):
        """Take in one update. One of a single pass tells nothing, and neither does one that is not finite.

        Parameters
        ----------
        local : float
            L.
        passes : int
            P.
        samples : int
            B.
        total : float
            M.
        """
        if passes < 2 or not (math.isfinite(local) and math.isfinite(total)):
            return
        variance = (local - total) / (passes - 1)
        square = (total - variance) / samples
        share = min(1.0, passes / self._window)
        self._variance += share * (variance - self._variance)
        self._square += share * (square - self._square)
        self._weight += share * (1 - self._weight)

    @property
    def value(self):
        """The noise scale in samples; None before the first estimate, inf where noise drowns the gradient."""
        if self._weight == 0:
            return None
        # Both averages lack the same weight at the beginning, which their ratio does not see.
        if self._square <= 0:
            return math.inf
        return max(0.0, self._variance) / self._square

    def state_dict(self):
        """The averages, as JSON values."""
        return {'variance': self._variance, 'square': self._square, 'weight': self._weight}

    def load_state_dict(self, state):
        """Take up other averages."""
        self._variance, self._square, self._weight = state['variance'], state['square'], state['weight']
