"""Run a training script as the workers of a trace would, in one process: ``hvd-dynamic simulate``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from . import elastic, traces
from .errors import SetupError
from .world import VirtualWorld

__all__ = ['simulate']


def simulate(trace, command):
    """Run a script on a `VirtualWorld` that follows a trace.

    The script's own ``hvd_dynamic.init()`` keeps that world. Whatever the script raises goes through.

    Parameters
    ----------
    trace : str or Path
        A CSV file, or a run's folder.
    command : list of str
        ``script.py`` or ``-m package.module``, and its arguments.

    Returns
    -------
    int
        0, or 2 with a message if arguments and world sizes do not fit together.

    Raises
    ------
    ValueError, OSError
        If the trace or the script cannot be used.
    """
    sizes = traces.of_run(trace) if Path(trace).is_dir() else traces.read(trace)
    is_module = command[:1] == ['-m']
    target = command[int(is_module):][:1]
    if not target:
        raise ValueError(f'{"-m needs a module" if is_module else "a script is needed"} after the trace, such as '
                         f'hvd-dynamic simulate {trace} train.py --epochs 3')
    if not is_module and not Path(target[0]).is_file():
        raise ValueError(f'there is no script {target[0]!r}; give its path, or -m and the name of a module')
    world = VirtualWorld(trace=sizes)
    elastic.preset(world)
    sys.argv = command[int(is_module):]
    # As Python itself does: modules beside the script, or in the working directory, can be imported.
    sys.path[0] = os.getcwd() if is_module else str(Path(target[0]).resolve().parent)
    try:
        if is_module:
            runpy.run_module(target[0], run_name='__main__', alter_sys=True)
        else:
            runpy.run_path(target[0], run_name='__main__')
    except SetupError as error:
        print(f'hvd-dynamic simulate: {error}', file=sys.stderr)
        return 2
    if world.generation == 0:
        raise ValueError(f'{target[0]} has trained nothing with hvd_dynamic: is its training function decorated with '
                         f'hvd_dynamic.run?')
    here = sizes.position(*world.position())
    later = [at for at, _ in sizes.points if at > here]
    if later:
        print(f'hvd-dynamic simulate: training ended at {here:g} {sizes.unit}, before the {len(later)} later change'
              f'{"s" * (len(later) > 1)} of the trace (the next one at {later[0]:g})', file=sys.stderr)
    return 0
