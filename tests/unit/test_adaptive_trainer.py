"""AdaptiveTrainer on workers that are threads: merges, newcomers, failures, and what it refuses."""

import functools
import time

import mxnet as mx
import numpy as np
import pytest
from helpers import Group, bits, raise_errors, run_loop, small_net
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from hvd_dynamic import adaptive
from hvd_dynamic.errors import SetupError


class Job:
    """Regression of some samples with a small network."""

    def __init__(self, world, samples=120, mega=40, low=2, high=6, seconds=0.0, optimizer_params=None, options=None, **more):
        self.world, self.seconds = world, seconds
        rng = np.random.RandomState(17)
        self.x = rng.randn(samples, 3).astype('float32')
        self.y = np.sin(self.x.sum(1, keepdims=True)).astype('float32')
        self.net = small_net()
        self.sampler = adaptive.AdaptiveSampler(samples, mega, low, high, seed=3, **more)
        self.schedule = dynamic.DynamicSchedule(0.05, 6, policy=adaptive.ByLocalBatch())
        self.trainer = adaptive.AdaptiveTrainer(self.net.collect_params(), 'sgd', optimizer_params or {'momentum': 0.5},
                                                schedule=self.schedule, **(options or {}))
        self.state = dynamic.GluonState(net=self.net, trainer=self.trainer, sampler=self.sampler, epoch=0)
        self.merges, self.after_batch, self.batches = [], None, 0

    def train(self, epochs, state):
        for state.epoch in range(state.epoch, epochs):
            for batch in self.sampler:
                with autograd.record():
                    loss = gluon.loss.L2Loss()(self.net(mx.nd.array(self.x[batch])), mx.nd.array(self.y[batch]))
                loss.backward()
                time.sleep(self.seconds * len(batch))
                self.batches += 1
                if self.after_batch is not None:
                    self.after_batch(self)
                self.trainer.step(len(batch), loss=loss)
                if not self.trainer.in_update:
                    self.merges.append(self.trainer._confirmed[-1])
                state.commit()
        return self

    def run(self, epochs=2):
        return run_loop(self)(functools.partial(self.train, epochs, self.state))

    def everything(self):
        arrays = [p.data() for p in self.net.collect_params().values()] + self.trainer.state_arrays()
        return [bits(array) for array in arrays], self.trainer.state_dict(), self.sampler.state_dict()


def used(merges):
    return sorted(sample for merge in merges for spans in merge.cut.spans for start, count in spans
                  for sample in range(start, start + count))


def test_workers_end_alike_and_use_every_sample_once():
    group = Group(3)
    jobs = raise_errors(group.each(lambda world: Job(world, seconds=0.0002 * (1 + world.rank)).run(3)))
    assert jobs[0].everything() == jobs[1].everything() == jobs[2].everything()
    assert used(jobs[0].merges) == list(range(3 * 120)) and len(jobs[0].merges) == 9
    for merge in jobs[0].merges:
        assert all(replica['updates'] >= 1 for replica in merge.details['replicas'])
    assert jobs[0].schedule.samples_seen == 360


def test_one_worker_without_merge_momentum_is_plain_sgd():
    dynamic.init(dynamic.VirtualWorld(1))
    job = Job(dynamic.VirtualWorld(1), options={'merging': adaptive.NormalizedMerging(momentum=0)}, taper=False).run(1)
    net = small_net()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'momentum': 0.5, 'learning_rate': 0.05}, kvstore=None)
    for merge in job.merges:
        for start, count in merge.cut.spans[0]:
            batch = job.sampler._stream(start, count)
            with autograd.record():
                loss = gluon.loss.L2Loss()(net(mx.nd.array(job.x[batch])), mx.nd.array(job.y[batch]))
            loss.backward()
            # smaller batches have a smaller learning rate, and the momentum buffer, which holds it, follows
            for state in trainer._updaters[0].states.values():
                state *= 0.05 * count / 6 / trainer.learning_rate
            trainer.set_learning_rate(0.05 * count / 6)
            trainer.step(count)
    for mine, plain in zip(job.net.collect_params().values(), net.collect_params().values()):
        np.testing.assert_allclose(mine.data().asnumpy(), plain.data().asnumpy(), rtol=2e-4, atol=1e-6)


def test_merge_is_the_formula():
    """Two workers, three merges, worked out with NumPy from the replicas."""
    replicas, merged = {}, {}

    def work(world):
        job = Job(world, options={'merging': adaptive.NormalizedMerging(momentum=0.9)}, optimizer_params={'wd': 0.0})
        merge = job.trainer._merge_arrays

        def watched(alpha, share):
            number = job.trainer.update_count
            replicas[number, world.rank] = alpha, [p.data().asnumpy() for p in job.net.collect_params().values()]
            merge(alpha, share)
            merged[number] = [p.data().asnumpy() for p in job.net.collect_params().values()]
        job.trainer._merge_arrays = watched
        first = [p.data().asnumpy() for p in job.net.collect_params().values()]
        job.run(1)
        return first
    first = raise_errors(Group(2).each(work))[0]
    history = [first, first]
    for number in range(3):
        expected = [sum(replicas[number, rank][0] * replicas[number, rank][1][i] for rank in range(2))
                    + 0.9 * (history[-1][i] - history[-2][i]) for i in range(len(first))]
        for mine, right in zip(merged[number], expected):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)
        history.append(merged[number])


