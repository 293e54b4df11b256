"""Synchronous model averaging as in CROSSBOW (arXiv 1901.02244), to compare with."""

import contextlib

from hvd_dynamic import DynamicTrainer

__all__ = ['CrossbowTrainer']


class CrossbowTrainer(DynamicTrainer):
    """Every worker updates a replica w_i; all are pulled to a central model z in each update, and z moves with momentum.

    ``c_i = pull (w_i - z); w_i <- w_i - lr g_i - c_i; z <- z + sum c_i + momentum (z - z_previous)``. The model that is
    trained is z.

    Parameters
    ----------
    params, optimizer, optimizer_params, schedule
        As for `DynamicTrainer`.
    pull : float, optional
        Default: 1 / number of workers, as in the paper.
    momentum : float, default 0.9
        Of the central model.
    """

    def __init__(self, params, optimizer, optimizer_params=None, *, schedule, pull=None, momentum=0.9):
        super().__init__(params, optimizer, optimizer_params, schedule=schedule)
        self._pull, self._momentum = pull, momentum
        self._central, self._velocity, self._own = [], [], []

    def _weights(self):
        return [param.list_data()[0] for param in self._params if param.grad_req != 'null']

    def _allreduce_grads(self):
        weights = self._weights()
        if not self._central:
            self.make_central()
        pull = 1 / self._world.size if self._pull is None else self._pull
        self._own = [pull * (weight - central) for weight, central in zip(weights, self._central)]
        self._sums = [own.copy() for own in self._own]
        if self._world.collective:
            self._world.allreduce_group_([*self._sums, self._control], 'crossbow')

    def _finish(self, ignore_stale_grad):
        # Each replica by its own batch alone: what the base class divides by is the batch of all.
        scale, self._scale = self._scale, self._scale * self._record.cut.global_batch / self._sizes[0]
        super()._finish(ignore_stale_grad)
        self._scale = scale
        for weight, own in zip(self._weights(), self._own):
            weight -= own
        for central, velocity, total in zip(self._central, self._velocity, self._sums):
            velocity *= self._momentum
            velocity += total
            central += velocity

    def make_central(self):
        """Begin with the central model where the replicas are."""
        self._central = [weight.copy() for weight in self._weights()]
        self._velocity = [0 * weight for weight in self._weights()]

    @contextlib.contextmanager
    def central_model(self):
        """Within this context the network's weights are the central model's, on all workers alike."""
        if not self._central:
            yield
            return
        self.confirm()
        replicas = [weight.copy() for weight in self._weights()]
        _copy(self._central, self._weights())
        try:
            yield
        finally:
            _copy(replicas, self._weights())

    def use_central(self):
        """End with the central model as the network's weights."""
        if self._central:
            _copy(self._central, self._weights())

    # -- state ---------------------------------------------------------------------------------------------------

    def state_arrays(self):
        return super().state_arrays() + self._central + self._velocity

    def state_dict(self):
        return {**super().state_dict(), 'central': bool(self._central)}

    def load_state_dict(self, saved):
        super().load_state_dict(saved)
        if not saved['central']:
            self._central, self._velocity = [], []
        elif not self._central:
            self.make_central()


def _copy(sources, targets):
    for source, target in zip(sources, targets):
        source.copyto(target)
