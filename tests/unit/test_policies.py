"""How the learning rate scale and the momentum factor follow the global batch."""
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dynamic import policies
from hvd_dynamic.schedule import DynamicSchedule

batches = st.integers(1, 4096)
sizes = st.lists(st.tuples(batches, st.integers(1, 40)), min_size=1, max_size=6)
all_policies = st.sampled_from([policies.Linear(), policies.LinearUncorrected(), policies.Smooth(),
                                policies.Smooth(updates=7), policies.Compensated(),
                                policies.SmoothCompensated(), policies.SmoothCompensated(updates=5),
                                policies.FixedGlobalBatch()])


def walk(schedule, updates, batch):
    return [schedule.advance(batch) for _ in range(updates)]


def begun(policy, batch, reference=64):
    schedule = DynamicSchedule(0.1, reference, policy)
    schedule.set_global_batch(batch)
    return schedule


@given(all_policies, batches, batches)
def test_scale_is_exactly_at_the_target_after_the_transition_and_not_later(policy, old, new):
    schedule = begun(policy, old)
    schedule.set_global_batch(new)
    updates = schedule.updates_to_target if new != old else 0
    if new != old:
        assert updates == policy.transition_updates(new / old)
    walk(schedule, updates, new)
    assert not schedule.in_transition and schedule.updates_to_target == 0
    assert schedule.lr_scale == policy.target(new / 64)
    assert [d.lr_scale for d in walk(schedule, 3, new)] == [schedule.lr_scale] * 3


@given(st.integers(1, 60), batches, batches)
def test_smooth_goes_in_equal_steps(updates, old, new):
    schedule = begun(policies.Smooth(updates=updates), old)
    start = schedule.lr_scale
    schedule.set_global_batch(new)
    scales = [d.lr_scale for d in walk(schedule, updates, new)] if new != old else []
    for i, scale in enumerate(scales, 1):
        assert scale == pytest.approx(start * (1 + i * (new / old - 1) / updates), rel=1e-9)


@given(st.sampled_from([policies.Smooth(), policies.Smooth(updates=9)]), batches, sizes)
def test_smooth_never_jumps_when_resized_in_the_middle_of_a_transition(policy, first, plan):
    schedule = begun(policy, first)
    for batch, updates in plan:
        before, changed = schedule.lr_scale, batch != schedule.global_batch
        schedule.set_global_batch(batch)
        assert schedule.lr_scale == before
        if changed:
            step = abs(schedule.target_scale - before) / schedule.updates_to_target
        else:
            step = math.inf if not schedule.in_transition else abs(schedule.target_scale - before)
        for decision in walk(schedule, updates, batch):
            assert abs(decision.lr_scale - before) <= step * (1 + 1e-9) + 1e-12
            before = decision.lr_scale


@given(st.sampled_from([policies.Smooth(), policies.Smooth(updates=13), policies.Linear(),
                        policies.Linear(scaling='sqrt')]), batches, batches)
def test_factors_on_the_momentum_multiply_to_the_change_of_scale(policy, old, new):
    schedule = begun(policy, old)
    start = schedule.lr_scale
    schedule.set_global_batch(new)
    product = math.prod(d.momentum_scale for d in walk(schedule, schedule.updates_to_target + 2, new))
    assert product == pytest.approx(policy.target(new / 64) / start, rel=1e-9)


@given(st.sampled_from([policies.Compensated(), policies.SmoothCompensated(),
                        policies.SmoothCompensated(updates=6)]), batches, sizes)
def test_compensated_never_amplifies_the_momentum_and_damps_it_on_a_shrink(policy, first, plan):
    schedule = begun(policy, first)
    for batch, updates in plan:
        schedule.set_global_batch(batch)
        for _ in range(updates):
            before = schedule.lr_scale
            decision = schedule.advance(batch)
            assert decision.momentum_scale == min(1.0, decision.lr_scale / before)


@given(batches, sizes)
def test_uncorrected_and_fixed_leave_the_momentum_alone(first, plan):
    for policy in (policies.LinearUncorrected(), policies.FixedGlobalBatch()):
        schedule = begun(policy, first)
        for batch, updates in plan:
            schedule.set_global_batch(batch)
            assert all(d.momentum_scale == 1.0 for d in walk(schedule, updates, batch))
    assert schedule.lr_scale == 1.0


@given(batches, batches)
def test_linear_and_compensated_are_at_the_target_with_the_first_update(old, new):
    for policy in (policies.Linear(), policies.LinearUncorrected(), policies.Compensated()):
        schedule = begun(policy, old)
        schedule.set_global_batch(new)
        assert schedule.advance(new).lr_scale == new / 64


