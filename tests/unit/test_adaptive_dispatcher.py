"""The dispatcher: every sample once, a part for everybody, and no answers to strangers."""

import hashlib
import random
import socket
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dynamic import errors
from hvd_dynamic.adaptive.dispatcher import Dispatcher, free_parts
from hvd_dynamic.adaptive.megabatches import MegaBatches
from hvd_dynamic.adaptive.messages import BadMessage, Channel
from hvd_dynamic.adaptive.service import LocalClient, RemoteClient, Service


def walk(dispatcher, workers, mega, epoch, draw, batch):
    """Workers that ask in any order, each for its next batch when it has done one, and merge after each mega-batch.

    Returns the batches by rank.
    """
    start = epoch * mega.length
    taken = {rank: [] for rank in range(workers)}
    ahead = {rank: dispatcher.take(rank, epoch, start, batch(rank)) for rank in range(workers)}
    at = start
    while at < start + mega.length:
        number = mega.at(at).number
        busy = {rank for rank in ahead if ahead[rank] is not None and ahead[rank].number == number}
        while busy:
            rank = draw(sorted(busy))
            taken[rank].append(ahead[rank])
            ahead[rank] = dispatcher.take(rank, epoch, at, batch(rank))
            if ahead[rank] is None or ahead[rank].number != number:
                busy.discard(rank)
        at = mega.at(at).end
    assert all(dispatcher.take(rank, epoch, at, 1) is None for rank in range(workers))
    return taken


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 400), st.integers(1, 150), st.randoms(use_true_random=False),
       st.sampled_from(['dynamic', 'static']), st.booleans())
def test_every_sample_once_and_every_worker_in_every_mega_batch(workers, least, length, size, chance, scheduling, taper):
    mega = MegaBatches(length, size)
    if mega.smallest < workers * least:
        return
    dispatcher = Dispatcher(mega, workers, least, scheduling, taper=taper)
    for epoch in (0, 1):
        taken = walk(dispatcher, workers, mega, epoch, chance.choice, lambda rank: chance.randint(least, 4 * least))
        samples = [s for batches in taken.values() for b in batches for s in range(b.start, b.start + b.count)]
        assert sorted(samples) == list(range(epoch * length, (epoch + 1) * length))
        for batches in taken.values():
            assert {b.number for b in batches} == set(range(epoch * mega.per_epoch, (epoch + 1) * mega.per_epoch))
            assert [b.number for b in batches] == sorted(b.number for b in batches)
            assert all(mega.at(b.start).number == mega.at(b.start + b.count - 1).number == b.number for b in batches)


def test_who_asks_more_often_gets_more():
    dispatcher = Dispatcher(MegaBatches(100, 100), workers=2, min_batch=5)
    fast = [dispatcher.take(0, 0, 0, 10) for _ in range(8)]
    assert [b.count for b in fast] == [10] * 8
    assert dispatcher.take(1, 0, 0, 10).start == 80


def test_batches_taper_off_towards_the_end():
    dispatcher = Dispatcher(MegaBatches(100, 100), workers=2, min_batch=5, taper=True)
    counts = []
    while (batch := dispatcher.take(len(counts) % 2, 0, 0, 20)) is not None:
        counts.append(batch.count)
    assert sum(counts) == 100 and counts[0] == 20 and counts == sorted(counts, reverse=True) and counts[-2] == 5


def test_static_parts_are_equal_whoever_asks():
    dispatcher = Dispatcher(MegaBatches(100, 100), workers=2, min_batch=5, scheduling='static')
    fast = [dispatcher.take(0, 0, 0, 10) for _ in range(6)]
    assert [b and b.start for b in fast] == [0, 10, 20, 30, 40, None]
    assert dispatcher.take(1, 0, 0, 10).start == 50


def test_what_survivors_have_done_is_not_handed_out_again():
    dispatcher = Dispatcher(MegaBatches(200, 100), workers=2, min_batch=1, done={0: [(0, 10), (30, 10)], 1: [(10, 5)]})
    got = []
    while (batch := dispatcher.take(len(got) % 2, 0, 0, 7)).number == 0:
        got.append((batch.start, batch.count))
    assert free_parts(0, 100, got) == [(0, 15), (30, 40)]
    assert sorted(got)[0] == (15, 7)
    # the next mega-batch is whole
    assert batch.start == 100


def test_an_epoch_that_was_left_early_is_forgotten():
    dispatcher = Dispatcher(MegaBatches(100, 50), workers=1, min_batch=1)
    dispatcher.take(0, 0, 0, 10)
    assert dispatcher.take(0, 3, 300, 10).start == 300
    assert dispatcher.take(0, 0, 50, 10).start == 50


def test_a_worker_that_is_late_at_the_end_of_an_epoch_changes_nothing():
    dispatcher = Dispatcher(MegaBatches(100, 50), workers=2, min_batch=1)
    assert dispatcher.take(0, 0, 100, 10) is None
    assert dispatcher.take(0, 1, 100, 10).start == 100
    assert dispatcher.take(1, 0, 100, 10) is None
    assert dispatcher.take(0, 1, 100, 10).start == 110


