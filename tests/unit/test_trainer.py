"""DynamicTrainer: the exact mean, the momentum, accumulation, and what it refuses."""
import mxnet as mx
import numpy as np
import pytest
from helpers import Group, Job, at_update, raise_errors, resizes, run_loop, small_net
from mxnet import autograd, gluon

import hvd_dynamic as dynamic
from hvd_dynamic import policies

# Sums of at most 40 float32 gradients in another order, over at most 30 updates, weights of about 1.
BOUND = {'rtol': 1e-4, 'atol': 2e-6}


def assert_same_weights(one, other, **bound):
    for a, b in zip(one.weights(), other.weights()):
        np.testing.assert_allclose(a, b, **(bound or BOUND))


def test_update_uses_the_exact_mean_also_when_local_batches_differ():
    """7 samples on 3 workers are cut 3, 2, 2; the mean of the workers' means would be another number."""
    job = Job(world=3, samples=7, reference=7, policy=policies.FixedGlobalBatch(), base=1.0,
              optimizer_params={'momentum': 0.0})
    whole = Job(samples=7, batch=7, base=1.0, optimizer_params={'momentum': 0.0})
    assert job.sampler.passes(job.sampler.next_update()) == [7]
    job.train(epochs=1, after_update=lambda job: None)
    whole.train(epochs=1)
    assert job.state.updates == whole.state.updates == 1
    assert_same_weights(job, whole, rtol=1e-6, atol=1e-7)


