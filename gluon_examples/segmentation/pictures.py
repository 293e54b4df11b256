"""Pictures of what a network saw, what was there, and what it found."""

from pathlib import Path

import mxnet as mx
import numpy as np

from gluon_examples.common.normalization import to_pixels
from gluon_examples.common.pictures import Panels


def save(count, folder, net, dataset, ctx, dtype='float32'):
    """Write ``sample-000.png``, ... for the first `count` images: image, true mask, predicted mask.

    Parameters
    ----------
    count : int
        0: nothing is done.
    folder : Path
        They are in its folder ``samples``.
    net : HybridBlock
    dataset : gluon.data.Dataset
        Of (image, mask).
    ctx : mx.Context
    dtype : str
    """
    panels = Panels(Path(folder) / 'samples', min(count, len(dataset)))
    for number in panels:
        image, mask = (part.asnumpy() if isinstance(part, mx.nd.NDArray) else part for part in dataset[number])
        scores = net(mx.nd.array(image[None], ctx=ctx).astype(dtype))[0]
        predicted = scores.argmax(axis=1)[0].asnumpy().astype('int64')
        top = max(1, scores.shape[1] - 1)
        masks = [np.ma.masked_less(part, 0) for part in (mask, np.where(mask < 0, -1, predicted))]
        with panels.figure(number, ('image', 'truth', 'found')) as axes:
            axes[0].imshow(to_pixels(image))
            for axis, part in zip(axes[1:], masks, strict=True):
                axis.imshow(part, vmin=0, vmax=top, cmap='nipy_spectral', interpolation='nearest')
