"""Faults that are the user's to mend. They are told in one line, without a traceback."""

import contextlib
import sys


class RecipeError(ValueError):
    """Something the user gave does not work; the message says what, and what to do."""


class MissingDataError(RecipeError, FileNotFoundError):
    """A file or folder that the recipe needs is not there."""

    # OSError prints its arguments its own way when it has several; ours is always one sentence.
    __str__ = RecipeError.__str__


class DamagedDataError(RecipeError):
    """A file is there, but its content is not what its format promises."""


@contextlib.contextmanager
def told_in_one_line(program, *also):
    """Turn a fault of the user's into one line on stderr and exit status 2, as argparse does.

    Parameters
    ----------
    program : str
        Name put before the message.
    *also : type
        Further exception classes whose messages are meant for the user. Files that cannot be read or written are
        always told.
    """
    try:
        yield
    except (RecipeError, *also) as fault:
        print(f'{program}: error: {fault}', file=sys.stderr, flush=True)
        sys.exit(2)
    except OSError as fault:
        if fault.filename is None:      # of a socket, say, which is none of the user's files
            raise
        print(f'{program}: error: {fault.filename}: {fault.strerror}', file=sys.stderr, flush=True)
        sys.exit(2)
