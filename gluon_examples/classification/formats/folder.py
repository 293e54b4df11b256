"""One folder a class, with pictures in it."""

from pathlib import Path

from mxnet import gluon

from gluon_examples.classification.formats.pictures import decode
from gluon_examples.common.errors import DamagedDataError, MissingDataError, RecipeError

_ENDINGS = ('.jpg', '.jpeg', '.png')
_MAGICS = (b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n')
_MAGIC_BYTES = max(map(len, _MAGICS))
_TEST_NAMES = ('val', 'test')
# Opening a file takes far longer than reading 8 bytes of it; beyond this many, only some are looked at.
MOST_HEADERS = 20000


class ImageFolder(gluon.data.Dataset):
    """Pictures, each with the number of its class; decoded when asked for.

    Parameters
    ----------
    items : list of (Path, int)
    """

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        return decode(path.read_bytes(), path), label


def read(folder):
    """Pictures for training and testing, and the names of the classes.

    Parameters
    ----------
    folder : str or Path
        With train/CLASS/*.jpg (or .jpeg, .png), and val/CLASS or test/CLASS. Classes are numbered in the
        order of their names in train.

    Returns
    -------
    train : ImageFolder
    test : ImageFolder
    classes : list of str

    Raises
    ------
    MissingDataError
        The layout is another one, or a class has no pictures.
    DamagedDataError
        A file is empty, or does not begin as a picture of its kind.
    """
    folder = Path(folder)
    layout = f'{folder}/train/CLASS/*.jpg and {folder}/val/CLASS/*.jpg (or test; also .jpeg and .png)'
    train = folder / 'train'
    test = next((folder / name for name in _TEST_NAMES if (folder / name).is_dir()), None)
    if not train.is_dir():
        raise MissingDataError(f'{folder} has no folder train; expected {layout}')
    if test is None:
        raise MissingDataError(
            f'{folder} has neither a folder val nor test to measure the accuracy with; expected {layout}'
        )
    classes = _classes(train)
    if len(classes) < 2:
        if _pictures(train):
            raise MissingDataError(f'{train} has pictures, but no folders of classes; expected {layout}')
        raise MissingDataError(
            f'{train} has {len(classes)} class folders, at least 2 are needed; expected {layout}'
        )
    unknown = sorted(set(_classes(test)) - set(classes))
    if unknown:
        raise RecipeError(
            f'{test} has the class {unknown[0]}, which {train} lacks; both need the same classes'
        )
    if not _classes(test):
        raise MissingDataError(f'{test} has no class folders; expected {layout}')
    sets = [ImageFolder(_items(part, classes)) for part in (train, test)]
    for pictures in sets:
        _check_headers(pictures.items)
    return *sets, classes


def _classes(folder):
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith('.')
    )


def _pictures(folder):
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.suffix.lower() in _ENDINGS and not entry.name.startswith('.')
    )


def _items(part, classes):
    items = []
    for label, name in enumerate(classes):
        if not (part / name).is_dir():  # a class may be absent from the test images
            continue
        pictures = _pictures(part / name)
        if not pictures:
            raise MissingDataError(
                f'{part / name} has no pictures ({", ".join(_ENDINGS)}); fill the folder or remove it'
            )
        items += [(path, label) for path in pictures]
    return items


def _check_headers(items):
    for path, _ in items[:: -(-len(items) // MOST_HEADERS)]:
        try:
            with open(path, 'rb') as file:
                header = file.read(_MAGIC_BYTES)
        except OSError as fault:
            raise DamagedDataError(f'{path} cannot be read ({fault.strerror}); mend or remove it') from None
        # By content, as the decoder goes: data sets in the wild have PNG files called .jpg.
        if not header.startswith(_MAGICS):
            what = 'neither a JPEG nor a PNG picture' if header else 'empty'
            raise DamagedDataError(f'{path} is {what}; mend or remove it')
