"""The real server as a stage: a process on a free port, over a directory of its own, asked over its socket.

Rule: a restart is a kill -9 of the process; time is the machine's, so that conversations with long waits and
those that need a second broker are played in memory alone.
"""

from __future__ import annotations

import contextlib
import select
import socket
import tempfile
import time
from types import TracebackType
from typing import Final

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import FrameReader, decode_reply, encode_request
from fencepost.protocol.messages import (
    API_BY_REQUEST,
    CreateTopic,
    CreateTopics,
    CreateTopicsReply,
    FindCoordinator,
    ListTransactions,
    ListTransactionsReply,
    Request,
    is_answered,
)
from fencepost.protocol.terms import NEWEST_VERSION, CoordinatorType, TopicPartition
from tests.oracle.conversation import Conversation
from tests.oracle.serving import settings_in_words, starter
from tests.oracle.stage import NoAnswer

PATIENCE_S: Final = 60.0  # longer than anything takes on a busy machine
PAUSE_S: Final = 0.02  # between two looks at what has not settled
RECEIVE_SIZE: Final = 1 << 16
PREPARING: Final = ("PrepareCommit", "PrepareAbort")

NEEDS_MORE: Final = frozenset({"hold", "release", "wait", "raise epoch", "may be stuck", "answer"})
"""The controls of conversations that are played in memory alone."""


def can_be_played(conversation: Conversation) -> bool:
    """Whether one broker in real time is enough for it."""
    return not any(c.control in NEEDS_MORE or c.args.get("held") for c in conversation.controls)


class OverSocket:
    """One broker process and one connection to it; a context manager, which leaves nothing behind."""

    is_settled = False  # nobody knows without asking
    is_kafka = False
    name = "over the socket"

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings_in_words(settings)
        self._held = contextlib.ExitStack()
        self._asked: int = 0

    def __enter__(self) -> OverSocket:
        self._directory = self._held.enter_context(tempfile.TemporaryDirectory(prefix="fencepost-oracle-"))
        self._start()
        for kind in CoordinatorType:
            self.order(FindCoordinator(kind=kind, key="anybody"), version=NEWEST_VERSION)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._held.close()

    # --- living and dying

    def _start(self) -> None:
        try:
            self._pid, self._port = starter().start(self._directory, self._settings)
        except EOFError as problem:
            raise NoAnswer(str(problem)) from problem
        self._socket = self._connected()
        self._frames = FrameReader()

    def _connected(self) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _kill(self) -> None:
        self._socket.close()
        starter().kill(self._pid)

    def kill_and_restart(self) -> None:
        self._kill()
        self._start()

    # --- asking

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ask(self, request: Request, *, version: int, about: TopicPartition | None = None) -> Reply | None:
        """One broker leads everything, whatever the question is `about`."""
        return self.order(request, version=version)

    def order(self, request: Request, *, version: int) -> Reply | None:
        """Ask what no recording asks, in our own bytes."""
        self._asked += 1
        number, api = self._asked, API_BY_REQUEST[type(request)]
        self._socket.sendall(b"".join(encode_request(request, correlation_id=number, version=version)))
        if not is_answered(request):
            return None
        frame = self._receive()
        found = decode_reply(frame, api)
        assert found.correlation_id == number, "answers come in the order of their questions"
        return Reply(ReplyTo(0, number), error=found.error, body=found.body)

    def begin(self, request: Request, *, version: int, about: TopicPartition | None = None) -> int:
        raise NoAnswer("one connection has its answers in the order of its questions")

    def finish(self, number: int) -> Reply:
        raise NoAnswer(f"nothing was begun, and so not question {number}")

    def _receive(self) -> memoryview:
        while True:
            frames = self._frames.feed(_chunk(self._socket, RECEIVE_SIZE))
            if frames:
                (frame,) = frames
                return frame

    # --- the cluster

    def create_topic(self, topic: str, partitions: int, *, held: bool) -> bytes:
        assert not held, "one broker leads everything"
        wanted = CreateTopics(topics=(CreateTopic(topic=topic, partition_count=partitions),))
        reply = self.order(wanted, version=NEWEST_VERSION)
        created = None if reply is None else reply.body
        if not isinstance(created, CreateTopicsReply) or created.topics[0].error is not ErrorCode.NONE:
            raise NoAnswer(f"the topic {topic} cannot be made: {reply}")
        return created.topics[0].topic_id

    def let_pass(self, duration_ms: int, *, until_settled: bool = False) -> None:
        """Real time; `until_settled` asks the broker again and again."""
        end = time.monotonic() + duration_ms / 1_000
        while time.monotonic() < end and not (until_settled and self._has_settled()):
            select.select([], [], [], PAUSE_S)

    def _has_settled(self) -> bool:
        asked = ListTransactions(states=PREPARING, producer_ids=(), duration_ms=-1)
        reply = self.order(asked, version=NEWEST_VERSION)
        body = None if reply is None else reply.body
        return isinstance(body, ListTransactionsReply) and not body.transactions

    def skip_to_epoch(self, transactional_id: str, epoch: int) -> None:
        raise NoAnswer("a broker skips no epoch")

    def hold(self) -> None:
        raise NoAnswer("one broker cannot hold another")

    def release(self) -> None:
        raise NoAnswer("one broker cannot hold another")


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes. NoAnswer if they do not come."""
    found = bytearray()
    while len(found) < size:
        found += _chunk(connection, size - len(found))
    return bytes(found)


def _chunk(connection: socket.socket, size: int) -> bytes:
    try:
        chunk = connection.recv(size)
    except OSError as problem:
        raise NoAnswer(f"the connection broke: {problem}") from problem
    if not chunk:
        raise NoAnswer("the broker closed the connection")
    return chunk
