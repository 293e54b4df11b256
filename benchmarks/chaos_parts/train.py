"""The training that the chaos run disturbs: ``python train.py FOLDER``, started by horovodrun.

Handwritten digits, a small network with BatchNorm, momentum, a commit each update, checkpoints on request. In FOLDER it
writes its run's folder (`run`), its checkpoints (`checkpoints`), and what each worker says of itself
(`reports-HOST-SLOT.jsonl`); it reads `orders.json`: at which update to save a checkpoint, and which epoch is the last.
"""

import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import hvd_dynamic as dynamic
from benchmarks.chaos_parts.facts import BATCH, REFERENCE_BATCH, SEED, base_lr

# When a job hangs, the chaos run asks its workers where they are.
faulthandler.register(signal.SIGUSR1, all_threads=True)

dynamic.init()
folder = Path(sys.argv[1])
pause = float(os.environ.get('CHAOS_PAUSE', 0))      # seconds an update
slot = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"


def report(kind, **fields):
    with open(folder / f"reports-{slot.replace(':', '-')}.jsonl", 'a') as file:
        file.write(json.dumps({'kind': kind, 'time': time.time(), 'slot': slot, 'pid': os.getpid(), **fields}) + '\n')


def orders():
    try:
        return json.loads((folder / 'orders.json').read_text())
    except FileNotFoundError:
        return {}


digits = load_digits()
images = (digits.images[:, None] / 16).astype('float32')
labels = digits.target.astype('float32')

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(8, 3), gluon.nn.BatchNorm(), gluon.nn.Activation('relu'), gluon.nn.MaxPool2D(), gluon.nn.Flatten(),
        gluon.nn.Dense(32, activation='relu'), gluon.nn.Dense(10))
mx.random.seed(SEED + dynamic.rank())       # workers begin with different weights and must come to the same
net.initialize(mx.init.Xavier())
net.hybridize()

sampler = dynamic.ElasticSampler(len(labels), batch_size=BATCH, seed=SEED)
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), batch_sampler=sampler)
schedule = dynamic.DynamicSchedule(base_lr, REFERENCE_BATCH)
trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', {'momentum': 0.9, 'wd': 1e-4}, schedule=schedule)
log = dynamic.RunLog(folder / 'run', audit_samples=True)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=log,
                           checkpoint_dir=folder / 'checkpoints', epoch=0, seen=0)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


def digest():
    """Of all that workers must have in common, as an integer of 56 bits."""
    arrays = [p.data() for p in net.collect_params().values() if p._data is not None] + trainer.state_arrays()
    hasher = hashlib.sha256(b''.join(array.asnumpy().tobytes() for array in arrays))
    hasher.update(json.dumps([trainer.state_dict(), sampler.state_dict(), state.seen, state.epoch], sort_keys=True).encode())
    return int.from_bytes(hasher.digest()[:7], 'big')


@dynamic.run
def train(state):
    digests = np.zeros(dynamic.size(), 'int64')
    digests[dynamic.rank()] = digest()
    digests = state.world.allreduce_sum(digests, 'chaos.digests')
    report('entered', rank=dynamic.rank(), size=dynamic.size(), update=state.updates, seen=state.seen,
           digests=digests.tolist())
    for state.epoch in range(state.epoch, 10 ** 9):
        for data, label in loader:
            data, label = data.as_in_context(mx.cpu()), label.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_fn(net(data), label)
            loss.backward()
            trainer.step(len(data), loss=loss)
            time.sleep(pause)
            state.seen += 1
            # The order is given many updates before its time, so all workers know it by then.
            if state.updates == orders().get('checkpoint_at'):
                state.save_checkpoint()
            state.commit()
        if state.epoch >= orders().get('last_epoch', 10 ** 9):
            return


state.resume()
train(state)
outputs = net(mx.nd.array(images)).asnumpy()
report('end', digest=digest(), update=state.updates, seen=state.seen, samples=schedule.samples_seen,
       accuracy=float((outputs.argmax(1) == labels).mean()))
