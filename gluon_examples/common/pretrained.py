"""GluonCV's files of weights, from a local folder; nothing is downloaded."""

import contextlib
from pathlib import Path

from gluoncv.model_zoo import model_store
from gluoncv.utils import check_sha1

from gluon_examples.common.errors import DamagedDataError, MissingDataError


@contextlib.contextmanager
def weights_from(folder):
    """While this lasts, networks that are made with pretrained weights take them from `folder`.

    GluonCV looks into a folder, too, but downloads what is not there.

    Parameters
    ----------
    folder : str, Path or None

    Raises
    ------
    MissingDataError, DamagedDataError
        The file is not there, or its content is not what its name says.
    """
    if folder is not None and not Path(folder).is_dir():
        raise MissingDataError(f'--pretrained-root {folder}: no such folder; give the one with the files of weights')

    def find(name, tag=None, root=None):
        wanted = model_store._model_sha1[name]
        path = Path(folder or '.') / f'{name}-{wanted[:8]}.params'
        if not path.is_file():
            raise MissingDataError(
                f'--pretrained-root {folder}: {path.name} is not there, the weights of {name}; get it from the model zoo '
                'of GluonCV'
            )
        if not check_sha1(str(path), wanted):
            raise DamagedDataError(f'{path} is damaged: its checksum is not the one of GluonCV; copy it again')
        return str(path)

    theirs, model_store.get_model_file = model_store.get_model_file, find
    try:
        yield
    finally:
        model_store.get_model_file = theirs
