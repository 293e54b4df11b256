"""Running statistics of N workers whose batches one process computes one after the other."""

from __future__ import annotations

__all__ = ['WorkerStatistics']


class WorkerStatistics:
    """Makes BatchNorm's running statistics what N workers would have after averaging them.

    A worker's statistic goes from r to m r + (1 - m) x_i with its batch, so the mean over N workers goes from r to
    m r + (1 - m) mean(x_i). Here each worker's batch begins with the same r, and what came of them is averaged: the same
    number, whatever m is. (Real workers' statistics part between two averages. But as the rule is linear, that does not
    change their mean; and training never reads them, so nothing else can tell.) Two small operations for each array and
    worker; none for a single worker.

    Parameters
    ----------
    params : list of gluon.Parameter
        All of the network; those that are no running statistics are passed over.

    Attributes
    ----------
    params : list of gluon.Parameter
        The running statistics.
    """

    def __init__(self, params):
        self.params = [param for param in params if not param._differentiable]
        self._begin = {}        # parameter: what each worker's batch begins with
        self._sums = {}

    def begin(self):
        """Before the forward passes of an update (also of the next one: it has no other sign of its beginning)."""
        self._sums = {}
        for param in self.params:
            if param._data is not None:
                self.note(param)
            elif not hasattr(param._init_impl, 'noted'):
                param._init_impl = self._noted_init(param, param.__dict__.get('_init_impl'))

    def note(self, param):
        """Keep what a statistic is at the beginning of an update."""
        kept = self._begin.get(param)
        if kept is None or kept.shape != param._data[0].shape:
            self._begin[param] = param._data[0].copy()
        else:
            param._data[0].copyto(kept)

    def _noted_init(self, param, present):
        # Initialised by the first forward pass, which also changes it; `present`: what is to be done then already.
        def init_impl(data, ctx_list):
            if present is None:
                del param._init_impl
                param._init_impl(data, ctx_list)
            else:
                present(data, ctx_list)         # which puts the parameter's own in its place
            self.note(param)
        init_impl.noted = True
        return init_impl

    def kept(self):
        """Pairs of each statistic (NDArray) and what it was at the beginning of the update, of all that are initialised."""
        return [(param._data[0], self._begin[param]) for param in self.params
                if param._data is not None and param in self._begin]

    def worker_done(self, worker, workers, gradients):
        """After the passes of each worker (number `worker`, from 0, of `workers`)."""
        if not self.params:
            return
        # Statistics change in the backward pass, and of a block hybridized with static_shape=True MXNet does not know it: a
        # copy would not wait for it. Gradients it does wait for.
        for gradient in gradients:
            gradient.wait_to_read()
        for param in self.params:
            if param._data is None or param not in self._begin:
                continue
            statistic = param._data[0]
            if worker == 0:
                self._sums[param] = statistic.copy()
            else:
                self._sums[param] += statistic
            if worker < workers - 1:
                self._begin[param].copyto(statistic)
            else:
                (self._sums[param] / workers).copyto(statistic)
