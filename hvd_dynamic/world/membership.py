"""Who is in the job, found out and agreed on beside training, on a thread of its own.

The elastic driver starts workers and gives each a rank, in rounds. A new round begins when all workers of the present
one have asked for it (or died). Training is done in *worlds*, which the workers form themselves: at most one in a round,
of those of the round's workers that are ready. So nobody waits for a worker that is still starting:

- When the hosts change, all workers of the world ask for the next round while they go on training in their old world. The
  driver starts the newcomers. When these are ready (imported, model built, data opened), or `warm_timeout` is over and some
  are, the workers of the old world leave it, at the same update, and meet the newcomers that are ready. The others are taken
  in later. One that dies before that is never waited for.
- A worker whose slot was taken away makes all leave the world at the next commit.
- When a worker was lost, the others meet in the round that they have asked for already, or ask for one and meet there.

The worker with rank 0 in the driver's round leads: it watches who is ready, proposes a world, waits until all of it have
accepted, and says go. Rank 0 is on the host that has been in the job for longest, so it is in the old world if anybody is.

`hvd.init` comes after "go": inside it a wait cannot be ended.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import threading
import time
from dataclasses import dataclass, field

from ..errors import JobFailed
from .base import WorkerRemoved
from .board import ASK_AGAIN, FAILED, OVER, WHEN_READY, Board
from .rendezvous import Slot

__all__ = ['Membership', 'Crew', 'place_in']

log = logging.getLogger('hvd_dynamic')

_FAST, _SLOW = 0.05, 0.4        # seconds between two looks: when somebody waits, and beside training
_BEAT_SECONDS = 0.5
_LOST_BEAT_SECONDS = 10         # without a sign of the leader's, those that are ready give a round up
_ACCEPT_SECONDS = 2             # for a survivor to accept a world that is proposed
_NEWCOMER_ACCEPT_SECONDS = 6    # a newcomer that misses it waits for a whole round more
_STRAGGLER_SECONDS = 3          # after a failure, for survivors that notice it late
_DECISION_SECONDS = 60
_SAY_UNHEARD = 3                # times warm_timeout
_SAY_EVERY = 10


@dataclass(frozen=True)
class Crew:
    """The workers of a world, by rank.

    Attributes
    ----------
    id : str
        Different for every world.
    slots : list of str
        ``host:local_rank``.
    rank : int
        This worker's.
    """

    id: str
    slots: list
    rank: int

    @property
    def size(self):
        return len(self.slots)


@dataclass
class _Round:
    """What is known of the driver's present round."""

    began: float
    used: bool = False                              # a world was formed in it
    nothing_to_do: bool = False
    unsure: bool = False                            # a change was announced that it may cover or not
    entered: float | None = None                    # when this worker had left its old world
    members: dict = field(default_factory=dict)     # rank -> what it said of itself
    places: dict = field(default_factory=dict)      # rank in the old world -> rank in this round
    local_sizes: dict = field(default_factory=dict)     # host of the old world -> workers in this round
    published: object = None
    lead: dict = field(default_factory=dict)        # what this worker says as the leader
    lead_said: float = 0.0
    leader_seen: float | None = None
    leader_said: object = None
    proposed: float = 0.0
    accepted: set = field(default_factory=set)
    broken: bool = False                            # the world that was formed in it could not be connected
    missing: bool = False                           # workers that the driver still counts are gone
    told_of_newcomers: bool = False
    silence_told: float = 0.0       # how long newcomers had been silent when that was last told