def test_last_update_of_an_epoch_is_the_mean_over_its_own_samples():
    job, whole = Job(world=4, batch=3, samples=11), Job(batch=11, samples=11)     # 12 samples an update there never are
    job.schedule.reference_batch = 11
    whole.schedule.policy = policies.FixedGlobalBatch()
    job.train(epochs=1)
    whole.train(epochs=1)
    assert_same_weights(job, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('optimizer', ['sgd', 'nag', 'adam', 'lars'])
def test_four_workers_do_what_one_does_with_four_times_the_batch(optimizer):
    four, one = Job(world=4, batch=3, optimizer=optimizer), Job(batch=12, optimizer=optimizer)
    four.train(epochs=3)
    one.train(epochs=3)
    assert four.state.updates == one.state.updates
    assert_same_weights(four, one)


def test_passes_of_one_update_give_what_one_pass_gives():
    several = Job(policy=policies.FixedGlobalBatch(max_local_batch=3), reference=8)
    one = Job(policy=policies.FixedGlobalBatch(), reference=8)
    several.train(epochs=3)
    one.train(epochs=3)
    assert several.state.updates == one.state.updates == 15
    assert_same_weights(several, one)


def test_gradients_are_overwritten_again_once_one_pass_is_enough():
    job = Job(policy=policies.FixedGlobalBatch(max_local_batch=4), reference=8, samples=32)
    job.world.resize(1)
    seen = []
    job.train(epochs=2, after_update=lambda job: seen.append(job.net[0].weight.grad_req) or
              (job.world.resize(2) if job.state.updates == 2 else None))
    assert set(seen) == {'add'}          # two virtual workers are two passes
    single = Job(reference=8, policy=policies.FixedGlobalBatch(), samples=32)
    seen.clear()
    single.train(epochs=4, after_update=lambda job: (
        seen.append(job.net[0].weight.grad_req), resizes({2: 2, 4: 1})(job)))
    assert seen[:5] == ['write', 'write', 'add', 'add', 'write']


def unfrozen_later(world, batch, commit_every):
    """A layer that is frozen for the first epoch, as in fine-tuning."""
    def unfreeze(job):
        job.net[0].weight.grad_req = 'write'
    net = small_net()
    net[0].weight.grad_req = 'null'
    job = Job(world=world, batch=batch, net=net)
    job.train(epochs=3, after_update=at_update(5, unfreeze), commit_every=commit_every)
    return job


def test_parameter_that_is_trained_only_later_gets_its_state_and_its_place_in_the_commit():
    job = unfrozen_later(1, 8, commit_every=1)
    assert len(job.trainer.state_arrays()) == 4
    assert not np.array_equal(job.weights()[0], Job().weights()[0])


def test_parameter_that_is_trained_only_later_sums_the_gradients_of_all_passes():
    assert_same_weights(unfrozen_later(1, 8, commit_every=1000), unfrozen_later(2, 4, commit_every=1000))


# -- momentum ----------------------------------------------------------------------------------------------------

class Linear(Job):
    """One weight vector and no bias: easy to follow by hand."""

    def __init__(self, **arguments):
        net = gluon.nn.Dense(1, use_bias=False, in_units=3)
        net.initialize(mx.init.Zero())
        super().__init__(net=net, base=0.1, optimizer_params={'momentum': 0.9}, batch=4, reference=4, **arguments)

    def textbook(self, plan, epochs):
        """``u <- m u + g; w <- w - lr u`` in double precision, where a change of lr rescales the whole history."""
        w, u, size, updates = np.zeros((1, 3)), np.zeros((1, 3)), self.world.size, 0
        sampler = dynamic.ElasticSampler(len(self.x), batch_size=4, seed=3)
        schedule = dynamic.DynamicSchedule(0.1, 4, policy=self.schedule.policy)
        sampler.set_world(size, [0])
        schedule.set_global_batch(sampler.global_batch)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            while sampler.next_update() is not None:
                cut = sampler.next_update()
                i = np.concatenate([sampler.indices(cut, rank) for rank in range(sampler.size)])
                x, y = self.x[i].astype('float64'), self.y[i].astype('float64')
                u = 0.9 * u + (x @ w.T - y).T @ x / len(i)
                w = w - schedule.advance(cut.global_batch).lr * u
                sampler.advance()
                updates += 1
                if updates in plan:
                    sampler.set_world(plan[updates], [0])
                    schedule.set_global_batch(sampler.global_batch)
        return w


@pytest.mark.parametrize('policy', [policies.Linear(), policies.Smooth(updates=3), policies.Smooth()], ids=repr)
def test_corrected_momentum_is_the_textbook_form_through_resizes(policy):
    plan = {3: 4, 5: 2, 9: 3, 12: 1}
    job = Linear(policy=policy)
    job.train(epochs=3, after_update=resizes(plan))
    np.testing.assert_allclose(job.weights()[0], job.textbook(plan, 3), rtol=1e-4, atol=1e-6)


def test_uncorrected_momentum_is_not_the_textbook_form():
    plan = {3: 4, 5: 2, 9: 3, 12: 1}
    job = Linear(policy=policies.LinearUncorrected())
    job.train(epochs=3, after_update=resizes(plan))
    assert np.abs(job.weights()[0] - job.textbook(plan, 3)).max() > 1e-3


def test_momentum_of_multi_precision_is_scaled_and_the_float32_weight_is_not():
    job = Job(dtype='float16', batch=4, policy=policies.Linear(), optimizer='sgd',
              optimizer_params={'momentum': 0.9, 'multi_precision': True})
    seen = {}

    def hook(job):
        if job.state.updates == 3:
            job.world.resize(2)
    original = job.trainer._scale_momentum

    def spy(factor):
        before = [a.asnumpy() for a in job.trainer.state_arrays()]
        original(factor)
        seen[factor] = before, [a.asnumpy() for a in job.trainer.state_arrays()]
    job.trainer._scale_momentum = spy
    job.train(epochs=1, after_update=hook)
    before, after = seen[2.0]
    assert len(before) == 4                  # of each parameter: momentum and float32 weight
    for number, (old, new) in enumerate(zip(before, after)):
        assert old.dtype == np.float32
        np.testing.assert_array_equal(new, 2 * old if number % 2 == 0 else old)


def test_momentum_of_adam_is_left_alone_and_its_rate_goes_with_the_root():
    job = Job(optimizer='adam', policy=policies.Linear(), base=0.01)
    lrs = []
    job.train(epochs=1, after_update=lambda job: (lrs.append(job.trainer.learning_rate), resizes({2: 4})(job)))
    assert lrs[0] == 0.01 and lrs[2] == 0.02


# -- the pieces of a step ----------------------------------------------------------------------------------------

def once(job, body):
    """Call ``body(state)`` as the training function; the error that it must end with comes out of `run`."""
    return job.run(body)


def test_allreduce_grads_and_update_are_a_step_in_two_halves():
    halves, whole = Job(), Job()

    def train(state):
        for state.epoch in range(2):
            for batch in halves.sampler:
                halves.backward(batch)
                halves.trainer.allreduce_grads()
                halves.trainer.update(len(batch))
                state.commit()
    once(halves, train)
    whole.train(epochs=2)
    assert halves.everything() == whole.everything()


def test_gradients_may_be_clipped_between_the_halves():
    job = Job(optimizer_params={}, base=1.0)
    before = job.weights()

    def train(state):
        job.backward(next(iter(job.sampler)))
        job.trainer.allreduce_grads()
        for param in job.net.collect_params().values():
            param.grad()[:] = 4.0
        job.trainer.update(4)
    once(job, train)
    for old, new in zip(before, job.weights()):
        np.testing.assert_allclose(old - new, 1.0, rtol=1e-6)


def test_update_without_allreduce_grads_is_refused():
    job = Job()
    with pytest.raises(RuntimeError, match=r'call trainer.allreduce_grads\(\) before trainer.update\(\)'):
        once(job, lambda state: job.trainer.update(4))


@pytest.mark.parametrize('again', ['step', 'allreduce_grads'])
def test_gradients_are_not_summed_twice(again):
    job = Job()

    def train(state):
        job.backward(next(iter(job.sampler)))
        job.trainer.allreduce_grads()
        job.trainer.step(4) if again == 'step' else job.trainer.allreduce_grads()
    with pytest.raises(RuntimeError):
        once(job, train)


def test_two_halves_cannot_do_several_passes():
    job = Job(world=2)

    def train(state):
        job.backward(next(iter(job.sampler)))
        job.trainer.allreduce_grads()
        job.trainer.update(4)
    with pytest.raises(RuntimeError, match=r'this update takes 2 passes.*trainer.step\(\) must be used'):
        once(job, train)


@pytest.mark.parametrize('half', [False, True])
def test_wrong_count_is_refused_and_says_what_was_dealt_out(half):
    job = Job()

    def train(state):
        job.backward(next(iter(job.sampler)))
        if half:
            job.trainer.allreduce_grads()
        (job.trainer.update if half else job.trainer.step)(3)
    with pytest.raises(ValueError, match='trainer.step got batch_size=3, but the sampler dealt out 4 samples for '
                                         r'this batch \(update 1, epoch 0\): pass len\(data\), and call step once'):
        once(job, train)


def test_step_after_the_end_of_the_epoch_is_refused():
    job = Job(samples=4)

    def train(state):
        for _ in range(2):
            job.backward([0, 1, 2, 3])
            job.trainer.step(4)
    with pytest.raises(ValueError, match='trainer.step was called after the last update of epoch 0'):
        once(job, train)


@pytest.mark.parametrize('call', [lambda t: t.step(4), lambda t: t.allreduce_grads()])
def test_step_outside_of_run_says_what_to_do(call):
    with pytest.raises(RuntimeError, match='works inside a function decorated with hvd_dynamic.run'):
        call(Job().trainer)


def test_stale_gradients_are_refused_or_skipped_as_in_gluon():
    job = Job()

    def train(state, ignore):
        with autograd.record():
            loss = (job.net[1].weight.data() ** 2).sum()
        loss.backward()
        job.trainer.step(4, ignore_stale_grad=ignore)
    before = job.weights()
    with pytest.raises(UserWarning, match='has not been updated by backward'):
        once(job, lambda state: train(state, False))
    job = Job()
    once(job, lambda state: train(state, True))
    changed = [not np.array_equal(a, b) for a, b in zip(before, job.weights())]
    assert changed == [False, False, True, False]


def test_loss_is_the_mean_over_all_samples_of_the_update():
    job = Job(world=3, batch=3)
    losses, expected = [], []

    def train(state):
        total = 0.0
        for batch in job.sampler:
            loss = job.backward(batch)
            total += loss.asnumpy().sum()
            job.trainer.step(len(batch), loss=loss)
            if not job.trainer.in_update:
                expected.append(total / job.trainer.in_flight.cut.global_batch)
                total = 0.0
        job.trainer.confirm()
        losses.extend(record.loss for record in job.trainer.take_confirmed())
    once(job, train)
    np.testing.assert_allclose(losses, expected[-len(losses):], rtol=1e-5)
    assert losses


def test_loss_of_a_float16_network_does_not_overflow():
    job = Job(dtype='float16', samples=8, batch=8)

    def train(state):
        job.backward([0] * 8)
        job.trainer.step(8, loss=mx.nd.full((8,), 30000, dtype='float16'))
        job.trainer.confirm()
        return job.trainer.take_confirmed()[0].loss
    assert once(job, train) == pytest.approx(30000, rel=1e-3)


# -- what is refused ---------------------------------------------------------------------------------------------

def schedule():
    return dynamic.DynamicSchedule(0.1, 32)


@pytest.mark.parametrize('optimizer, arguments, message', [
    ('sgd', {'learning_rate': 0.1}, "optimizer_params has 'learning_rate'=0.1, but the schedule decides the learning "
     "rate: give it to DynamicSchedule as its base and leave it out here"),
    ('sgd', {'lr_scheduler': mx.lr_scheduler.FactorScheduler(3)}, "optimizer_params has 'lr_scheduler'"),
    (mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(3)), None, 'optimizer has an lr_scheduler'),
])
def test_learning_rate_that_is_not_the_schedules_is_refused(optimizer, arguments, message):
    with pytest.raises(ValueError) as caught:
        dynamic.DynamicTrainer(small_net().collect_params(), optimizer, arguments, schedule=schedule())
    assert message in str(caught.value)


