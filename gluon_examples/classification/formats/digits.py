"""The handwritten digits that scikit-learn bundles: 1797 real images of 8 x 8."""

import numpy as np

CLASSES = 10
TEST_IMAGES = 297
_SPLIT_SEED = 0


def read():
    """The digits, split once and for all into 1500 images to train and 297 to test with.

    The split is stratified and depends on nothing but the data (numpy promises that a RandomState of one
    seed stays the same), so that accuracies of different runs are of the same images.

    Returns
    -------
    (train_images, train_labels), (test_images, test_labels)
        Images are float32 in [0, 1] of shape (N, 8, 8), labels int32.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype('float32')
    labels = digits.target.astype('int32')
    test = stratified(labels, TEST_IMAGES, _SPLIT_SEED)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return (images[train], labels[train]), (images[test], labels[test])


def stratified(labels, count, seed):
    """Indices of `count` samples in which each class has its share (largest remainders rounded up).

    Parameters
    ----------
    labels : array of int
    count : int
    seed : int

    Returns
    -------
    array of int, ascending
    """
    share = np.bincount(labels) * count / len(labels)
    wanted = np.floor(share).astype(int)
    for label in np.argsort(wanted - share, kind='stable')[: count - wanted.sum()]:
        wanted[label] += 1
    random = np.random.RandomState(seed)
    chosen = [random.permutation(np.flatnonzero(labels == label))[:n] for label, n in enumerate(wanted)]
    return np.sort(np.concatenate(chosen))