class Membership:
    """This worker's part in the rounds of the driver and in the forming of worlds.

    Parameters
    ----------
    rendezvous : Rendezvous
    host : str
    local_rank : int
    token : str
        Tells processes in the same slot apart.
    slot : Slot
        The place that the driver gave when it started this worker.
    warm_timeout : float
        Seconds for which training goes on while some newcomers are ready and others are not. 0: training stops as soon as
        hosts have changed, and waits for the newcomers.
    grace : float
        Seconds in which the workers meet by themselves; after that they leave the waiting to the driver.
    round_is_used : bool
        Whether this process takes the place of another one, which had taken part in a world in this round.

    Attributes
    ----------
    ready : bool
        Whether this worker wants the world to be left at the next commit.
    fits : callable
        Whether training is possible with a number of workers; newcomers that are too many wait.
    take_announcement : callable
        Forgets a change of hosts that the driver has announced; whether there was one.
    waiting_for : str
        What `enter` waits for, in words.
    """

    def __init__(self, rendezvous, host, local_rank, token, slot, warm_timeout=120, grace=5, round_is_used=False):
        self._rendezvous, self._board = rendezvous, Board(rendezvous)
        self._host, self._local_rank, self._token = host, local_rank, token
        self._warm_timeout, self._grace = warm_timeout, grace
        self.fits = lambda size: True
        self.take_announcement = lambda: False
        self.ready = False
        self.waiting_for = 'the other workers'
        self._slot, self._round = slot, _Round(time.monotonic(), used=round_is_used, broken=round_is_used)
        self._crew = self._left = None      # the world that this worker is in; that it was in last
        self._wanted = self._asked = 0      # rounds
        self._connecting = self._given_up = False
        self._ask_again = False             # the leader has found that another round is needed
        self._entering = self._failed = self._asked_since_failure = False
        self._outcome = self._error = None
        self._sign_of_life = time.monotonic()
        self._closed = False
        self._lock, self._wake, self._done = threading.Lock(), threading.Event(), threading.Event()
        threading.Thread(target=self._run, name='hvd_dynamic-membership', daemon=True).start()

    # -- called by the training thread -----------------------------------------------------------------------------

    @property
    def given_up(self):
        """Whether a worker of the world that is being connected has found that another one is gone."""
        return self._given_up

    def connected(self, yes):
        """The workers of the world are connected to each other, or have failed to."""
        self._connecting, self._round.broken = False, not yes

    @property
    def change_found(self):
        """Whether another round is needed, as the leader has found out."""
        return self._ask_again

    def prepare(self):
        """All workers of the world have agreed to ask for another round; training goes on meanwhile."""
        with self._lock:
            self._ask_again = False
            self._wanted += 1
        self._wake.set()

    def enter(self, failed):
        """Have this worker, which is in no world, ready for the next one. `wait` says when it is there.

        Parameters
        ----------
        failed : bool
            Whether the last world ended by a failure.
        """
        with self._lock:
            if self._crew is not None:
                self._left, self._crew = self._crew, None
                self._failed, self._asked_since_failure = False, False
            self._failed = self._failed or failed
            # In a round without newcomers nobody is waited for who is still starting: it is worth asking for the next one,
            # of which the driver has left out those that are gone.
            useless = self._round.used or (failed and self._left is not None and self._slot.size <= self._left.size)
            if useless and self._wanted == self._asked:
                self._wanted += 1
            self._outcome, self._ask_again, self.ready = None, False, False
            self._done.clear()
            self._entering = True
            self._sign_of_life = time.monotonic()
        self._wake.set()

    def wait(self, seconds):
        """Wait for the world.

        Returns
        -------
        Crew or None
            None if the time is over.

        Raises
        ------
        WorkerRemoved
            If this worker has no place in the job any more.
        JobFailed
            If another worker ends the job with an error.
        ConnectionError
            If the driver is gone.
        """
        if not self._done.wait(seconds):
            return None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def driver_place(self):
        """This worker's place in the driver's present round, as the driver tells it to a process that it starts."""
        return {'HOROVOD_RANK': str(self._slot.rank), 'HOROVOD_SIZE': str(self._slot.size),
                'HOROVOD_LOCAL_RANK': str(self._local_rank)}

    @property
    def idle_seconds(self):
        """For how long `enter` has waited without a sign that anybody is at work."""
        return time.monotonic() - self._sign_of_life

    def fail(self, error):
        """This worker ends with an error of the user's own code, and the job with it."""
        try:
            self._board.set_fate(FAILED + error)
        except (OSError, http.client.HTTPException):
            pass        # the driver has ended

    def settle(self, seconds):
        """Leave the driver with a round that it understands, before this worker exits.

        It would count a worker twice that exits while it asks for a round, and call the job failed if one that is lost is
        still a part of the round: a worker of this world, or a newcomer that died while it was starting. Whether a newcomer
        did only the driver knows; those that live ask for the round as well, as soon as they have come to `dynamic.init`.
        """
        start = time.monotonic()
        self._wait_for_round(start + seconds)
        if self._round.missing or self._has_newcomers:
            self.prepare()
            self._wait_for_round(start + seconds)

    def _wait_for_round(self, end):
        said = time.monotonic()
        while self._asked < self._wanted and self._error is None and time.monotonic() < end:
            if time.monotonic() - said > _SAY_EVERY:
                said = time.monotonic()
                log.info('%s has ended its training and waits for %s', self._name, self.waiting_for)
            time.sleep(_FAST)

    @property
    def _has_newcomers(self):
        return not self._slot.removed and self._slot.size > (self._crew.size if self._crew else 0)

    def close(self, over):
        """End the thread. With `over`, those that are still getting ready are told that training has ended."""
        self._closed = True
        self._wake.set()
        if over and self._has_newcomers:
            try:
                self._board.set_fate(OVER)
            except (OSError, http.client.HTTPException):
                pass        # the driver has ended, and with it all workers

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self):
        while not self._closed:
            try:
                seconds, self._error = self._step(), None
            except (OSError, http.client.HTTPException) as error:
                if self._closed:
                    return
                self._error, seconds = error, 1.0
                log.debug('the elastic driver cannot be reached: %s', error)
                if self._entering:
                    self._finish(ConnectionError(f'the elastic driver cannot be reached any more: {error}'))
            except Exception as error:
                self._error, seconds = error, 1.0
                if self._entering:
                    self._finish(error)         # raised by the training thread
                else:
                    log.exception('a fault in forming the next world; training goes on in this one')
            self._wake.wait(seconds)
            self._wake.clear()

    def _step(self):
        """One look; returns the seconds until the next one (None: until something is asked for)."""
        if self._slot.removed:
            return self._be_removed()
        if self._asked < self._wanted:
            self._ask()
            return 0
        if self._entering:
            return self._meet()
        if self._crew is None:
            return self._warm_up()
        if self._connecting:
            self._given_up = self._board.fate() == ASK_AGAIN
            return _SLOW
        return self._watch()

    def _ask(self):
        self.waiting_for = ('the elastic driver to begin a round, which it does when there are --min-np slots and all '
                            'workers that it has started are there or have ended')
        fate = self._board.fate()
        if fate.startswith(FAILED) and self._entering:
            self._finish(JobFailed(fate[len(FAILED):]))
            return
        if self._others_may_wait() and not fate:
            self._board.set_fate(ASK_AGAIN)
        log.debug('%s asks for a round', self._name)
        failed = self._failed
        slot = self._rendezvous.ask_slot(self._host, self._local_rank)
        log.debug('%s has rank %d of %d in the new round', self._name, slot.rank, slot.size)
        with self._lock:
            self._asked += 1
            gone = {old_rank: rank for old_rank, rank in self._round.places.items() if rank == -1}
            # A change that was announced before the round began is most likely a part of it. To ask for another round at
            # once would have it wait for the newcomers of this one, also for those that are slow.
            unsure = slot.rank == 0 and self.take_announcement()
            self._slot, self._round = slot, _Round(time.monotonic(), places=gone, unsure=unsure)
            self._asked_since_failure = failed
            self._sign_of_life = time.monotonic()
        crew = self._crew or self._left
        if crew is not None:
            self._board.set_place(crew.id, crew.rank, slot.rank, slot.local_size)
        if not slot.removed:
            self._publish()

    def _others_may_wait(self):
        """Whether somebody may be waiting in the present round who does not know that another one is asked for."""
        crew = self._crew or self._left
        return not self._round.used or self._round.broken or crew is None or self._slot.size > crew.size

    def _publish(self):
        ready = self._entering
        if self._round.published != ready:
            self._board.set_member(self._slot.rank, self._name, self._token, ready)
            self._round.published = ready

    @property
    def _name(self):
        return f'{self._host}:{self._local_rank}'

    def _be_removed(self):
        # It never asks again: the driver would count it as one of those that it waits for.
        self._asked = self._wanted
        reason, crew = 'its slot was taken away', self._crew or self._left
        if crew is not None:
            self._board.set_place(crew.id, crew.rank, -1, 0)       # in every round until it is gone
        if self._entering:
            self._finish(WorkerRemoved(reason))
        elif self._crew is None:
            self._vanish(reason)
        else:
            self._call_to_leave(crew)
        return _SLOW

    def _call_to_leave(self, crew):
        with self._lock:
            self.ready = self._crew is crew     # else it has been left already

    def _vanish(self, reason, status=0):
        """End a worker that never trained: at once, lest it is still there when its slot is given out again."""
        log.info('%s leaves the job: %s', self._name, reason)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)

    def _again(self):
        """Ask for another round."""
        with self._lock:
            self._wanted += 1
        return 0

    def _finish(self, outcome):
        self._outcome, self._entering = outcome, False
        self._done.set()

    # -- a newcomer that is starting -------------------------------------------------------------------------------

    def _warm_up(self):
        self._publish()
        fate = self._board.fate()
        if fate == OVER:
            self._vanish('training has ended')
        if fate.startswith(FAILED):
            self._vanish(fate, 1)
        if fate == ASK_AGAIN:
            return self._again()
        return _SLOW

    # -- a worker that is ready ------------------------------------------------------------------------------------

    def _meet(self):
        now, this = time.monotonic(), self._round
        if this.entered is None:
            this.entered = now
        self._publish()
        fate = self._board.fate()
        if fate == OVER:
            self._finish(WorkerRemoved('training has ended'))
            return None
        if fate.startswith(FAILED):
            self._finish(JobFailed(fate[len(FAILED):]))
            return None
        if fate:
            return self._again()
        if self._slot.rank == 0:
            return self._lead(now)
        lead = self._board.lead()
        go, proposal = lead.get('go'), lead.get('proposal')
        if go is not None and self._slot.rank in [rank for rank, _ in go['members']]:
            return self._go(go)
        if proposal is not None and self._slot.rank in proposal['ranks'] and proposal['id'] not in this.accepted:
            self._board.accept(proposal['id'], self._slot.rank)
            this.accepted.add(proposal['id'])
        return self._follow(now, lead)

    def _follow(self, now, lead):
        """Wait for the leader, but not for one that is gone."""
        this = self._round
        first = this.leader_seen is None
        if first or lead != this.leader_said:
            this.leader_seen, this.leader_said = now, lead
            if lead:
                self._sign_of_life = now
        self.waiting_for = 'the workers that are training to take this one in' if lead else 'the first worker to start'
        patience = _STRAGGLER_SECONDS if self._failed else _LOST_BEAT_SECONDS if lead else self._grace
        if now - this.leader_seen > patience:
            # The leader says `decided` before it looks at the fate for the last time; who gives up looks for `decided` after
            # having said so. So at least one of the two sees the other, and nobody goes alone.
            if lead.get('decided') and now - this.leader_seen < _DECISION_SECONDS:
                return _FAST
            log.debug('%s gives the round up: nothing was heard of the leader', self._name)
            self._board.set_fate(WHEN_READY if self._left is None else ASK_AGAIN)
            if self._board.lead().get('decided') and not lead.get('decided'):
                return _FAST
            return self._again()
        return _FAST

    def _go(self, go):
        log.debug('%s goes on in a world of %d', self._name, len(go['members']))
        self._round.used = True
        ranks = [rank for rank, _ in go['members']]
        crew = Crew(go['id'], [slot for _, slot in go['members']], ranks.index(self._slot.rank))
        first = self._left is None
        with self._lock:
            self._crew, self._failed = crew, False
            self._connecting, self._given_up = True, False
        self._round.missing = go['missing']
        # The driver tells nobody of hosts that changed before the first worker had registered itself.
        self._ask_again = self._slot.rank == 0 and (
            go['missing'] or self._round.unsure or (first and crew.size == self._slot.size))
        self._finish(crew)
        return _SLOW

    # -- the leader ------------------------------------------------------------------------------------------------

    def _say(self, now, **what):
        """Tell the others that the leader is there, and how far it has come."""
        this = self._round
        if what or now - this.lead_said > _BEAT_SECONDS:
            this.lead = {**this.lead, **what, 'beat': this.lead.get('beat', 0) + 1}
            self._board.set_lead(this.lead)
            this.lead_said = now

    def _look(self):
        """Read what is new of the round's members and of the places of the old world's workers."""
        this, crew = self._round, self._crew or self._left
        for rank in range(self._slot.size):
            if not (this.members.get(rank) or {}).get('ready'):
                this.members[rank] = self._board.member(rank)
        if crew is not None:
            for old_rank in range(crew.size):
                if this.places.get(old_rank) is None:
                    this.places[old_rank], local_size = self._board.place(crew.id, old_rank) or (None, 0)
                    this.local_sizes[crew.slots[old_rank].rsplit(':', 1)[0]] = local_size

    @property
    def _all_are_needed(self):
        """At the start of a job, and without warm-up, a world is all of the driver's round."""
        return self._left is None or self._warm_timeout == 0

    def _is_ready(self, rank):
        return bool((self._round.members.get(rank) or {}).get('ready'))

    def _survivors(self):
        return sorted(rank for rank in self._round.places.values() if rank is not None and rank >= 0)

    def _that_fit(self, survivors, newcomers):
        count = len(newcomers)
        while count and not self.fits(len(survivors) + count):
            count -= 1
        return newcomers[:count]

    def _lead(self, now):
        this = self._round
        self._say(now)
        if 'proposal' in this.lead:
            return self._decide(now)
        self._look()
        waited = now - this.entered
        everyone = range(self._slot.size)
        if self._all_are_needed:
            missing = [rank for rank in everyone if not self._is_ready(rank)]
            self.waiting_for = f'{len(missing)} of {self._slot.size} workers to start'
            if not missing:
                return self._propose(now, list(everyone))
            if waited > self._grace:
                log.info('waiting for %d of %d workers to start', len(missing), self._slot.size)
                return self._give_up(WHEN_READY)
            return _FAST
        survivors = self._survivors()
        here = [rank for rank in survivors if self._is_ready(rank)]
        accounted = len(here) + sum(rank == -1 for rank in this.places.values())
        self.waiting_for = f'{self._left.size - accounted} workers of the last world'
        everybody_known = all(this.members.get(rank) for rank in everyone) and len(here) == len(survivors)
        # After a failure one at least is gone. Who comes too late is taken in later, as newcomers are.
        expected, patience = self._left.size - self._failed, _STRAGGLER_SECONDS if self._failed else self._grace
        if accounted < expected and not everybody_known and waited < patience:
            return _FAST
        self._round.missing = accounted < self._left.size and (not self._failed or not self._asked_since_failure)
        newcomers = [rank for rank in everyone if rank not in survivors and self._is_ready(rank)]
        return self._propose(now, sorted(here + self._that_fit(here, newcomers)))

    def _give_up(self, fate):
        log.debug('%s gives the round up: %s', self._name, fate)
        self._board.set_fate(fate)
        return self._again()

    def _propose(self, now, ranks):
        this = self._round
        log.debug('%s proposes a world of ranks %s', self._name, ranks)
        this.proposed, this.accepted = now, {0}
        self._say(now, proposal={'id': os.urandom(8).hex(), 'ranks': ranks})
        return self._decide(now)

    def _decide(self, now):
        this = self._round
        proposal = this.lead['proposal']
        for rank in proposal['ranks']:
            if rank not in this.accepted and self._board.accepted(proposal['id'], rank):
                this.accepted.add(rank)
        silent = [rank for rank in proposal['ranks'] if rank not in this.accepted]
        if silent:
            survivors = set(self._survivors())
            patience = _ACCEPT_SECONDS if survivors & set(silent) else _NEWCOMER_ACCEPT_SECONDS
            if now - this.proposed < patience:
                return _FAST / 2
            if self._all_are_needed:
                return self._give_up(WHEN_READY)
            # Died since they were ready, or a moment ago: the world is formed without them.
            self._round.missing = self._round.missing or bool(survivors & set(silent))
            for rank in set(silent) - survivors:
                log.warning('%s was ready and does not answer any more; training goes on without it',
                            this.members[rank]['slot'])
            return self._propose(now, [rank for rank in proposal['ranks'] if rank in this.accepted])
        self._say(now, decided=True)
        if self._board.fate():
            return self._again()
        # Workers that were lost after the others had asked for this round are still a part of it for the driver.
        self._say(now, go={'id': proposal['id'], 'missing': this.missing,
                           'members': [[rank, this.members[rank]['slot']] for rank in proposal['ranks']]})
        return self._go(this.lead['go'])

    def _watch(self):
        """Beside training: look whether newcomers are ready, or another round is needed."""
        this, crew = self._round, self._crew
        if crew is None:
            return 0            # it was left this very moment
        if self._slot.rank != 0 or this.nothing_to_do or (this.used and self._slot.size == crew.size):
            return None
        now = time.monotonic()
        self._say(now)
        if self._board.fate():
            self._call_for_round(crew)
            return _SLOW
        self._look()
        if this.used:
            present = {rank for rank, _ in this.lead['go']['members']}
        else:
            if len(this.places) < crew.size or any(rank is None for rank in this.places.values()):
                return _FAST
            present = set(self._survivors())
        others = [rank for rank in range(self._slot.size) if rank not in present]
        somebody_leaves = not this.used and len(present) < crew.size
        if not others and not somebody_leaves and not this.used:
            this.nothing_to_do = True       # the hosts changed back, or were the same all the time
            if this.unsure:
                self._call_for_round(crew)
            return None
        ready = self._that_fit(present, [rank for rank in others if self._is_ready(rank)])
        waited = now - this.began
        if others and not this.used and not this.told_of_newcomers:
            this.told_of_newcomers = True
            log.info('%d newcomer%s getting ready; training goes on', len(others), ' is' if len(others) == 1 else 's are')
        all_ready = len(ready) == len(others) or not self.fits(len(present) + len(ready) + 1)
        heard_of = all(this.members.get(rank) for rank in others)
        if not heard_of and waited > this.silence_told + _SAY_UNHEARD * max(self._warm_timeout, 1):
            # To ask for a round would have it wait for those that are slow, and a failure with it.
            this.silence_told = waited
            silent = sum(not this.members.get(rank) for rank in others)
            log.warning('%d of %d newcomers have not come to hvd_dynamic.init() in %.0f s: they may be dead; training '
                        'goes on', silent, len(others), waited)
        if others and not ready and waited > self._warm_timeout and heard_of and self._are_elsewhere(crew):
            # They may be dead, of which only the driver knows; it gives up the host of such a one when it is asked. Those
            # that are not have come so far that they ask as well.
            self._call_for_round(crew)
            this.began = now
        if somebody_leaves or (ready and (all_ready or waited > self._warm_timeout)):
            if this.used:
                self._call_for_round(crew)
                this.began = now            # and not again for a while
            else:
                self._call_to_leave(crew)
        return _SLOW

    def _are_elsewhere(self, crew):
        """Whether no host of this world has newcomers."""
        hosts, sizes = [slot.rsplit(':', 1)[0] for slot in crew.slots], self._round.local_sizes
        return all(sizes.get(host, len(hosts)) <= hosts.count(host) for host in hosts)

    def _call_for_round(self, crew):
        with self._lock:
            self._ask_again = self._crew is crew


def place_in(slots, rank):
    """A worker's place in a world, as Horovod wants to be told: its number on its host, and its host's number.

    Parameters
    ----------
    slots : list of str
        ``host:local_rank`` of all workers, by rank.
    rank : int

    Returns
    -------
    Slot

    Examples
    --------
    >>> place_in(['a:0', 'a:1', 'b:0'], 1)
    Slot(rank=1, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    """
    hosts = [slot.rsplit(':', 1)[0] for slot in slots]
    numbers = [hosts[:i].count(host) for i, host in enumerate(hosts)]       # on their hosts
    same_number = [i for i, number in enumerate(numbers) if number == numbers[rank]]
    return Slot(rank, len(slots), numbers[rank], hosts.count(hosts[rank]), same_number.index(rank), len(same_number))