def test_newcomer_joins_at_a_merge_with_a_fair_batch_and_the_same_state():
    group, jobs = Group(2), {}

    def work(world):
        job = jobs[world.rank] = Job(world, batch_size=4)
        started = []

        def grow(job):
            if job.state.updates == 2 and not started and world.rank == 0:
                started.append(True)
                newcomers.extend(group.announce(3))
        job.after_batch = grow
        return job.run(3)
    newcomers = []
    import threading
    joined = []

    def newcomer():
        end = time.monotonic() + 20
        while not newcomers:
            assert time.monotonic() < end
            time.sleep(0.001)
        joined.append(Job(newcomers[0], batch_size=4).run(3))
    thread = threading.Thread(target=newcomer)
    thread.start()
    old = raise_errors(group.each(work))
    thread.join(20)
    assert joined and joined[0].everything() == old[0].everything()
    merges = old[0].merges
    first = next(merge for merge in merges if merge.world_size == 3)
    sizes = [replica['batch'] for replica in first.details['replicas']]
    assert sizes[2] == round((sizes[0] + sizes[1]) / 2)
    assert used(merges) == list(range(360))


@pytest.mark.parametrize('change, kind, message', [
    (lambda: adaptive.AdaptiveSampler(100, 50, 9, 8), ValueError, 'min_batch=9'),
    (lambda: adaptive.AdaptiveSampler(100, 50, 2, 8, batch_size=9), ValueError, 'batch_size'),
    (lambda: adaptive.AdaptiveSampler(100, 7, 2, 8), ValueError, 'mega_batch=7'),
    (lambda: adaptive.AdaptiveSampler(100, 0, 2, 8), ValueError, 'mega_batch'),
    (lambda: adaptive.AdaptiveSampler(100, 50, 2, 8, scheduling='fair'), ValueError, 'scheduling'),
    (lambda: list(adaptive.AdaptiveSampler(100, 50, 2, 8)), RuntimeError, 'AdaptiveTrainer'),
    (lambda: len(adaptive.AdaptiveSampler(100, 50, 2, 8)), TypeError, 'known only at its end'),
    (lambda: Job(None, options={'merging': 'mean'}), TypeError, 'merging'),
    (lambda: Job(None, options={'beta': -1}), ValueError, 'beta'),
])
def test_bad_arguments_are_told(change, kind, message):
    with pytest.raises(kind, match=message):
        change()


def test_other_policies_and_samplers_are_refused():
    net = small_net()
    with pytest.raises(ValueError, match='ByLocalBatch'):
        adaptive.AdaptiveTrainer(net.collect_params(), 'sgd', schedule=dynamic.DynamicSchedule(0.1, 8))
    trainer = adaptive.AdaptiveTrainer(net.collect_params(), 'sgd',
                                       schedule=dynamic.DynamicSchedule(0.1, 8, policy=adaptive.ByLocalBatch()))
    state = dynamic.GluonState(net=net, trainer=trainer, sampler=dynamic.ElasticSampler(40, 4))
    dynamic.init(dynamic.VirtualWorld(1))
    with pytest.raises(TypeError, match='AdaptiveSampler'):
        dynamic.run(lambda state: None)(state)


def test_a_mega_batch_too_small_for_the_workers_is_told_to_all():
    results = Group(3).each(lambda world: Job(world, samples=40, mega=8, low=4, high=8).run())
    assert all(isinstance(error, SetupError) and 'raise mega_batch' in str(error) for error in results)


def test_a_virtual_world_of_several_workers_is_refused():
    job = Job(dynamic.VirtualWorld(2))
    with pytest.raises(SetupError, match='VirtualWorld of 2'):
        job.run()


def test_ending_in_the_middle_of_a_mega_batch_is_told():
    job = Job(dynamic.VirtualWorld(1))

    def stop_early(state):
        for batch in job.sampler:
            with autograd.record():
                loss = job.net(mx.nd.array(job.x[batch])).sum(axis=1)
            loss.backward()
            job.trainer.step(len(batch))
            return
    with pytest.raises(RuntimeError, match='mega-batch is not used up'):
        run_loop(job)(functools.partial(stop_early, job.state))


def test_a_wrong_batch_size_is_told():
    job = Job(dynamic.VirtualWorld(1))
    job.after_batch = lambda job: job.trainer.step(99)
    with pytest.raises(ValueError, match='batch_size=99'):
        job.run()


def test_clocks_decide_nothing(monkeypatch):
    """Times are only for the log: workers whose clock jumps back and forth do the same."""
    clock = iter(np.random.RandomState(1).uniform(-1e9, 1e9, 100000).tolist())
    job = Job(dynamic.VirtualWorld(1))
    plain = Job(dynamic.VirtualWorld(1)).run().everything()
    monkeypatch.setattr('hvd_dynamic.adaptive.trainer.time.monotonic', lambda: next(clock))
    assert job.run().everything()[0] == plain[0]


def test_a_state_of_another_mega_batch_is_refused():
    sampler = adaptive.AdaptiveSampler(100, 50, 2, 8)
    sampler.set_epoch(0)
    sampler.advance()
    with pytest.raises(ValueError, match='mega_batch=40'):
        adaptive.AdaptiveSampler(100, 40, 2, 8).load_state_dict(sampler.state_dict())
