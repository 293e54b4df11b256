"""What is compared: policies, traces, learning rates, and the order in which runs are done."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_dynamic import policies, traces

__all__ = ['POLICIES', 'TRACES', 'FACTORS', 'STATIC', 'Run', 'plan']

STATIC = 'static'       # the size fixed at 8, the same for all policies
SMALLEST, LARGEST = 8, 128
TRACES = tuple(traces.READY)
FACTORS = (1, 2, 4)
#: To measure noise, each worker's batch takes a pass of its own: ten times the work, so half of the seeds.
MOST_SEEDS = {'adascale': 5}


@dataclass(frozen=True)
class Geometric(policies.Smooth):
    """As Smooth, but in steps of equal ratio: s is small for longer, and each step asks as much of the curvature."""

    def ramp(self, start, target, done, updates):
        return target if done >= updates else start * (target / start) ** (done / updates)


#: By name: a function of the samples in an epoch to a policy.
POLICIES = {
    'fixed-global-batch': lambda epoch: policies.FixedGlobalBatch(),
    'linear': lambda epoch: policies.Linear(),
    'linear-uncorrected': lambda epoch: policies.LinearUncorrected(),
    'smooth': lambda epoch: policies.Smooth(),
    'smooth-8': lambda epoch: policies.Smooth(updates=8),
    'smooth-32': lambda epoch: policies.Smooth(updates=32),
    'smooth-epoch': lambda epoch: policies.Smooth(samples=epoch),
    'compensated': lambda epoch: policies.Compensated(),
    'smooth-compensated': lambda epoch: policies.SmoothCompensated(),
    'adascale': lambda epoch: policies.AdaScale(),
    'smooth-sqrt': lambda epoch: policies.Smooth(scaling='sqrt'),
    'geometric': lambda epoch: Geometric(),
    'geometric-epoch': lambda epoch: Geometric(samples=epoch),
}


@dataclass(frozen=True)
class Run:
    """One training. With `policy` 'static' `trace` is '' and the size 8."""

    task: str
    policy: str
    trace: str
    factor: int
    seed: int


def plan(tasks, quick=False, factors=FACTORS, names=None, seeds=None):
    """All runs: seed by seed, so that what is done at any time is a whole comparison over some seeds.

    Parameters
    ----------
    tasks : list of Task
    quick : bool
        One seed, two traces, the most telling policies.
    factors : sequence of int
        Of the reference learning rate.
    names : sequence of str, optional
        Policies; default: all.
    seeds : int, optional
        In place of the tasks' own number.

    Returns
    -------
    list of Run
    """
    names = names or (('fixed-global-batch', 'linear', 'linear-uncorrected', 'smooth', 'compensated') if quick else POLICIES)
    chosen = ('grow-shrink',) if quick else TRACES
    most = max(seeds or (1 if quick else task.seeds) for task in tasks)
    runs = []
    for seed in range(most):
        for task in tasks:
            if seed >= (seeds or (1 if quick else task.seeds)):
                continue
            for factor in factors:
                runs.append(Run(task.name, STATIC, '', factor, seed))
                runs += [Run(task.name, name, trace, factor, seed) for trace in chosen for name in names
                         if seed < MOST_SEEDS.get(name, most)]
    return runs
