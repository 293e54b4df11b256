"""Small networks and jobs, and a world of threads, for the unit tests."""
import functools
import json
import threading

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from hvd_dynamic import elastic
from hvd_dynamic.errors import JoinFailed
from hvd_dynamic.sharing import share_arrays
from hvd_dynamic.world import WorkerRemoved, World


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def bits(array):
    """An array as bytes: equal only if every bit is."""
    return (array.asnumpy() if isinstance(array, mx.nd.NDArray) else np.asarray(array)).tobytes()


def set_weights(net, seed=0):
    """Give every parameter that is known values that depend on `seed` and its place alone."""
    rng = np.random.RandomState(seed)
    for param in net.collect_params().values():
        if param._differentiable and param._data is not None:
            param.set_data(mx.nd.array(rng.randn(*param.shape) * 0.3, dtype=param.dtype))


def small_net(batchnorm=False, inputs=3, dtype='float32', seed=0):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, in_units=inputs, activation='tanh'))
    if batchnorm:
        net.add(gluon.nn.BatchNorm(in_channels=5))
    net.add(gluon.nn.Dense(1, in_units=5))
    net.initialize()
    if dtype != 'float32':
        net.cast(dtype)
    set_weights(net, seed)
    return net


class HalfBlock(gluon.HybridBlock):
    """Without matrix products, which MXNet has no float16 of on a CPU."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(1, 3))
            self.bias = self.params.get('bias', shape=(1, 1))

    def hybrid_forward(self, F, x, weight, bias):
        return F.broadcast_add(F.broadcast_mul(x, weight).sum(axis=1, keepdims=True), bias)


def half_net():
    net = HalfBlock()
    net.initialize()
    net.cast('float16')
    set_weights(net)
    return net


class Meter:
    """An object of the user's that is carried by its state_dict."""

    def __init__(self):
        self.total, self.table = 0, mx.nd.zeros(2)

    def state_dict(self):
        return {'total': self.total, 'table': self.table}

    def load_state_dict(self, state):
        self.total, self.table = state['total'], state['table']


class Job:
    """A whole training: regression of 40 samples with a small net, by default on one virtual worker."""

    def __init__(self, world=1, batch=4, samples=40, reference=None, policy=None, base=0.05, optimizer='sgd',
                 optimizer_params=None, net=None, seed=3, run_log=None, dtype='float32', **attributes):
        self.world = dynamic.VirtualWorld(world) if isinstance(world, int) else world
        rng = np.random.RandomState(17)
        self.x = rng.randn(samples, 3).astype(dtype)
        self.y = np.sin(self.x.sum(1, keepdims=True)).astype(dtype)
        self.net = net or (half_net() if dtype == 'float16' else small_net(dtype=dtype))
        self.sampler = dynamic.ElasticSampler(samples, batch_size=batch, seed=seed)
        self.schedule = dynamic.DynamicSchedule(base, reference or batch * self.world.size, policy=policy)
        if optimizer_params is None:
            optimizer_params = {'momentum': 0.9, 'wd': 0.01} if optimizer in ('sgd', 'nag') else {}
        self.trainer = dynamic.DynamicTrainer(self.net.collect_params(), optimizer, optimizer_params,
                                              schedule=self.schedule)
        self.state = dynamic.GluonState(net=self.net, trainer=self.trainer, sampler=self.sampler,
                                        run_log=run_log, **{'epoch': 0, **attributes})

    def loss(self, batch):
        loss = gluon.loss.L2Loss()
        return loss(self.net(mx.nd.array(self.x[batch], dtype=self.x.dtype)),
                    mx.nd.array(self.y[batch], dtype=self.y.dtype))

    def backward(self, batch):
        with autograd.record():
            loss = self.loss(batch)
        loss.backward()
        return loss

    def loop(self, epochs=2, after_update=None, commit_every=1):
        """The training function; `after_update(job)` comes after each update's commit, or in place of it."""
        def train(state):
            for state.epoch in range(state.epoch, epochs):
                for batch in self.sampler:
                    loss = self.backward(batch)
                    self.trainer.step(len(batch), loss=loss)
                    if self.trainer.in_update:
                        continue
                    if after_update is not None:
                        after_update(self)
                    if state.updates % commit_every == 0:
                        state.commit()
            return state.updates
        return train

    def run(self, function):
        dynamic.init(self.world)
        return dynamic.run(function)(self.state)

    def train(self, epochs=2, after_update=None, commit_every=1):
        return self.run(self.loop(epochs, after_update, commit_every))

    def weights(self):
        return [p.data().asnumpy() for p in self.net.collect_params().values()]

    def everything(self):
        """All that must be the same, to the last bit, on workers that do the same."""
        arrays = [p.data() for p in self.net.collect_params().values()] + self.trainer.state_arrays()
        numbers = [self.trainer.state_dict(), self.sampler.state_dict(), self.state.epoch]
        return [bits(array) for array in arrays], json.dumps(numbers, sort_keys=True)


