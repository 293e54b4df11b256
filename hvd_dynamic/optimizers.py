"""What is known of MXNet's optimizers: which hold the learning rate in their state, and which adapt to the gradient."""

from __future__ import annotations

import functools
import logging

from mxnet.ndarray import NDArray

__all__ = ['check', 'momentum_rule', 'default_scaling', 'flatten_state', 'settings', 'load_settings']

log = logging.getLogger('hvd_dynamic')

# Class name -> where the momentum buffer stands among the state's arrays: (single precision, multi-precision, whose
# state also has a float32 copy of the weight). Their buffer has the form v <- m v + lr g, so a change of the learning
# rate calls for momentum correction (arXiv 1706.02677). tests/unit/test_optimizers.py checks this against MXNet.
_HOLDS_LR = {'SGD': (0, 0), 'ccSGD': (0, 0), 'NAG': (0, 0), 'LARS': (0, 0), 'LBSGD': (0, 1)}

# State without the learning rate. (Ftrl's and centered RMSProp's depend on it in ways for which no correction exists.)
_NO_LR = {'Adam', 'Adamax', 'Nadam', 'AdaGrad', 'AdaDelta', 'RMSProp', 'FTML', 'Ftrl', 'LAMB', 'SGLD', 'Signum',
          'AdamW', 'LANS', 'GroupAdaGrad'}

# Adaptive: the step is normalised by the gradients' size, so square-root scaling is their default.
_ADAPTIVE = {'Adam', 'Adamax', 'Nadam', 'AdaGrad', 'AdaDelta', 'RMSProp', 'FTML', 'Ftrl', 'LAMB', 'AdamW', 'LANS',
             'GroupAdaGrad'}

# Attributes that another place owns: the trainer sets them anew in every update.
_NOT_SETTINGS = {'lr', 'rescale_grad'}


def _lineage(optimizer):
    return [cls.__name__ for cls in type(optimizer).__mro__]


def check(optimizer):
    """Refuse optimizers with which workers could not stay alike.

    Raises
    ------
    ValueError
        For sgld, whose noise each worker draws for itself, and lbsgd with a batch scale, which keeps gradients back.
    """
    lineage = _lineage(optimizer)
    if 'SGLD' in lineage:
        raise ValueError("optimizer 'sgld' is not supported: every worker would draw noise of its own, and their weights "
                         "would part; use 'sgd' or 'adam'")
    if 'LBSGD' in lineage and optimizer.batch_scale != 1:
        raise ValueError(f"optimizer 'lbsgd' with batch_scale={optimizer.batch_scale} is not supported: it keeps gradients "
                         f'where other workers cannot get them; use batch_scale=1 and a larger reference batch')


def momentum_rule(optimizer):
    """How to find the momentum buffer that holds the learning rate.

    Parameters
    ----------
    optimizer : mx.optimizer.Optimizer

    Returns
    -------
    callable or None
        A function from one parameter's state to its momentum NDArray (or None); None if rho does not apply.
        An optimizer that is not known gets None and one warning.
    """
    lineage = _lineage(optimizer)
    for name in lineage:
        if name in _HOLDS_LR:
            return functools.partial(_momentum_at, optimizer, *_HOLDS_LR[name])
        if name in _NO_LR:
            return None
    log.warning('the optimizer %s is not known to hvd_dynamic: its state is left as it is when the learning rate scale '
                'changes (momentum_scale 1)', lineage[0])
    return None


def _momentum_at(optimizer, single, multi, state):
    arrays = [a for a in flatten_state(state) if a is not None]
    if not getattr(optimizer, 'momentum', 0.0) or not arrays:
        return None
    return arrays[multi if len(arrays) > 1 else single]


def default_scaling(optimizer):
    """'sqrt' for Adam and its like, 'linear' for all others."""
    return 'sqrt' if any(name in _ADAPTIVE for name in _lineage(optimizer)) else 'linear'


def flatten_state(state):
    """The NDArrays (and Nones) of one parameter's optimizer state, whatever its nesting, in a fixed order."""
    if state is None or isinstance(state, NDArray):
        return [state]
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in flatten_state(part)]
    raise TypeError(f'optimizer state of type {type(state).__name__} cannot be carried to other workers; '
                    f'use NDArrays, tuples and lists of them, or None')


def settings(optimizer):
    """All numbers that steer or count: momentum, weight decay, Nadam's running product, update counts, ..."""
    scalars = {name: value for name, value in vars(optimizer).items()
               if name not in _NOT_SETTINGS and (value is None or isinstance(value, (bool, int, float)))}
    counts = {str(index): count for index, count in optimizer._index_update_count.items()}
    return {'scalars': scalars, 'counts': counts, 'lr_mult': _pairs(optimizer.lr_mult), 'wd_mult': _pairs(optimizer.wd_mult)}


def _pairs(multipliers):
    # keys are names or numbers of parameters; JSON has strings only
    return sorted(([key, value] for key, value in multipliers.items()), key=str)


def load_settings(optimizer, saved, device_id):
    """Take up what `settings` gave, on the device with this number."""
    for name, value in saved['scalars'].items():
        setattr(optimizer, name, value)
    optimizer.lr_mult, optimizer.wd_mult = dict(saved['lr_mult']), dict(saved['wd_mult'])
    # MXNet counts updates by device, and a count that was made on one device is not found on another, so that schedules
    # and bias corrections start over (mxnet issue 17357). Here the one dictionary serves this worker's device.
    counts = {int(index): count for index, count in saved['counts'].items()}
    optimizer._index_update_count = counts
    optimizer._all_index_update_counts = {0: counts, device_id: counts}
