"""The best that a resize can be on the quadratic: lr scales and momentum factors found by optimisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.quadratic_parts.model import MOMENTUM, NOISE, H, models

__all__ = ['best', 'Best']

WINDOW = 128            # updates after the resize that are free; then the target, and no factor on the momentum


@dataclass(frozen=True)
class Best:
    """The bound: `area` in samples at the steady loss; by update the lr over the target's, momentum factors, losses."""

    area: float
    peak: float
    scales: np.ndarray
    factors: np.ndarray
    losses: np.ndarray


def best(ratio, way, rate, window=WINDOW):
    """Minimise the area of excess loss after a resize of the drifting model, over s and rho of the first updates.

    Found by L-BFGS from three beginnings with the exact gradient; a local minimum in principle, so a bound from above on
    the best possible.

    Parameters
    ----------
    ratio : int
    way : {'grows', 'shrinks'}
    rate : float
        Learning rate at the larger batch.
    window : int, default 128

    Returns
    -------
    Best
    """
    before, after = models(ratio, way, rate, drift=True)
    old = before.lr_target / after.lr_target
    ramp = np.minimum(1.0, (np.arange(window) + 1) / window)
    starts = [(np.ones(window), np.ones(window)), (old + (1 - old) * ramp, np.ones(window)),
              (np.ones(window), np.where(np.arange(window) == 0, min(1.0, 1 / old), 1.0))]
    found = [minimize(_area, np.concatenate([np.log(scales), factors]), (before, after, window), jac=True, method='L-BFGS-B',
                      bounds=[(np.log(1e-3), np.log(20))] * window + [(0.0, 20.0)] * window,
                      options={'maxiter': 200, 'maxfun': 250}) for scales, factors in starts]
    x = min(found, key=lambda one: one.fun).x
    scales, factors = np.exp(x[:window]), x[window:]
    moments = _walk(before, after, scales, factors)
    losses = np.array([after.loss(m) for m in moments])
    return Best(float(_area(x, before, after, window)[0]), losses.max() / before.steady_loss, scales, factors, losses)


def _walk(before, after, scales, factors):
    moments = [before.steady]
    for scale, rho in zip(scales, factors):
        moments.append(after.update(moments[-1], scale * after.lr_target, rho))
    return moments


def _area(x, before, after, window):
    """The area and its gradient, by the adjoint of the recursion."""
    scales, factors = np.exp(x[:window]), x[window:]
    moments = _walk(before, after, scales, factors)
    area = sum(after.batch * (after.loss(m) / after.steady_loss - 1) for m in moments[1:-1]) + after.area_from(moments[-1])
    gradient = np.zeros_like(x)
    adjoint = after.tail_gradient()
    for t in reversed(range(window)):
        A, C, D = moments[t]
        lr, M = scales[t] * after.lr_target, MOMENTUM * factors[t]
        a = lr * H
        # D', C' = F - D', A' = A - 2 F + D' with F = M C + a A
        on_F, on_D = adjoint[1] - 2 * adjoint[0], adjoint[0] - adjoint[1] + adjoint[2]
        by_a = on_F * A + on_D * (2 * M * C + 2 * a * A)
        by_lr = (by_a * H + on_D * 2 * lr * NOISE / after.batch).sum()
        by_M = (on_F * C + on_D * (2 * M * D + 2 * a * C)).sum()
        gradient[t], gradient[window + t] = by_lr * lr, by_M * MOMENTUM
        adjoint = np.array([adjoint[0] + on_F * a + on_D * a ** 2, on_F * M + on_D * 2 * M * a, on_D * M ** 2])
        if t > 0:
            adjoint[0] += after.batch * 0.5 * H / after.steady_loss
    return area, gradient
