"""Parameter files that are either whole or not there."""

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
        The folder cannot be made or written to.
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

    def path(self, name):
        """Where the parameters called `name` ('best', 'last', '0010') are kept."""
        return self.folder / f'{self.prefix}-{name}.params'

    def after_epoch(self, net, epoch, is_best):
        """Save what is due after `epoch` (counted from 0)."""
        if is_best:
            self.save(net, 'best')
        if self.frequency and (epoch + 1) % self.frequency == 0:
            self.save(net, f'{epoch + 1:04d}')

    def save(self, net, name):
        """Save the parameters of `net` under `name`; a reader never sees half a file.

        Returns
        -------
        Path
        """
        path = self.path(name)
        unfinished = path.with_name(f'.{path.name}.{os.getpid()}')
        try:
            net.save_parameters(str(unfinished))
            with open(unfinished, 'rb') as written:
                os.fsync(written.fileno())
            os.replace(unfinished, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()
        return path