@pytest.mark.parametrize('arguments, name', [
    ((2, 0, 0, 5), 'rank'), ((-1, 0, 0, 5), 'rank'), (('0', 0, 0, 5), 'rank'), ((0, -1, 0, 5), 'epoch'),
    ((0, 0, 101, 5), 'position'), ((0, 0, 0, 0), 'count'), ((0, 0, 0, 1.5), 'count'), ((0, 0, 0, True), 'count'),
    ((0, 0, None, 5), 'position')])
def test_questions_out_of_range_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        Dispatcher(MegaBatches(100, 50), 2, 1).take(*arguments)


# -- over the network ------------------------------------------------------------------------------------------------

@pytest.fixture
def service():
    service = Service(Dispatcher(MegaBatches(6000, 6000), 3, 2), 'lo')
    yield service
    service.close()


def test_many_threads_get_every_sample_once(service):
    clients = [LocalClient(service.dispatcher, service)] + [RemoteClient(service.addresses, service.key, r) for r in (1, 2)]
    spans, failures = [], []

    def work(client):
        try:
            while (batch := client.take(0, 0, random.randint(2, 9))) is not None:
                spans.append((batch.start, batch.count))
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and free_parts(0, 6000, spans) == [] and sum(count for _, count in spans) == 6000
    clients[1].close()
    assert not service.lost.is_set()        # it said goodbye


def test_a_bad_question_is_answered_with_an_error(service):
    client = RemoteClient(service.addresses, service.key, 1)
    with pytest.raises(ValueError, match='count must be'):
        client.take(0, 0, 0)
    assert client.take(0, 0, 3).count == 3


def test_others_are_told_when_a_worker_dies(service):
    dying, other = (RemoteClient(service.addresses, service.key, rank) for rank in (1, 2))
    dying.close(graceful=False)
    assert service.lost.wait(10)
    with pytest.raises(errors.PeerLost):
        other.take(0, 0, 3)
    with pytest.raises(errors.PeerLost):
        LocalClient(service.dispatcher, service).take(0, 0, 3)
    assert errors.is_collective_failure(errors.PeerLost('gone'))


def test_a_dispatcher_that_dies_is_noticed(service):
    client = RemoteClient(service.addresses, service.key, 1)
    service.close()
    with pytest.raises(errors.PeerLost):
        client.take(0, 0, 3)
    with pytest.raises(errors.PeerLost, match='cannot be reached'):
        RemoteClient(service.addresses, service.key, 1)


def test_a_wrong_key_gets_no_samples(service):
    with pytest.raises(errors.PeerLost):
        RemoteClient(service.addresses, b'x' * 32, 1)
    wait_for(lambda: service.refused == 1)
    assert not service.lost.is_set() and service.dispatcher.take(0, 0, 0, 5).start == 0


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_noise_is_refused(service):
    for noise in (b'GET / HTTP/1.1\r\n\r\n' + b' ' * 100, bytes(32) + struct.pack('!I', 2 ** 31)):
        before = service.refused
        with socket.create_connection(service.addresses[0]) as connection:
            connection.sendall(noise)
            connection.settimeout(10)
            try:
                while connection.recv(100):
                    pass
            except ConnectionResetError:
                pass
        wait_for(lambda before=before: service.refused == before + 1)


def pair(key=b'k' * 32):
    one, other = socket.socketpair()
    one.settimeout(10)
    other.settimeout(10)
    made = []
    thread = threading.Thread(target=lambda: made.append(Channel(one, key, answers=True)))
    thread.start()
    asking = Channel(other, key, answers=False)
    thread.join()
    return made[0], asking, one, other


def test_messages_arrive():
    answering, asking, *_ = pair()
    for value in ({'a': [1, None, 'x']}, [], 0.5):
        asking.send(value)
        assert answering.receive() == value
        answering.send(value)
        assert asking.receive() == value


def test_a_message_counts_once_and_in_its_direction():
    answering, asking, one, other = pair()
    asking.send({'take': 1})
    size = hashlib.sha256().digest_size + 4 + len(b'{"take": 1}')
    message = one.recv(size)
    other.sendall(message + message)
    assert answering.receive() == {'take': 1}
    with pytest.raises(BadMessage):
        answering.receive()         # the same again
    answering, asking, one, other = pair()
    asking.send({'take': 1})
    one.sendall(one.recv(size))     # sent back to where it came from
    with pytest.raises(BadMessage):
        asking.receive()


def test_a_message_of_another_connection_does_not_count():
    _, asking, one, _ = pair()
    asking.send(1)
    message = one.recv(100)
    answering, _, _, other = pair()
    other.sendall(message)
    with pytest.raises(BadMessage):
        answering.receive()