@pytest.mark.parametrize('ratio, updates', [(16, 128), (2, 16), (1.5, 12), (1 / 16, 1), (1 / 8, 1), (0.25, 2),
                                            (1 / 1000, 1)])
def test_smooth_takes_8_updates_times_the_ratio_by_default(ratio, updates):
    assert policies.Smooth().transition_updates(ratio) == updates
    assert policies.SmoothCompensated().transition_updates(ratio) == updates


def test_transition_in_samples_is_the_same_progress_whatever_the_batch():
    schedule = begun(policies.Smooth(samples=1000), 64)
    for batch, updates in ((256, 4), (512, 2), (64, 16), (2048, 1)):
        schedule.set_global_batch(batch)
        assert schedule.updates_to_target == updates


def test_default_transition_of_a_second_resize_goes_by_its_own_ratio():
    schedule = begun(policies.Smooth(), 64)
    schedule.set_global_batch(128)
    walk(schedule, 3, 128)
    schedule.set_global_batch(512)
    assert schedule.updates_to_target == 32


def test_scaling_is_linear_square_root_or_what_the_optimizer_calls_for():
    assert policies.Smooth().target(4.0) == 4.0
    assert policies.Smooth().target(4.0, default_scaling='sqrt') == 2.0
    assert policies.Smooth(scaling='linear').target(4.0, default_scaling='sqrt') == 4.0
    assert policies.Compensated(scaling='sqrt').target(4.0) == 2.0
    assert policies.FixedGlobalBatch(scaling='sqrt').target(4.0) == 1.0


def test_first_batch_sets_the_scale_without_a_transition():
    decision = begun(policies.Smooth(), 256).advance(256)
    assert (decision.lr_scale, decision.momentum_scale) == (4.0, 1.0)


@pytest.mark.parametrize('name', sorted(policies.POLICIES))
def test_every_policy_can_be_had_by_name(name):
    assert type(policies.get(name)) is policies.POLICIES[name]
    assert policies.get(name, scaling='sqrt').scaling == 'sqrt'


def test_get_passes_arguments_on():
    assert policies.get('smooth-compensated', updates=3) == policies.SmoothCompensated(updates=3)
    assert policies.get('fixed-global-batch', max_local_batch=8).max_local_batch == 8


@pytest.mark.parametrize('call, message', [
    (lambda: policies.get('smoth'), "policy must be one of adascale, compensated, fixed-global-batch, linear, "
     "linear-uncorrected, smooth, smooth-compensated, got 'smoth' (did you mean 'smooth'?)"),
    (lambda: policies.get('xyzzy'), "got 'xyzzy'"),
    (lambda: policies.get('linear', updates=3), "policy 'linear' has no argument 'updates'; it has scaling"),
    (lambda: policies.Smooth(updates=0), 'updates must be an integer of at least 1, or None for 8 x the ratio '
     'of the batch sizes, got 0'),
    (lambda: policies.Smooth(updates=2.5), 'updates must be an integer of at least 1'),
    (lambda: policies.SmoothCompensated(updates=True), 'got True'),
    (lambda: policies.Smooth(ramp_at_start=1), 'ramp_at_start must be True or False, got 1'),
    (lambda: policies.Linear(scaling='cubic'), "scaling must be one of auto, linear, sqrt, got 'cubic'"),
    (lambda: policies.FixedGlobalBatch(max_local_batch=0), 'max_local_batch must be a positive integer or None '
     'for no limit, got 0'),
    (lambda: policies.FixedGlobalBatch(max_local_batch='8'), "got '8'"),
    (lambda: policies.FixedGlobalBatch(scaling='log'), "got 'log'"),
    (lambda: policies.Smooth(samples=0), 'samples must be a positive integer, the length of a transition, got 0'),
    (lambda: policies.Smooth(updates=8, samples=100), 'updates=8 and samples=100 are both given'),
])
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


def test_a_new_policy_is_one_small_class():
    class ByRatio(policies.Policy):
        def transition_updates(self, ratio, global_batch=None):
            return 2

        def ramp(self, start, target, done, updates):
            return start * (target / start) ** (done / updates)

    schedule = begun(ByRatio(), 64)
    schedule.set_global_batch(256)
    assert [d.lr_scale for d in walk(schedule, 3, 256)] == [2.0, 4.0, 4.0]


def test_module_needs_neither_mxnet_nor_horovod():
    import subprocess
    import sys
    code = ('import sys; sys.modules["mxnet"] = sys.modules["horovod"] = None; import hvd_dynamic.sampler; '
            'import hvd_dynamic.schedule; import hvd_dynamic.policies')
    subprocess.run([sys.executable, '-c', code], check=True)
