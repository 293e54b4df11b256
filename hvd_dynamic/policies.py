"""How the learning rate and the momentum follow the global batch size.

A policy is a small immutable object. Asked after a change of the global batch, it says where the
*learning rate scale* s has to go (`target`), in how many updates (`transition_updates`), along
which path (`ramp`), and by which factor rho the momentum buffer is multiplied whenever s moves
(`momentum_scale`). `hvd_dynamic.schedule.DynamicSchedule` holds the position; policies hold none.

Symbols, as in Dynamic Mini-batch SGD (arXiv 1904.12043): B the global batch in samples, B_ref the
reference batch, k = B / B_ref, s the factor on the base learning rate, rho the factor on the
momentum buffer v of the MXNet form ``v <- m rho v + lr g; w <- w - v``.

To add a policy, write one subclass of `Policy`; nothing else changes.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

__all__ = ['Policy', 'FixedGlobalBatch', 'Linear', 'LinearUncorrected', 'Smooth', 'Compensated',
           'SmoothCompensated', 'AdaScale', 'POLICIES', 'get']

SCALINGS = ('auto', 'linear', 'sqrt')


def _check_updates(updates):
    if updates is None:
        return
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < 1:
        raise ValueError(f'updates must be an integer of at least 1, or None for 8 x the ratio of the '
                         f'batch sizes, got {updates!r}')


@dataclass(frozen=True)
class Policy:
    """Base of all policies: s goes to the target at once, the momentum is corrected.

    Parameters
    ----------
    scaling : {'auto', 'linear', 'sqrt'}, default 'auto'
        ``linear``: the target of s is k; ``sqrt``: it is the square root of k. ``auto`` takes what the
        optimizer calls for: square root for Adam and its like, linear for all others.

    Raises
    ------
    ValueError
        If `scaling` is none of the three.
    """

    scaling: str = 'auto'

    #: The global batch stays at the reference batch; the local batches follow the world size.
    fixed_global_batch = False
    #: The first batch of a training counts as a change from the reference batch.
    ramp_at_start = False
    #: The target depends on the gradient noise scale, and is asked for anew in every update.
    follows_noise = False

    def __post_init__(self):
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, got {self.scaling!r}")

    def target(self, k, default_scaling='linear'):
        """Where s has to go: ``k`` or ``sqrt(k)``.

        Parameters
        ----------
        k : float
            Global batch over reference batch, > 0.
        default_scaling : {'linear', 'sqrt'}
            What ``scaling='auto'`` means for the optimizer in use.

        Returns
        -------
        float

        Examples
        --------
        >>> Linear().target(4.0), Linear(scaling='sqrt').target(4.0)
        (4.0, 2.0)
        """
        scaling = default_scaling if self.scaling == 'auto' else self.scaling
        return math.sqrt(k) if scaling == 'sqrt' else float(k)

    def transition_updates(self, ratio, global_batch=None):
        """In how many updates s moves to its target.

        Parameters
        ----------
        ratio : float
            New global batch over old global batch, > 0.
        global_batch : int, optional
            The new global batch, in samples; needed by transitions whose length is given in samples.

        Returns
        -------
        int
            At least 1; 1 means at once, with the first update after the resize.
        """
        return 1

    def ramp(self, start, target, done, updates):
        """s in update number `done` (1, 2, ..., `updates`) of a transition from `start` to `target`.

        Equal steps; the last one is `target` to the last digit.
        """
        if done >= updates:
            return target
        return start + (target - start) * done / updates

    def momentum_scale(self, old, new):
        """rho, the factor on the momentum buffer just before an update in which s goes from `old` to `new`.

        The default is the momentum correction ``new / old`` of Goyal et al. (arXiv 1706.02677): with it the
        MXNet form of momentum SGD does what the textbook form does.
        """
        return new / old


@dataclass(frozen=True)
class FixedGlobalBatch(Policy):
    """The global batch stays at the reference batch whatever the world size: s = 1, rho = 1.

    The local batches shrink or grow instead; the model sees the very updates of a run that never
    resized, up to the order of float sums. The other approach discussed in arXiv 1904.12043.

    Parameters
    ----------
    max_local_batch : int, optional
        The most samples a worker computes in one pass, >= 1. A larger local batch is done in several passes
        whose gradients are summed: still one update. Default: no limit.

    Raises
    ------
    ValueError
        If `max_local_batch` is not a positive integer.

    Examples
    --------
    >>> policy = FixedGlobalBatch(max_local_batch=64)
    >>> policy.target(0.25), policy.momentum_scale(1.0, 1.0)
    (1.0, 1.0)
    """

    max_local_batch: int | None = None
    fixed_global_batch = True

    def __post_init__(self):
        super().__post_init__()
        limit = self.max_local_batch
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f'max_local_batch must be a positive integer or None for no limit, got {limit!r}')

    def target(self, k, default_scaling='linear'):
        return 1.0


@dataclass(frozen=True)
class Linear(Policy):
    """s = target at once, with momentum correction: the baseline that arXiv 1904.12043 finds wanting.

    Examples
    --------
    >>> Linear().transition_updates(16.0), Linear().momentum_scale(1.0, 16.0)
    (1, 16.0)
    """


@dataclass(frozen=True)
class LinearUncorrected(Policy):
    """s = target at once, rho = 1: what an MXNet script does that only sets a new learning rate.

    Examples
    --------
    >>> LinearUncorrected().momentum_scale(1.0, 16.0)
    1.0
    """

    def momentum_scale(self, old, new):
        return 1.0


@dataclass(frozen=True)
class Smooth(Policy):
    """Dynamic SGD (arXiv 1904.12043), the default: s walks to its target in T equal steps, momentum corrected.

    Update i after a change of the batch by the ratio r has ``s = s_old (1 + i (r - 1) / T)``, i = 1 .. T.
    By default ``T = 8 r``, rounded, at least 1: a 16-fold growth takes 128 updates, a 16-fold shrink is
    immediate. (A fixed long T is dangerous on a shrink: the learning rate stays too high for the batch.)

    Parameters
    ----------
    updates : int, optional
        T, the length of a transition in updates, >= 1. Default: 8 x new batch / old batch.
    samples : int, optional
        The length of a transition in samples, >= 1, in place of `updates`: the same progress whatever the batch.
    ramp_at_start : bool, default False
        Have a training that begins with another batch than the reference batch begin with s = 1, as if it had been
        resized: a warm-up of Goyal et al. (arXiv 1706.02677) whose length follows the batch. For base schedules that
        have no warm-up of their own.

    Raises
    ------
    ValueError
        If `updates` or `samples` is not a positive integer, or both are given.

    Examples
    --------
    >>> Smooth().transition_updates(16.0), Smooth().transition_updates(1 / 16)
    (128, 1)
    >>> Smooth(samples=1000).transition_updates(16.0, global_batch=256)
    4
    >>> [Smooth().ramp(1.0, 2.0, i, 4) for i in (1, 2, 3, 4)]
    [1.25, 1.5, 1.75, 2.0]
    """

    updates: int | None = None
    samples: int | None = None
    ramp_at_start: bool = False

    def __post_init__(self):
        super().__post_init__()
        _check_updates(self.updates)
        if not isinstance(self.ramp_at_start, bool):
            raise ValueError(f'ramp_at_start must be True or False, got {self.ramp_at_start!r}')
        samples = self.samples
        if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
            raise ValueError(f'samples must be a positive integer, the length of a transition, got {samples!r}')
        if samples is not None and self.updates is not None:
            raise ValueError(f'updates={self.updates} and samples={samples} are both given; a transition has one length')

    def transition_updates(self, ratio, global_batch=None):
        if self.samples is not None:
            return max(1, math.ceil(self.samples / global_batch))
        return self.updates if self.updates is not None else max(1, round(8 * ratio))


@dataclass(frozen=True)
class Compensated(Policy):
    """s = target at once; ``rho = min(1, s_new / s_old)``.

    Old noise is never amplified when the batch grows, and is damped with the learning rate when it shrinks.
    Safe on a quadratic without a ramp; not on real networks with a large learning rate (docs/policies.md).

    Examples
    --------
    >>> Compensated().momentum_scale(1.0, 4.0), Compensated().momentum_scale(4.0, 1.0)
    (1.0, 0.25)
    """

    def momentum_scale(self, old, new):
        return min(1.0, new / old)


@dataclass(frozen=True)
class SmoothCompensated(Smooth):
    """The ramp of `Smooth` with the momentum factor of `Compensated`.

    Examples
    --------
    >>> policy = SmoothCompensated(updates=32)
    >>> policy.transition_updates(4.0), policy.momentum_scale(1.0, 1.1)
    (32, 1.0)
    """

    def momentum_scale(self, old, new):
        return min(1.0, new / old)


@dataclass(frozen=True)
class AdaScale(Policy):
    """AdaScale SGD (arXiv 2007.05105): s is the gain, by how much a larger batch makes an update better.

    With the gradient noise scale phi (measured by `DynamicTrainer`, in samples) the gain is
    ``(phi / B_ref + 1) / (phi / B + 1)``: near k while noise dominates, near 1 once the batch is large
    enough that noise does not matter. It is worked out anew in every update, and the momentum corrected.
    Until phi is known s is min(1, k). Progress stays samples seen; the paper's own count, in which an update
    advances the schedule by its gain, would make a training with large batches use more samples.

    Examples
    --------
    >>> AdaScale().target(16.0, noise=1.0), AdaScale().target(16.0, noise=1e9) > 15.99
    (1.8823529411764706, True)
    >>> AdaScale().target(16.0), AdaScale().target(0.5)
    (1.0, 0.5)
    """

    follows_noise = True

    def target(self, k, default_scaling='linear', noise=None):
        """The gain.

        Parameters
        ----------
        k : float
            Global batch over reference batch, > 0.
        default_scaling : str
            Without effect.
        noise : float, optional
            The noise scale over the reference batch, >= 0, also inf.

        Returns
        -------
        float
            From 1 to k.
        """
        if noise is None:
            return min(1.0, k)
        if math.isinf(noise):
            return float(k)
        return k * (noise + 1) / (noise + k)


#: Every policy by the name that command lines use.
POLICIES = {'smooth': Smooth, 'linear': Linear, 'linear-uncorrected': LinearUncorrected,
            'compensated': Compensated, 'smooth-compensated': SmoothCompensated,
            'fixed-global-batch': FixedGlobalBatch, 'adascale': AdaScale}


def get(name, **arguments):
    """The policy of this name.

    Parameters
    ----------
    name : str
        A key of `POLICIES`.
    **arguments
        Passed to the policy's constructor.

    Raises
    ------
    ValueError
        If there is no such policy, or it has no such argument.

    Examples
    --------
    >>> get('smooth', updates=16)
    Smooth(scaling='auto', updates=16, samples=None, ramp_at_start=False)
    """
    if name not in POLICIES:
        close = difflib.get_close_matches(str(name), POLICIES, n=1)
        hint = f' (did you mean {close[0]!r}?)' if close else ''
        raise ValueError(f"policy must be one of {', '.join(sorted(POLICIES))}, got {name!r}{hint}")
    policy = POLICIES[name]
    unknown = sorted(set(arguments) - set(policy.__dataclass_fields__))
    if unknown:
        raise ValueError(f"policy {name!r} has no argument {unknown[0]!r}; "
                         f"it has {', '.join(policy.__dataclass_fields__)}")
    return policy(**arguments)
