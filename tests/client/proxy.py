"""A proxy between a client and a broker that loses what a test says: a request, its answer, or both
connections.

Rule: it understands the frames, so a fault strikes the n-th message of a kind and not a moment in time.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from enum import Enum
from types import TracebackType
from typing import Any

import attrs

from fencepost.protocol.frames import FrameReader, ReplyFrame, decode_reply_of, decode_request, encode_reply
from fencepost.protocol.messages import API_BY_REQUEST, Api, FindCoordinatorReply, MetadataReply


class Fault(Enum):
    """What happens to a request."""

    LOSE_REQUEST = "the connection ends before the broker hears it"
    LOSE_REPLY = "the broker carries it out, and the connection ends before its answer"
    HOLD_REPLY = "the broker carries it out, and its answer never comes"


class Proxy:
    """Listens on a free port of loopback; clients that bootstrap there see no other address."""

    def __init__(self, upstream: str, *faults: tuple[type[Any], int, Fault]) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._faults = {(kind, count): fault for kind, count, fault in faults}
        self._seen: Counter[type[Any]] = Counter()
        self.struck: list[tuple[type[Any], int]] = []
        self.withheld = threading.Event()
        """Set once an answer is held: the broker has carried out the request."""
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)
        for link in self._sockets:
            link.close()

    def seen(self, kind: type[Any]) -> int:
        """How many requests of a kind came by."""
        return self._seen[kind]

    def cut(self) -> None:
        """Ends every connection, so that a client sends again what has no answer."""
        with self._lock:
            open_sockets = list(self._sockets)
        for link in open_sockets:
            end(link)

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            with self._lock:
                self._sockets.append(client)
            try:
                broker = socket.create_connection(self._upstream)
            except OSError:
                end(client)
                continue
            with self._lock:
                self._sockets.append(broker)
            pair = _Pair(client, broker)
            self._start(self._upwards, pair)
            self._start(self._downwards, pair)

    def _upwards(self, pair: _Pair) -> None:
        for frame in frames(pair.client):
            request = decode_request(frame)
            kind = type(request.request)
            with self._lock:
                self._seen[kind] += 1
                fault = self._faults.get((kind, self._seen[kind]))
                if fault is not None:
                    self.struck.append((kind, self._seen[kind]))
            if fault is Fault.LOSE_REQUEST:
                break
            pair.asked[request.correlation_id] = (API_BY_REQUEST[kind], fault)
            if not put(pair.broker, len(frame).to_bytes(4, "big") + bytes(frame)):
                break
        end(pair.client)
        end(pair.broker)

    def _downwards(self, pair: _Pair) -> None:
        for frame in frames(pair.broker):
            reply = decode_reply_of(frame, lambda number: pair.asked[number][0])
            _, fault = pair.asked.pop(reply.correlation_id)
            if fault is Fault.LOSE_REPLY:
                break
            if fault is Fault.HOLD_REPLY:
                self.withheld.set()
                continue
            told = self._with_our_address(reply)
            if not put(pair.client, b"".join(bytes(piece) for piece in encode_reply(told))):
                break
        end(pair.client)
        end(pair.broker)

    def _with_our_address(self, reply: ReplyFrame) -> ReplyFrame:
        body = reply.body
        if isinstance(body, MetadataReply):
            nodes = tuple(attrs.evolve(node, host="127.0.0.1", port=self.port) for node in body.nodes)
            return attrs.evolve(reply, body=attrs.evolve(body, nodes=nodes))
        if isinstance(body, FindCoordinatorReply):
            return attrs.evolve(reply, body=attrs.evolve(body, host="127.0.0.1", port=self.port))
        return reply


@attrs.define
class _Pair:
    """A client's connection and ours to the broker."""

    client: socket.socket
    broker: socket.socket
    asked: dict[int, tuple[Api, Fault | None]] = attrs.field(factory=dict)


def frames(link: socket.socket) -> Any:
    """The frames that come in until the connection ends."""
    reader = FrameReader()
    while True:
        try:
            chunk = link.recv(1 << 16)
        except OSError:
            return
        if not chunk:
            return
        yield from reader.feed(chunk)


def put(link: socket.socket, data: bytes) -> bool:
    """Writes all of it; False when the connection is gone."""
    try:
        link.sendall(data)
    except OSError:
        return False
    return True


def end(link: socket.socket) -> None:
    """Ends a connection; whoever reads it sees its end."""
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it had ended
