"""A wire protocol: how the bytes of a connection become requests, and replies become bytes.

Rule: an instance belongs to one connection. It knows bytes and messages, and neither sockets nor the node.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

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


class Asked(NamedTuple):
    """What a frame or a reply leads to: requests for the node, and bytes for the client. The correlation id
    of a request is the protocol's; the reply repeats it. `needs_login` is whether the bytes are for clients
    that were admitted only.
    """

    requests: tuple[RequestFrame, ...] = ()
    pieces: list[Buffer] | None = None
    needs_login: bool = False


class TopicIds(Protocol):
    """What a node knows of topics and their ids (KIP-516)."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, or None."""
        ...

    def topic_id(self, topic: str) -> bytes | None:
        """The id of the topic that has this name now, or None."""
        ...


@attrs.define(eq=False)
class SessionRoom:
    """The partitions that the fetch sessions of all connections of a broker may still hold."""

    free: int


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

    def close(self) -> None:
        """The connection has ended: give back what it shares with others."""
        ...

    def reply(self, reply: ReplyFrame) -> Asked:
        """Take the reply to a request. FrameTooLarge when its bytes do not fit into a frame."""
        ...


class FencepostProtocol:
    """Fencepost's own frames: one request, one reply, in any order."""

    is_serial = False

    def __init__(self) -> None:
        self.frames = FrameReader()

    def ask(self, frame: memoryview) -> Asked:
        try:
            return Asked((decode_request(frame),))
        except UnsupportedVersion as problem:
            refused = ReplyFrame(problem.correlation_id, error=ErrorCode.UNSUPPORTED_VERSION, body=None)
            return self.reply(refused)

    def close(self) -> None:
        """Nothing is shared."""

    def reply(self, reply: ReplyFrame) -> Asked:
        return Asked(pieces=encode_reply(reply))
