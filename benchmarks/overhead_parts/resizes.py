"""Measures pauses: growths, shrinks and crashes of running jobs, and restarts from a checkpoint."""

import time
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median

from benchmarks.overhead_parts.changing import HOSTS, changing_job

__all__ = ['PausePlan', 'measure_pauses', 'pause_between']

_SMALL = 200_000                    # parameters
_SETTLE, _SETTLE_LARGE = 20, 5      # updates before and after a change, also those that the time of one is taken from
_LARGE = 5_000_000
_BEGIN_SECONDS = 4                  # in which a job that has begun asks for a round once more
_CHANGE_SECONDS = 60                # at most for a change, a newcomer's sleep apart
_PARTS = ('leave', 'restore', 'init', 'sync', 'commit')


@dataclass(frozen=True)
class PausePlan:
    """How many of what.

    Attributes
    ----------
    growths : dict of int to int
        By seconds that a newcomer sleeps before `hvd_dynamic.init`, how many growths; each is followed by a shrink.
    late : dict of int to int
        The same for sleeps after it.
    crashes : int
    unprepared : dict of int to int
        Growths with HVD_DYNAMIC_WARM_TIMEOUT=0.
    restarts : dict of int to int
    sizes : dict of int to int
        By number of parameters, how many growths, shrinks; and one crash each.
    """

    growths: dict = field(default_factory=dict)
    late: dict = field(default_factory=dict)
    crashes: int = 0
    unprepared: dict = field(default_factory=dict)
    restarts: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)

    @property
    def jobs(self):
        """How many jobs it takes."""
        return bool(self.growths) + bool(self.unprepared) + bool(self.restarts) + len(self.sizes)


def measure_pauses(plan, say, done):
    """Run the jobs of a plan.

    Parameters
    ----------
    plan : PausePlan
    say : callable
        Called with a line of text for each pause.
    done : callable
        Called after each job.

    Returns
    -------
    list of dict
        One row for each pause: what, startup (seconds slept), late, parameters, pause_seconds and its parts.

    Raises
    ------
    JobFailed
    """
    rows = []
    if plan.growths:
        seconds = _bound({**plan.growths}) + _bound(plan.late) + _CHANGE_SECONDS * 2 * plan.crashes
        rows += _job(_resizes, _SMALL, seconds, {}, say, plan.growths, plan.late, plan.crashes)
        done()
    if plan.unprepared:
        rows += _job(_unprepared, _SMALL, _bound(plan.unprepared), {'HVD_DYNAMIC_WARM_TIMEOUT': '0'}, say, plan.unprepared)
        done()
    if plan.restarts:
        rows += _job(_restarts, _SMALL, _bound(plan.restarts), {}, say, plan.restarts)
        done()
    for parameters, count in plan.sizes.items():
        rows += _job(_resizes, parameters, 6 * _CHANGE_SECONDS, {}, say, {0: count}, {}, 1)
        done()
    return rows


def _bound(counts):
    return _CHANGE_SECONDS + sum(count * (startup + _CHANGE_SECONDS) for startup, count in counts.items())


def _job(function, parameters, seconds, settings, say, *arguments):
    with changing_job(parameters, seconds, settings, checkpoints=function is _restarts) as (job, load):
        rows = []
        measuring = Measuring(job, _SETTLE if parameters < _LARGE else _SETTLE_LARGE)
        with closing(function(measuring, *arguments)) as measured:      # which ends its processes, whatever happens here
            for row in measured:
                say(_line(row))
                rows.append({'kind': 'pause', 'sizes': parameters != _SMALL, **row})
    return [{**row, 'other_load': load[0]} for row in rows]


def _line(row):
    beyond = f', {row["beyond_seconds"]:.2f} s after it was noticed' if 'beyond_seconds' in row else ''
    startup = f', start-up +{row["startup"]} s' if row['startup'] else ''
    return (f'{row["parameters"]:,} parameters, {row["what"]} {row["old_size"]} -> {row["new_size"]}{startup}'
            f'{" after init()" if row["late"] else ""}: pause {row["pause_seconds"]:.2f} s{beyond}')


