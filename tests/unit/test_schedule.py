"""DynamicSchedule: base schedules read by samples seen, the same on newcomers and survivors."""
import copy
import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dynamic import policies
from hvd_dynamic.schedule import DynamicSchedule

REFERENCE = 32
WARMUP = {'warmup_steps': 5, 'warmup_begin_lr': 0.01}


class PieceWise(mx.lr_scheduler.LRScheduler):
    """Like GluonCV's schedulers: parts after one another; remembers only what it was asked last."""

    def __init__(self):
        super().__init__(base_lr=0.2)
        self.learning_rate = 0

    def __call__(self, num_update):
        last = min(num_update, 39)
        self.learning_rate = 0.2 * last / 5 if last < 5 else 0.2 * (1 - (last - 5) / 35) ** 2
        return self.learning_rate


SCHEDULERS = {
    'factor': lambda: mx.lr_scheduler.FactorScheduler(7, 0.7, base_lr=0.3, **WARMUP),
    'factor with a floor': lambda: mx.lr_scheduler.FactorScheduler(3, 0.1, stop_factor_lr=1e-3, base_lr=0.3),
    'multifactor': lambda: mx.lr_scheduler.MultiFactorScheduler([6, 11, 30], 0.3, base_lr=0.3, **WARMUP),
    'poly': lambda: mx.lr_scheduler.PolyScheduler(40, base_lr=0.3, pwr=2, final_lr=0.004, **WARMUP),
    'cosine': lambda: mx.lr_scheduler.CosineScheduler(40, base_lr=0.3, final_lr=0.004, **WARMUP),
    'constant warm-up': lambda: mx.lr_scheduler.CosineScheduler(40, 0.3, warmup_mode='constant', **WARMUP),
    'piecewise': PieceWise,
}
schedulers = pytest.mark.parametrize('make', SCHEDULERS.values(), ids=SCHEDULERS)
some_scheduler = st.sampled_from(list(SCHEDULERS.values()))
# global batches, and the updates done with each: together up to three times past the end of the schedulers
plans = st.lists(st.tuples(st.sampled_from([8, 16, 24, 32, 56, 64, 128]), st.integers(1, 60)), min_size=1,
                 max_size=5)


def read(schedule, plan):
    lrs = []
    for batch, updates in plan:
        schedule.set_global_batch(batch)
        lrs += [schedule.advance(batch).lr for _ in range(updates)]
    return lrs


def fixed(base, **arguments):
    return DynamicSchedule(base, REFERENCE, policies.FixedGlobalBatch(), **arguments)


def copied(schedule, base):
    """A newcomer's: made anew, then told the position as JSON."""
    newcomer = DynamicSchedule(base, REFERENCE, schedule.policy, schedule.samples_per_epoch)
    newcomer.load_state_dict(json.loads(json.dumps(schedule.state_dict())))
    return newcomer


@schedulers
def test_at_the_reference_batch_it_is_the_plain_scheduler(make):
    plain = make()
    assert read(DynamicSchedule(make(), REFERENCE), [(REFERENCE, 100)]) == [plain(i) for i in range(40)] + \
        [make()(40)] * 60 if hasattr(plain, 'max_update') else [plain(i) for i in range(100)]


@schedulers
def test_progress_is_samples_whatever_the_batches(make):
    halves, wholes = read(fixed(make()), [(16, 90)]), read(fixed(make()), [(32, 45)])
    assert halves[::2] == wholes


@given(some_scheduler, plans)
def test_base_rate_depends_on_samples_seen_alone(make, plan):
    schedule = fixed(make())
    for batch, updates in plan:
        schedule.set_global_batch(batch)
        for _ in range(updates):
            progress = schedule.samples_seen / REFERENCE
            fresh = make()
            end = getattr(fresh, 'max_update', progress)
            assert schedule.advance(batch).lr == fresh(min(progress, end))


@given(some_scheduler, plans, plans)
def test_newcomer_reads_what_a_survivor_reads_to_the_last_digit(make, before, after):
    survivor = DynamicSchedule(make(), REFERENCE, policies.Smooth())
    read(survivor, before)
    newcomer = copied(survivor, make())
    assert newcomer.lr_scale == survivor.lr_scale and newcomer.updates_to_target == survivor.updates_to_target
    assert read(newcomer, after) == read(survivor, after)
    assert newcomer.state_dict() == survivor.state_dict()


