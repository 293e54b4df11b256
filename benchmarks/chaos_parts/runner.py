"""Makes the events happen, one after the other, and waits for the job to come through each."""

import signal
import time
from dataclasses import dataclass, field

from .events import MAX_SIZE, Event, host_of, slots_of
from .job import COOLDOWN, HOSTS, Job
from .records import Records

__all__ = ['Runner', 'Done', 'Fault', 'Fatal']

#: Seconds in which the job must be through an event: start-ups of a few workers on a busy machine are the most of it.
LIMIT = 120
#: A host that a failure has cost is left alone in this many events, and at least for Horovod's cooldown.
REST = 2
#: A driver that has just started begins a second round at once. It counts a death that it notices in the moment in which a
#: round begins for that round, even if the worker has no slot in it any more, and then takes the whole job for failed, say.
_ROUND_SECONDS = 3
_LOOK_SECONDS = 0.25     # looking through all processes costs the job's workers time
_UPDATES_AHEAD = 40     # of a checkpoint's order: more than what any worker does between two looks at the orders


@dataclass
class Done:
    """An event that happened.

    Attributes
    ----------
    number : int
        From 1; 0 is the start, and the last one the end.
    event : Event
    update : int
        The last update that was logged before it.
    began, ended : float
        Seconds since 1970.
    """

    number: int
    event: Event
    update: int
    began: float
    ended: float = 0.0

    def __str__(self):
        return f'event {self.number} ({self.event}), after update {self.update}'


@dataclass(frozen=True)
class Fault:
    """Something that must not be: what, and in which event."""

    what: str
    where: str
    kind: str = 'other'


class Fatal(Exception):
    """The run cannot go on: a hang, or a job that ended."""

    def __init__(self, what, kind):
        super().__init__(what)
        self.kind = kind


