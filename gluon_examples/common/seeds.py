"""Random choices in the processes that load data."""

import os
import random

import mxnet as mx
import numpy as np


class SeededApart:
    """A transform whose random choices differ between the processes of a loader.

    They are forked, and would otherwise all make the same choices. In the process that made it, random
    choices follow that process's own seeds.

    Parameters
    ----------
    transform : callable
    seed : int
    """

    def __init__(self, transform, seed):
        self._transform = transform
        self._seed = seed
        self._process = os.getpid()

    def __call__(self, *sample):
        if os.getpid() != self._process:
            self._process = os.getpid()
            own = int(np.random.SeedSequence([self._seed, self._process]).generate_state(1)[0]) >> 1
            random.seed(own)
            np.random.seed(own)
            mx.random.seed(own)
        return self._transform(*sample)
