"""What may happen to the job, and what is legal at a moment."""

import random
from dataclasses import dataclass, field

__all__ = ['MIN_SIZE', 'MAX_SIZE', 'KINDS', 'Event', 'Dealer']

MIN_SIZE, MAX_SIZE = 2, 5       # workers; failures may leave fewer than the minimum until the next event

#: The kinds of events, and how many of each are in a deck of cards.
KINDS = {
    'join': 4, 'leave': 2, 'exchange': 1, 'kill a worker': 2, 'kill rank 0': 1, 'kill two': 1, 'kill a newcomer': 2,
    'kill while growing': 1, 'freeze, briefly': 1, 'freeze, too long': 1, 'checkpoint': 1, 'restart, SIGTERM': 1,
    'restart, kill -9': 1,
}


@dataclass(frozen=True)
class Event:
    """One event, decided before it happens.

    Attributes
    ----------
    kind : str
        A key of `KINDS`.
    hosts : dict of str to int
        Slots by host, from the event on.
    victims : tuple of str
        The workers (``host:slot``) that are killed or frozen.
    hosts_back : bool
        Whether the hosts of killed workers stay in the list, so that Horovod uses them again.
    seconds : float
        How long a worker is frozen, how long after a newcomer's process has begun the kill comes, or how long after a
        checkpoint was ordered the job is stopped.
    """

    kind: str
    hosts: dict
    victims: tuple = ()
    hosts_back: bool = False
    seconds: float = 0.0

    def __str__(self):
        hosts = ' '.join(f'{host}:{slots}' for host, slots in self.hosts.items())
        victims = f' {" ".join(self.victims)}' if self.victims else ''
        return f'{self.kind}{victims} -> {hosts}'

    @property
    def slots(self):
        """The workers that there must be in the end."""
        return slots_of(self.hosts)


