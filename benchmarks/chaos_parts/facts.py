"""What the training script and the checks must know alike."""

__all__ = ['BATCH', 'REFERENCE_BATCH', 'SAMPLES', 'SEED', 'base_lr']

SAMPLES = 1797              # in scikit-learn's digits
BATCH = 8                   # of one worker
REFERENCE_BATCH = 16
SEED = 3


def base_lr(epoch):
    """The learning rate for the reference batch, as a function of epochs (a float).

    Examples
    --------
    >>> base_lr(0.0), base_lr(30.0)
    (0.05, 0.025)
    """
    return 0.05 / (1 + epoch / 30)
