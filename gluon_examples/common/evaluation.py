"""Evaluation that the workers share, exact at any world size."""

from typing import NamedTuple

import numpy as np
from mxnet import gluon, nd


class Evaluation(NamedTuple):
    """Accuracy (a fraction) and mean loss over a whole data set."""

    accuracy: float
    loss: float

    def __str__(self):
        return f'test accuracy {100 * self.accuracy:.2f} %  test loss {self.loss:.4f}'


class SharedBatches:
    """Batch sampler over one worker's contiguous share of ``range(length)``.

    The shares of all workers are disjoint, cover everything, and differ by at most one sample.
    `rank` and `size` are set before each pass, so one loader serves through all resizes.

    Parameters
    ----------
    length : int
        Number of samples in the data set.
    batch_size : int
    """

    def __init__(self, length, batch_size):
        self.length = length
        self.batch_size = batch_size
        self.rank, self.size = 0, 1

    def _share(self):
        return (self.rank * self.length // self.size, (self.rank + 1) * self.length // self.size)

    def __iter__(self):
        begin, end = self._share()
        for at in range(begin, end, self.batch_size):
            yield list(range(at, min(at + self.batch_size, end)))

    def __len__(self):
        begin, end = self._share()
        return -(-(end - begin) // self.batch_size)


class SharedLoader:
    """Loads one worker's share of a data set for an evaluation; serves through all resizes.

    Parameters
    ----------
    dataset : gluon.data.Dataset
    batch_size : int
    num_workers : int, default 0
        Processes that load data.
    batchify_fn : callable, optional
        As for gluon.data.DataLoader.
    """

    def __init__(self, dataset, batch_size, num_workers=0, batchify_fn=None):
        batch_size = min(batch_size, len(dataset))  # what `filled` makes need not be larger
        self._batches = SharedBatches(len(dataset), batch_size)
        self._loader = gluon.data.DataLoader(
            dataset, batch_sampler=self._batches, num_workers=num_workers, batchify_fn=batchify_fn
        )
        self._batch_size = batch_size

    def share(self, world):
        """The batches of this worker's share; each sample of the data set is in one share."""
        self._batches.rank, self._batches.size = world.shard
        return self._loader

    def filled(self, data):
        """A batch filled up to the full size with zeros.

        Where a share ends depends on the number of workers, and a network may compute a small batch by other routines,
        with other rounding. Answers for the samples that were added are to be left out.
        """
        missing = self._batch_size - len(data)
        if not missing:
            return data
        return nd.concat(data, nd.zeros((missing, *data.shape[1:]), ctx=data.context, dtype=data.dtype), dim=0)


class ClassificationEvaluator:
    """Accuracy and mean cross-entropy of a classifier over a data set, each sample counted once.

    Parameters
    ----------
    dataset : gluon.data.Dataset
        Of (image, label).
    batch_size : int
    ctx : mx.Context
    num_workers : int, default 0
        Processes that load data.
    dtype : str, default 'float32'
        What the network takes.
    """

    def __init__(self, dataset, batch_size, ctx, num_workers=0, dtype='float32'):
        self._loader = SharedLoader(dataset, batch_size, num_workers)
        self._ctx, self._dtype = ctx, dtype
        self._cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    def __call__(self, net, world):
        """Evaluate `net` on this worker's share and add up over `world`.

        A collective: every worker has to call it.

        Parameters
        ----------
        net : gluon.Block
        world : World
            Has rank, size and allreduce_sum.

        Returns
        -------
        Evaluation
        """
        answers = []
        for data, label in self._loader.share(world):
            label = label.as_in_context(self._ctx)
            scores = net(data.as_in_context(self._ctx).astype(self._dtype, copy=False)).astype('float32')
            answers.append(
                (scores.argmax(axis=1) == label.astype('float32'), self._cross_entropy(scores, label))
            )
        # Read only now, so that the device is never waited for in between. float64 sums of single
        # samples: the result does not depend on where the data was cut into batches and shares.
        own = np.zeros(3)
        for correct, loss in answers:
            own += (correct.size, correct.asnumpy().sum(dtype='float64'), loss.asnumpy().sum(dtype='float64'))
        count, correct, loss = world.allreduce_sum(own)
        return Evaluation(float(correct / count), float(loss / count))
