"""Data loaders whose processes do not outlive the worker they belong to."""

import ctypes
import os
import signal
import sys

from mxnet import gluon

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _EndsWithItsOwner(gluon.data.Dataset):
    """A data set that, in a loader's process, asks the kernel to end that process with the worker.

    A worker that is killed cannot end its loader processes. They would wait for ever, and hold open
    the sockets they inherited, so that the other workers could not tell that it is gone.
    """

    def __init__(self, dataset):
        self._dataset = dataset
        self._owner = os.getpid()
        self._bound = False

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if not self._bound:
            self._bound = True
            if os.getpid() != self._owner and sys.platform == 'linux':
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != self._owner:  # it died before the kernel was asked
                    os._exit(1)
        return self._dataset[index]


def data_loader(dataset, batch_sampler, num_workers=0):
    """A gluon DataLoader; with `num_workers` > 0 its processes end when this one does.

    Parameters
    ----------
    dataset : gluon.data.Dataset
    batch_sampler : iterable of list of int
    num_workers : int, default 0

    Returns
    -------
    gluon.data.DataLoader
    """
    if num_workers:
        dataset = _EndsWithItsOwner(dataset)
    return gluon.data.DataLoader(dataset, batch_sampler=batch_sampler, num_workers=num_workers)