@pytest.mark.parametrize('base', [0.1, None])
def test_schedule_that_is_none_is_refused(base):
    with pytest.raises(TypeError, match='schedule must be a DynamicSchedule, got'):
        dynamic.DynamicTrainer(small_net().collect_params(), 'sgd', schedule=base)


@pytest.mark.parametrize('arguments', [{'stype': 'row_sparse'}, {'grad_stype': 'row_sparse'}])
def test_sparse_parameters_are_refused_by_name(arguments):
    param = gluon.Parameter('embedding', shape=(3, 2), **arguments)
    param.initialize()
    with pytest.raises(ValueError, match="parameter embedding is sparse, which DynamicTrainer does not support; make "
                                         "it with stype='default' and grad_stype='default'"):
        dynamic.DynamicTrainer([param], 'sgd', schedule=schedule())


def test_several_devices_in_one_worker_are_refused():
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match='is on 2 devices; a worker has one'):
        dynamic.DynamicTrainer(net.collect_params(), 'sgd', schedule=schedule())


@pytest.mark.parametrize('method', ['save_states', 'load_states'])
def test_files_of_gluons_trainer_are_refused(method):
    with pytest.raises(RuntimeError, match='GluonState carries all of the state'):
        getattr(Job().trainer, method)('file')


def test_parameters_keep_the_order_in_which_the_network_was_built():
    for _ in range(12):
        gluon.nn.Dense(1)                   # so that dense9 and dense10 are both in some network
        net = small_net()
        trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', schedule=schedule())
        assert [p.name for p in trainer._params] == [p.name for layer in net for p in layer.collect_params().values()]