@given(some_scheduler, plans, plans)
def test_going_back_to_an_earlier_position_reads_the_same_again(make, before, lost):
    schedule = DynamicSchedule(make(), REFERENCE)
    read(schedule, before)
    position = schedule.state_dict()
    first = read(schedule, lost)
    schedule.load_state_dict(position)
    assert read(schedule, lost) == first


@pytest.mark.parametrize('plan', [[(32, 40)], [(64, 20)], [(16, 40), (64, 5), (128, 2), (8, 8)]])
def test_cosine_ends_at_the_same_sample_count_whatever_the_sizes(plan):
    schedule = fixed(SCHEDULERS['cosine']())
    read(schedule, plan)
    assert schedule.samples_seen < 40 * REFERENCE or schedule.base_lr() == pytest.approx(0.004, rel=1e-12)
    schedule.advance(40 * REFERENCE - schedule.samples_seen)
    assert [schedule.advance(64).lr for _ in range(3)] == [0.004] * 3
    assert fixed(SCHEDULERS['cosine']()).base_lr() == 0.01


def test_looking_at_the_rate_changes_nothing():
    looked_at, other = (DynamicSchedule(SCHEDULERS['factor'](), REFERENCE) for _ in range(2))
    looked_at.set_global_batch(64)
    other.set_global_batch(64)
    for _ in range(30):
        assert looked_at.target_lr == looked_at.base_lr() * looked_at.target_scale
        assert looked_at.advance(64) == other.advance(64)


def test_users_scheduler_is_left_alone():
    scheduler = SCHEDULERS['factor']()
    before = copy.deepcopy(vars(scheduler))
    read(DynamicSchedule(scheduler, REFERENCE), [(32, 100)])
    assert vars(scheduler) == before


@schedulers
def test_what_the_user_asks_his_own_scheduler_changes_nothing(make):
    """MXNet's schedulers remember: one that a script also asks for its log must not make survivors differ."""
    asked, plain = make(), DynamicSchedule(make(), REFERENCE)
    schedule = DynamicSchedule(asked, REFERENCE)
    for update in range(60):
        asked(update)
    assert schedule.describe_base() == plain.describe_base()
    schedule.load_state_dict(schedule.state_dict())
    assert read(schedule, [(32, 60)]) == read(plain, [(32, 60)])


def test_base_schedules_are_told_apart():
    texts = [DynamicSchedule(base, REFERENCE).describe_base() for base in (
        0.1, 0.2, abs, *(make() for make in SCHEDULERS.values()), mx.lr_scheduler.CosineScheduler(41, 0.3))]
    assert len(set(texts)) == len(texts)
    assert DynamicSchedule(1, REFERENCE).describe_base() == DynamicSchedule(1.0, REFERENCE).describe_base()


def test_number_is_a_constant_rate_times_the_scale():
    schedule = DynamicSchedule(0.1, REFERENCE, policies.Linear())
    assert read(schedule, [(32, 2), (64, 2), (16, 1)]) == [0.1, 0.1, 0.2, 0.2, 0.05]
    assert read(DynamicSchedule(1, REFERENCE), [(32, 1)]) == [1.0]
    assert read(DynamicSchedule(np.float64(0.25), REFERENCE), [(32, 1)]) == [0.25]


def test_function_of_epochs_gets_fractions_of_the_data_set():
    asked = []
    schedule = fixed(lambda epoch: asked.append(epoch) or 0.1 * 0.5 ** epoch, samples_per_epoch=128)
    assert read(schedule, [(32, 4), (64, 1)]) == [0.1 * 0.5 ** e for e in (0, 0.25, 0.5, 0.75, 1)]
    assert asked == [0, 0.25, 0.5, 0.75, 1]


def test_function_of_epochs_without_the_length_says_what_is_missing():
    schedule = fixed(lambda epoch: 0.1)
    schedule.set_global_batch(32)
    with pytest.raises(ValueError, match='samples_per_epoch is not known.*samples_per_epoch=N'):
        schedule.advance(32)


def test_short_last_batch_of_an_epoch_is_no_resize():
    schedule = DynamicSchedule(0.1, REFERENCE)
    schedule.set_global_batch(32)
    decision = schedule.advance(5)
    assert (decision.lr, decision.momentum_scale, schedule.samples_seen) == (0.1, 1.0, 5)


