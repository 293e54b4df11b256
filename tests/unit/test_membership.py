"""Worlds are formed by workers that are threads here; the driver is Horovod's own."""
import threading
import time

import pytest
from horovod.runner.elastic import driver as horovods
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousServer

from hvd_dynamic.errors import JobFailed
from hvd_dynamic.world import WorkerRemoved, membership
from hvd_dynamic.world.membership import Membership
from hvd_dynamic.world.rendezvous import Rendezvous, Slot

SECONDS = 20


def eventually(condition, what):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f'{what}: not within {SECONDS} s'
        time.sleep(0.02)


class ThreadsMembership(Membership):
    """Whose worker goes by itself: it must not take the others, which are in the same process, with it."""

    gone = ()

    def _vanish(self, reason, status=0):
        self.gone, self._closed = (reason, status), True


class Worker:
    """A process that the driver has started; `membership` as soon as it has got so far."""

    def __init__(self, job, slot):
        self.job, self.name, self.slot = job, f'{slot.hostname}:{slot.local_rank}', slot
        self.ended, self.status = threading.Event(), 0
        self.membership = None
        self.crew = None

    def start(self, **options):
        """It has come as far as `dynamic.init`."""
        host, local_rank = self.name.split(':')
        self.membership = ThreadsMembership(self.job.rendezvous, host, int(local_rank), self.name, Slot(
            self.slot.rank, self.slot.size, int(local_rank), 1, 0, 1), **{**self.job.options, **options})
        return self

    def enter(self, failed=False):
        self.membership.enter(failed)
        return self

    def wait(self):
        self.crew = self.membership.wait(SECONDS)
        assert self.crew is not None, f'{self.name} waits for {self.membership.waiting_for}'
        self.membership.connected(True)
        return self.crew

    def exit(self, status):
        if self.membership is not None:
            self.membership.close(False)
        self.status = status
        self.ended.set()


class Job(HostDiscovery):
    """Horovod's elastic driver, with a list of hosts that can be changed."""

    def __init__(self, hosts, **options):
        self.hosts, self.options, self.workers = hosts, options, {}
        server = RendezvousServer()
        self.driver = horovods.ElasticDriver(server, self, 1, 8, timeout=SECONDS)
        self.driver.wait_for_available_slots(1)
        self.rendezvous = Rendezvous('127.0.0.1', server.start(create_rendezvous_handler(self.driver)))
        self.driver.start(sum(hosts.values()), self._start)

    def find_available_hosts_and_slots(self):
        return dict(self.hosts)

    def _start(self, slot, events):
        worker = self.workers[f'{slot.hostname}:{slot.local_rank}'] = Worker(self, slot)
        worker.ended.wait()
        return worker.status, time.time()

    def worker(self, name):
        eventually(lambda: name in self.workers, f'{name} is started')
        return self.workers[name]

    def change(self, hosts):
        """Other hosts; the driver has noticed when this returns."""
        self.hosts = hosts
        eventually(lambda: dict(self.driver._host_manager.current_hosts.host_slots) == hosts, 'the driver has looked')

    def stop(self):
        for worker in self.workers.values():
            worker.exit(1)
        self.driver.stop()


@pytest.fixture
def start(monkeypatch):
    """A function from hosts to a job whose workers are in a world, and these workers, the leader first."""
    monkeypatch.setattr(horovods, 'DISCOVER_HOSTS_FREQUENCY_SECS', 0.05)
    jobs = []

    def begin(hosts, **options):
        job = Job(hosts, **options)
        jobs.append(job)
        workers = [job.worker(f'{host}:{i}').start() for host, slots in hosts.items() for i in range(slots)]
        meet(workers)
        workers.sort(key=lambda worker: worker.membership._slot.rank)
        if options.get('warm_timeout') == 0:
            return job, workers
        # The first worker asks once, for hosts that changed before anybody was there to be told.
        eventually(lambda: workers[0].membership.change_found, 'a round is called for')
        prepare(workers)
        return job, workers
    yield begin
    for job in jobs:
        job.stop()


