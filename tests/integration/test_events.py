"""What else happens to elastic jobs: deaths in bad moments, frozen workers, bad discovery scripts, errors, Ctrl-C.

Each of the first four fixtures is one job to which many things happen one after the other.
"""

import ast
import os
import signal
import subprocess
import sys
import time

import pytest
from harness import ROOT, Job, used_samples

UNTIL_STOPPED = {'EPOCHS': '100000', 'SAMPLES': '97', 'UNTIL_STOPPED': '1', 'PAUSE': '0.02',
                 'HOROVOD_GLOO_TIMEOUT_SECONDS': '5'}
HOSTS = ('localhost', '127.0.0.1', '127.1', '127.0.1', 'LocalHost', 'LOCALHOST', 'localHost', 'Localhost')  # on one machine


def slots(*hosts):
    return {host: 1 for host in hosts}


def latest(job, rank):
    """The slot of a rank, as of the last round that was entered."""
    update = max(r['update'] for r in job.reports('entered'))
    return next(r['slot'] for r in reversed(job.reports('entered')) if (r['update'], r['rank']) == (update, rank))


def changes(job):
    return job.events('resized', 'failed_over')


def wait_for_resize(job, size, before):
    """Wait until the last change of the world, after the first `before` ones, has led to this size; then for an update."""
    job.wait_for(lambda: [e['new_size'] for e in changes(job)[before:]][-1:] == [size], f'there were {size} workers', 60)
    job.wait_for_update(changes(job)[-1]['update'] + 3)


def held(job, count):
    """Wait until so many newcomers, in the whole job, have come to where they are held up; the process of the last one."""
    job.wait_for(lambda: len(job.reports('held')) >= count, f'{count} newcomers were held up')
    return job.reports('held')[-1]['pid']


def ended_well(job):
    job.make('stop')
    job.status = job.finish(60)
    time.sleep(0.5)         # for a helper process of horovodrun's own
    job.left = [process.cmdline() for process in job.processes()]


def assert_ended_well(job):
    assert job.status == 0, job.log()[-3000:]
    assert job.left == []
    assert 'Traceback' not in job.worker_log() and 'status code 134' not in job.log(), job.log()[-6000:]


def assert_in_sync(job):
    """All that entered a round together had the same state, and so at the end."""
    rounds = {}
    for r in job.reports('entered'):
        rounds.setdefault((r['update'], r['size']), []).append(r['digest'])
    for (update, size), digests in rounds.items():
        assert len(set(digests)) == 1, f'update {update}, {size} workers'
    ends = job.reports('end')
    assert len(ends) == job.metrics()[-1]['world_size'] and len({r['digest'] for r in ends}) == 1


def assert_each_sample_once(job):
    used = used_samples(job.audit())
    assert len(used) == len(set(used))
    # nothing is left out either: at most one update's worth (carried, or the last one's) is missing of what was begun
    samples = int(UNTIL_STOPPED['SAMPLES'])
    epochs = 1 + max(epoch for epoch, _ in used)
    assert epochs * samples - len(used) < 5


