"""COCO's annotation files, read without pycocotools."""

import json
from pathlib import Path

from gluon_examples.common.errors import DamagedDataError, MissingDataError


class CocoFile:
    """One ``instances_*.json``.

    Parameters
    ----------
    path : str or Path

    Attributes
    ----------
    path : Path
    images : list of dict
        In the order of their ids.
    categories : dict of int to str
    annotations : dict of int to list of dict
        By image id.

    Raises
    ------
    MissingDataError, DamagedDataError
        It is not there; it is no JSON, or lacks what a file of instances has.
    """

    def __init__(self, path):
        self.path = Path(path)
        try:
            content = json.loads(self.path.read_bytes())
            self.images = sorted(content['images'], key=lambda image: image['id'])
            self.categories = {int(one['id']): one['name'] for one in content['categories']}
            self.annotations = {image['id']: [] for image in self.images}
            for one in content['annotations']:
                if one['image_id'] not in self.annotations:
                    raise ValueError(f'an annotation is of image {one["image_id"]}, which is none of its images')
                self.annotations[one['image_id']].append(one)
            for image in self.images:
                _check_image(image)
        except FileNotFoundError:
            raise MissingDataError(
                f'{path} is not there; --data-dir must have annotations/, train2017/ and val2017/ of COCO in it'
            ) from None
        except OSError as fault:
            raise DamagedDataError(f'{path} cannot be read ({fault.strerror}); copy it again') from None
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise DamagedDataError(
                f'{path} is no file of COCO instances ({type(fault).__name__}: {fault}); copy it again'
            ) from None


def _check_image(image):
    name, size = image['file_name'], (image['width'], image['height'])
    if not isinstance(name, str) or not name:
        raise ValueError(f'image {image["id"]} has the file name {name!r}')
    if any(type(side) is not int or side < 1 for side in size):
        raise ValueError(f'image {image["id"]} is said to have {size[0]!r}x{size[1]!r} pixels')
