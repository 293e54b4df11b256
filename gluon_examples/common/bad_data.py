"""Annotations and images that cannot be used: an error, or left out and counted."""

import logging
import multiprocessing

import numpy as np

from gluon_examples.common.errors import DamagedDataError

log = logging.getLogger(__name__)

_REMEDY = 'mend it, or give --skip-bad to go on without it'
_SAID_AT_MOST = 5


class BadData:
    """What is done with data that cannot be used.

    Parameters
    ----------
    skip : bool
        Leave it out and count, instead of raising an error.

    Attributes
    ----------
    annotations : int
        Boxes and images that were left out when the annotations were read.
    """

    def __init__(self, skip=False):
        self.skip = skip
        self.annotations = 0
        # In memory that the processes of a loader share, for they read the images.
        self._images = multiprocessing.Value('q', 0)
        self._told = 0

    def annotation(self, what):
        """An annotation cannot be used; `what` completes "... is bad", with its file.

        Raises
        ------
        DamagedDataError
            Unless it is to be left out.
        """
        if not self.skip:
            raise DamagedDataError(f'{what}; {_REMEDY}')
        self.annotations += 1
        if self.annotations <= _SAID_AT_MOST:
            log.warning('left out: %s%s', what, ' (no more such lines)' if self.annotations == _SAID_AT_MOST else '')

    def image(self, what):
        """An image cannot be used, which is found in the midst of training.

        Raises
        ------
        DamagedDataError
            Unless something that adds nothing is to be taken in its place.
        """
        if not self.skip:
            raise DamagedDataError(f'{what}; {_REMEDY}')
        with self._images.get_lock():
            self._images.value += 1
        log.warning('skipped: %s', what)

    def images_since(self, world):
        """How many images all workers have skipped since the last call; all of them call it."""
        with self._images.get_lock():
            own, self._images.value = self._images.value, 0
        return int(world.allreduce_sum(np.array([own], 'int64'))[0]) if self.skip else 0

    def tell(self, images):
        """Log what was left out in all, if anything; `images` is the sum of what `images_since` gave."""
        if self.annotations or images:
            log.info('left out: %d annotations, and %d times an image that could not be used', self.annotations, images)
