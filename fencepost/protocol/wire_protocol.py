"""A wire protocol: how the bytes of a connection become requests, and replies become bytes.

Rule: an instance belongs to one connection. It knows bytes and messages, and neither sockets nor the node.
"""

# Theory of operation
#
#     bytes --> frames --> ask ------ requests ------> node ------ reply ------> bytes
#                           |                                        |
#                           '- pieces: answered at once              '- requests: more is needed first
#                              (an unsupported version)                 (a Metadata that creates its topics)
#
# Fencepost's own frames hold one message each. A request of Kafka's may stand for several of them, and may
# lead to others before it can be answered; kafka_bridge/connection.py hides this, so the server knows one
# kind of connection.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import attrs

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import (
    FrameReader,
    ReplyFrame,
    RequestFrame,
    UnsupportedVersion,
    decode_request,
    encode_reply,
)
from fencepost.protocol.messages import DescribedConfig
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.values import value


@value
class Asked:
    """What a frame or a reply leads to: requests for the node, and bytes for the client. The correlation id
    of a request is the protocol's; the reply repeats it. `needs_login` is whether the bytes are only for
    clients that were admitted.
    """

    requests: tuple[RequestFrame, ...] = ()
    pieces: list[Buffer] | None = None
    needs_login: bool = False


class NodeTopics(Protocol):
    """What a node knows of topics, their ids (KIP-516) and their settings."""

    @property
    def creates_named_topics(self) -> bool:
        """Whether a topic that a client only names is created: auto.create.topics.enable."""
        ...

    def topic_configs(self, own: Mapping[str, str]) -> Sequence[DescribedConfig]:
        """All settings of a topic that sets these itself."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, or None."""
        ...

    def topic_id(self, topic: str) -> bytes | None:
        """The id of the topic that has this name now, or None."""
        ...


ResourceKind = Literal["Topic", "Group", "Cluster"]


Operations = Callable[[ResourceKind, str], int]
"""What the client of a connection may do to the resource of a name, as OPERATION_BITS."""


@attrs.define(eq=False)
class SessionRoom:
    """How many more partitions the fetch sessions of all connections of a broker may hold."""

    free: int


class FetchEncoding(Protocol):
    """Makes records readable for the client that sent a Fetch, one partition after the other."""

    @property
    def work(self) -> int:
        """What it has done so far, as a number of records (batch_work.py)."""
        ...

    def encode(
        self, stored: bytes, partition: TopicPartition, *, offset: int, max_bytes: int, is_first: bool
    ) -> Buffer:
        """The batches of a partition that were read from `offset` on, as the client reads them. They take
        `max_bytes` at most; the first batch of a reply may be larger. ProtocolViolation if no batch can be
        encoded.
        """
        ...


class WireProtocol(Protocol):
    """One side of one connection."""

    @property
    def frames(self) -> FrameReader:
        """What finds the frames in the bytes that arrive."""
        ...

    @property
    def is_serial(self) -> bool:
        """Whether a request is read only after the one before it was answered."""
        ...

    def ask(self, frame: memoryview) -> Asked:
        """Take a frame. ProtocolViolation when it is not a request: nothing after it can be read."""
        ...

    def fetch_encoding(self) -> FetchEncoding | None:
        """The encoding of one Fetch; None if the client reads records as they are stored."""
        ...

    def close(self) -> None:
        """The connection has ended: give back what it shares with others."""
        ...

    def reply(self, reply: ReplyFrame) -> Asked:
        """Take the reply to a request. FrameTooLarge when its bytes do not fit into a frame."""
        ...


class FencepostProtocol:
    """Fencepost's own frames: one request, one reply, in any order."""

    # Replies name their request by its correlation id, so a parked Fetch need not hold up the others.
    is_serial = False

    def __init__(self) -> None:
        self.frames = FrameReader()

    def ask(self, frame: memoryview) -> Asked:
        try:
            return Asked((decode_request(frame),))
        except UnsupportedVersion as problem:
            refused = ReplyFrame(problem.correlation_id, error=ErrorCode.UNSUPPORTED_VERSION, body=None)
            return self.reply(refused)

    def fetch_encoding(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def reply(self, reply: ReplyFrame) -> Asked:
        return Asked(pieces=encode_reply(reply))
