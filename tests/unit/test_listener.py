"""The listener for host changes: Horovod's wire format, and nothing unpickled."""
import os
import pickle
import socket
import struct

import numpy as np
import pytest
from horovod.runner.common.util import network, secret
from horovod.runner.elastic.worker import HostsUpdatedRequest, HostUpdateResult, WorkerNotificationClient

from hvd_dynamic.world.listener import HostListener


@pytest.fixture(scope='module')
def one_listener():
    listener = HostListener('lo')
    yield listener
    listener.close()


@pytest.fixture
def listener(one_listener):
    one_listener.changed.clear()
    return one_listener


def signed(body, key, length=None):
    return secret.compute_digest(key, body) + struct.pack('i', len(body) if length is None else length) + body


def answer_to(listener, data):
    """Send bytes, and hear what comes back until the other side hangs up."""
    with socket.create_connection(listener.addresses['lo'][0], timeout=5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b''.join(iter(lambda: connection.recv(4096), b''))


def client(listener, key=None):
    return WorkerNotificationClient(listener.addresses, key or listener.secret_key, 0)


def works(listener):
    """Whether the driver is still understood."""
    listener.changed.clear()
    client(listener).notify_hosts_updated(1.0, HostUpdateResult.added)
    return listener.changed.is_set()


@pytest.mark.parametrize('result', list(HostUpdateResult))
def test_horovods_driver_is_understood(listener, result):
    assert not listener.changed.is_set()
    driver = client(listener)               # it pings when it is made
    assert not listener.changed.is_set()
    driver.notify_hosts_updated(1234.5, result)
    assert listener.changed.is_set()


def test_random_bytes_are_refused_and_counted(listener):
    random, before = np.random.RandomState(3), listener.refused
    for length in random.randint(1, 300, size=60):
        assert answer_to(listener, random.bytes(length)) == b''
    forged = random.bytes(32) + struct.pack('i', 100) + pickle.dumps(HostsUpdatedRequest(1.0, 2)).ljust(100)[:100]
    assert answer_to(listener, forged) == b''
    assert listener.refused == before + 61
    assert not listener.changed.is_set() and works(listener)


@pytest.mark.parametrize('result, waits', [(HostUpdateResult.added, True), (HostUpdateResult.removed, False),
                                           (HostUpdateResult.mixed, False)])
def test_only_new_hosts_are_waited_for_whether_they_stay(listener, result, waits):
    listener.clear()
    client(listener).notify_hosts_updated(1.0, result)
    assert listener.changed.is_set() and listener.due() is not waits
    client(listener).notify_hosts_updated(2.0, HostUpdateResult.removed)
    assert listener.due()
    client(listener).notify_hosts_updated(3.0, HostUpdateResult.added)
    assert listener.due(), 'a host that went is not waited for'


def test_ping_is_answered_in_horovods_format(listener):
    reply = answer_to(listener, signed(pickle.dumps(network.PingRequest()), listener.secret_key))
    assert reply[:32] == secret.compute_digest(listener.secret_key, reply[36:])
    response = pickle.loads(reply[36:])
    assert isinstance(response, network.PingResponse)
    assert (response.service_name, response.source_address) == ('worker notification service', '127.0.0.1')


def test_wrong_signature_is_ignored(listener):
    request = pickle.dumps(HostsUpdatedRequest(1.0))
    assert answer_to(listener, signed(request, secret.make_secret_key())) == b''
    forged = bytearray(signed(request, listener.secret_key))
    forged[-1] ^= 1
    assert answer_to(listener, bytes(forged)) == b''
    assert not listener.changed.is_set() and works(listener)


@pytest.mark.parametrize('data', [
    b'', b'x', b'\0' * 32, b'\0' * 36, os.urandom(31), b'GET / HTTP/1.1\r\n\r\n' * 4, b'\xff' * 5000])
def test_garbage_is_ignored(listener, data):
    assert answer_to(listener, data) == b''
    assert not listener.changed.is_set() and works(listener)


@pytest.mark.parametrize('length', [-1, 0, 1 << 17, 2 ** 31 - 1])
def test_length_that_cannot_be_is_refused_before_anything_is_read(listener, length):
    body = pickle.dumps(HostsUpdatedRequest(1.0))
    assert answer_to(listener, signed(body, listener.secret_key, length)) == b''
    assert not listener.changed.is_set() and works(listener)


def test_truncated_message_is_ignored(listener):
    whole = signed(pickle.dumps(HostsUpdatedRequest(1.0)), listener.secret_key)
    for cut in (33, 40, len(whole) - 1):
        assert answer_to(listener, whole[:cut]) == b''
    assert not listener.changed.is_set() and works(listener)


def test_silent_connections_do_not_block_the_driver(listener):
    silent = [socket.create_connection(listener.addresses['lo'][0]) for _ in range(4)]
    assert works(listener)
    for connection in silent:
        connection.close()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled_even_if_it_is_signed(listener, tmp_path):
    body = pickle.dumps([Bomb(tmp_path / 'gone off'), HostsUpdatedRequest(1.0)])
    answer_to(listener, signed(body, listener.secret_key))
    answer_to(listener, signed(pickle.dumps(Bomb(tmp_path / 'gone off')), listener.secret_key))
    assert not (tmp_path / 'gone off').exists() and works(listener)


def test_unknown_message_gets_no_answer(listener):
    assert answer_to(listener, signed(b'something else', listener.secret_key)) == b''
    assert not listener.changed.is_set()


def test_each_listener_has_its_own_key_and_interface(listener):
    other = HostListener()
    assert other.secret_key != listener.secret_key and len(other.secret_key) == len(listener.secret_key)
    assert list(listener.addresses) == ['lo'] and listener.addresses['lo'][0][0] == '127.0.0.1'
    assert 'lo' in other.addresses and works(other), 'without an interface it listens on all'
    other.close()


def test_interface_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="no IPv4 address on network interface 'eth99', which HOROVOD_GLOO_IFACE"):
        HostListener('eth99')


def test_closed_listener_is_gone():
    listener = HostListener('lo')
    address = listener.addresses['lo'][0]
    listener.close()
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=1).close()
