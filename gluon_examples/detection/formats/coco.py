"""COCO's annotations: one JSON file a split."""

from gluon_examples.common.coco import CocoFile
from gluon_examples.common.errors import DamagedDataError
from gluon_examples.detection.formats.boxes import Item, checked


def read(folder, split, classes, bad):
    """The images of one split, in the order of their ids.

    Parameters
    ----------
    folder : Path
        Has annotations/instances_SPLIT.json and the images in SPLIT/.
    split : {'train2017', 'val2017'}
    classes : sequence of str
        In the order of their ids.
    bad : BadData

    Returns
    -------
    items : list of Item
    category_ids : list of int
        COCO's id of each class.

    Raises
    ------
    MissingDataError, DamagedDataError
        The file is not there, or not what it should be, or has other classes.
    """
    file = CocoFile(folder / 'annotations' / f'instances_{split}.json')
    ids = sorted(file.categories)
    names = [file.categories[number] for number in ids]
    if names != list(classes):
        odd = next((name for name in names if name not in classes), None)
        few = f'{len(names)} of them are there' if len(names) < len(classes) else 'their ids are in another order'
        what = f'the class {odd!r} is none of them' if odd else few
        raise DamagedDataError(
            f'{file.path} must have the {len(classes)} classes of COCO, but {what}; use the original file'
        )
    items = []
    for image in file.images:
        try:
            size = image['width'], image['height']
            boxes = []
            for one in file.annotations[image['id']]:
                left, top, width, height = (float(number) for number in one['bbox'])
                crowd = int(one.get('iscrowd', 0))
                boxes.append((left, top, left + width, top + height, ids.index(one['category_id']), crowd))
        except (KeyError, TypeError, ValueError) as fault:
            raise DamagedDataError(
                f'{file.path}: the annotation of image {image.get("id")} is not whole '
                f'({type(fault).__name__}: {fault}); copy it again'
            ) from None
        where = f'{file.path}, image {image["id"]}'
        items.append(Item(folder / split / image['file_name'], checked(boxes, size, where, bad), image['id'], size))
    return items, ids
