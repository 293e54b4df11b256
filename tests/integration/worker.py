"""A small Gluon training script with the five lines, for the integration tests.

Its knobs are environment variables. In the middle of a job it is told things by files in the job's folder:

- `hold-start`, `hold-build`: a worker waits before its imports, or after `dynamic.init()`, until the file is gone
- `raise`, `raise-in-callback`: the worker in the slot that is the file's text raises RuntimeError (`all`: all workers)
- `stop`: with UNTIL_STOPPED=1 training ends after the epoch that it is in

ACTIVATION=tanh: for losses that are compared between runs whose sums differ in the last digit: at the corner of relu such a
difference becomes a large one.
REJOIN=n: in place of training the worker enters and leaves the world n times.
"""

import hashlib
import json
import logging
import os
import sys
import threading
import time

JOB_DIR, RUN_DIR = os.environ.get('JOB_DIR'), os.environ['RUN_DIR']
SLOT = f"{os.environ.get('HOROVOD_HOSTNAME', 'alone')}:{os.environ.get('HOROVOD_LOCAL_RANK', 0)}"


def report(kind, **fields):
    os.makedirs(RUN_DIR, exist_ok=True)
    with open(os.path.join(RUN_DIR, f"report-{SLOT.replace(':', '-')}.jsonl"), 'a') as file:
        file.write(json.dumps({'kind': kind, 'time': time.time(), 'slot': SLOT, 'pid': os.getpid(), **fields}) + '\n')


def told(name):
    """The text of a file in the job's folder; None if it is not there."""
    try:
        with open(os.path.join(JOB_DIR, name)) as file:
            return file.read()
    except (FileNotFoundError, TypeError):
        return None


def hold(place):
    if told(f'hold-{place}') is not None:
        report('held', place=place)
        while told(f'hold-{place}') is not None:
            time.sleep(0.05)


hold('start')

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

import hvd_dynamic as dynamic  # noqa: E402

logging.basicConfig(level=os.environ.get('LOG_LEVEL', 'INFO'), format='%(name)s: %(message)s')


def knob(name, default):
    value = os.environ.get(name)
    return default if value is None else type(default)(value)


EPOCHS = knob('EPOCHS', 3)
SAMPLES = knob('SAMPLES', 203)
PAUSE = knob('PAUSE', 0.02)             # seconds an update, so that events can be timed
COMMIT_EVERY = knob('COMMIT_EVERY', 1)
OPTIMIZER = json.loads(knob('OPTIMIZER', '["sgd", {"momentum": 0.9, "wd": 0.001}]'))
POLICY = json.loads(knob('POLICY', '["smooth", {"updates": 4}]'))
REFERENCE = knob('REFERENCE', 16)
DTYPE = knob('DTYPE', 'float32')
ACTIVATION = knob('ACTIVATION', 'relu')

dynamic.init()
hold('build')

rng = np.random.RandomState(7)
X = rng.randn(SAMPLES, 1, 8, 8).astype('float32')
Y = (X[:, 0, :4].sum((1, 2)) > X[:, 0, 4:].sum((1, 2))).astype('float32')
dataset = gluon.data.ArrayDataset(X, Y)


class Products(gluon.HybridBlock):
    """A linear layer of elementwise operations: MXNet has no float16 matrix product on CPUs."""

    def __init__(self, outputs):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(1, outputs, 64))

    def hybrid_forward(self, F, x, weight):
        return F.sum(F.broadcast_mul(x.reshape((0, 1, -1)), weight), axis=2)


for _ in range(dynamic.rank()):
    gluon.nn.Dense(3)                   # names of layers differ between workers, as they may
net = gluon.nn.HybridSequential()
if DTYPE == 'float16':
    net.add(Products(2))
elif knob('BATCHNORM', 1):
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation(ACTIVATION))
if DTYPE == 'float32':
    net.add(gluon.nn.Dense(16, activation=ACTIVATION))
    if knob('SHARED', 0):
        twin = gluon.nn.Dense(16, activation=ACTIVATION, in_units=16)
        net.add(twin, gluon.nn.Dense(16, activation=ACTIVATION, in_units=16, params=twin.params))
    net.add(gluon.nn.Dense(knob('HIDDEN', 12) + knob('MISMATCH', 0) * dynamic.rank()))
    net.add(gluon.nn.Dense(2))
mx.random.seed(11 + dynamic.rank())     # workers start from different weights and must come to the same
net.initialize(mx.init.Xavier())
if knob('FREEZE', 0):
    net[-1].bias.grad_req = 'null'
if knob('HYBRIDIZE', 1):
    net.hybridize()
net.cast(DTYPE)

