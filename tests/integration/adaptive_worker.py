"""A small Gluon script with `AdaptiveTrainer`, for the integration tests. Its knobs are environment variables.

The worker in the slot SLOW takes four times as long for a sample as the others. Of files in the job's folder, `hold` makes
all workers wait before their next batch, so that a test can act in the middle of a mega-batch, and `slow` slows them down.
"""

import hashlib
import json
import logging
import os
import time

JOB_DIR, RUN_DIR = os.environ['JOB_DIR'], os.environ['RUN_DIR']
SLOT = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

import hvd_dynamic as dynamic  # noqa: E402
from hvd_dynamic import adaptive  # noqa: E402

logging.basicConfig(level=os.environ.get('LOG_LEVEL', 'INFO'), format='%(name)s: %(message)s')
EPOCHS, SAMPLES = int(os.environ.get('EPOCHS', 6)), int(os.environ.get('SAMPLES', 1000))
SECONDS = float(os.environ.get('SECONDS', 0.002)) * (4 if SLOT == os.environ.get('SLOW') else 1)     # a sample


def report(kind, **fields):
    os.makedirs(RUN_DIR, exist_ok=True)
    with open(os.path.join(RUN_DIR, f"report-{SLOT.replace(':', '-')}.jsonl"), 'a') as file:
        file.write(json.dumps({'kind': kind, 'time': time.time(), 'slot': SLOT, 'pid': os.getpid(), **fields}) + '\n')


def told(name):
    return os.path.exists(os.path.join(JOB_DIR, name))


dynamic.init()
rng = np.random.RandomState(7)
X = rng.randn(SAMPLES, 10).astype('float32')
Y = (X[:, :5].sum(1) > X[:, 5:].sum(1)).astype('float32')
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(16, activation='relu'), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
mx.random.seed(11 + dynamic.rank())
net.initialize(mx.init.Xavier())
sampler = adaptive.AdaptiveSampler(SAMPLES, mega_batch=250, min_batch=4, max_batch=32,
                                   batch_size=int(os.environ.get('BATCH', 12)), seed=1)
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), batch_sampler=sampler)
schedule = dynamic.DynamicSchedule(0.05, 16, policy=adaptive.ByLocalBatch())
trainer = adaptive.AdaptiveTrainer(net.collect_params(), 'sgd', {'momentum': 0.5}, schedule=schedule,
                                   merging=adaptive.NormalizedMerging(momentum=0.3), at_bounds='clip')
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=dynamic.RunLog(RUN_DIR, audit_samples=True),
                           epoch=0)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


def digest():
    arrays = [p.data() for p in net.collect_params().values() if p._data is not None] + trainer.state_arrays()
    hasher = hashlib.sha256(b''.join(a.asnumpy().tobytes() for a in arrays))
    hasher.update(json.dumps(trainer.state_dict(), sort_keys=True).encode())
    return hasher.hexdigest()


@dynamic.run
def train(state):
    report('entered', digest=digest(), update=state.updates, rank=dynamic.rank(), size=dynamic.size())
    for state.epoch in range(state.epoch, EPOCHS):
        for data, label in loader:
            while told('hold'):
                time.sleep(0.02)
            time.sleep(SECONDS * len(data) if not told('slow') else 0.1)
            data, label = data.as_in_context(mx.cpu()), label.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_fn(net(data), label)
            loss.backward()
            trainer.step(len(data), loss=loss)
            report('batch', updates=state.updates, batches=trainer._pass, rank=dynamic.rank())
            state.commit()


train(state)
report('end', digest=digest(), update=state.updates, samples=schedule.samples_seen, rank=dynamic.rank())
