"""Who takes part in an update, and how they talk: `World`, with `HorovodWorld` and `VirtualWorld`.

This package and `hvd_dynamic.errors` are the only modules that import Horovod.
"""

from .base import Member, WorkerRemoved, World
from .virtual import VirtualWorld

__all__ = ['World', 'VirtualWorld', 'HorovodWorld', 'Member', 'WorkerRemoved', 'default_world']


def __getattr__(name):
    # Plain `python train.py` never needs Horovod, so it is imported only on demand.
    if name == 'HorovodWorld':
        from .hvd import HorovodWorld
        return HorovodWorld
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def default_world():
    """`HorovodWorld` in a process that a launcher started (horovodrun, mpirun), else a `VirtualWorld` of size 1."""
    import os
    launchers = ('HOROVOD_RANK', 'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK')
    if any(name in os.environ for name in launchers):
        from .hvd import HorovodWorld
        return HorovodWorld()
    return VirtualWorld(1)