class Measuring:
    """One job and what it is put through.

    Parameters
    ----------
    job : ChangingJob
    settle : int
        Updates to wait for after each change.
    """

    def __init__(self, job, settle):
        self.job, self._settle = job, settle
        self.hosts = list(HOSTS[:2])

    def begin(self):
        """Wait until the job trains, and has settled."""
        self.job.wait_for_updates(len(self.hosts), 0.0, self._settle)
        end = time.monotonic() + _BEGIN_SECONDS
        self.job.wait_for(lambda: time.monotonic() > end, 'it had settled')

    def grow(self, host, startup=0, late=False):
        """A worker more; returns the row."""
        self.job.set_startup(**{'after' if late else 'before': startup})
        return self._change('growth', [*self.hosts, host], startup, late)

    def shrink(self, host):
        """The worker of a host less; returns the row."""
        return self._change('shrink', [other for other in self.hosts if other != host], 0, False)

    def _change(self, what, hosts, startup, late):
        old, new, leavers = len(self.hosts), len(hosts), self._pids(set(self.hosts) - set(hosts))
        since = time.monotonic()
        self.job.set_hosts(hosts)
        self.hosts = hosts
        self.job.wait_for_updates(new, since, self._settle)
        self.job.wait_for(lambda: not leavers & self._pids(), 'the worker that was taken away ended')
        return self._row(what, since, old, new, startup, late)

    def crash(self, rank):
        """Kill the worker with this rank; returns the row. Its host is used no more."""
        pid, slot = self.job.workers()[rank]
        old = len(self.hosts)
        self.hosts.remove(slot.rsplit(':', 1)[0])
        since = self.job.kill(pid)
        self.job.wait_for_updates(old - 1, since, self._settle)
        row = self._row('crash', since, old, old - 1, 0, False)
        return {**row, 'victim_rank': rank}

    def _pids(self, hosts=HOSTS):
        return {pid for pid, slot in self.job.workers().values() if slot.rsplit(':', 1)[0] in hosts}

    def _row(self, what, since, old, new, startup, late):
        pause = pause_between(self.job.notes, since, old, new, self._settle)
        return {'what': what, 'old_size': old, 'new_size': new, 'startup': startup, 'late': late, **self._about(since),
                **pause}

    def _about(self, since):
        """The parameters, and how long the workers that have started since took until they were ready."""
        ready = [note for notes in self.job.notes.values() for note in notes if note['kind'] == 'ready']
        ages = [note['age'] for note in ready if note['time'] > since]
        return {'parameters': ready[0]['parameters'], **({'ready_seconds': max(ages)} if ages else {})}

    def restart(self, stopped, last, startup, old, new, stop_seconds):
        """The row of a restart, once the new start has settled."""
        self.job.wait_for_updates(new, stopped, self._settle)
        before, after = [], []
        for notes in self.job.notes.values():
            updates = [note['time'] for note in notes if note['kind'] == 'update']
            (after if notes[0]['time'] > stopped else before).append(updates)
        assert max(updates[-1] for updates in before if updates) == last
        step = median(b - a for updates in before for a, b in zip(updates[-self._settle:], updates[-self._settle + 1:]))
        return {'what': 'restart', 'old_size': old, 'new_size': new, 'startup': startup, 'late': False,
                **self._about(stopped), 'pause_seconds': min(updates[0] for updates in after if updates) - last - step,
                'step_seconds': step, 'stop_seconds': stop_seconds}


