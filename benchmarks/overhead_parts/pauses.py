"""A worker that notes when its updates are done: ``python -m benchmarks.overhead_parts.pauses``, in jobs whose hosts change.

Each process writes ``notes-PID.jsonl``: a line for its start, for each update, and for each part of a resize, with the
system's monotonic time, which all processes of a machine share. `benchmarks.overhead_parts.changing` starts it.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import psutil
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from hvd_dynamic import elastic
from hvd_dynamic.world import hvd as horovod_world

_SEED = 5
_LAYERS = 4
_BATCH, _SAMPLES = 4, 1024
# An update waits this long, as for a device that computes. Workers that fill two cores by themselves would measure how they
# and a newcomer that starts fight for these, which on machines of their own they do not.
_DEVICE_SECONDS = 0.05


class Notes:
    """The file of this process.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder):
        # Each line goes to the system at once: the process may be killed.
        self._file = open(folder / f'notes-{os.getpid()}.jsonl', 'a', buffering=1)

    def add(self, kind, **fields):
        """Write a line."""
        self._file.write(json.dumps({'kind': kind, 'time': time.monotonic(), 'pid': os.getpid(), **fields}) + '\n')

    def timed(self, kind, function):
        """`function`, with a line for each call when it ends, also by an exception."""
        def wrapper(*arguments, **keywords):
            start = time.monotonic()
            try:
                return function(*arguments, **keywords)
            finally:
                self.add(kind, seconds=time.monotonic() - start)
        return wrapper


class NoteFailures(logging.Handler):
    """Notes the moment at which hvd_dynamic finds that a collective has failed."""

    def __init__(self, notes):
        super().__init__(logging.DEBUG)
        self._notes = notes

    def emit(self, record):
        if record.msg.startswith('a collective failed'):
            self._notes.add('failed')


def network(parameters):
    """A few dense layers of about so many parameters, and their width."""
    width = round((parameters / _LAYERS) ** 0.5)
    net = gluon.nn.HybridSequential()
    net.add(*(gluon.nn.Dense(width, in_units=width, use_bias=False) for _ in range(_LAYERS)))
    return net, width


def time_parts(notes):
    """Have the parts of a resize noted."""
    world = dynamic.elastic.current_world()
    world.join, world.leave = notes.timed('join', world.join), notes.timed('leave', world.leave)
    horovod_world.initialise = notes.timed('init', horovod_world.initialise)
    elastic.synchronise = notes.timed('sync', elastic.synchronise)
    dynamic.GluonState.begin_round = notes.timed('commit', dynamic.GluonState.begin_round)
    dynamic.GluonState.restore = notes.timed('restore', dynamic.GluonState.restore)


def main():
    """Train until the job is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument('parameters', type=int)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--checkpoints', action='store_true')
    args = parser.parse_args()
    startup = json.loads((args.folder / 'startup.json').read_text())
    notes = Notes(args.folder)
    slot = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"
    age = time.time() - psutil.Process().create_time()
    notes.add('start', slot=slot, age=age)
    time.sleep(startup['before'])           # slow imports
    shown, log = logging.StreamHandler(), logging.getLogger('hvd_dynamic')
    shown.setLevel(logging.INFO)
    log.addHandler(shown)
    log.addHandler(NoteFailures(notes))
    log.setLevel(logging.DEBUG)
    dynamic.init()
    time.sleep(startup['after'])            # data that are slow to open

    mx.random.seed(_SEED)
    net, width = network(args.parameters)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    data = mx.nd.array(np.random.RandomState(_SEED).randn(_SAMPLES, width).astype('float32'))
    loss_fn = gluon.loss.L2Loss()
    sampler = dynamic.ElasticSampler(_SAMPLES, batch_size=_BATCH, seed=_SEED)
    schedule = dynamic.DynamicSchedule(1e-4, reference_batch=2 * _BATCH)
    trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', {'momentum': 0.9}, schedule=schedule)
    checkpoints = {'checkpoint_dir': args.folder / 'checkpoints'} if args.checkpoints else {}
    state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0, **checkpoints)
    if args.checkpoints:
        state.resume()
    time_parts(notes)
    notes.add('ready', parameters=_LAYERS * width ** 2, age=time.time() - psutil.Process().create_time())

    @dynamic.run
    def train(state):
        while True:
            for indices in sampler:
                batch = data[indices]
                with autograd.record():
                    loss = loss_fn(net(batch), batch)
                loss.backward()
                mx.nd.waitall()
                time.sleep(_DEVICE_SECONDS)
                trainer.step(len(indices))
                loss.asnumpy()
                mx.nd.waitall()             # now the update is done, its allreduce included
                notes.add('update', update=state.updates, size=dynamic.size(), rank=dynamic.rank())
                state.commit()
            state.epoch += 1

    train(state)


if __name__ == '__main__':
    main()