def test_optimizer_object_and_plain_list_of_parameters_work():
    plain, given = Job(), Job()
    given.trainer = dynamic.DynamicTrainer(list(given.net.collect_params().values()),
                                           mx.optimizer.SGD(momentum=0.9, wd=0.01), schedule=given.schedule)
    given.state = dynamic.GluonState(net=given.net, trainer=given.trainer, sampler=given.sampler, epoch=0)
    plain.train()
    given.train()
    assert plain.everything()[0] == given.everything()[0]


def test_multipliers_of_parameters_hold():
    job = Job(optimizer_params={}, base=1.0)
    job.net[0].weight.lr_mult = 0.0
    job.net[1].bias.lr_mult = 2.0
    plain = Job(optimizer_params={}, base=1.0)

    def train(job):
        def body(state):
            job.backward([0, 1, 2, 3])
            job.trainer.step(4)
        return body
    before = job.weights()
    job.run(train(job))
    plain.run(train(plain))
    moved, usual = ([b - a for a, b in zip(before, j.weights())] for j in (job, plain))
    np.testing.assert_array_equal(moved[0], 0)
    np.testing.assert_allclose(moved[3], 2 * usual[3], rtol=1e-5)


def test_learning_rate_cannot_be_set_beside_the_schedule():
    with pytest.raises(RuntimeError, match=r'set_learning_rate\(0.5\).*the schedule decides'):
        Job().trainer.set_learning_rate(0.5)


