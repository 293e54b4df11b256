"""Random choices about a sample that depend on the sample and the epoch alone, not on who loads it."""

from __future__ import annotations

import os
import random

import mxnet as mx
import numpy as np
from mxnet import gluon

from .sampler import SampleIndex

__all__ = ['SeededDataset']


class SeededDataset(gluon.data.Dataset):
    """Seeds Python's, NumPy's and MXNet's random numbers before each sample is loaded.

    So what is made of a sample (a transform that crops at random, say) is a function of (seed, epoch, index), whatever
    process loads it and in whatever order. In the process that trains, the generators are then put back to where they were,
    or, in the case of MXNet's, to the beginning of the pass at hand.

    Parameters
    ----------
    dataset : gluon.data.Dataset
    sampler : ElasticSampler
        With logical workers: the one whose batches are loaded.
    mxnet_too : bool, default True
        Also seed MXNet's generators, which takes over a millisecond a sample: False if no transform draws from them.

    Raises
    ------
    ValueError
        For a sampler without logical workers, and, when a sample is loaded, for an index that is not the sampler's.

    Examples
    --------
    >>> from hvd_dynamic import ElasticSampler
    >>> data = gluon.data.SimpleDataset([0.0, 0.0, 0.0]).transform(lambda x: x + random.random())
    >>> sampler = ElasticSampler(3, batch_size=3, logical_workers=1)
    >>> seeded = SeededDataset(data, sampler)
    >>> (indices,) = sampler
    >>> [seeded[i] for i in indices] == [seeded[i] for i in indices], seeded[indices[0]] == seeded[indices[1]]
    (True, False)
    """

    def __init__(self, dataset, sampler, mxnet_too=True):
        if getattr(sampler, 'logical_workers', None) is None:
            raise ValueError('SeededDataset needs the ElasticSampler of the loader, made with logical_workers: it knows in '
                             f'which epoch a sample is used; got {sampler!r}')
        self._dataset, self._sampler, self._mxnet_too = dataset, sampler, mxnet_too
        self._process = os.getpid()

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if not isinstance(index, SampleIndex):
            raise ValueError(f'the index {index!r} does not come from the sampler that SeededDataset was made with: make '
                             f'the loader with DataLoader(SeededDataset(data_set, sampler), batch_sampler=sampler)')
        at_home = os.getpid() == self._process
        if at_home:
            before = random.getstate(), np.random.get_state()
        seed = self._sampler.seed
        words = [seed & 0xffffffff, seed >> 32, index.epoch, int(index)]
        own = int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1
        random.seed(own)
        np.random.seed(own)
        if self._mxnet_too:
            mx.random.seed(own)
        try:
            return self._dataset[index]
        finally:
            if at_home:
                random.setstate(before[0])
                np.random.set_state(before[1])
                if self._mxnet_too:
                    self._sampler.seed_mxnet()
