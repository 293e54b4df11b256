"""A short chaos run, and whether its checks would have noticed."""

import json
import shutil

import pytest

from benchmarks.chaos import QUICK, run
from benchmarks.chaos_parts.events import Dealer, Event, host_of, slots_of
from benchmarks.chaos_parts.job import HOSTS
from benchmarks.chaos_parts.records import read_lines
from benchmarks.chaos_parts.verify import verify

SEED = 0


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('chaos')


@pytest.fixture(scope='module')
def outcome(folder):
    return run(folder, Dealer(SEED, QUICK, HOSTS), sum(QUICK.values()), minutes=5, pause=0.03)


def test_nothing_is_wrong_after_any_of_the_events(outcome):
    assert not outcome.faults, '\n'.join(f'{fault.what}\n    in {fault.where}' for fault in outcome.faults)
    kinds = [done.event.kind for done in outcome.done]
    assert sorted(kinds[1:-1]) == sorted(kind for kind, count in QUICK.items() for _ in range(count))
    assert outcome.numbers['samples lost'] == outcome.numbers['samples twice'] == 0
    assert outcome.numbers['failovers'] >= 2 and outcome.numbers['resizes'] >= 4 and outcome.numbers['resumes'] == 1
    assert outcome.numbers['accuracy at the end'] > 0.9


class Script:
    """In place of a `Dealer`: these events, at once one after the other."""

    def __init__(self, hosts, *events):
        self._hosts, self._events = hosts, list(events)

    def first_hosts(self):
        return self._hosts

    def pause(self):
        return 0.0

    def deal(self, hosts, free, rank_0):
        return self._events.pop(0)


def check(tmp_path, hosts, *events):
    faults = run(tmp_path, Script(hosts, *events), len(events), minutes=4, pause=0.03).faults
    assert not faults, '\n'.join(f'{fault.what}\n    in {fault.where}' for fault in faults)


def test_changes_at_once_after_the_start(tmp_path):
    # A round is asked for when training begins, and the leave calls for another one: who left is known in the first only.
    # Then the survivor of an exchange leads a world that it is about to leave.
    check(tmp_path, {'localhost': 1, '127.1': 2}, Event('leave', {'localhost': 1, '127.1': 1}),
          Event('exchange', {'localhost': 1, '127.0.1': 1}))


def test_a_newcomer_that_died_does_not_make_a_job_fail_that_ends_well(tmp_path):
    hosts = {'localhost': 1, '127.1': 1}
    check(tmp_path, hosts, Event('kill a newcomer', hosts, ('127.0.1:0',), seconds=1.0))


def edit(path, change):
    """Give the lines of a file of JSON lines to `change`, which returns the new ones."""
    path.write_text(''.join(json.dumps(line) + '\n' for line in change(read_lines(path))))


def with_field(lines, number, **fields):
    return [{**line, **(fields if i == number else {})} for i, line in enumerate(lines)]


DAMAGES = {
    'an audit line is missing': ('run/samples-*.jsonl', lambda lines: lines[:3] + lines[4:], 'lost samples'),
    'an audit line is there twice': ('run/samples-*.jsonl', lambda lines: lines[:4] + lines[3:], 'samples twice'),
    'a sample was used in the place of another':
        ('run/samples-*.jsonl', lambda lines: with_field(lines, 3, indices=lines[2]['indices']), 'samples twice'),
    'an update is missing': ('run/metrics.jsonl', lambda lines: lines[:9] + lines[10:], 'lost metrics'),
    'another learning rate': ('run/metrics.jsonl', lambda lines: with_field(lines, 9, lr=0.05), 'lr'),
    'events are missing':
        ('run/events.jsonl', lambda lines: [e for e in lines if e['kind'] != 'failed_over'], 'lost events'),
    'other weights at the end':
        ('reports-*.jsonl', lambda lines: [{**r, **({'digest': 1} if r['kind'] == 'end' else {})} for r in lines],
         'disagreement'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_the_checks_notice(damage, folder, outcome, tmp_path):
    pattern, change, kind = DAMAGES[damage]
    copy = tmp_path / 'copy'
    shutil.copytree(folder, copy)
    # Of the files of each worker, that of one who was there at the end.
    path = max(copy.glob(pattern), key=lambda path: (read_lines(path)[-1].get('kind') == 'end', len(read_lines(path))))
    edit(path, change)
    assert kind in {found for _, _, found in verify(copy, ended=True).faults}


def test_the_checks_notice_an_abort(folder, outcome, tmp_path):
    copy = tmp_path / 'copy'
    shutil.copytree(folder, copy)
    with open(copy / 'log-1.txt', 'a') as log:
        log.write('Process 1 exit with status code 134.\n[1]<stderr>:Traceback (most recent call last):\n')
    assert {kind for _, _, kind in verify(copy, ended=True).faults} == {'dead survivor', 'traceback'}


def test_only_legal_events_are_dealt():
    dealer, hosts = Dealer(5, {**QUICK, 'kill two': 2, 'kill while growing': 2}, HOSTS), {'localhost': 2, '127.1': 1}
    for _ in range(500):
        event = dealer.deal(hosts, [host for host in HOSTS if host not in hosts], slots_of(hosts)[0])
        killed = {host_of(victim) for victim in event.victims} if event.kind.startswith('kill') else set()
        assert set(hosts) & set(event.hosts) - killed, event        # a host of the old world is untouched
        assert 1 <= sum(event.hosts.values()) <= 5 and min(event.hosts.values()) >= 1
        hosts = event.hosts