def test_telling_the_same_batch_again_does_not_restart_a_transition():
    schedule = DynamicSchedule(0.1, REFERENCE, policies.Smooth(updates=4))
    schedule.set_global_batch(32)
    schedule.set_global_batch(64)
    schedule.advance(64)
    schedule.set_global_batch(64)
    assert [schedule.advance(64).lr_scale for _ in range(4)] == [1.5, 1.75, 2.0, 2.0]


def test_targets_are_told_in_advance():
    schedule = DynamicSchedule(0.1, REFERENCE, policies.Smooth(updates=4))
    schedule.set_global_batch(32)
    assert (schedule.target_scale, schedule.updates_to_target) == (1.0, 0)
    schedule.set_global_batch(128)
    schedule.advance(128)
    assert (schedule.lr_scale, schedule.target_scale, schedule.updates_to_target) == (1.75, 4.0, 3)
    assert schedule.target_lr == 0.4


@pytest.mark.parametrize('batch, scales', [
    (128, [1.75, 2.5, 3.25, 4.0, 4.0]), (16, [0.875, 0.75, 0.625, 0.5, 0.5]), (32, [1.0] * 5)])
def test_ramp_at_the_start_is_that_of_a_resize_from_the_reference_batch(batch, scales):
    schedule = DynamicSchedule(0.1, REFERENCE, policies.Smooth(updates=4, ramp_at_start=True))
    schedule.set_global_batch(batch)
    decisions = [schedule.advance(batch) for _ in scales]
    assert [decision.lr_scale for decision in decisions] == scales
    resized = DynamicSchedule(0.1, REFERENCE, policies.Smooth(updates=4))
    for size in (REFERENCE, batch):
        resized.set_global_batch(size)
    assert [resized.advance(batch).momentum_scale for _ in scales] == [d.momentum_scale for d in decisions]


def test_newcomer_to_a_training_that_ramps_at_its_start_is_in_the_middle_of_it():
    old, new = (DynamicSchedule(0.1, REFERENCE, policies.Smooth(updates=4, ramp_at_start=True)) for _ in range(2))
    old.set_global_batch(128)
    old.advance(128)
    new.load_state_dict(old.state_dict())
    for schedule in (old, new):
        schedule.set_global_batch(256)
    assert [old.advance(256) for _ in range(6)] == [new.advance(256) for _ in range(6)]


def test_square_root_scaling_where_the_optimizer_calls_for_it():
    schedule = DynamicSchedule(0.1, REFERENCE, policies.Linear())
    schedule.default_scaling = 'sqrt'
    schedule.set_global_batch(128)
    assert schedule.advance(128).lr == 0.2


def test_advance_before_the_batch_is_known():
    with pytest.raises(RuntimeError, match=r'set_global_batch\(\) has not been called'):
        DynamicSchedule(0.1, REFERENCE).advance(32)


@pytest.mark.parametrize('arguments, error, message', [
    ((0.1, 0), ValueError, 'reference_batch must be a positive integer, the global batch (in samples) for which '
     'the base schedule was tuned, got 0'),
    ((0.1, -3), ValueError, 'got -3'),
    ((0.1, 3.5), ValueError, 'got 3.5'),
    ((0.1, True), ValueError, 'got True'),
    (('0.1', 32), TypeError, "base must be a learning rate (a number), an mx.lr_scheduler.LRScheduler or a "
     "function of epochs, got '0.1'"),
    ((None, 32), TypeError, 'got None'),
    ((True, 32), TypeError, 'got True'),
    ((-0.1, 32), ValueError, 'the base learning rate must be finite and not negative, got -0.1'),
    ((float('nan'), 32), ValueError, 'got nan'),
    ((float('inf'), 32), ValueError, 'got inf'),
    ((0.1, 32, 'smooth'), TypeError, "policy must be a policy object such as hvd_dynamic.policies.Smooth(), got "
     "'smooth'"),
    ((0.1, 32, policies.Smooth), TypeError, 'policy must be a policy object'),
])
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        DynamicSchedule(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize('answer, error, message', [
    (None, TypeError, 'returned None; it must return a learning rate, a number'),
    (-1.0, ValueError, 'finite and not negative, got -1.0'),
    (float('nan'), ValueError, 'got nan')])
def test_bad_answer_of_a_base_schedule_is_refused(answer, error, message):
    schedule = fixed(lambda epoch: answer, samples_per_epoch=10)
    schedule.set_global_batch(32)
    with pytest.raises(error, match=message):
        schedule.advance(32)
