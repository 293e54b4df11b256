"""The driver's key-value store, against Horovod's own server and a small one that answers as we like."""
import base64
import os
import pickle
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from horovod.runner.http.http_server import RendezvousServer

from hvd_dynamic.world.rendezvous import Rendezvous, Slot


@pytest.fixture
def horovods():
    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield server, Rendezvous('127.0.0.1', port)
    server.stop()


@pytest.fixture
def answering():
    """A function from an answer (status, body) to a `Rendezvous` whose server gives it, and the paths it was asked."""
    servers = []

    def serve(status, body):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass
        server = HTTPServer(('127.0.0.1', 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return Rendezvous('127.0.0.1', server.server_port), asked
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def test_what_is_put_can_be_got(horovods):
    _, rendezvous = horovods
    assert rendezvous.get('scope', 'key') is None
    rendezvous.put('scope', 'key', b'\x00value\xff')
    assert rendezvous.get('scope', 'key') == b'\x00value\xff'


def test_listener_is_registered_in_the_format_that_the_driver_reads(horovods):
    _, rendezvous = horovods
    addresses, key = {'lo': [('127.0.0.1', 1234)]}, b'secret'
    rendezvous.register_listener('node', 2, addresses, key)
    assert pickle.loads(base64.b64decode(rendezvous.get('worker_addresses', 'node:2'))) == (addresses, key)


def test_slot_of_the_next_round(answering):
    rendezvous, asked = answering(200, b'3,8,1,2,1,4')
    slot = rendezvous.ask_slot('node', 1, timeout=5)
    assert slot == Slot(rank=3, size=8, local_rank=1, local_size=2, cross_rank=1, cross_size=4)
    assert asked == ['/rank_and_size/node:1'] and not slot.removed


def test_removed_worker_is_told_so(answering):
    rendezvous, _ = answering(200, b'-1,-1,-1,-1,-1,-1')
    assert rendezvous.ask_slot('node', 0, timeout=5).removed


def test_slot_goes_to_the_environment(monkeypatch):
    names = ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE')
    for name in names:
        monkeypatch.setenv('HOROVOD_' + name, 'old')
    Slot(3, 8, 1, 2, 0, 4).to_environment()
    assert [os.environ['HOROVOD_' + name] for name in names] == ['3', '8', '1', '2', '0', '4']


@pytest.mark.parametrize('status, body', [
    (500, b''), (404, b''), (200, b''), (200, b'<html>'), (200, b'1,2,3'), (200, b'\xff')])
def test_answer_that_is_no_slot_is_a_clear_error(answering, status, body):
    rendezvous, _ = answering(status, body)
    with pytest.raises(ConnectionError, match='the elastic driver at http://127.0.0.1:.* gave node:0 no place in the next'):
        rendezvous.ask_slot('node', 0, timeout=5)


def test_driver_that_is_gone_is_a_clear_error(monkeypatch):
    monkeypatch.setattr('time.sleep', lambda seconds: None)
    rendezvous = Rendezvous('127.0.0.1', closed_port())
    with pytest.raises(ConnectionError, match='the elastic driver at http://127.0.0.1:.* gave node:0 no place'):
        rendezvous.ask_slot('node', 0, timeout=5)
    with pytest.raises(ConnectionError, match='cannot register with the elastic driver at http://127.0.0.1:'):
        rendezvous.register_listener('node', 0, {}, b'')


def test_driver_that_does_not_answer_in_time_is_a_clear_error():
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        with pytest.raises(ConnectionError, match='gave node:0 no place in the next round: .*timed out'):
            Rendezvous('127.0.0.1', silent.getsockname()[1]).ask_slot('node', 0, timeout=0.2)


def test_connection_that_the_driver_had_no_room_for_is_tried_again(answering, monkeypatch):
    rendezvous, asked = answering(200, b'value')
    connect, tried = socket.create_connection, []

    def unheard_twice(address, timeout):
        tried.append(timeout)
        if len(tried) < 3:
            raise TimeoutError('timed out')
        return connect(address, timeout)
    monkeypatch.setattr('socket.create_connection', unheard_twice)
    assert rendezvous.get('scope', 'key') == b'value'
    assert tried == [0.2, 0.2, 0.2] and asked == ['/scope/key']


def test_driver_that_never_has_room_is_a_clear_error(monkeypatch):
    def unheard(address, timeout):
        clock[0] += timeout
        raise TimeoutError('timed out')
    clock = [0.0]
    monkeypatch.setattr('socket.create_connection', unheard)
    monkeypatch.setattr('hvd_dynamic.world.rendezvous.time.monotonic', lambda: clock[0])
    with pytest.raises(ConnectionError, match='gave node:0 no place in the next round: timed out'):
        Rendezvous('127.0.0.1', 1).ask_slot('node', 0)
    assert 60 < clock[0] <= 65


def test_proxy_of_the_users_is_not_asked(answering, monkeypatch):
    for name in ('http_proxy', 'HTTP_PROXY', 'all_proxy'):
        monkeypatch.setenv(name, f'http://127.0.0.1:{closed_port()}')
    rendezvous, _ = answering(200, b'0,1,0,1,0,1')
    assert rendezvous.ask_slot('node', 0, timeout=5).size == 1


def test_driver_is_found_in_the_environment(horovods, monkeypatch):
    _, rendezvous = horovods
    monkeypatch.setenv('HOROVOD_GLOO_RENDEZVOUS_ADDR', '127.0.0.1')
    monkeypatch.setenv('HOROVOD_GLOO_RENDEZVOUS_PORT', str(rendezvous._port))
    rendezvous.put('s', 'k', b'v')
    assert Rendezvous.from_environment().get('s', 'k') == b'v'
