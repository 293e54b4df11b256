"""Pictures of what a network saw, what was there, and what it found."""

from pathlib import Path

import mxnet as mx
import numpy as np

from gluon_examples.common.normalization import to_pixels
from gluon_examples.common.pictures import Panels

_NAMED_AT_MOST = 20


def save(count, folder, net, dataset, names, ctx, dtype='float32'):
    """Write ``sample-000.png``, ... for the first `count` images: image, true mask, predicted mask, names of their classes.

    Parameters
    ----------
    count : int
        0: nothing is done.
    folder : Path
        They are in its folder ``samples``.
    net : HybridBlock
    dataset : gluon.data.Dataset
        Of (image, mask).
    names : sequence of str
        Of the classes.
    ctx : mx.Context
    dtype : str
    """
    if not count:
        return
    from matplotlib.patches import Patch

    panels = Panels(Path(folder) / 'samples', min(count, len(dataset)))
    for number in panels:
        image, mask = (part.asnumpy() if isinstance(part, mx.nd.NDArray) else part for part in dataset[number])
        scores = net(mx.nd.array(image[None], ctx=ctx).astype(dtype))[0]
        predicted = scores.argmax(axis=1)[0].asnumpy().astype('int64')
        masks = [np.ma.masked_less(part, 0) for part in (mask, np.where(mask < 0, -1, predicted))]
        with panels.figure(number, ('image', 'truth', 'found')) as axes:
            axes[0].imshow(to_pixels(image))
            for axis, part in zip(axes[1:], masks, strict=True):
                shown = axis.imshow(part, vmin=0, vmax=len(names) - 1, cmap='nipy_spectral', interpolation='nearest')
            present = np.unique(np.ma.concatenate(masks).compressed()).astype(int)[:_NAMED_AT_MOST]
            axes[2].legend(
                handles=[Patch(color=shown.to_rgba(label), label=names[label]) for label in present],
                loc='upper left', bbox_to_anchor=(1, 1), fontsize=7, frameon=False,
            )