def prepare(workers):
    """All agree to ask for a round, and it begins."""
    for worker in workers:
        worker.membership.prepare()
    for worker in workers:
        eventually(lambda asked=worker.membership: asked._asked == asked._wanted, 'a round begins')


def meet(workers, failed=False):
    """All enter the next world, which is theirs."""
    for worker in workers:
        worker.enter(failed)
    crews = [worker.wait() for worker in workers]
    assert len({crew.id for crew in crews}) == 1
    assert [crew.slots[crew.rank] for crew in crews] == [worker.name for worker in workers]     # each knows its own rank
    assert sorted(crews[0].slots) == sorted(worker.name for worker in workers)


def never(condition, seconds=1.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition()
        time.sleep(0.05)


def test_newcomers_are_waited_for_beside_training_and_taken_in_together(start):
    job, old = start({'a': 2})
    job.change({'a': 2, 'b': 1})
    prepare(old)
    newcomer = job.worker('b:0').start()
    never(lambda: any(w.membership.ready for w in old))
    newcomer.enter()
    eventually(lambda: any(w.membership.ready for w in old), 'the newcomer is seen to be ready')
    meet([*old, newcomer])


def test_death_of_a_newcomer_is_not_noticed_by_those_who_train(start):
    job, old = start({'a': 2})
    job.change({'a': 2, 'b': 1})
    prepare(old)
    job.worker('b:0').start().exit(1)
    never(lambda: any(w.membership.ready or w.membership.change_found for w in old))
    prepare(old)                            # at the next change
    never(lambda: any(w.membership.ready for w in old))
    assert all(w.membership._slot.size == 2 for w in old)


def test_newcomer_that_died_on_a_host_of_its_own_is_reported_to_the_driver_in_time(start):
    job, old = start({'a': 2}, warm_timeout=0.5)
    job.change({'a': 2, 'b': 1})
    prepare(old)
    newcomer = job.worker('b:0').start()
    eventually(lambda: job.rendezvous.get('hvd_dynamic', f'member.{newcomer.slot.rank}'), 'it was heard of')
    newcomer.exit(1)
    eventually(lambda: any(w.membership.change_found for w in old), 'another round is called for')


def test_newcomer_that_was_not_heard_of_is_told_of_and_not_waited_for(start, caplog):
    """To ask for a round would have all wait for it that comes next: a leave, a failure, other newcomers."""
    job, old = start({'a': 2}, warm_timeout=0.3)
    job.change({'a': 2, 'b': 1})
    prepare(old)
    job.worker('b:0')
    eventually(lambda: '1 of 1 newcomers have not come to hvd_dynamic.init()' in caplog.text, 'it is told of')
    assert not any(w.membership.change_found for w in old)


def test_newcomer_that_died_is_no_part_of_the_last_round(start):
    """Else the driver would call a job failed that has done all it was to do."""
    job, old = start({'a': 2})
    job.change({'a': 2, 'b': 1})
    prepare(old)
    job.worker('b:0').exit(1)
    ends = [threading.Thread(target=w.membership.settle, args=(SECONDS,)) for w in old]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert [w.membership._slot.size for w in old] == [2, 2]


def test_end_of_training_waits_for_newcomers_that_start_and_tells_them(start):
    job, old = start({'a': 1})
    job.change({'a': 1, 'b': 1})
    prepare(old)
    end = threading.Thread(target=old[0].membership.settle, args=(SECONDS,))
    end.start()
    end.join(0.5)
    assert end.is_alive()
    newcomer = job.worker('b:0').start()
    end.join()
    old[0].membership.close(over=True)
    eventually(lambda: newcomer.membership.gone, 'the newcomer goes')
    assert newcomer.membership.gone == ('training has ended', 0)


def test_newcomer_that_died_on_a_survivors_host_is_not(start):
    """The driver would give that host up, with all that are on it."""
    job, old = start({'a': 1, 'b': 1}, warm_timeout=0.3)
    job.change({'a': 1, 'b': 2})
    prepare(old)
    newcomer = job.worker('b:1').start()
    eventually(lambda: job.rendezvous.get('hvd_dynamic', f'member.{newcomer.slot.rank}'), 'it was heard of')
    newcomer.exit(1)
    never(lambda: any(w.membership.change_found for w in old), 2)


def test_newcomer_that_died_when_it_was_ready_is_left_out(start):
    job, old = start({'a': 2})
    job.change({'a': 2, 'b': 1})
    prepare(old)
    newcomer = job.worker('b:0').start().enter()
    eventually(lambda: any(w.membership.ready for w in old), 'the newcomer is seen to be ready')
    newcomer.exit(1)
    meet(old)


def test_those_that_are_ready_are_taken_in_when_the_time_is_over_and_the_others_later(start):
    job, old = start({'a': 1}, warm_timeout=0.5)
    job.change({'a': 1, 'b': 1, 'c': 1})
    prepare(old)
    ready, late = job.worker('b:0').start().enter(), job.worker('c:0').start()
    eventually(lambda: old[0].membership.ready, 'the time is over')
    meet([*old, ready])
    late.enter()
    eventually(lambda: old[0].membership.change_found, 'another round is called for')
    prepare([*old, ready])
    eventually(lambda: old[0].membership.ready, 'the second newcomer is seen to be ready')
    meet([*old, ready, late])


def test_change_that_was_announced_before_its_round_began_is_looked_after_when_the_newcomers_are_in(start):
    """To ask for a round at once would be to wait for `late`."""
    job, old = start({'a': 1}, warm_timeout=0.5)
    announced = [True]
    old[0].membership.take_announcement = lambda: bool(announced) and announced.pop()
    job.change({'a': 1, 'b': 1, 'c': 1})
    prepare(old)
    ready, late = job.worker('b:0').start().enter(), job.worker('c:0')
    eventually(lambda: old[0].membership.ready or old[0].membership.change_found, 'something happens')
    assert not old[0].membership.change_found
    meet([*old, ready])
    eventually(lambda: old[0].membership.change_found, 'another round is called for')
    late.start()
    prepare([*old, ready])
    late.enter()
    eventually(lambda: old[0].membership.ready, 'the second newcomer is seen to be ready')
    meet([*old, ready, late])


def test_change_that_was_announced_before_a_round_that_changes_nothing_is_looked_after_at_once(start):
    job, old = start({'a': 2})
    announced = [True]
    old[0].membership.take_announcement = lambda: bool(announced) and announced.pop()
    prepare(old)
    eventually(lambda: old[0].membership.change_found, 'another round is called for')
    prepare(old)
    never(lambda: any(w.membership.ready or w.membership.change_found for w in old))


def test_newcomers_that_do_not_fit_wait(start):
    job, old = start({'a': 1})
    old[0].membership.fits = lambda size: size <= 2
    job.change({'a': 1, 'b': 1, 'c': 1})
    prepare(old)
    newcomers = [job.worker(name).start().enter() for name in ('b:0', 'c:0')]
    eventually(lambda: old[0].membership.ready, 'one of them fits')
    old[0].enter()
    slots = old[0].wait().slots
    first, second = newcomers if 'b:0' in slots else reversed(newcomers)
    assert slots == ['a:0', first.name] == first.wait().slots
    assert second.membership.wait(0.5) is None
    never(lambda: old[0].membership.change_found or old[0].membership.ready)


def test_worker_without_a_slot_has_all_leave_and_goes(start):
    job, old = start({'a': 1, 'b': 1, 'c': 1})
    a, b, c = sorted(old, key=lambda worker: worker.name)
    job.change({'a': 1, 'c': 1})
    prepare(old)
    eventually(lambda: b.membership.ready, 'the one that is removed wants to go')
    b.enter()
    with pytest.raises(WorkerRemoved, match='its slot was taken away'):
        b.wait()
    meet([a, c])


def test_two_rounds_between_a_leave_and_the_meeting(start):
    """The note of the one that was removed is gone by then."""
    job, old = start({'a': 1, 'b': 1})
    a, b = sorted(old, key=lambda worker: worker.name)
    job.change({'a': 1})
    prepare([a, b])
    eventually(lambda: b.membership.ready, 'the one that is removed wants to go')
    b.enter()
    with pytest.raises(WorkerRemoved):
        b.wait()
    b.exit(0)
    job.change({'a': 1, 'c': 1})
    prepare([a])
    meet([a])


def test_hosts_that_changed_back_change_nothing(start):
    job, old = start({'a': 2})
    job.change({'a': 2, 'b': 1})
    prepare(old)
    newcomer = job.worker('b:0').start()
    job.change({'a': 2})
    prepare(old)
    eventually(lambda: newcomer.membership.gone, 'the newcomer goes')
    assert newcomer.membership.gone == ('its slot was taken away', 0)
    newcomer.exit(0)
    never(lambda: any(w.membership.ready or w.membership.change_found for w in old))


@pytest.mark.parametrize('victims', [[0], [1], [0, 2]])
def test_survivors_of_a_failure_meet(start, victims):
    job, old = start({'a': 1, 'b': 1, 'c': 1, 'd': 1})
    for victim in victims:
        old[victim].exit(1)
    meet([w for i, w in enumerate(old) if i not in victims], failed=True)


def test_failure_while_newcomers_start_does_not_wait_for_them(start):
    job, old = start({'a': 1, 'b': 1, 'c': 1})
    job.change({'a': 1, 'b': 1, 'c': 1, 'd': 1})
    prepare(old)
    newcomer = job.worker('d:0')
    old[1].exit(1)
    meet([old[0], old[2]], failed=True)
    newcomer.start().enter()
    eventually(lambda: old[0].membership.change_found, 'another round is called for')
    prepare([old[0], old[2]])
    eventually(lambda: any(w.membership.ready for w in old), 'the newcomer is seen to be ready')
    meet([old[0], old[2], newcomer])


def test_survivor_that_comes_too_late_is_taken_in_later(start, monkeypatch):
    monkeypatch.setattr(membership, '_STRAGGLER_SECONDS', 1.5)
    job, old = start({'a': 1, 'b': 1, 'c': 1, 'd': 1}, warm_timeout=2)
    job.change({'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1})
    prepare(old)
    job.worker('e:0').start()
    old[3].exit(1)
    meet(old[:2], failed=True)
    old[2].enter(True)
    eventually(lambda: old[0].membership.change_found, 'another round is called for')
    prepare(old[:2])
    eventually(lambda: old[0].membership.ready, 'it is seen to be ready')


def test_error_of_one_ends_the_others(start):
    job, old = start({'a': 1, 'b': 1})
    old[1].membership.fail('b:0: ValueError: no')
    old[0].enter(failed=True)
    with pytest.raises(JobFailed, match='b:0: ValueError: no'):
        old[0].wait()


def test_newcomers_are_told_that_training_has_ended(start):
    job, old = start({'a': 1})
    job.change({'a': 1, 'b': 1, 'c': 1})
    prepare(old)
    ready, starting = job.worker('b:0').start().enter(), job.worker('c:0').start()
    note = f'member.{ready.slot.rank}'
    eventually(lambda: b'"ready": true' in (job.rendezvous.get('hvd_dynamic', note) or b''), 'one is ready')
    old[0].membership.close(over=True)
    with pytest.raises(WorkerRemoved, match='training has ended'):
        ready.wait()
    eventually(lambda: starting.membership.gone, 'the one that starts goes')
    assert starting.membership.gone == ('training has ended', 0)


def test_warm_up_turned_off_waits_for_newcomers(start):
    job, old = start({'a': 1}, warm_timeout=0, grace=0.3)
    job.change({'a': 1, 'b': 1})
    old[0].enter()
    newcomer = job.worker('b:0').start()
    assert old[0].membership.wait(1) is None
    meet([*old, newcomer])


def test_start_waits_for_all_and_asks_the_driver_after_a_while(monkeypatch):
    monkeypatch.setattr(horovods, 'DISCOVER_HOSTS_FREQUENCY_SECS', 0.05)
    job = Job({'a': 1, 'b': 1}, grace=0.3)
    try:
        one = job.worker('a:0').start().enter()
        assert one.membership.wait(1) is None
        meet([one, job.worker('b:0').start()])
    finally:
        job.stop()
