"""Parameter files that are either whole or not there, and when a checkpoint is due."""

import contextlib
import os
from pathlib import Path

from gluon_examples.common.errors import RecipeError


class ParameterFiles:
    """The parameter files of one training: the best, the last, and one every few epochs.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there.
    prefix : str
        Files are called ``PREFIX-best.params``, ``PREFIX-last.params`` and ``PREFIX-0010.params``.
    frequency : int, default 0
        Keep a file of its own every so many epochs; 0 for none.

    Raises
    ------
    RecipeError
        The folder cannot be made or written to, or no file there can have such a name.
    """

    def __init__(self, folder, prefix, frequency=0):
        self.folder = Path(folder)
        self.prefix = prefix
        self.frequency = frequency
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise RecipeError(
                f'--save-dir {folder}: cannot make this folder ({fault.strerror}); '
                'name one that you may write to'
            ) from None
        if not os.access(self.folder, os.W_OK):
            raise RecipeError(f'--save-dir {folder}: no permission to write there; name another folder')
        try:
            self._unfinished(self.path('best')).exists()
        except OSError as fault:
            raise RecipeError(
                f'--save-prefix {prefix}: no file can be called so ({fault.strerror}); give another one'
            ) from None

    def path(self, name):
        """Where the parameters called `name` ('best', 'last', '0010') are kept."""
        return self.folder / f'{self.prefix}-{name}.params'

    def after_epoch(self, net, epoch, is_best):
        """Save what is due after `epoch` (counted from 0)."""
        if is_best:
            self.save(net, 'best')
        if self.frequency and (epoch + 1) % self.frequency == 0:
            self.save(net, f'{epoch + 1:04d}')

    @staticmethod
    def _unfinished(path):
        return path.with_name(f'.{path.name}.{os.getpid()}')

    def save(self, net, name):
        """Save the parameters of `net` under `name`; a reader never sees half a file.

        Returns
        -------
        Path
        """
        path = self.path(name)
        unfinished = self._unfinished(path)
        try:
            net.save_parameters(str(unfinished))
            with open(unfinished, 'rb') as written:
                os.fsync(written.fileno())
            os.replace(unfinished, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()
        return path


class CheckpointTimes:
    """When all of the state is written to disk; called on all workers alike.

    Parameters
    ----------
    folder : str or None
        The state's folder for checkpoints; None: nothing is ever written.
    every : int or None
        Updates between two checkpoints; None: one at the end of each epoch.
    """

    def __init__(self, folder, every):
        self._folder, self._every = folder, every

    def after_update(self, state):
        """Save if it is due, before ``state.commit()``, by which training may leave the loop."""
        if self._folder and self._every and not state.trainer.in_update and state.updates % self._every == 0:
            state.save_checkpoint()

    def after_epoch(self, state):
        """Save if it is due, before the evaluation: a training that goes on from here does that first."""
        if self._folder and not self._every:
            state.save_checkpoint()
