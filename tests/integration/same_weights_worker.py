"""A training script with logical workers; batch normalisation, dropout, and augmentation in the worker and in its loader.

Its knobs are environment variables: LOGICAL, EPOCHS, PAUSE (seconds an update; much longer while the job's folder has a file
`slow`), LOADERS, NORMALIZED, RESUME, STOP_AT (an update after which a checkpoint is written and the process ends).
"""

import json
import os
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from hvd_dynamic.seededdataset import SeededDataset


def knob(name, default):
    value = os.environ.get(name)
    return default if value is None else type(default)(value)


SAMPLES, CLASSES = 203, 3
LOADERS, PAUSE = knob('LOADERS', 0), knob('PAUSE', 0.0)
JOB_DIR = os.environ['JOB_DIR']


def noisy(x, y):
    """Other noise each time: what an augmentation is."""
    return x + np.random.randn(*x.shape).astype('float32') * 0.1, y


dynamic.init()
rng = np.random.RandomState(7)
X = rng.randn(SAMPLES, 1, 8, 8).astype('float32')
Y = (X.sum((1, 2, 3)) > 0).astype('float32') + (X[:, 0, 0, 0] > 1)
data_set = gluon.data.ArrayDataset(X, Y).transform(noisy)
sampler = dynamic.ElasticSampler(len(data_set), batch_size=4, seed=1, logical_workers=knob('LOGICAL', 5))
if LOADERS:
    data_set = SeededDataset(data_set, sampler)
loader = gluon.data.DataLoader(data_set, batch_sampler=sampler, num_workers=LOADERS)

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(6, 3), gluon.nn.BatchNorm(), gluon.nn.Activation('relu'), gluon.nn.Dropout(0.3),
        gluon.nn.Dense(20, activation='relu'), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.3), gluon.nn.Dense(CLASSES))
mx.random.seed(3)
net.initialize(mx.init.Xavier())
net.hybridize()
schedule = dynamic.DynamicSchedule(mx.lr_scheduler.CosineScheduler(120, 0.1, 0.001), 16)
trainer = dynamic.DynamicTrainer(net.collect_params(), *json.loads(knob('OPTIMIZER', '["sgd", {"momentum": 0.9}]')),
                                 schedule=schedule)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, run_log=dynamic.RunLog(os.environ['RUN_DIR']),
                           checkpoint_dir=os.path.join(JOB_DIR, 'checkpoints'), epoch=0)
if knob('RESUME', 0):
    assert state.resume()
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


@dynamic.run
def train(state):
    for state.epoch in range(state.epoch, knob('EPOCHS', 11)):
        for data, label in loader:
            data, label = data.as_in_context(mx.cpu()), label.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_fn(net(data), label)
            loss.backward()
            trainer.step(len(data), loss=loss, normalizer=(label > 0).sum() if knob('NORMALIZED', 0) else None)
            if not trainer.in_update:
                time.sleep(0.4 if PAUSE and os.path.exists(os.path.join(JOB_DIR, 'slow')) else PAUSE)
                if state.updates == knob('STOP_AT', 0):
                    state.save_checkpoint()
                    return
            state.commit()
        state.average_running_stats()
        net(mx.nd.array(X)).wait_to_read()


train(state)