@pytest.mark.parametrize('optimizer, parameters, message', [
    ('sgld', {}, "'sgld' is not supported: every worker would draw noise of its own"),
    ('lbsgd', {'batch_scale': 4}, "'lbsgd' with batch_scale=4 is not supported"),
])
def test_optimizer_with_which_workers_would_part_is_refused(optimizer, parameters, message):
    with pytest.raises(ValueError, match=message):
        Job(optimizer=optimizer, optimizer_params=parameters)


def test_batch_larger_than_the_data_set_scales_the_rate_by_what_there_is():
    job = Job(batch=100000, samples=40, reference=20)
    job.train(epochs=1)
    assert job.schedule.lr_scale == 2.0


def test_mean_of_the_losses_is_no_per_sample_loss():
    job = Job()

    def train(state):
        loss = job.backward(next(iter(job.sampler)))
        job.trainer.step(4, loss=loss.mean())
    with pytest.raises(ValueError, match='loss is a single number for 4 samples; give the per-sample losses'):
        once(job, train)


def test_loader_that_does_not_use_the_sampler_is_told_once(caplog):
    job = Job()

    def train(state):
        for _ in range(3):
            job.backward([0, 1, 2, 3])
            job.trainer.step(4)
    once(job, train)
    assert caplog.text.count('the batches do not come from the sampler') == 1


def test_resize_that_waits_for_a_commit_is_told(caplog, monkeypatch):
    monkeypatch.setattr('hvd_dynamic.trainer._PATIENCE', 3)
    job = Job()

    def train(state):
        job.world.resize(2)
        for batch in job.sampler:
            job.backward(batch)
            job.trainer.step(len(batch))
    once(job, train)
    assert caplog.text.count('a resize was announced 3 updates ago and waits for state.commit()') == 1


# -- normalizer --------------------------------------------------------------------------------------------------

def weights_after_normalized_updates(sizes, counts, dtype='float32', as_array=True, **arguments):
    """Updates whose normalizer is the sum over the batch of `counts`, by sample; ``sizes(job)`` may change the world."""
    job = Job(samples=len(counts), dtype=dtype, **arguments)
    records = []

    def train(state):
        for state.epoch in range(state.epoch, 2):
            for batch in job.sampler:
                with autograd.record():
                    loss = job.loss(batch) * mx.nd.array(counts[batch], dtype=dtype)
                loss.backward()
                total = float(counts[batch].sum())
                job.trainer.step(len(batch), loss=loss, normalizer=mx.nd.array([total]) if as_array else total)
                if not job.trainer.in_update:
                    sizes(job)
                    state.commit()
            job.trainer.confirm()
            records.extend(job.trainer.take_confirmed())
    job.run(train)
    return job, records


COUNTS = np.array([0, 0, 3, 0, 5, 2, 0, 0, 0, 1, 4, 7], 'float32')