# -- kill -9 -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def killed(tmp_path_factory):
    """Five workers are killed in a job of three, and replaced by ones on other hosts; one worker lives through all."""
    with Job(tmp_path_factory.mktemp('killed'), slots(*HOSTS[:3]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        hosts, fresh = list(HOSTS[:3]), list(HOSTS[3:])
        job.survivor = latest(job, 1)
        job.pid = job.workers()[job.survivor]
        for ranks in ([2], [0], [1, 2], [2]):       # one; the first one; two at once; and again, to see what is left behind
            before, pids = len(changes(job)), job.workers()
            for rank in ranks:
                victim = latest(job, rank)
                job.kill_pid(pids[victim])
                hosts.remove(victim.split(':')[0])
            wait_for_resize(job, 3 - len(ranks), before)
            hosts += [fresh.pop() for _ in ranks]
            job.set_hosts(slots(*hosts))
            wait_for_resize(job, 3, before)
        ended_well(job)
        yield job


def test_a_worker_lives_through_all_kills_of_others(killed):
    # horovod issues 2484 and 3264: now and then all survivors aborted (status 134) in place of going on
    assert_ended_well(killed)
    assert {r['pid'] for r in killed.reports('entered') if r['slot'] == killed.survivor} == {killed.pid}
    assert killed.pid in {r['pid'] for r in killed.reports('end')}


def test_after_all_kills_the_state_is_the_same_everywhere(killed):
    assert_in_sync(killed)


def test_after_all_kills_each_sample_was_used_once(killed):
    assert_each_sample_once(killed)


def test_kills_cost_at_most_the_updates_since_the_last_commit(killed):
    assert all(e['rolled_back_updates'] <= 2 for e in killed.events('failed_over'))
    assert all(e['rolled_back_updates'] == 0 for e in killed.events('resized'))


def test_survivor_of_many_failures_keeps_no_sockets_threads_or_memory(killed):
    whole = [r for r in killed.reports('entered') if r['pid'] == killed.pid and r['size'] == 3]
    assert len(whole) == 5
    early, end = whole[1], whole[-1]
    assert sum(end['files'].values()) <= sum(early['files'].values()), (early, end)
    assert end['threads'] <= early['threads'], (early, end)
    assert end['resident'] - early['resident'] < 30e6, [r['resident'] for r in whole]


@pytest.fixture(scope='module')
def newcomers(tmp_path_factory):
    """Deaths while newcomers start: of one before its imports, of one after them, then of a survivor."""
    with Job(tmp_path_factory.mktemp('newcomers'), slots(*HOSTS[:2]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.first_pids = job.workers()
        job.make('hold-start')
        job.set_hosts(slots(*HOSTS[:3]))
        job.kill_pid(held(job, 1))
        job.make('hold-build')
        job.remove('hold-start')
        job.wait_for_update(job.last_update() + 50)
        job.set_hosts(slots(*HOSTS[:4]))
        job.kill_pid(held(job, 2))
        job.remove('hold-build')
        job.wait_for_update(job.last_update() + 50)
        job.after_two_deaths = changes(job)
        job.make('hold-build')
        job.set_hosts(slots(*HOSTS[:5]))
        held(job, 3)
        job.victim = latest(job, 1)
        job.kill(job.victim)
        time.sleep(1)
        job.remove('hold-build')
        job.wait_for(lambda: any('LocalHost:0' in e['added'] for e in changes(job)), 'the third newcomer had joined', 60)
        wait_for_resize(job, 2, 0)
        ended_well(job)
        yield job


def test_death_of_newcomers_does_not_touch_the_survivors(newcomers):
    assert newcomers.after_two_deaths == []
    assert len(newcomers.metrics()) - newcomers.metrics()[-1]['update'] <= 2        # that the later death of a survivor cost


def test_death_of_a_survivor_while_a_newcomer_starts(newcomers):
    """The others are one survivor and the newcomer, in one world or after each other."""
    slots_now = {r['slot'] for r in newcomers.reports('end')}
    assert slots_now == set(newcomers.first_pids) - {newcomers.victim} | {'LocalHost:0'}
    lost, = newcomers.events('failed_over')
    assert lost['removed'] == [newcomers.victim] and lost['rolled_back_updates'] <= 2


def test_after_deaths_while_newcomers_start_all_is_well(newcomers):
    assert_ended_well(newcomers)
    assert_in_sync(newcomers)
    assert_each_sample_once(newcomers)
    for slot in set(newcomers.first_pids) - {newcomers.victim}:
        assert {r['pid'] for r in newcomers.reports('entered') if r['slot'] == slot} == {newcomers.first_pids[slot]}


def test_host_of_a_newcomer_that_died_is_tried_again(tmp_path):
    """With --blacklist-cooldown-range, as any other host."""
    with Job(tmp_path, slots(*HOSTS[:1]), environment={**UNTIL_STOPPED, 'HVD_DYNAMIC_WARM_TIMEOUT': '2'},
             options=('--blacklist-cooldown-range', '10', '10')) as job:
        job.wait_for_update(20)
        job.make('hold-build')
        job.set_hosts(slots(*HOSTS[:2]))
        job.kill_pid(held(job, 1))
        job.remove('hold-build')
        wait_for_resize(job, 2, 0)
        ended_well(job)
        assert_ended_well(job)
        assert_in_sync(job)
        assert [(e['old_size'], e['new_size']) for e in changes(job)] == [(1, 2)]


# -- SIGSTOP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def frozen(tmp_path_factory):
    """A worker stands still for less, and then two for longer, than a peer in a collective is waited for."""
    settings = {**UNTIL_STOPPED, 'HOROVOD_GLOO_TIMEOUT_SECONDS': '4'}
    with Job(tmp_path_factory.mktemp('frozen'), slots(*HOSTS[:2]), environment=settings) as job:
        job.wait_for_update(20)
        job.pids = job.workers()

        def freeze(rank, seconds):
            slot = latest(job, rank)
            job.kill(slot, signal.SIGSTOP)
            time.sleep(seconds)
            job.kill(slot, signal.SIGCONT)
            job.wait_for_update(job.last_update() + 30, 60)

        freeze(1, 1.5)
        job.after_short = changes(job)
        freeze(1, 7)
        wait_for_resize(job, 2, 0)
        before = len(changes(job))
        freeze(0, 7)
        wait_for_resize(job, 2, before)
        ended_well(job)
        yield job


def test_worker_that_stands_still_for_a_moment_is_waited_for(frozen):
    assert frozen.after_short == []


def test_worker_that_stands_still_for_longer_is_lost_and_found(frozen):
    """Nobody hangs, and all go on in the same processes: the frozen one is not dead."""
    assert_ended_well(frozen)
    # either the other one waits for it, or goes on alone and takes it in again
    events = changes(frozen)
    assert events and events[-1]['new_size'] == 2
    for before, after in zip([{'new_size': 2}, *events], events):
        assert after['old_size'] == before['new_size']
        assert after['new_size'] == after['old_size'] + len(after['added']) - len(after['removed'])
    assert {r['slot']: r['pid'] for r in frozen.reports('end')} == frozen.pids
    assert all(e['rolled_back_updates'] <= 2 for e in changes(frozen))


def test_after_standing_still_the_state_is_the_same_everywhere(frozen):
    assert_in_sync(frozen)
    assert_each_sample_once(frozen)


# -- the discovery script ------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def discovery(tmp_path_factory):
    """A discovery script that fails, prints nonsense, prints nothing, and changes its mind every second."""
    with Job(tmp_path_factory.mktemp('discovery'), slots(*HOSTS[:2]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.pids = job.workers()
        for answer in ('exit 1', 'echo error: no route to the scheduler', 'echo a:b:c; kill $$'):
            job.set_discovery(answer)
            time.sleep(2.5)
        job.after_errors, job.training_went_on = changes(job), job.last_update()
        job.set_discovery('')
        time.sleep(10)
        job.set_hosts(slots(*HOSTS[:2]))
        job.wait_for_update(job.last_update() + 20)
        job.after_empty = changes(job)
        for _ in range(4):
            for count in (3, 2):
                job.set_hosts(slots(*HOSTS[:count]))
                time.sleep(1)
        job.set_hosts(slots(*HOSTS[:3]))
        time.sleep(4)               # what was flapping may still be on its way
        job.wait_for_size(3)
        ended_well(job)
        yield job


def test_discovery_script_that_fails_changes_nothing(discovery):
    assert discovery.after_errors == []
    assert discovery.training_went_on > 100
    assert 'Failed to execute discovery script' in discovery.log(), "horovodrun's own warning"


def test_discovery_script_that_finds_no_hosts_for_a_while_loses_nobody(discovery):
    assert all((e['old_size'], e['new_size']) == (2, 2) for e in discovery.after_empty)
    assert {slot: pid for slot, pid in discovery.pids.items()}.items() <= {
        r['slot']: r['pid'] for r in discovery.reports('end')}.items()


def test_discovery_script_that_flaps_ends_in_its_last_answer(discovery):
    assert_ended_well(discovery)
    assert {r['slot'] for r in discovery.reports('end')} == {f'{host}:0' for host in HOSTS[:3]}
    assert discovery.events('failed_over') == []
    assert all(e['rolled_back_updates'] == 0 for e in discovery.events('resized'))


def test_after_bad_answers_the_state_is_the_same_everywhere(discovery):
    assert_in_sync(discovery)
    assert_each_sample_once(discovery)


def test_host_that_leaves_in_the_moment_after_the_start(tmp_path):
    with Job(tmp_path, slots(*HOSTS[:2]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(1)
        time.sleep(0.5)
        job.set_hosts(slots(HOSTS[0]))
        wait_for_resize(job, 1, 0)
        ended_well(job)
        assert_ended_well(job)
        assert '127.0.0.1:0 leaves the job' in job.log()
        assert_each_sample_once(job)


# -- fewer than --min-np -------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def too_few(tmp_path_factory):
    """Fewer hosts than --min-np 2: after one is taken away, and after one is killed; each time another comes later."""
    with Job(tmp_path_factory.mktemp('too-few'), slots(*HOSTS[:2]), environment=UNTIL_STOPPED, min_np=2) as job:
        job.wait_for_update(20)
        job.survivor, leaver = (latest(job, rank) for rank in range(2))
        job.pid = job.workers()[job.survivor]
        stays = job.survivor.split(':')[0]
        job.set_hosts(slots(stays))
        time.sleep(4)
        before = len(changes(job))
        job.set_hosts(slots(stays, HOSTS[2]))
        job.wait_for(lambda: any('127.1:0' in e['added'] for e in changes(job)), 'the new host was taken up', 60)
        wait_for_resize(job, 2, before)
        before = len(changes(job))
        job.kill('127.1:0')
        time.sleep(4)
        job.set_hosts(slots(stays, HOSTS[3]))
        wait_for_resize(job, 2, before)
        job.leaver = leaver
        ended_well(job)
        yield job


def test_fewer_than_min_np_wait_and_go_on_with_new_hosts(too_few):
    """horovod issue 3494: survivors left out the state sync that newcomers waited in, for ever."""
    assert_ended_well(too_few)
    assert {r['slot']: r['pid'] for r in too_few.reports('entered')}[too_few.survivor] == too_few.pid
    assert {r['slot'] for r in too_few.reports('end')} == {too_few.survivor, '127.0.1:0'}
    assert f'{too_few.leaver} leaves the job' in too_few.log()


def test_after_too_few_workers_the_state_is_the_same_everywhere(too_few):
    assert_in_sync(too_few)
    assert_each_sample_once(too_few)


# -- errors in the user's code -------------------------------------------------------------------------------------


def ended_by(job, error):
    """What of the workers' output is part of tracebacks: all of them must end with `error`, as many as there are."""
    log = job.worker_log()
    return log.count('Traceback'), log.count(f'>:RuntimeError: {error}')


def test_error_on_one_worker_of_a_single_host_is_the_one_that_is_seen(tmp_path):
    with Job(tmp_path, {'localhost': 3}, environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.make('raise', 'localhost:1')
        assert job.finish(60) != 0
        assert ended_by(job, 'raise on localhost:1') == (1, 1), job.log()
        assert 'status code 134' not in job.log()
        time.sleep(0.5)
        assert job.processes() == []


def test_error_on_one_host_ends_the_job_on_all(tmp_path):
    with Job(tmp_path, slots(*HOSTS[:3]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.make('raise', latest(job, 1))
        assert job.finish(60) != 0
        assert ended_by(job, 'raise on') == (1, 1), job.log()
        assert 'ends, because another worker did' in job.worker_log()
        assert 'status code 134' not in job.log()


def test_error_that_all_workers_make_ends_the_job(tmp_path):
    with Job(tmp_path, slots(*HOSTS[:3]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.make('raise', 'all')
        assert job.finish(60) != 0
        tracebacks, errors = ended_by(job, 'raise on')      # some may hear of another's before they come to their own
        assert 1 <= tracebacks == errors, job.log()
        assert 'status code 134' not in job.log()


def test_error_in_a_callback_is_seen_and_not_buried(tmp_path):
    with Job(tmp_path, slots(*HOSTS[:2]), environment=UNTIL_STOPPED) as job:
        job.wait_for_update(20)
        job.make('raise-in-callback', 'all')
        job.set_hosts(slots(*HOSTS[:3]))
        assert job.finish(60) != 0
        tracebacks, errors = ended_by(job, 'raise-in-callback on')
        assert 1 <= tracebacks == errors, job.log()


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('when', ['in training', 'while a newcomer starts'])
def test_ctrl_c_ends_everything(tmp_path, when):
    with Job(tmp_path, slots(*HOSTS[:2]), environment={**UNTIL_STOPPED, 'LOADERS': '1'}) as job:
        job.wait_for_update(20)
        if when == 'while a newcomer starts':
            job.make('hold-build')
            job.set_hosts(slots(*HOSTS[:3]))
            held(job, 1)
        job.interrupt()
        assert job.finish(30) != 0
        time.sleep(0.5)
        assert [process.cmdline() for process in job.processes()] == []
        assert 'Traceback' not in job.worker_log() and 'status code 134' not in job.log(), job.log()


# -- what is left behind -------------------------------------------------------------------------------------------


def test_worlds_that_are_entered_and_left_leave_nothing_behind(tmp_path):
    with Job(tmp_path, slots(*HOSTS[:2]), environment={'REJOIN': '20'}) as job:
        assert job.finish(120) == 0, job.log()[-3000:]
        assert 'Traceback' not in job.worker_log()
        for slot in ('localhost:0', '127.0.0.1:0'):
            turns = [r for r in job.reports('rejoined') if r['slot'] == slot]
            assert [r['turn'] for r in turns] == list(range(20))
            early, late = turns[4], turns[-1]
            assert late['files'] == early['files'] and late['names'] == early['names'], (early, late)
            assert late['threads'] <= early['threads'], (early, late)
            assert late['resident'] - early['resident'] < 5e6, [r['resident'] for r in turns]


def test_shared_memory_of_loaders_is_given_back(tmp_path):
    """Also that of loaders whose epoch was cut off by a resize."""
    before = set(os.listdir('/dev/shm'))
    with Job(tmp_path, slots(*HOSTS[:2]), environment={**UNTIL_STOPPED, 'LOADERS': '2'}) as job:
        job.wait_for_update(20)
        job.wait_for(lambda: set(os.listdir('/dev/shm')) - before, 'loaders used shared memory')
        pids = {process.pid for process in job.processes()}
        time.sleep(1)
        job.set_hosts(slots(HOSTS[0]))
        wait_for_resize(job, 1, 0)
        ended_well(job)
        assert_ended_well(job)
        ours = [name for name in set(os.listdir('/dev/shm')) - before if any(str(pid) in name for pid in pids)]
        assert ours == []


HUNDRED_RESIZES = """
import os
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
import hvd_dynamic as dynamic

world = dynamic.VirtualWorld(2)
dynamic.init(world)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(256, activation='relu'), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
net.initialize()
net.hybridize()
data = gluon.data.ArrayDataset(np.random.rand(900, 400).astype('float32'), np.zeros(900, 'float32'))
sampler = dynamic.ElasticSampler(900, batch_size=3, seed=0)
loader = gluon.data.DataLoader(data, batch_sampler=sampler)
schedule = dynamic.DynamicSchedule(0.01, 8, policy=dynamic.policies.Smooth(updates=2))
trainer = dynamic.DynamicTrainer(net.collect_params(), 'sgd', {'momentum': 0.9}, schedule=schedule)
state = dynamic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0, table=np.zeros(100))
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
seen = []

@dynamic.run
def train(state):
    mx.nd.waitall()
    with open('/proc/self/statm') as file:
        pages = int(file.read().split()[1])
    seen.append((pages * os.sysconf('SC_PAGE_SIZE'), len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))))
    for state.epoch in range(state.epoch, 1000):
        for images, label in loader:
            if len(seen) > 100:
                return
            with autograd.record():
                loss = loss_fn(net(images), label)
            loss.backward()
            trainer.step(len(images), loss=loss)
            if not trainer.in_update:
                if state.updates % 4 == 0:
                    world.resize(2 + len(seen) % 3)
                state.commit()

train(state)
print(seen)
"""


def test_a_hundred_resizes_in_one_process_take_no_more_of_anything():
    """Without processes, so that there can be many: the state, the sampler and the trainer through 100 worlds."""
    done = subprocess.run([sys.executable, '-c', HUNDRED_RESIZES], capture_output=True, text=True, timeout=120,
                          env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'})
    assert done.returncode == 0, done.stderr
    seen = ast.literal_eval(done.stdout)
    assert len(seen) == 101
    (early, *early_counts), (late, *late_counts) = seen[20], seen[-1]
    assert early_counts == late_counts
    assert late - early < 5e6, [resident for resident, *_ in seen]
