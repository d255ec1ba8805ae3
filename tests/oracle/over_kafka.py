"""The real server, asked in Kafka's own bytes: every question in its recorded version.

Rule: the server is started, killed and waited for as in over_socket.py, by our own messages on a connection
of their own.
"""

from __future__ import annotations

import socket
from typing import Final

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.messages import ApiVersions, FindCoordinator, Request, is_answered
from fencepost.protocol.terms import NEWEST_VERSION, CoordinatorType, TopicPartition
from tests.oracle.conversation import Conversation
from tests.oracle.kafka_words import kafka_reply, kafka_request
from tests.oracle.over_socket import OverSocket, received

NEEDS_A_SECOND_BROKER: Final = frozenset({"hold", "release"})
UNSPOKEN: Final = frozenset({"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"})
"""What kafka-python has no words for."""
ANYBODY: Final = FindCoordinator(kind=CoordinatorType.GROUP.value, key="anybody")
ANYBODYS_VERSION: Final = 4
TURNS: Final = 2  # of the broker: after them it has read what was sent before on another connection


def can_be_asked(conversation: Conversation) -> bool:
    """Whether one broker in real time is enough for it, and kafka-python has words for all of it."""
    if any(question.request in UNSPOKEN for question in conversation.questions):
        return False
    return not any(c.control in NEEDS_A_SECOND_BROKER or c.args.get("held") for c in conversation.controls)


@attrs.frozen
class _Waiting:
    """A question without an answer, alone on its connection."""

    connection: socket.socket
    request: Request
    version: int


class OverKafka(OverSocket):
    """One broker process; a connection for the questions, and one for each that is answered later."""

    is_kafka = True
    name = "in Kafka's bytes"

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__(settings)
        self._waiting: dict[int, _Waiting] = {}
        self._questions: socket.socket | None = None

    def _kill(self) -> None:
        super()._kill()
        for waiting in self._waiting.values():
            waiting.connection.close()
        self._waiting.clear()
        if self._questions is not None:
            self._questions.close()
            self._questions = None

    def ask(self, request: Request, *, version: int, about: TopicPartition | None = None) -> Reply | None:
        if self._questions is None:
            self._questions = self._connected()
        self._send(self._questions, request, version)
        if not is_answered(request):
            self._let_it_be_read()
            return None
        return self._answer(_Waiting(self._questions, request, version))

    def begin(self, request: Request, *, version: int, about: TopicPartition | None = None) -> int:
        waiting = _Waiting(self._connected(), request, version)
        # An answer first: only then does the broker wait for the bytes of this connection.
        self._send(waiting.connection, ANYBODY, ANYBODYS_VERSION)
        self._answer(_Waiting(waiting.connection, ANYBODY, ANYBODYS_VERSION))
        self._send(waiting.connection, request, version)
        number = self._asked
        self._waiting[number] = waiting
        self._let_it_be_read()
        return number

    def finish(self, number: int) -> Reply:
        waiting = self._waiting.pop(number)
        with waiting.connection:
            return self._answer(waiting)

    def _send(self, connection: socket.socket, request: Request, version: int) -> None:
        self._asked += 1
        connection.sendall(kafka_request(request, version=version, correlation_id=self._asked))

    def _answer(self, waiting: _Waiting) -> Reply:
        size = int.from_bytes(received(waiting.connection, 4), "big")
        frame = memoryview(received(waiting.connection, size))
        found = kafka_reply(frame, waiting.request, version=waiting.version)
        return Reply(ReplyTo(0, found.correlation_id), error=found.error, body=found.body)

    def _let_it_be_read(self) -> None:
        for _ in range(TURNS):
            self.order(ApiVersions(), version=NEWEST_VERSION)