@dataclass
class Dealer:
    """Deals events from shuffled decks, so that a short run has all kinds, too. What is not legal now comes later.

    Legal is what Horovod can bear: the host of a failed worker is lost whole, so a worker of another host must survive; and
    a host of the old world must remain in the new one.

    Parameters
    ----------
    seed : int
    kinds : dict of str to int
        How many of each kind in a deck.
    names : tuple of str
        All host names that there are.

    Examples
    --------
    >>> dealer = Dealer(0, {'join': 1}, ('localhost', '127.0.0.1'))
    >>> event = dealer.deal({'localhost': 1}, ['127.0.0.1'], 'localhost:0')
    >>> event.kind, sorted(event.hosts)
    ('join', ['127.0.0.1', 'localhost'])
    """

    seed: int
    kinds: dict
    names: tuple
    _deck: list = field(default_factory=list)

    def __post_init__(self):
        self._rng = random.Random(self.seed)

    def first_hosts(self):
        """Where the job begins: two hosts, three workers."""
        first, second = self._rng.sample(self.names, 2)
        return {first: 2, second: 1}

    def pause(self):
        """Seconds from the end of one event to the next."""
        return self._rng.uniform(0.0, 1.5)

    def deal(self, hosts, free, rank_0):
        """The next event.

        Parameters
        ----------
        hosts : dict of str to int
            Slots by host; all have their workers.
        free : sequence of str
            Hosts that can be added.
        rank_0 : str
            ``host:slot`` of the worker with rank 0.

        Returns
        -------
        Event or None
            None if no event is legal before another host is free.
        """
        if len(hosts) < 2 or sum(hosts.values()) < MIN_SIZE:
            return self._join(dict(hosts), sorted(free), rank_0)
        for _ in range(2):
            for kind in list(self._deck):
                event = self._make(kind, dict(hosts), sorted(free), rank_0)
                if event is not None:
                    self._deck.remove(kind)
                    return event
            fresh = [kind for kind, count in self.kinds.items() for _ in range(count)]
            self._rng.shuffle(fresh)
            self._deck += fresh
        return None

    def _make(self, kind, hosts, free, rank_0):
        makers = {'join': self._join, 'leave': self._leave, 'exchange': self._exchange, 'kill a worker': self._kill_one,
                  'kill rank 0': self._kill_rank_0, 'kill two': self._kill_two, 'kill a newcomer': self._kill_newcomer,
                  'kill while growing': self._kill_while_growing}
        if kind in makers:
            return makers[kind](hosts, free, rank_0)
        if kind.startswith('freeze'):
            # Twice the time that Gloo waits, or less than half of it.
            seconds = 12.0 if kind == 'freeze, too long' else self._rng.uniform(0.3, 2.5)
            return Event(kind, hosts, (self._rng.choice(slots_of(hosts)),), seconds=seconds)
        return Event(kind, hosts, seconds=self._rng.uniform(0.0, 4.0))

    # Each of these returns None if the event is not legal. They get copies of the hosts.

    def _join(self, hosts, free, rank_0):
        room = MAX_SIZE - sum(hosts.values())
        places = [*hosts, *free]
        if room < 1 or (len(hosts) < 2 and not free):
            return None
        for number in range(self._rng.randint(1, room)):
            place = self._rng.choice(free if number == 0 and len(hosts) < 2 else places)
            hosts[place] = hosts.get(place, 0) + 1
        return Event('join', hosts)

    def _leave(self, hosts, free, rank_0):
        most = sum(hosts.values()) - MIN_SIZE
        if most < 1:
            return None
        for _ in range(self._rng.randint(1, most)):
            # At least two hosts remain, for the failures to come.
            places = [host for host, slots in hosts.items() if slots > 1 or len(hosts) > 2]
            self._take_slot(hosts, self._rng.choice(places))
        return Event('leave', hosts)

    def _exchange(self, hosts, free, rank_0):
        if not free:
            return None
        del hosts[self._rng.choice(sorted(hosts))]
        least = max(1, MIN_SIZE - sum(hosts.values()))
        hosts[self._rng.choice(free)] = self._rng.randint(least, max(least, min(2, MAX_SIZE - sum(hosts.values()))))
        return Event('exchange', hosts)

    def _kill_one(self, hosts, free, rank_0):
        return self._kill('kill a worker', hosts, (self._rng.choice(slots_of(hosts)),))

    def _kill_rank_0(self, hosts, free, rank_0):
        return self._kill('kill rank 0', hosts, (rank_0,))

    def _kill_two(self, hosts, free, rank_0):
        slots = slots_of(hosts)
        pairs = [(a, b) for a in slots for b in slots if a < b and len({host_of(a), host_of(b)}) < len(hosts)]
        return self._kill('kill two', hosts, self._rng.choice(pairs)) if pairs else None

    def _kill(self, kind, hosts, victims):
        back = self._rng.random() < 0.3
        if not back:
            for victim in victims:
                hosts.pop(host_of(victim), None)
        return Event(kind, hosts, victims, back)

    def _kill_newcomer(self, hosts, free, rank_0):
        if not free or sum(hosts.values()) >= MAX_SIZE:
            return None
        # The list has the newcomer's host only until it is killed.
        return Event('kill a newcomer', hosts, (f'{self._rng.choice(free)}:0',), seconds=self._rng.uniform(0.0, 5.0))

    def _kill_while_growing(self, hosts, free, rank_0):
        if not free or sum(hosts.values()) >= MAX_SIZE:
            return None
        victim = self._rng.choice(slots_of(hosts))
        del hosts[host_of(victim)]
        hosts[self._rng.choice(free)] = 1
        return Event('kill while growing', hosts, (victim,), seconds=self._rng.uniform(0.0, 5.0))

    @staticmethod
    def _take_slot(hosts, host):
        hosts[host] -= 1
        if hosts[host] == 0:
            del hosts[host]


def slots_of(hosts):
    """``host:slot`` of all workers.

    Examples
    --------
    >>> slots_of({'b': 2, 'a': 1})
    ['a:0', 'b:0', 'b:1']
    """
    return [f'{host}:{slot}' for host in sorted(hosts) for slot in range(hosts[host])]


def host_of(slot):
    """The host of ``host:slot``."""
    return slot.rpartition(':')[0]