sampler = dynamic.ElasticSampler(len(dataset), batch_size=knob('BATCH', 4), seed=1)
loader = gluon.data.DataLoader(dataset, batch_sampler=sampler, num_workers=knob('LOADERS', 0))
updates = max(1, EPOCHS * SAMPLES // REFERENCE)
base = {'constant': 0.05, 'cosine': mx.lr_scheduler.CosineScheduler(updates, 0.05, 0.001, warmup_steps=updates // 10),
        'epochs': lambda epoch: 0.05 * 0.9 ** epoch}[knob('BASE', 'constant')]
schedule = dynamic.DynamicSchedule(base, REFERENCE, policy=dynamic.policies.get(POLICY[0], **POLICY[1]))
trainer = dynamic.DynamicTrainer(net.collect_params(), OPTIMIZER[0], OPTIMIZER[1], schedule=schedule)
log = dynamic.RunLog(RUN_DIR, audit_samples=True)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=log, epoch=0, seen=0,
                           table=np.zeros(3), array=mx.nd.zeros((2,)))
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


def digest():
    arrays = [p.data() for p in net.collect_params().values() if p._data is not None] + trainer.state_arrays()
    hasher = hashlib.sha256(b''.join(a.asnumpy().tobytes() for a in arrays))
    hasher.update(json.dumps(trainer.state_dict(), sort_keys=True).encode())
    hasher.update(json.dumps([state.seen, state.table.tolist(), state.array.asnumpy().tolist(), state.epoch]).encode())
    return hasher.hexdigest()


state.register_callback(lambda event: report('resize', old_size=event.old_size, new_size=event.new_size, added=event.added,
                                             removed=event.removed, update=event.update, pause=event.pause_seconds,
                                             epoch=event.epoch, trained_epoch=state.epoch, failed=event.failed,
                                             rolled_back=event.rolled_back_updates, lr=event.lr,
                                             global_batch=event.global_batch))
state.register_callback(lambda event: raise_if_told('raise-in-callback'))


def raise_if_told(name):
    if told(name) in (SLOT, 'all'):
        raise RuntimeError(f'{name} on {SLOT}')


def resources():
    """What this process holds of the system's: open files by kind, threads, resident bytes."""
    kinds = []
    for descriptor in os.listdir('/proc/self/fd'):
        try:
            kinds.append(os.readlink(f'/proc/self/fd/{descriptor}').split(':')[0].split('[')[0])
        except OSError:
            continue        # that of the listing itself
    with open('/proc/self/statm') as file:
        resident = int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
    return {'files': {kind: kinds.count(kind) for kind in set(kinds)}, 'threads': len(os.listdir('/proc/self/task')),
            'names': sorted(t.name for t in threading.enumerate()), 'resident': resident}


def stopped():
    """Whether the test has asked for the end; all workers get the same answer."""
    return knob('UNTIL_STOPPED', 0) and state.world.allreduce_sum([int(told('stop') is not None)])[0] > 0


@dynamic.run
def train(state):
    report('entered', digest=digest(), update=state.updates, rank=dynamic.rank(), size=dynamic.size(), **resources())
    for state.epoch in range(state.epoch, EPOCHS):
        if stopped():
            break
        for data, label in loader:
            raise_if_told('raise')
            data, label = data.as_in_context(mx.cpu()).astype(DTYPE), label.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_fn(net(data).astype('float32'), label)
            loss.backward()
            trainer.step(len(data), loss=loss)
            if PAUSE:
                time.sleep(PAUSE if told('slow') is None else 0.4)
            if not trainer.in_update:
                state.seen += 1
                state.table = state.table + 1
                state.array += 1
                if state.updates % COMMIT_EVERY == 0:
                    state.commit()
            else:
                state.commit()
    return state.updates


if knob('REJOIN', 0):
    world = dynamic.elastic.current_world()
    for turn in range(knob('REJOIN', 0)):
        world.join()
        assert world.allreduce_sum(np.ones(100000, 'float32')).min() == world.size
        world.barrier()
        report('rejoined', turn=turn, **resources())
        world.leave()
    sys.exit()

done = train(state)
if knob('SAVE_WEIGHTS', 0) and dynamic.rank() == 0:
    np.savez(os.path.join(RUN_DIR, 'weights-final.npz'), **{
        f'{i}-{p.name.split("_", 1)[-1]}': p.data().asnumpy() for i, p in enumerate(net.collect_params().values())})
assert done == state.updates
report('end', digest=digest(), update=state.updates, samples=schedule.samples_seen, rank=dynamic.rank(), size=dynamic.size(),
       loss=float(loss_fn(net(mx.nd.array(X, dtype=DTYPE)).astype('float32'), mx.nd.array(Y)).mean().asscalar()))
sys.stdout.flush()
