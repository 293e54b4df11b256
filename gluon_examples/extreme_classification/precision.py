"""Precision at 1, 3 and 5 over a whole data set, shared among the workers."""

from typing import NamedTuple

import numpy as np

from gluon_examples.common.evaluation import SharedBatches
from gluon_examples.extreme_classification.network import batch_of, multi_label_loss

__all__ = ['Precision', 'PrecisionEvaluator', 'hits']

_AT = (1, 3, 5)


class Precision(NamedTuple):
    """Of the 1, 3, 5 highest scores, the part that are labels (fractions); and the mean loss."""

    precision_at_1: float
    precision_at_3: float
    precision_at_5: float
    loss: float

    def __str__(self):
        return (f'precision at 1 {100 * self.precision_at_1:.2f} %, at 3 {100 * self.precision_at_3:.2f} %, at 5 '
                f'{100 * self.precision_at_5:.2f} %  test loss {self.loss:.4f}')


def hits(scores, labels):
    """How many of the 1, 3, 5 highest scores of each sample are labels of its own, summed over the samples.

    Parameters
    ----------
    scores : array, samples x labels
    labels : scipy.sparse.csr_matrix, samples x labels

    Returns
    -------
    array of float64, shape (3,)

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> hits(np.array([[0.1, 0.9, 0.5, 0.2]]), csr_matrix([[0, 0, 1, 1]]))
    array([0., 2., 2.])
    """
    most = min(max(_AT), scores.shape[1])
    top = np.argpartition(-scores, most - 1, axis=1)[:, :most]
    best_first = np.take_along_axis(top, np.argsort(-np.take_along_axis(scores, top, 1), 1, kind='stable'), 1)
    right = np.asarray(labels[np.arange(len(scores))[:, None], best_first].todense())
    return np.array([right[:, :k].sum() for k in _AT], 'float64')


class PrecisionEvaluator:
    """Precision of a network over a data set, each sample counted once at any world size.

    Parameters
    ----------
    samples : Samples
    batch_size : int
    ctx : mx.Context
    """

    def __init__(self, samples, batch_size, ctx):
        self._samples, self._ctx = samples, ctx
        self._batches = SharedBatches(len(samples), batch_size)

    def __call__(self, net, world):
        """Evaluate `net` on this worker's share and add up over `world`. A collective.

        Returns
        -------
        Precision
        """
        self._batches.rank, self._batches.size = world.shard
        own = np.zeros(2 + len(_AT))
        for indices in self._batches:
            rows, labels, shares = batch_of(self._samples, indices, self._ctx)
            scores = net(rows)
            own[:len(_AT)] += hits(scores.asnumpy(), self._samples.labels[indices])
            own[-2:] += multi_label_loss(scores, labels, shares).asnumpy().sum(dtype='float64'), len(indices)
        total = world.allreduce_sum(own)
        return Precision(*(total[:3] / total[-1] / _AT).tolist(), float(total[3] / total[-1]))
