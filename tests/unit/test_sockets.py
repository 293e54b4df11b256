"""Hanging up: peers that wait on a connection are told at once."""
import os
import socket

from hvd_dynamic.world.sockets import hang_up, open_sockets


def test_peer_sees_the_end_and_the_owner_keeps_its_descriptor():
    before = open_sockets()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        new = {fd: identity for fd, identity in open_sockets().items() if before.get(fd) != identity}
        assert set(new) == {ours.fileno(), theirs.fileno()}
        hang_up({ours.fileno(): new[ours.fileno()]})
        theirs.settimeout(10)
        assert theirs.recv(1) == b''
        assert os.fstat(ours.fileno())


def test_descriptor_that_belongs_to_another_socket_by_now_is_left_alone():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hang_up({ours.fileno(): 'socket:[1]'})
        ours.sendall(b'x')
        assert theirs.recv(1) == b'x'


def test_descriptors_that_are_gone_or_no_connections_do_no_harm():
    listening = socket.create_server(('127.0.0.1', 0))
    with listening:
        sockets = {**{fd: i for fd, i in open_sockets().items() if fd == listening.fileno()}, 9999: 'socket:[1]'}
        hang_up(sockets)
