"""Small signed messages over a socket: JSON, with an HMAC-SHA256 that no other place, time or direction has."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct

__all__ = ['Channel', 'BadMessage']

_LONGEST = 1 << 16
_NONCE = 16
_HEAD = struct.Struct('!I')


class BadMessage(ValueError):
    """A message is too long, is not signed with the key, or is not JSON."""


class Channel:
    """One end of a connection.

    The end that answers sends a random number first. Each signature is over that number, the direction, the message's number
    and its text, so that a message counts once, in its place.

    Parameters
    ----------
    connection : socket.socket
        Connected; its time-out counts.
    key : bytes
    answers : bool
        Whether this is the end that answers.
    """

    def __init__(self, connection, key, answers):
        self._connection, self._key = connection, key
        self._mine, self._theirs = (b'answer', b'question') if answers else (b'question', b'answer')
        self._sent = self._received = 0
        if answers:
            self._nonce = os.urandom(_NONCE)
            connection.sendall(self._nonce)
        else:
            self._nonce = self._read(_NONCE)

    def send(self, value):
        """Send a JSON value."""
        body = json.dumps(value).encode()
        self._connection.sendall(self._signature(self._mine, self._sent, body) + _HEAD.pack(len(body)) + body)
        self._sent += 1

    def receive(self):
        """The next value; blocks.

        Raises
        ------
        EOFError
            The other end has gone.
        BadMessage
        OSError
            Also for the socket's time-out.
        """
        head = self._read(hashlib.sha256().digest_size + _HEAD.size)
        signature, (length,) = head[:-_HEAD.size], _HEAD.unpack(head[-_HEAD.size:])
        if length > _LONGEST:
            raise BadMessage(f'it has {length} bytes')
        body = self._read(length)
        if not hmac.compare_digest(signature, self._signature(self._theirs, self._received, body)):
            raise BadMessage('its signature is wrong')
        self._received += 1
        try:
            return json.loads(body)
        except ValueError:
            raise BadMessage('it is not JSON') from None

    def _signature(self, direction, number, body):
        return hmac.new(self._key, b'%s %s %d ' % (self._nonce, direction, number) + body, hashlib.sha256).digest()

    def _read(self, count):
        parts = []
        while count:
            part = self._connection.recv(count)
            if not part:
                raise EOFError('the other end has gone')
            parts.append(part)
            count -= len(part)
        return b''.join(parts)