@pytest.mark.parametrize('as_array', [True, False])
def test_normalizer_divides_by_its_sum_over_all_workers_also_when_some_have_none(as_array):
    """One worker with the whole batch is the truth; four workers have 3, 0 or more of it, and several passes an update."""
    same = {'policy': policies.FixedGlobalBatch(), 'reference': 12}
    whole, expected = weights_after_normalized_updates(lambda job: None, COUNTS, **same)
    split, found = weights_after_normalized_updates(lambda job: None, COUNTS, world=4, as_array=as_array, **same)
    passes, _ = weights_after_normalized_updates(lambda job: None, COUNTS, reference=12,
                                                 policy=policies.FixedGlobalBatch(max_local_batch=5))
    assert_same_weights(split, whole)
    assert_same_weights(passes, whole)
    assert [r.normalizer for r in found] == [r.normalizer for r in expected] == [22.0] * len(found)
    np.testing.assert_allclose([r.loss for r in found], [r.loss for r in expected], rtol=1e-5)


def test_normalizer_makes_the_update_the_quotient_of_the_two_sums():
    def weight_after(normalizer, halves=False):
        job = Job(samples=4, batch=4, base=1.0, optimizer_params={'momentum': 0.0})
        before = job.weights()

        def train(state):
            job.backward([0, 1, 2, 3])
            if halves:
                job.trainer.allreduce_grads(normalizer)
                job.trainer.update(4)
            else:
                job.trainer.step(4, normalizer=normalizer)
        once(job, train)
        return [a - b for a, b in zip(before, job.weights())]
    mean, quotient, in_halves, nobody_has_any = (weight_after(None), weight_after(10.0), weight_after(10.0, halves=True),
                                                 weight_after(0))
    for a, b, half, c in zip(mean, quotient, in_halves, nobody_has_any):
        np.testing.assert_allclose(a * 4 / 10, b, rtol=1e-5, atol=1e-8)
        np.testing.assert_array_equal(half, b)
        np.testing.assert_allclose(a * 4, c, rtol=1e-5, atol=1e-8)


def test_normalizer_beyond_the_range_of_float16_divides_float16_gradients():
    job = Job(dtype='float16', samples=4, batch=4, base=1.0, optimizer_params={'momentum': 0.0})

    def train(state):
        with autograd.record():
            loss = job.loss([0, 1, 2, 3]) * 1000
        loss.backward()
        job.trainer.step(4, normalizer=200000.0)
    before = job.weights()
    once(job, train)
    moved = [np.abs(a - b).max() for a, b in zip(before, job.weights())]
    assert all(np.isfinite(w).all() for w in job.weights()) and max(moved) > 0


def test_normalizer_travels_with_the_gradients_to_all_workers():
    group = Group(3)
    counts = np.array([0, 0, 6], 'float32')

    def work(world):
        job = Job(world=world, samples=6, batch=2, base=1.0, optimizer_params={'momentum': 0.0}, policy=policies.Linear())

        def train(state):
            batch = next(iter(job.sampler))
            with autograd.record():
                loss = job.loss(batch) * float(counts[world.rank] > 0)
            loss.backward()
            job.trainer.step(2, loss=loss, normalizer=float(counts[world.rank]))
            job.trainer.confirm()
            return job.trainer.take_confirmed()[0], job
        job.state.bind(world)
        return run_loop(job)(lambda: train(job.state))
    results = raise_errors(group.each(work))
    assert [record.normalizer for record, _ in results] == [6.0] * 3
    assert len({str(job.everything()) for _, job in results}) == 1


@pytest.mark.parametrize('normalizer, message', [
    (-1, 'normalizer must be a number of at least 0, got -1'),
    (float('nan'), 'normalizer must be a number of at least 0, got nan'),
    (mx.nd.ones((4,)), r'normalizer must be a single number, the sum over the batch, got shape \(4,\)'),
])
def test_normalizer_that_is_none_is_refused(normalizer, message):
    job = Job()

    def train(state):
        job.trainer.step(len(next(iter(job.sampler))), normalizer=normalizer)
    with pytest.raises(ValueError, match=message):
        once(job, train)


def test_normalizer_is_given_with_every_pass_or_none():
    job = Job(world=2)

    def train(state):
        for number, batch in enumerate(job.sampler):
            job.backward(batch)
            job.trainer.step(len(batch), normalizer=1.0 if number else None)
    with pytest.raises(ValueError, match='normalizer was given for some passes of this update and not for others'):
        once(job, train)
