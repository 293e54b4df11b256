"""Pictures of the boxes that are there and those that a network found."""

from pathlib import Path

import mxnet as mx

from gluon_examples.common.normalization import to_pixels
from gluon_examples.common.pictures import Panels
from gluon_examples.detection.evaluation import found_in

_LEAST_SCORE = 0.3


def save(count, folder, net, dataset, classes, side, ctx, dtype='float32'):
    """Write ``sample-000.png``, ... for the first `count` images: true boxes, boxes found (from a score of 0.3).

    Parameters
    ----------
    count : int
        0: nothing is done.
    folder : Path
        They are in its folder ``samples``.
    net : HybridBlock
    dataset : gluon.data.Dataset
        Of (image, boxes), as the network sees them.
    classes : sequence of str
    side : int
    ctx : mx.Context
    dtype : str
    """
    panels = Panels(Path(folder) / 'samples', min(count, len(dataset)))
    for number in panels:
        image, truth = dataset[number]
        image = image.as_in_context(ctx)
        found = found_in(net, image.expand_dims(0).astype(dtype), side)[0]
        with panels.figure(number, ('truth', f'found (score from {_LEAST_SCORE})')) as axes:
            for axis in axes:
                axis.imshow(to_pixels(image.as_in_context(mx.cpu()).asnumpy()))
            for *box, label, _ in truth[truth[:, 4] >= 0]:
                _draw(axes[0], box, classes[int(label)])
            # The best last, on top of others at the same place.
            for label, score, *box in sorted(found[found[:, 1] >= _LEAST_SCORE], key=lambda one: one[1]):
                _draw(axes[1], box, f'{classes[int(label)]} {score:.2f}')


def _draw(axis, box, text):
    from matplotlib.patches import Rectangle

    left, top, right, bottom = box
    axis.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, color='yellow', linewidth=1.5))
    axis.text(left, top, text, fontsize=7, va='bottom', bbox={'facecolor': 'yellow', 'pad': 0.5, 'linewidth': 0})
