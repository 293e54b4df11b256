"""The learning rate over the epochs, as the flags describe it, and the policy that scales it."""

import math

POLY_POWER = 2  # GluonCV's for classification


def epoch_schedule(mode, lr, num_epochs, *, warmup_epochs=0, warmup_lr=0.0, decay=0.1, decay_epochs=(),
                   power=POLY_POWER):
    """Learning rate at the reference batch, as a function of the (fractional) epoch.

    Linear warm-up from `warmup_lr` to `lr`, then one of

    - ``step``: ``lr * decay ** (number of decay epochs that have passed)``
    - ``poly``: ``lr * (1 - t) ** power``
    - ``cosine``: ``lr * (1 + cos(pi t)) / 2``

    where t runs from 0 at the end of the warm-up to 1 at the end of training.

    Parameters
    ----------
    mode : {'step', 'poly', 'cosine'}
    lr : float
        Peak learning rate.
    num_epochs : int
    warmup_epochs : float, default 0
        Less than `num_epochs`.
    warmup_lr : float, default 0
    decay : float, default 0.1
        Factor of each step.
    decay_epochs : sequence of float, default ()
        When the steps happen, counted from the start of training.
    power : float, default 2

    Returns
    -------
    callable
        float -> float

    Examples
    --------
    >>> lr = epoch_schedule('step', 0.4, 10, warmup_epochs=2, decay_epochs=(5, 8))
    >>> [round(lr(epoch), 6) for epoch in (0, 1, 2, 4.9, 5, 9)]
    [0.0, 0.2, 0.4, 0.4, 0.04, 0.004]
    >>> lr = epoch_schedule('cosine', 0.4, 10)
    >>> [round(lr(epoch), 6) for epoch in (0, 5, 10, 11)]
    [0.4, 0.2, 0.0, 0.0]
    """
    shapes = {
        'step': lambda epoch, t: decay ** sum(epoch >= at for at in decay_epochs),
        'poly': lambda epoch, t: (1 - t) ** power,
        'cosine': lambda epoch, t: (1 + math.cos(math.pi * t)) / 2,
    }
    if mode not in shapes:
        raise ValueError(f'mode {mode!r} is unknown; use one of {", ".join(shapes)}')
    shape = shapes[mode]

    def schedule(epoch):
        if epoch < warmup_epochs:
            return warmup_lr + (lr - warmup_lr) * epoch / warmup_epochs
        t = min(1.0, (epoch - warmup_epochs) / (num_epochs - warmup_epochs))
        return lr * shape(epoch, t)

    return schedule
