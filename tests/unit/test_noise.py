"""The gradient noise scale, and AdaScale, which needs it."""
import functools
import math

import numpy as np
import pytest
from helpers import Group, Job, raise_errors, read_lines, resizes, run_loop

import hvd_dynamic as dynamic
from hvd_dynamic import policies
from hvd_dynamic.noise import NoiseScale


def test_estimate_is_right_for_gradients_whose_mean_and_covariance_are_known():
    """Local batches of different size."""
    rng = np.random.RandomState(0)
    true, sigma, batches = rng.randn(50) * 0.5, 2.0, (5, 8, 8, 3)
    noise = NoiseScale(window=2000)             # of 8000 passes
    for _ in range(2000):
        sums = [true * b + sigma * math.sqrt(b) * rng.randn(50) for b in batches]
        noise.observe(sum(s @ s / b for s, b in zip(sums, batches)), 4, 24, sum(sums) @ sum(sums) / 24)
    assert noise.value == pytest.approx(50 * sigma ** 2 / (true @ true), rel=0.06)


def test_updates_that_tell_nothing_change_nothing():
    noise = NoiseScale()
    noise.observe(local=30.0, passes=2, samples=4, total=20.0)
    before = noise.state_dict()
    noise.observe(local=5.0, passes=1, samples=4, total=5.0)
    noise.observe(local=math.inf, passes=2, samples=4, total=5.0)
    noise.observe(local=5.0, passes=2, samples=4, total=math.nan)
    assert noise.state_dict() == before and noise.value == 4.0


def test_noise_that_drowns_the_gradient_is_infinite():
    noise = NoiseScale()
    noise.observe(local=30.0, passes=2, samples=4, total=10.0)
    assert noise.value == math.inf


def by_hand(job, updates, size):
    """L, P, B, M of the updates of a job whose weights never move."""
    sampler = dynamic.ElasticSampler(len(job.x), batch_size=job.sampler.batch_size, seed=3)
    found = []
    sampler.set_world(size, range(size))
    for _ in range(updates):
        cut = sampler.next_update()
        sums = []
        for rank in range(sampler.size):
            job.backward(sampler.indices(cut, rank))
            gradients = [p.grad().asnumpy().ravel() for p in job.net.collect_params().values()]
            sums.append(np.concatenate(gradients).astype(float))
        found.append((sum(s @ s / n for s, n in zip(sums, cut.counts)), len(sums), cut.global_batch,
                      sum(sums) @ sum(sums) / cut.global_batch))
        sampler.advance()
    return found


def test_trainer_measures_the_norms_of_each_workers_gradients(tmp_path):
    """The norm of an update's sum travels with the next one, so the log shows what those before it tell."""
    job = Job(world=3, batch=4, samples=51, base=0.0, run_log=dynamic.RunLog(tmp_path))
    job.trainer._noise = NoiseScale()
    job.train(epochs=1)
    noise, expected = NoiseScale(), [None]
    fresh = Job(world=1, batch=4, samples=51)
    for one in by_hand(fresh, 4, 3):
        noise.observe(*one)
        expected.append(None if math.isinf(noise.value) else pytest.approx(noise.value, rel=1e-3))
    logged = [line['noise_scale'] for line in read_lines(tmp_path / 'metrics.jsonl')]
    assert logged == expected and logged[-1] is not None


def train_with_noise(world, **arguments):
    return Job(world=world, policy=policies.AdaScale(), reference=8, batch=4, base=0.05, **arguments)


def test_several_workers_and_one_process_measure_the_same():
    """Three threads with a local batch each, and one process with three passes: the same lr in each update."""
    group, found = Group(3), {}

    def work(world):
        job = train_with_noise(world)
        run_loop(job)(functools.partial(job.loop(3), job.state))
        found[world.rank] = job.schedule.noise_scale, job.schedule.lr_scale, job.weights()
    raise_errors(group.each(work))
    alone = train_with_noise(3)
    alone.train(epochs=3)
    assert found[0][:2] == found[1][:2] == found[2][:2]         # to the last bit
    assert found[0][0] == pytest.approx(alone.schedule.noise_scale, rel=1e-3)
    for a, b in zip(found[0][2], alone.weights()):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_adascale_follows_the_noise_through_resizes_and_restores():
    job = train_with_noise(4, samples=400)
    scales = []
    job.train(epochs=4, after_update=lambda job: (scales.append(job.schedule.lr_scale), resizes({30: 2, 60: 6})(job)))
    assert scales[0] == 1.0 and set(scales[31:60]) == {1.0} and 1.0 < job.schedule.lr_scale < 3.0
    assert len(set(scales)) > 50
    noise = job.schedule.noise_scale / 8
    assert job.schedule.lr_scale == pytest.approx(policies.AdaScale().target(3.0, noise=noise), rel=0.2)
    saved = job.trainer.state_dict()
    fresh = train_with_noise(4, samples=400)
    fresh.trainer.load_state_dict(saved)
    assert fresh.schedule.noise_scale == job.schedule.noise_scale


@pytest.mark.parametrize('k', [0.25, 1.0, 16.0])
def test_gain_lies_between_1_and_k_and_grows_with_the_noise(k):
    gains = [policies.AdaScale().target(k, noise=noise) for noise in (0.0, 0.1, 1.0, 100.0, math.inf)]
    assert gains[0] == 1.0 and gains[-1] == k
    assert gains == sorted(gains, reverse=k < 1)


def test_noise_cannot_be_off_where_the_policy_needs_it():
    job = train_with_noise(1)
    with pytest.raises(ValueError, match='noise_scale=False, but the policy AdaScale'):
        dynamic.DynamicTrainer(job.net.collect_params(), 'sgd', {}, schedule=job.schedule, noise_scale=False)


def test_nothing_is_measured_unless_asked_for():
    job = Job(world=2)
    job.train(epochs=1)
    assert job.trainer.state_dict()['noise'] is None and job.schedule.noise_scale is None
