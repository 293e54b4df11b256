"""A network with three layers, the first of which takes sparse rows, and its loss for several labels a sample."""

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import nn

__all__ = ['SparseNetwork', 'batch_of', 'multi_label_loss']


class SparseNetwork(gluon.Block):
    """Features (sparse), a hidden layer, a score for each label.

    Parameters
    ----------
    features, hidden, labels : int
    sparse_grad : bool, default False
        Have a row-sparse gradient of the first layer: only rows of features that a batch has are updated. It pays where a
        batch has few of all features, and gradients need not be sent (Horovod sums dense ones only).
    """

    def __init__(self, features, hidden, labels, sparse_grad=False):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(features, hidden), init=mx.init.Normal(0.05),
                                          grad_stype='row_sparse' if sparse_grad else 'default')
            self.bias = self.params.get('bias', shape=(hidden,), init='zeros')
            self.output = nn.Dense(labels, in_units=hidden)

    def forward(self, rows):
        """Scores, samples x labels, for rows of features (CSR)."""
        hidden = nd.sparse.dot(rows, self.weight.data(rows.context)) + self.bias.data(rows.context)
        return self.output(nd.relu(hidden))


def batch_of(samples, indices, ctx):
    """Some samples, ready for the network and its loss.

    Parameters
    ----------
    samples : Samples
    indices : sequence of int
    ctx : mx.Context

    Returns
    -------
    rows : CSRNDArray
    labels : NDArray of int32
        Samples x the most labels that one of them has; what is beyond a sample's labels does not count.
    shares : NDArray of float32
        The same shape: 1 / number of the sample's labels, and 0 beyond them.
    """
    features, labels = samples.features[indices], samples.labels[indices]
    rows = nd.sparse.csr_matrix((features.data, features.indices, features.indptr), shape=features.shape, ctx=ctx)
    counts = np.diff(labels.indptr)
    there = np.arange(max(1, counts.max())) < counts[:, None]
    padded, shares = np.zeros(there.shape, 'int32'), np.zeros(there.shape, 'float32')
    padded[there] = labels.indices
    shares[there] = np.repeat(1 / np.maximum(counts, 1), counts)
    return rows, nd.array(padded, ctx=ctx, dtype='int32'), nd.array(shares, ctx=ctx)


def multi_label_loss(scores, labels, shares):
    """Cross-entropy to a sample's labels, of which each counts alike; 0 for a sample without any. One value a sample."""
    logs = nd.log_softmax(scores, axis=-1)
    samples, most = labels.shape
    of_sample = nd.arange(samples, repeat=most, ctx=scores.context, dtype='int32')
    own = nd.gather_nd(logs, nd.stack(of_sample, labels.reshape((-1,))))
    return -(own.reshape((samples, most)) * shares).sum(axis=1)