def pause_between(notes, since, old, new, steps):
    """The pause of a change as the workers see it that go through it.

    Parameters
    ----------
    notes : dict of int to list of dict
        By process.
    since : float
        When the change was made.
    old, new : int
        Sizes of the world.
    steps : int
        Updates on each side that the time of an update is taken from.

    Returns
    -------
    dict
        Of the worker with the longest pause: pause_seconds, from the end of its last update before to the end of its first
        one after, less the time of an update (step_seconds, the shorter of those before and after: it changes with the
        size); seconds of the parts; take_seconds from the change to the first update after; longest_step_seconds of the
        updates between the change and the pause; after a crash noticed_seconds until the first worker noticed, and
        beyond_seconds from there on.

    Raises
    ------
    ValueError
        If no worker went from one size to the other after that moment.

    Examples
    --------
    >>> times = [(0, 2), (1, 2), (2, 2), (5, 3), (6, 3)]
    >>> notes = {7: [{'kind': 'update', 'time': time, 'size': size} for time, size in times]}
    >>> pause_between(notes, 1.5, 2, 3, steps=2)['pause_seconds']
    2
    """
    found = []
    for mine in notes.values():
        updates = [note for note in mine if note['kind'] == 'update']
        for i in range(1, len(updates)):
            before, after = updates[i - 1], updates[i]
            if after['time'] > since and (before['size'], after['size']) == (old, new):
                found.append(_pause(mine, updates, i, since, steps))
                break
    if not found:
        raise ValueError(f'no worker went from a world of {old} to one of {new}')
    longest = max(found, key=lambda pause: pause['pause_seconds'])
    failed = [pause.pop('failed_time') for pause in found if 'failed_time' in pause]
    if failed:
        longest['noticed_seconds'] = min(failed) - since
        longest['beyond_seconds'] = longest['take_seconds'] - longest['noticed_seconds'] - longest['step_seconds']
    return longest


def _pause(mine, updates, i, since, steps):
    times = [note['time'] for note in updates]
    before, after = times[i - 1], times[i]
    # An update that was under way at the change is part of neither.
    usual = [b - a for a, b in zip(times, times[1:i]) if b <= since][-steps:] or [b - a for a, b in zip(times, times[1:i])]
    later = [b - a for a, b in zip(times[i:], times[i + 1:])][:steps]
    step = min(median(usual), median(later or usual))
    inside = [note for note in mine if before < note['time'] < after]
    parts = {part: sum(note['seconds'] for note in inside if note['kind'] == part) for part in (*_PARTS, 'join')}
    parts['meet'] = parts.pop('join') - parts['init']
    failed = [note['time'] for note in inside if note['kind'] == 'failed']
    return {'pause_seconds': after - before - step, 'step_seconds': step, 'take_seconds': after - since,
            'longest_step_seconds': max([b - a for a, b in zip(times, times[1:i]) if b > since], default=0.0),
            **{f'{part}_seconds': seconds for part, seconds in parts.items()},
            **({'failed_time': failed[0]} if failed else {})}


def _resizes(measuring, growths, late, crashes):
    """Growths and shrinks in turn, then crashes."""
    job, host = measuring.job, HOSTS[2]
    job.set_startup()
    with job.started(measuring.hosts):
        measuring.begin()
        for counts, is_late in ((growths, False), (late, True)):
            for startup, count in counts.items():
                for _ in range(count):
                    yield measuring.grow(host, startup, is_late)
                    yield measuring.shrink(host)
        for number in range(crashes):
            yield measuring.grow(HOSTS[2 + number], 0)
            # The last rank, and then the first one, which leads the others.
            yield measuring.crash(2 if number % 2 == 0 else 0)
        job.stop()


def _unprepared(measuring, counts):
    """Growths for which training stops until the newcomer is there."""
    job, host = measuring.job, HOSTS[2]
    job.set_startup()
    with job.started(measuring.hosts):
        measuring.begin()
        for startup, count in counts.items():
            for _ in range(count):
                yield {**measuring.grow(host, startup), 'what': 'growth, no warm-up'}
                measuring.shrink(host)
        job.stop()


def _restarts(measuring, counts):
    """A job that is ended and started anew with another size, again and again."""
    job, sizes = measuring.job, (2, 3)
    startups = [startup for startup, count in counts.items() for _ in range(count)]
    job.set_startup()
    stopped = last = stop_seconds = None
    for number, startup in enumerate([0, *startups]):
        size = sizes[number % 2]
        measuring.hosts = list(HOSTS[:size])
        with job.started(measuring.hosts):
            if number > 0:
                yield measuring.restart(stopped, last, startup, sizes[(number - 1) % 2], size, stop_seconds)
            measuring.begin()
            if number < len(startups):
                job.set_startup(before=startups[number])
            stop_seconds = job.stop()
            stopped = time.monotonic()
            last = max(note['time'] for notes in job.notes.values() for note in notes if note['kind'] == 'update')
