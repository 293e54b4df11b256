"""A training script that writes checkpoints and resumes. Its knobs are environment variables."""

import hashlib
import json
import os
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvd_dynamic as dynamic

SAMPLES = 101
UNTIL = os.environ.get('UNTIL')                         # a file whose appearance ends the training; else 4 epochs do
EVERY = int(os.environ['EVERY'])                        # updates between two checkpoints
RESUME = os.environ.get('RESUME', 'no')
PAUSE = float(os.environ.get('PAUSE', 0))
SLOT = os.environ['HOROVOD_HOSTNAME'], int(os.environ['HOROVOD_LOCAL_RANK'])

dynamic.init()
# With DISKS each host has a folder of its own, as where nothing is shared.
folder = os.path.join(os.environ['CHECKPOINTS'], SLOT[0] if os.environ.get('DISKS') else '')

rng = np.random.RandomState(7)
X = rng.randn(SAMPLES, 1, 8, 8).astype('float32')
Y = (X[:, 0, :4].sum((1, 2)) > X[:, 0, 4:].sum((1, 2))).astype('float32')
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation('relu'), gluon.nn.Dense(16), gluon.nn.Dense(2))
mx.random.seed(int(os.environ.get('SEED', 11)) + dynamic.rank())
net.initialize(mx.init.Xavier())
net.hybridize()

data_set = gluon.data.ArrayDataset(X, Y)
sampler = dynamic.ElasticSampler(len(data_set), batch_size=4, seed=1)
loader = gluon.data.DataLoader(data_set, batch_sampler=sampler)
base = mx.lr_scheduler.CosineScheduler(50, 0.02, 0.001, warmup_steps=5)
schedule = dynamic.DynamicSchedule(base, 8, policy=dynamic.policies.Smooth(updates=4))
trainer = dynamic.DynamicTrainer(net.collect_params(), os.environ.get('OPTIMIZER', 'adam'), schedule=schedule)
log = dynamic.RunLog(os.environ['RUN_DIR'], audit_samples=True)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=log, checkpoint_dir=folder, epoch=0, seen=0)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


def report(kind, **fields):
    with open(os.path.join(os.environ['RUN_DIR'], f'report-{SLOT[0]}-{SLOT[1]}.jsonl'), 'a') as file:
        fields = {'kind': kind, 'time': time.time(), 'size': dynamic.size(), 'update': state.updates, **fields}
        file.write(json.dumps(fields) + '\n')


def digest():
    """Of weights, running statistics, optimizer state and all numbers."""
    arrays = [p.data() for p in net.collect_params().values() if p._data is not None] + trainer.state_arrays()
    hasher = hashlib.sha256(b''.join(array.asnumpy().tobytes() for array in arrays))
    hasher.update(json.dumps([trainer.state_dict(), sampler.state_dict(), state.epoch, state.seen], sort_keys=True).encode())
    return hasher.hexdigest()


resumed = state.resume() if RESUME == 'yes' else None


@dynamic.run
def train(state):
    counts = sorted(set(trainer.optimizer._index_update_count.values()))
    report('entered', digest=digest(), resumed=resumed, counts=counts)
    for state.epoch in range(state.epoch, 1000 if UNTIL else 4):
        if UNTIL and state.world.allreduce_sum([int(os.path.exists(UNTIL))])[0]:
            break
        for data, label in loader:
            data, label = data.as_in_context(mx.cpu()), label.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_fn(net(data), label)
            loss.backward()
            trainer.step(len(data), loss=loss)
            state.seen += 1
            if state.updates % EVERY == 0:
                state.save_checkpoint()
                report('saved', digest=digest())
            state.commit()
            time.sleep(PAUSE)


train(state)
state.average_running_stats()
report('end', digest=digest())