@dataclass
class Runner:
    """One chaos run.

    Parameters
    ----------
    folder : Path
    dealer : Dealer
    pause : float
        Seconds that each update takes longer.
    say : callable
        ``say(line)``, called with each event.
    """

    folder: object
    dealer: object
    pause: float
    say: object
    done: list = field(default_factory=list)
    faults: list = field(default_factory=list)

    def __post_init__(self):
        self._job = Job(self.folder, MAX_SIZE, self.pause)
        self._records = Records(self.folder)
        self._resting = {}          # host: (number of the event that cost it, when it may be used again)
        self._reports_seen = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._job.kill_all()

    def start(self):
        """Start the job; returns when it trains."""
        self._hosts = self.dealer.first_hosts()
        self._happen(Event('start', self._hosts), lambda event: self._job.start(event.hosts))

    def next(self):
        """Let the next event happen."""
        time.sleep(self.dealer.pause())
        event = None
        while event is None:
            free = [h for h in HOSTS if h not in self._hosts and h not in self._resting]
            event = self.dealer.deal(self._hosts, free, self._rank_0())
            if event is None:
                self._wake(min(self._resting, key=self._resting.get))
        does = {'join': self._change, 'leave': self._change, 'exchange': self._change,
                'kill a newcomer': self._kill_newcomer, 'kill while growing': self._kill_while_growing,
                'freeze, briefly': self._freeze, 'freeze, too long': self._freeze, 'checkpoint': self._checkpoint,
                'restart, SIGTERM': self._restart, 'restart, kill -9': self._restart}
        self._happen(event, does.get(event.kind, self._kill))
        for host in [h for h, (number, _) in self._resting.items() if len(self.done) - number > REST]:
            self._wake(host)

    def finish(self):
        """Let the training end."""
        def end(event):
            self._job.give_orders(last_epoch=self._records.last()['epoch'] + 1)
            if self._job.wait(LIMIT) is None:
                raise self._hang('the job did not end')
            if self._job.status != 0:
                raise Fatal(f'horovodrun ended with status {self._job.status}{self._tail()}', 'job ended')
        self._happen(Event('end', self._hosts), end, settle=False)

    # -- events --------------------------------------------------------------------------------------------------

    def _happen(self, event, do, settle=True):
        done = Done(len(self.done), event, self._records.last()['update'], time.time())
        self.done.append(done)
        self.say(str(done))
        try:
            self._before = {} if event.kind == 'start' else self._living()
            do(event)
            if settle:
                self._settle(event)
        except Fatal as fatal:
            self.faults.append(Fault(str(fatal), str(done), fatal.kind))
            raise
        finally:
            done.ended = time.time()
        self._hosts = event.hosts
        for victim in event.victims if event.kind.startswith('kill') else ():
            if host_of(victim) not in event.hosts:
                self._resting[host_of(victim)] = done.number, time.monotonic() + COOLDOWN + 1.5
        self._check_reports(done)

    def _change(self, event):
        self._job.set_hosts(event.hosts)

    def _kill(self, event):
        if self.done[-2].event.kind.startswith(('start', 'restart')):
            time.sleep(_ROUND_SECONDS)
        for victim in event.victims:
            self._job.signal(self._before[victim], signal.SIGKILL)
        self._job.set_hosts(event.hosts)

    def _kill_newcomer(self, event):
        newcomer, = event.victims
        self._job.set_hosts({**event.hosts, host_of(newcomer): 1})
        self._wait(lambda: newcomer in self._job.workers(), f'{newcomer} was started')
        time.sleep(event.seconds)
        self._job.signal(self._job.workers().get(newcomer, 0) or self._gone(newcomer), signal.SIGKILL)
        self._job.set_hosts(event.hosts)

    def _kill_while_growing(self, event):
        newcomer, = set(event.slots) - set(slots_of(self._hosts))
        victim, = event.victims
        self._job.set_hosts({**self._hosts, host_of(newcomer): 1})
        self._wait(lambda: newcomer in self._job.workers(), f'{newcomer} was started')
        time.sleep(event.seconds)
        self._job.signal(self._before[victim], signal.SIGKILL)
        self._job.set_hosts(event.hosts)

    def _freeze(self, event):
        victim, = event.victims
        self._job.signal(self._before[victim], signal.SIGSTOP)
        try:
            time.sleep(event.seconds)
        finally:
            self._job.signal(self._before[victim], signal.SIGCONT)

    def _checkpoint(self, event):
        before = len(self._records.events('checkpointed'))
        self._job.give_orders(checkpoint_at=self._records.last()['update'] + _UPDATES_AHEAD)
        self._wait(lambda: len(self._records.events('checkpointed')) > before, 'a checkpoint was saved')

    def _restart(self, event):
        # The job dies at any time after a checkpoint was asked for, perhaps while it is written; there must be one.
        if not self._records.events('checkpointed'):
            self._checkpoint(event)
        self._job.give_orders(checkpoint_at=self._records.last()['update'] + _UPDATES_AHEAD)
        time.sleep(event.seconds)
        if event.kind == 'restart, SIGTERM' and not self._job.terminate(LIMIT):
            raise self._hang('the job did not end after SIGTERM')
        self._job.kill_all()
        self._before = {}
        self._resting = {}      # the new driver knows nothing of failures
        self._job.start(event.hosts)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _settle(self, event):
        """Wait until exactly the right workers train, and check who they are."""
        began, slots, job = time.time(), event.slots, self._job
        killed = event.victims if event.kind.startswith('kill') else ()

        def trains():
            last = self._records.last()
            if last['time'] <= began or last['world_size'] != len(slots):
                return False
            workers = job.workers()
            if sorted(workers) != slots or any(workers[v] == self._before.get(v) for v in killed if v in workers):
                return False
            entered = {report['slot']: report for report in self._records.reports('entered')}
            return all(slot in entered and entered[slot]['pid'] == workers[slot] and entered[slot]['size'] == len(slots)
                       for slot in slots)

        self._wait(trains, f'{", ".join(slots)} trained')
        # Horovod ends all workers of a failed worker's host; all others that still have a slot must go on as they are.
        lost_hosts = {host_of(victim) for victim in killed}
        now = job.workers()
        for slot in slots:
            pid = self._before.get(slot)
            if pid is not None and host_of(slot) not in lost_hosts and now.get(slot) != pid:
                self.faults.append(Fault(f'{slot} was to survive, but its process {pid} is gone', str(self.done[-1]),
                                         'dead survivor'))

    def _wait(self, condition, what):
        end = time.monotonic() + LIMIT
        while not condition():
            if self._job.status is not None:
                raise Fatal(f'horovodrun ended with status {self._job.status} before {what}{self._tail()}', 'job ended')
            if time.monotonic() > end:
                raise self._hang(f'{LIMIT} s passed before {what}')
            time.sleep(_LOOK_SECONDS)

    def _hang(self, what):
        last = self._records.last()
        workers = ' '.join(f'{slot}={pid}' for slot, pid in sorted(self._job.workers().items()))
        self._job.dump_stacks()
        return Fatal(f"{what}; workers {workers or 'none'}, last update {last['update']} with {last['world_size']} workers; "
                     f'stacks in {self._job.log_file}', 'hang')

    def _check_reports(self, done):
        """All workers of a round that was begun must have had the same weights, and all else."""
        entered = self._records.reports('entered')
        for report in entered:
            if report['time'] <= done.began:
                continue
            if len(set(report['digests'])) > 1 or report['seen'] != report['update']:
                self.faults.append(Fault(f'the workers did not agree: {report}', str(done), 'disagreement'))

    def _living(self):
        workers = self._job.workers()
        if sorted(workers) != slots_of(self._hosts):
            raise Fatal(f'of {", ".join(slots_of(self._hosts))} only {", ".join(sorted(workers))} lived{self._tail()}',
                        'dead survivor')
        return workers

    def _rank_0(self):
        entered = self._records.reports('entered')
        return next(report['slot'] for report in reversed(entered) if report['rank'] == 0)

    def _wake(self, host):
        _, when = self._resting.pop(host)
        time.sleep(max(0.0, when - time.monotonic()))

    def _gone(self, newcomer):
        raise Fatal(f'the newcomer {newcomer} ended before it was killed{self._tail()}', 'dead newcomer')

    def _tail(self):
        return ':\n' + '\n'.join(self._job.log_file.read_text(errors='replace').splitlines()[-15:])