def at_update(update, action):
    """An `after_update` that does something once, after that update."""
    done = []

    def hook(job):
        if job.state.updates == update and not done:
            done.append(update)
            action(job)
    return hook


def resizes(plan):
    """An `after_update` that announces new sizes: a dict of update to size."""
    def hook(job):
        if job.state.updates in plan:
            job.world.resize(plan[job.state.updates])
    return hook


def lose_worker(job):
    """What a failed collective looks like to the loop."""
    raise JoinFailed('a worker was lost')


# -- workers that are threads ------------------------------------------------------------------------------------

class _Round:
    """What the workers of one world give to each other, by the number of the collective."""

    def __init__(self, size):
        self.size, self.given, self.broken, self.changed = size, {}, False, threading.Condition()

    def exchange(self, number, rank, name, value):
        with self.changed:
            everyone = self.given.setdefault(number, {})
            everyone[rank] = name, value
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(everyone) == self.size or self.broken, timeout=20)
            if len(everyone) < self.size:
                raise JoinFailed('a worker was lost')
        names = {name for name, _ in everyone.values()}
        assert len(names) == 1, f'workers are in different collectives: {names}'
        return [everyone[r][1] for r in range(self.size)]

    def break_off(self):
        with self.changed:
            self.broken = True
            self.changed.notify_all()


class Group:
    """Workers that are threads of this process; their collectives are done with NumPy."""

    def __init__(self, size):
        self.size, self.next = size, _Round(size)
        self.sent = []                  # what rank 0 took part in: (name of the collective, bytes)
        self.pending = False
        self.worlds = [ThreadWorld(self, rank) for rank in range(size)]

    def announce(self, size):
        """The set of hosts has changed: `size` workers from the next round on. Returns the newcomers' worlds."""
        newcomers = [ThreadWorld(self, rank) for rank in range(self.next.size, size)]
        self.next, self.pending = _Round(size), True
        return newcomers

    def bytes_of(self, prefix):
        return sum(nbytes for name, nbytes in self.sent if name.startswith(prefix))

    def each(self, function, worlds=None):
        """Call ``function(world)`` on a thread for each; what each returned or raised, by rank."""
        worlds = worlds or self.worlds
        results = [None] * len(worlds)

        def call(i):
            try:
                results[i] = function(worlds[i])
            except BaseException as error:      # WorkerRemoved makes a SystemExit
                results[i] = error
                if not isinstance(error, SystemExit):
                    worlds[i].break_off()
        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(worlds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads), 'a worker waits for ever'
        return results


class ThreadWorld(World):
    elastic = True

    def __init__(self, group, rank):
        super().__init__()
        self.group, self.rank, self.size = group, rank, group.next.size if group else 1
        self.round = None
        self.told = rank == 0               # only rank 0 hears of changes of hosts
        self.member = type(self.member)(f'thread:{rank}', f'{rank}-{self.member.token}')

    def join(self):
        target = self.group.next
        if self.rank >= target.size:
            raise WorkerRemoved('its slot was taken away')
        self.round, self.size = target, target.size
        self.generation += 1
        self._done = 0
        self.exchange(None, 'join', 0)
        self.group.pending = False
        self.joined = True

    def leave(self, failed=False, incomplete=False):
        self.joined = False
        if failed:
            self.break_off()

    def break_off(self):
        if self.round is not None:
            self.round.break_off()

    def resize_pending(self):
        return self.told and self.group.pending

    def exchange(self, value, name, nbytes):
        if self.rank == 0 and nbytes:
            self.group.sent.append((name, nbytes))
        self._done += 1
        return self.round.exchange(self._done, self.rank, name, value)

    def allreduce_(self, array, name, priority=0):
        parts = self.exchange(array.asnumpy(), name, array.size * np.dtype(array.dtype).itemsize)
        total = functools.reduce(np.add, parts)
        array[:] = mx.nd.array(total, dtype=array.dtype)
        return array

    def allreduce_sum(self, array, name='sum'):
        array = np.array(array)
        return functools.reduce(np.add, self.exchange(array, name, array.nbytes))

    def allgather_bytes(self, data, name):
        return self.exchange(data, name, len(data))


def share(group, arrays_by_rank, source):
    """`share_arrays` on all workers of a group."""
    def work(world):
        world.join()
        share_arrays(world, arrays_by_rank[world.rank], source)
    raise_errors(group.each(work))


def raise_errors(results):
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, SystemExit):
            raise result
    return results


def run_loop(job):
    """`hvd_dynamic.run` for a job whose world is not the process's one."""
    job.state.bind(job.world)
    return functools.partial(elastic._loop, job.world, job.state)
