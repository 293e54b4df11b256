"""DynamicSchedule: the base learning rate by samples seen, times the policy's factor."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from numbers import Integral

from .policies import Policy, Smooth

__all__ = ['DynamicSchedule', 'Decision']


@dataclass(frozen=True)
class Decision:
    """What one update uses: ``lr = base_lr * lr_scale``, and the factor on the momentum buffer before it."""

    lr: float
    lr_scale: float
    momentum_scale: float


class DynamicSchedule:
    """A learning rate schedule that survives changes of the global batch (arXiv 1904.12043).

    Progress is samples, not updates: the base schedule is read at ``samples_seen / reference_batch``, where
    `samples_seen` counts the samples of all updates before this one. So a resize neither stretches nor
    shortens it. The policy's scale s multiplies what was read.

    Parameters
    ----------
    base : float, mx.lr_scheduler.LRScheduler or callable
        The learning rate for an update of `reference_batch` samples. A float is constant. An LRScheduler (any,
        with its own warm-up) counts in updates of `reference_batch` samples. Any other callable is a function of
        epochs, a float: ``lr = base(samples_seen / samples_per_epoch)``.
    reference_batch : int
        The global batch, in samples, for which `base` was tuned. >= 1.
    policy : Policy, default Smooth()
        How the scale follows the batch.
    samples_per_epoch : int, optional
        Needed only for a function of epochs; `GluonState` fills in the length of the data set.

    Raises
    ------
    TypeError, ValueError
        For a base that is none of the three, a learning rate that is not a finite positive number,
        a reference batch that is not a positive integer, a policy that is none.

    Examples
    --------
    Reference batch 64; the job starts with 64 samples an update and grows to 128:

    >>> from hvd_dynamic import policies
    >>> schedule = DynamicSchedule(0.1, reference_batch=64, policy=policies.Smooth(updates=2))
    >>> schedule.set_global_batch(64)
    >>> schedule.advance(64)
    Decision(lr=0.1, lr_scale=1.0, momentum_scale=1.0)
    >>> schedule.set_global_batch(128)
    >>> [schedule.advance(128).lr_scale for _ in range(3)]
    [1.5, 2.0, 2.0]
    """

    def __init__(self, base, reference_batch, policy=None, samples_per_epoch=None):
        if isinstance(reference_batch, bool) or not isinstance(reference_batch, Integral) or reference_batch < 1:
            raise ValueError(f'reference_batch must be a positive integer, the global batch (in samples) for which '
                             f'the base schedule was tuned, got {reference_batch!r}')
        policy = Smooth() if policy is None else policy
        if not isinstance(policy, Policy):
            raise TypeError(f'policy must be a policy object such as hvd_dynamic.policies.Smooth(), got {policy!r}')
        self._kind = _kind_of(base)
        # MXNet's schedulers change when they are asked: this one is asked by nobody else, and kept as it was given.
        self._base = copy.deepcopy(base) if self._kind == 'updates' else base
        self.reference_batch = int(reference_batch)
        self.policy = policy
        self.samples_per_epoch = samples_per_epoch
        self.default_scaling = 'linear'
        self._live = copy.deepcopy(self._base) if self._kind == 'updates' else None
        self._global_batch = None
        self._samples = 0
        self._scale = None
        self._start = self._target = None
        self._done = self._updates = 0
        #: The gradient noise scale in samples as measured by the trainer; None while it is not known.
        self.noise_scale = None

    def describe_base(self):
        """The base schedule as text, equal on workers that were given the same one."""
        if self._kind == 'constant':
            return repr(float(self._base))
        name = getattr(self._base, '__qualname__', type(self._base).__qualname__)
        if self._kind == 'epochs':
            return name
        numbers = {k: v for k, v in sorted(vars(self._base).items()) if isinstance(v, (int, float, str, list, tuple))}
        return f'{name} {numbers}'

    @property
    def samples_seen(self):
        """Samples in all updates so far, over all workers."""
        return self._samples

    @property
    def lr_scale(self):
        """s of the last update (or of the first one, before it)."""
        return self._scale

    @property
    def global_batch(self):
        """The nominal global batch last told, in samples; None before the first."""
        return self._global_batch

    @property
    def in_transition(self):
        """Whether s is still on its way after a resize."""
        return self._done < self._updates

    @property
    def target_scale(self):
        """Where s goes; equal to `lr_scale` outside of a transition."""
        return self._target if self.in_transition else self._scale

    @property
    def target_lr(self):
        """The learning rate at the present progress once a transition is over."""
        return self.base_lr() * self.target_scale

    @property
    def updates_to_target(self):
        """Updates until a transition is over; 0 outside of one."""
        return self._updates - self._done

    def set_global_batch(self, global_batch):
        """Tell the nominal global batch (a short last update of an epoch is no change of it).

        The first call sets s to its target, or to 1 and starts a transition (`Smooth(ramp_at_start=True)`); a later one
        with another value starts a transition from the present value of s, also when one is under way.

        Parameters
        ----------
        global_batch : int
            Samples over all workers in a full update.
        """
        if self._global_batch is None and self.policy.ramp_at_start:
            self._global_batch, self._scale = self.reference_batch, self._target_for(self.reference_batch)
        if self._global_batch is None:
            self._scale = self._target_for(global_batch)
        elif global_batch != self._global_batch:
            self._start = self._scale
            self._target = self._target_for(global_batch)
            self._done = 0
            self._updates = self.policy.transition_updates(global_batch / self._global_batch, global_batch)
        self._global_batch = global_batch

    def _target_for(self, global_batch):
        k = global_batch / self.reference_batch
        if self.policy.follows_noise:
            noise = self.noise_scale
            return self.policy.target(k, self.default_scaling, None if noise is None else noise / self.reference_batch)
        return self.policy.target(k, self.default_scaling)

    def base_lr(self, samples=None):
        """The base schedule, before the policy's scale, when `samples` have been seen (default: as many as there were)."""
        samples = self._samples if samples is None else samples
        if self._kind == 'constant':
            return float(self._base)
        if self._kind == 'updates':
            return _checked_lr(_read(self._live, samples / self.reference_batch), self._base)
        if not self.samples_per_epoch:
            raise ValueError('samples_per_epoch is not known: a base schedule that is a function of epochs needs '
                             'DynamicSchedule(..., samples_per_epoch=N), or a GluonState with a sampler')
        return _checked_lr(self._base(samples / self.samples_per_epoch), self._base)

    def advance(self, samples):
        """The decision for the update at hand, which uses `samples` samples; then count it.

        Returns
        -------
        Decision
        """
        if self._scale is None:
            raise RuntimeError('set_global_batch() has not been called yet')
        previous = self._scale
        if self.policy.follows_noise:
            self._target = self._target_for(self._global_batch)
        if self.in_transition:
            self._done += 1
            self._scale = self.policy.ramp(self._start, self._target, self._done, self._updates)
        elif self.policy.follows_noise:
            self._scale = self._target
        rho = 1.0 if self._scale == previous else self.policy.momentum_scale(previous, self._scale)
        decision = Decision(self.base_lr() * self._scale, self._scale, rho)
        self._samples += samples
        return decision

    def state_dict(self):
        """The position, as JSON values."""
        return {'samples': self._samples, 'global_batch': self._global_batch, 'scale': self._scale,
                'start': self._start, 'target': self._target, 'done': self._done, 'updates': self._updates}

    def load_state_dict(self, state):
        """Take up the position of another schedule of the same arguments."""
        self._samples, self._global_batch = state['samples'], state['global_batch']
        self._scale, self._start, self._target = state['scale'], state['start'], state['target']
        self._done, self._updates = state['done'], state['updates']
        # MXNet's schedulers remember what they were asked; a fresh copy makes all workers read alike from here on.
        if self._kind == 'updates':
            self._live = copy.deepcopy(self._base)


def _kind_of(base):
    if isinstance(base, (int, float)) and not isinstance(base, bool):
        _checked_lr(base, base)
        return 'constant'
    if callable(base):
        # An LRScheduler, told by its attribute: this module imports no MXNet.
        return 'updates' if hasattr(base, 'base_lr') else 'epochs'
    raise TypeError(f'base must be a learning rate (a number), an mx.lr_scheduler.LRScheduler or a function of '
                    f'epochs, got {base!r}')


def _read(scheduler, updates):
    # Poly and cosine schedulers keep the last rate they computed once they are past `max_update`; one that was never
    # asked before (a newcomer's) would answer with its initial rate there. At `max_update` all give the final rate.
    end = getattr(scheduler, 'max_update', None)
    return scheduler(updates if end is None else min(updates, end))


def _checked_lr(lr, base):
    try:
        lr = float(lr)
    except (TypeError, ValueError):
        raise TypeError(f'base schedule {base!r} returned {lr!r}; it must return a learning rate, a number') from None
    if not math.isfinite(lr) or lr < 0:
        raise ValueError(f'the base learning rate must be finite and not negative, got {lr!r} from {base!r}')
    return lr
