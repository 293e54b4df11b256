"""The noisy quadratic model: the moments of momentum SGD, exactly.

L(w) = 1/2 sum h_i (w_i - m_i)^2, gradients with noise of variance c_i / B, h_i = c_i = 1 / i for i = 1 .. 100. Of each
coordinate A = E[w w], C = E[w v], D = E[v v] (w counted from the minimum) follow the update
``v <- m rho v + lr g; w <- w - v``.

With `drift` the minimum m_i walks at random, by a variance of q_i a sample, as if training had not ended. q_i is such that
the learning rate at the target is about the best constant one: (lr / ((1 - m) B))^2 c_i. Without drift a lower rate is
always better in the end, and the best policy after any resize would be to stop.
"""

from __future__ import annotations

import numpy as np

from hvd_dynamic.schedule import DynamicSchedule

__all__ = ['Model', 'outcome', 'SMALL', 'MOMENTUM']

SMALL, MOMENTUM = 256, 0.9
H = NOISE = 1 / np.arange(1, 101)


class Model:
    """The model at one batch size.

    Parameters
    ----------
    batch : int
        Samples an update.
    lr_target : float
        The learning rate that belongs to `batch`.
    drift : bool
    """

    def __init__(self, batch, lr_target, drift):
        self.batch, self.lr_target = batch, lr_target
        self.walk = (lr_target / (1 - MOMENTUM) / batch) ** 2 * NOISE * batch if drift else 0 * H
        self.steady = self._fixed_point()
        self.steady_loss = self.loss(self.steady)
        self._tail = self._tail_weights()

    def update(self, moments, lr, rho):
        """The moments after an update."""
        A, C, D = moments
        a, M = lr * H, MOMENTUM * rho
        D_new = M ** 2 * D + 2 * M * a * C + a ** 2 * A + lr ** 2 * NOISE / self.batch
        C_new = (M * C + a * A) - D_new
        A_new = A - 2 * (M * C + a * A) + D_new + self.walk
        return np.array([A_new, C_new, D_new])

    @staticmethod
    def loss(moments):
        """The expected loss."""
        return 0.5 * (H * moments[0]).sum()

    def matrix(self, lr, rho):
        """The linear part of `update` for each coordinate, of shape (100, 3, 3)."""
        a, M = lr * H, MOMENTUM * rho + 0 * H
        D = np.stack([a ** 2, 2 * M * a, M ** 2], axis=-1)
        first = np.stack([a, M, 0 * H], axis=-1)
        A = np.array([1.0, 0, 0]) - 2 * first + D
        return np.stack([A, first - D, D], axis=-2)

    def _fixed_point(self):
        shift = self.update(np.zeros((3, len(H))), self.lr_target, 1.0)
        return np.linalg.solve(np.eye(3) - self.matrix(self.lr_target, 1.0), shift.T[..., None])[..., 0].T

    def _tail_weights(self):
        # Of the sum of all later losses: v = g + M^T v, where g takes the loss of the moments themselves.
        g = np.zeros((len(H), 3))
        g[:, 0] = 0.5 * H
        transposed = self.matrix(self.lr_target, 1.0).transpose(0, 2, 1)
        return np.linalg.solve(np.eye(3) - transposed, g[..., None])[..., 0].T

    def area_from(self, moments):
        """The sum over this update and all later ones at the target of batch x (loss / steady loss - 1), in samples."""
        return self.batch * (self._tail * (moments - self.steady)).sum() / self.steady_loss

    def tail_gradient(self):
        """Its derivative by the moments."""
        return self.batch * self._tail / self.steady_loss


def sizes(ratio, way):
    """Old and new batch."""
    return (SMALL, SMALL * ratio) if way == 'grows' else (SMALL * ratio, SMALL)


def models(ratio, way, rate, drift):
    """The models before and after a resize; `rate` is the learning rate at the larger batch."""
    return [Model(batch, rate * batch / (SMALL * ratio), drift) for batch in sizes(ratio, way)]


def outcome(policy, ratio, way, rate, drift=False):
    """A resize from the steady state of the old size.

    Parameters
    ----------
    policy : hvd_dynamic.policies.Policy
    ratio : int
    way : {'grows', 'shrinks'}
    rate : float
        Learning rate at the larger batch.
    drift : bool, default False

    Returns
    -------
    peak : float
        Highest expected loss after the resize over the steady one before; at least 1.
    area : float
        Excess of the loss over the new steady one in all updates after the resize, in samples at the steady loss.
    losses : list of float
        Until the transition is over, and 400 updates more.
    """
    before, after = models(ratio, way, rate, drift)
    schedule = DynamicSchedule(rate / ratio, SMALL, policy)
    schedule.set_global_batch(before.batch)
    schedule.advance(before.batch)
    schedule.set_global_batch(after.batch)
    moments, losses, area = before.steady, [before.steady_loss], 0.0
    left = None
    while left != 0:
        decision = schedule.advance(after.batch)
        moments = after.update(moments, decision.lr, decision.momentum_scale)
        losses.append(after.loss(moments))
        if left is None and not schedule.in_transition:
            area += after.area_from(moments)
            left = 400
        elif left is None:
            area += after.batch * (losses[-1] / after.steady_loss - 1)
        else:
            left -= 1
    return max(losses) / losses[0], area, losses
