"""Pascal VOC's annotations: one XML file an image."""

from pathlib import Path
from xml.etree import ElementTree

from gluon_examples.common.errors import DamagedDataError, MissingDataError
from gluon_examples.detection.formats.boxes import Item, checked

TRAIN, TEST = (('VOC2007', 'trainval'), ('VOC2012', 'trainval')), (('VOC2007', 'test'),)


def read(folder, splits, classes, bad):
    """The images of some splits, in the order of their lists.

    Parameters
    ----------
    folder : Path
        VOCdevkit: has VOC2007 and VOC2012 in it.
    splits : sequence of (str, str)
        Year's folder and split.
    classes : sequence of str
    bad : BadData

    Returns
    -------
    list of Item

    Raises
    ------
    MissingDataError, DamagedDataError
        A list or annotation is not there, or is not what it should be.
    """
    items = []
    for year, split in splits:
        root = Path(folder) / year
        names = _lines(root / 'ImageSets' / 'Main' / f'{split}.txt')
        items += [_item(root, name, classes, bad, len(items) + i) for i, name in enumerate(names)]
    return items


def _lines(path):
    try:
        lines = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    except OSError as fault:
        raise MissingDataError(
            f'{path} cannot be read ({fault.strerror}); --data-dir must be VOCdevkit, with VOC2007 and VOC2012 in it'
        ) from None
    except UnicodeDecodeError:
        raise DamagedDataError(f'{path} is no text; copy it again') from None
    if not lines:
        raise DamagedDataError(f'{path} is empty; copy it again')
    return lines


def _item(root, name, classes, bad, number):
    path = root / 'Annotations' / f'{name}.xml'
    try:
        tree = ElementTree.parse(path).getroot()
        size = tuple(int(_number(tree, f'size/{side}')) for side in ('width', 'height'))
        boxes = []
        for thing in tree.iter('object'):
            label = (thing.findtext('name') or '').strip().lower()
            if label not in classes:
                raise DamagedDataError(
                    f'{path}: the class {label!r} is none of the {len(classes)} of Pascal VOC ({", ".join(classes)}); '
                    'mend the annotation'
                )
            # VOC counts pixels from 1, and the last one belongs to the box.
            left, top = (_number(thing, f'bndbox/{edge}') - 1 for edge in ('xmin', 'ymin'))
            right, bottom = (_number(thing, f'bndbox/{edge}') - 1 for edge in ('xmax', 'ymax'))
            difficult = int(_number(thing, 'difficult', 0))
            boxes.append((left, top, right, bottom, classes.index(label), difficult))
    except FileNotFoundError:
        raise MissingDataError(f'{path} is not there, though the list of images names it; copy the data set again') from None
    except OSError as fault:
        raise DamagedDataError(f'{path} cannot be read ({fault.strerror}); copy it again') from None
    except (ElementTree.ParseError, ValueError, OverflowError) as fault:
        if isinstance(fault, DamagedDataError):
            raise
        raise DamagedDataError(f'{path} is no annotation of Pascal VOC ({fault}); copy it again') from None
    return Item(root / 'JPEGImages' / f'{name}.jpg', checked(boxes, size, path, bad), number, size)


def _number(element, name, default=None):
    text = element.findtext(name) or default
    try:
        return float(text)
    except (TypeError, ValueError):
        raise ValueError(f'it has no {name}' if text is None else f'its {name} is {text!r}') from None
