"""Sparse samples with many labels, made from a seed: power laws as in real ones, and a best precision that is known."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from gluon_examples.extreme_classification.xmlformat import Samples

__all__ = ['Synthetic', 'make']

_SIGNATURE = 12         # features that a topic shows itself by
_SHOWN = 0.6            # part of them that a sample has
_NOISE = 15             # further features of a sample
_KEPT = 0.9             # part of a sample's topics that became labels
_TOPICS = (0.5, 0.3, 0.2)       # samples with one, two, three topics
_EXPONENT = 0.8         # of the power laws


class Synthetic(NamedTuple):
    """Data to train and to test with.

    Attributes
    ----------
    train, test : Samples
    best : dict of int to float
        Precision at 1, 3, 5 on `test` of one who sees each sample's topics, but not which of them became labels.
    """

    train: Samples
    test: Samples
    best: dict


def make(samples, features, labels, seed=0):
    """Samples whose topics can be told from their features.

    A sample has one to three topics (a topic is a label to be), drawn by a power law. Of each topic it shows some of the
    twelve features that are that topic's own, besides some that mean nothing, drawn by a power law, too. One topic in ten is
    not among its labels, and nothing says which: no network can be better than `Synthetic.best`.

    Parameters
    ----------
    samples : int
        To train with; a fifth as many to test with.
    features, labels : int
    seed : int

    Returns
    -------
    Synthetic
    """
    rng = np.random.default_rng(seed)
    signatures = rng.integers(features, size=(labels, _SIGNATURE))
    strengths = rng.uniform(0.5, 1.5, size=(labels, _SIGNATURE)).astype('float32')
    order = rng.permutation(labels), rng.permutation(features)
    parts = [_draw(rng, count, order, signatures, strengths) for count in (samples, max(1, samples // 5))]
    return Synthetic(parts[0][0], parts[1][0], parts[1][1])


def _power_law(rng, order, count):
    weights = (1 + np.arange(len(order))) ** -_EXPONENT
    return order[np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count))]


def _draw(rng, samples, order, signatures, strengths):
    labels, features = len(order[0]), len(order[1])
    topics_each = rng.choice(len(_TOPICS), p=_TOPICS, size=samples) + 1
    rows = np.repeat(np.arange(samples), topics_each)
    topics = _power_law(rng, order[0], len(rows))
    topic_of = sparse.csr_matrix((np.ones(len(rows), 'float32'), (rows, topics)), (samples, labels))
    topic_of.data[:] = 1        # drawn twice is there once
    rows = np.repeat(np.arange(samples), np.diff(topic_of.indptr))
    shown = rng.random((len(rows), _SIGNATURE)) < _SHOWN
    noise = _power_law(rng, order[1], samples * _NOISE)
    matrix = sparse.csr_matrix((
        np.concatenate([strengths[topic_of.indices][shown], np.full(len(noise), 0.5, 'float32')]),
        (np.concatenate([np.repeat(rows, shown.sum(1)), np.repeat(np.arange(samples), _NOISE)]),
         np.concatenate([signatures[topic_of.indices][shown], noise]))), (samples, features), dtype='float32')
    kept = rng.random(topic_of.nnz) < _KEPT
    label_of = sparse.csr_matrix((np.ones(kept.sum(), 'float32'), (rows[kept], topic_of.indices[kept])), (samples, labels))
    return Samples(matrix, label_of), _best(np.diff(topic_of.indptr), np.diff(label_of.indptr))


def _best(topics, labels):
    """Whoever names the topics first, in any order, is right with the share of them that are labels."""
    return {k: float(np.mean(labels * np.minimum(1, k / topics) / k)) for k in (1, 3, 5)}
