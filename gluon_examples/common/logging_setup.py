"""Logging that speaks once for the whole job."""

import logging
import sys

from tqdm import tqdm


class _FirstWorkerOnly(logging.Filter):
    """Let a record through on the first worker; elsewhere only warnings and worse.

    Which worker is the first can change with every resize, so it is asked for each record. The library
    decides by itself which worker speaks (one that leaves says so, whatever its rank).
    """

    def __init__(self, is_first):
        super().__init__()
        self._is_first = is_first

    def filter(self, record):
        return record.levelno >= logging.WARNING or record.name == 'hvd_dynamic' or self._is_first()


class _BesideProgressBar(logging.StreamHandler):
    """Write whole lines without breaking a tqdm bar that is on the same terminal."""

    def emit(self, record):
        try:
            tqdm.write(self.format(record), file=self.stream)
            self.flush()
        except Exception:  # as logging does: a failure to log must not end the training
            self.handleError(record)


def configure(is_first, stream=None):
    """Send INFO and above to `stream`, from the first worker alone.

    Parameters
    ----------
    is_first : callable
        () -> bool, whether this process is the first worker at present.
    stream : file, default stderr
    """
    handler = _BesideProgressBar(stream or sys.stderr)
    handler.addFilter(_FirstWorkerOnly(is_first))
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s', datefmt='%H:%M:%S'))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # matplotlib and the like have nothing to tell someone who trains a network.
    for chatty in ('matplotlib', 'PIL'):
        logging.getLogger(chatty).setLevel(logging.WARNING)
