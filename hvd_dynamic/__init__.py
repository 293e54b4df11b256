"""Elastic Gluon training with Horovod: workers join and leave, nothing restarts.

The five lines that change in a Gluon + Horovod script are in the README. Names are loaded when they are first used, so
that `hvd-dynamic doctor` works where MXNet or Horovod do not.
"""

from importlib import import_module

from .version import __version__

_WHERE = {
    'init': 'elastic', 'run': 'elastic', 'rank': 'elastic', 'size': 'elastic', 'local_rank': 'elastic',
    'ResizeEvent': 'elastic',
    'ElasticSampler': 'sampler', 'DynamicSchedule': 'schedule', 'DynamicTrainer': 'trainer', 'GluonState': 'state',
    'RunLog': 'runlog', 'SeededDataset': 'seededdataset', 'SetupError': 'errors',
    'World': 'world', 'VirtualWorld': 'world', 'HorovodWorld': 'world',
}

__all__ = ['__version__', 'policies', 'adaptive', *_WHERE]


def __getattr__(name):
    if name in ('policies', 'adaptive'):
        return import_module('.' + name, __name__)
    if name in _WHERE:
        return getattr(import_module('.' + _WHERE[name], __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
    return sorted(__all__)
