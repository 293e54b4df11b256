"""A process that cannot go on has another take its place: same process id, same script, and the last commit.

The workers that were together when one was lost, in the one moment in which Horovod cannot get over it
(`hvd_dynamic.world.starting`), would otherwise all be lost with it.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

from . import checkpoint, checkpointfile

__all__ = ['hand_over', 'take_over']

log = logging.getLogger('hvd_dynamic')

_FOLDER = 'HVD_DYNAMIC_HANDOVER'


def hand_over(world, state, begun):
    """Begin this process's script anew, in this process, with the last commit. Does not return.

    Parameters
    ----------
    world : HorovodWorld
    state : GluonState
    begun : int
        The last update that this worker had begun.
    """
    folder = Path(tempfile.mkdtemp(prefix='hvd_dynamic-'))
    if state._committed is not None:
        checkpointfile.write(folder / 'commit', *checkpoint.snapshot(state))
        (folder / 'members').write_text(json.dumps([state._old_members, state._worlds, begun]))
        if state._run_log is not None:
            (folder / 'log').write_bytes(state._run_log.pack())
    log.warning('%s begins its script anew, with the last commit: a worker was lost in a moment at which Horovod cannot be '
                'started again', world.member.slot)
    for child in multiprocessing.active_children():      # those of data loaders
        child.kill()
    environment = {**world.replacement(), _FOLDER: str(folder)}
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.closerange(3, os.sysconf('SC_OPEN_MAX'))         # the connections to the others, too
    os.execve(sys.executable, sys.orig_argv, environment)


def take_over(state):
    """Take up what the process had that this one takes the place of.

    Returns
    -------
    int
        The last update that it had begun; 0 if there was none.
    """
    folder = os.environ.pop(_FOLDER, None)
    if folder is None:
        return 0
    folder = Path(folder)
    begun = 0
    try:
        if (folder / 'members').exists():
            state._old_members, state._worlds, begun = json.loads((folder / 'members').read_text())
            with checkpointfile.CheckpointFile(folder / 'commit') as file:
                checkpoint.load(state, file)
            if state._run_log is not None:
                state._run_log.unpack((folder / 'log').read_bytes())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return begun
