"""The optimizer applied to all parameters of a worker on a CPU, with large arrays one by one."""

from __future__ import annotations

import mxnet as mx
import numpy as np

__all__ = ['Updater']

LARGE = 1 << 14         # elements


class Updater(mx.optimizer.Updater):
    """MXNet's updater; but sgd, which has several arrays updated by one operation, does so for small ones only.

    That operation's loop runs over the elements of the largest array and asks for each one which arrays have it. On a CPU
    an array then takes three to four times as long as in an operation of its own; the calls saved are worth less than that
    from some ten thousand elements on. (docs/overhead.md has what it gains.)

    Parameters
    ----------
    optimizer : mx.optimizer.Optimizer
    """

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self._index, self._large, self._small = None, [], []

    def __call__(self, index, grad, weight):
        if type(self.optimizer) is not mx.optimizer.SGD or not isinstance(index, (list, tuple)):
            super().__call__(index, grad, weight)
            return
        if index != self._index:        # always the same, unless layers are frozen
            self._index = index
            large = [array.size >= LARGE and array.dtype == np.float32 for array in weight]
            self._large = [k for k, is_large in enumerate(large) if is_large]
            self._small = [k for k, is_large in enumerate(large) if not is_large]
        if self._small:
            super().__call__(*_pick(self._small, index, grad, weight))
        self.optimizer._set_current_context(weight[0].context.device_id)
        for k in self._large:
            self._update(index[k], grad[k], weight[k])

    def _update(self, index, grad, weight):
        """As `mx.optimizer.SGD`, but with the operations for one array, which it uses for sparse ones only."""
        optimizer = self.optimizer
        if index not in self.states:
            self.states[index] = optimizer.create_state_multi_precision(index, weight)
            self.states_synced[index] = True
        optimizer._update_count(index)
        how = {'lr': optimizer._get_lr(index), 'wd': optimizer._get_wd(index), 'rescale_grad': optimizer.rescale_grad,
               'lazy_update': False}
        if optimizer.clip_gradient:
            how['clip_gradient'] = optimizer.clip_gradient
        momentum = self.states[index]
        if momentum is None:
            mx.nd.sgd_update(weight, grad, out=weight, **how)
        else:
            mx.nd.sgd_mom_update(weight, grad, momentum, out=weight, momentum=optimizer.momentum, **how)


def _pick(places, *lists):
    return [[values[k] for k in places] for values in lists]
