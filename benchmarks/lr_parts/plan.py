"""What is compared: policies, traces, learning rates, and the order in which runs are done.

Not everything is crossed with everything. The traces that tell most are grow-shrink, random-walk and spot; there all
policies meet at 1, 2 and 4 times the reference learning rate. The other three are run at the reference only. Tasks that cost
more have fewer policies, seeds and traces.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_dynamic import policies, traces

__all__ = ['POLICIES', 'TRACES', 'STATIC', 'Run', 'Cells', 'plan']

STATIC = 'static'       # the size fixed at 8, the same for all policies
SMALLEST = 8
#: Largest world size by task. The scenes are so few that 128 workers would do two updates an epoch.
LARGEST = {'digits': 128, 'digits-bn': 128, 'detection': 64, 'segmentation': 64}
TRACES = tuple(traces.READY)


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
    'smooth-start': lambda epoch: policies.Smooth(ramp_at_start=True),
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


@dataclass(frozen=True)
class Cells:
    """Policies, traces and factors on the reference learning rate, all crossed; for seeds from 0 to `seeds` - 1."""

    policies: tuple
    traces: tuple
    factors: tuple
    seeds: int


_ALL = tuple(name for name in POLICIES if name not in ('adascale', 'smooth-start'))
_MAIN = ('fixed-global-batch', 'linear', 'linear-uncorrected', 'smooth', 'compensated')
_TELLING = ('grow-shrink', 'random-walk', 'spot')
_OTHERS = tuple(name for name in TRACES if name not in _TELLING)

#: What scenes cost, some 35 CPU-seconds a run, allows for 33 runs a seed.
_SCENES = (Cells(_MAIN, ('grow-shrink',), (1, 2, 4), 5),
           Cells(('smooth-32', 'smooth-epoch', 'smooth-compensated', 'smooth-sqrt', 'adascale'), ('grow-shrink',), (1, 4),
                 5),
           Cells(('linear', 'smooth', 'compensated', 'smooth-sqrt', 'adascale'), ('spot',), (1,), 5))

#: Linear scaling that begins with the reference batch's rate; differs from smooth where a trace begins with many workers.
_LATER = Cells(('smooth-start',), ('spot',), (1, 4), 5)

#: By task. AdaScale on digits: to measure noise each worker's batch takes a pass of its own, which is ten times the work, so
#: it has half of the seeds and the telling traces only.
DESIGN = {
    'digits': (Cells(_ALL, _TELLING, (1, 2, 4), 10), Cells(_ALL, _OTHERS, (1,), 10),
               Cells(('adascale',), _TELLING, (1, 2, 4), 5), Cells(('smooth-start',), ('spot',), (1, 2, 4), 10),
               Cells(('smooth-start',), ('shrink',), (1,), 10)),
    'digits-bn': (Cells(_MAIN, ('grow-shrink',), (1, 2, 4), 10),),
    'detection': (*_SCENES, _LATER),
    'segmentation': (*_SCENES, _LATER),
}
_QUICK = (Cells(_MAIN, ('grow-shrink',), (1,), 1),)


def plan(tasks, quick=False, names=None, seeds=None):
    """All runs: seed by seed over all tasks, so that what is done at any time is a whole comparison over some seeds.

    Parameters
    ----------
    tasks : sequence of str
    quick : bool, default False
        One seed, one trace, the reference learning rate, the most telling policies.
    names : sequence of str, optional
        Of policies; default: all.
    seeds : int, optional
        At most so many of them.

    Returns
    -------
    list of Run
    """
    parts = [(task, cells) for task in tasks for cells in (_QUICK if quick else DESIGN[task])]
    most = max(cells.seeds for _, cells in parts)
    runs = {}           # each once, in this order
    for seed in range(min(most, seeds or most)):
        for task, cells in parts:
            if seed >= cells.seeds:
                continue
            for factor in cells.factors:
                runs[Run(task, STATIC, '', factor, seed)] = None
                runs.update((Run(task, name, trace, factor, seed), None) for trace in cells.traces
                            for name in cells.policies if names is None or name in names)
    return list(runs)
