"""worker.py, on workers that are held up, differ from the others, checkpoint, or die at the worst moment."""

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

SLOT = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"

hold = Path(os.environ['JOB_DIR'], f'hold-{SLOT}')
while hold.exists():
    time.sleep(0.05)

if os.environ.get('DIE_AT_START') == SLOT:
    sys.exit('dies at its start')

if os.environ.get('MISFIT_SLOT') == SLOT:
    os.environ['HIDDEN'] = '13'

if os.environ.get('DIE_IN_INIT') == SLOT:
    from hvd_dynamic.world import hvd
    initialise, calls = hvd.initialise, []

    def die(*args):
        calls.append(1)
        if len(calls) == 2:         # the first one is the start of the job
            threading.Timer(float(os.environ['DIE_AFTER']), os.kill, (os.getpid(), signal.SIGKILL)).start()
        return initialise(*args)
    hvd.initialise = die

if SLOT in os.environ.get('STUCK', '').split():
    from hvd_dynamic import errors
    from hvd_dynamic.world import hvd

    def check_usable():
        raise errors.HorovodStuck('as if a lock were held')
    hvd.check_usable = check_usable

if os.environ.get('CHECKPOINT_DIR'):
    import hvd_dynamic as dynamic

    class State(dynamic.GluonState):
        """Resumes as soon as it is there, as a script would."""

        def __init__(self, **arguments):
            super().__init__(checkpoint_dir=os.environ['CHECKPOINT_DIR'], **arguments)
            self.resume()
    dynamic.GluonState = State

runpy.run_path(str(Path(__file__).with_name('worker.py')), run_name='__main__')
