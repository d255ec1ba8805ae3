"""Which dialect a new connection speaks: the broker serves several on one port.

Rule: the first bytes decide, and the connection keeps its dialect.
"""

# Both kinds of frame begin with their length. Then ours has the length of its header and a msgpack array of
# five, and Kafka's an API key, a version, and a correlation id. So the ninth byte is 0x95 in ours, and the
# first byte of a correlation id in Kafka's: 0x95 there would be a negative number, and clients count from 0.

from __future__ import annotations

from typing import Final

from fencepost.protocol.dialect import Asked, Dialect, FencepostDialect, TopicIds
from fencepost.protocol.frames import FrameReader, ReplyFrame, encode_reply

_DECIDING: Final = 9  # bytes
ARRAY_OF_FIVE: Final = 0x95  # msgpack


class Undecided:
    """A connection of which too little has arrived to know what its client speaks."""

    is_serial = False

    def __init__(self, topics: TopicIds) -> None:
        self.frames: FrameReader = _FirstBytes()
        self._topics = topics

    def decided(self) -> Dialect:
        """The dialect of the bytes that have arrived; this one while they do not suffice."""
        start = self.frames.peek(_DECIDING)
        if len(start) < _DECIDING:
            return self
        dialect = FencepostDialect() if start[-1] == ARRAY_OF_FIVE else _kafka(self._topics)
        dialect.frames.frame_size_max = self.frames.frame_size_max
        dialect.frames.add(self.frames.peek(self.frames.arrived))
        return dialect

    def ask(self, frame: memoryview) -> Asked:
        raise AssertionError("no frame is read before the dialect is known")

    def reply(self, reply: ReplyFrame) -> Asked:
        return Asked(pieces=encode_reply(reply))


class _FirstBytes(FrameReader):
    """Bytes in which no frame can be found yet."""

    def announced(self) -> None:
        return None

    def take(self) -> None:
        return None


def _kafka(topics: TopicIds) -> Dialect:
    # At the first connection that needs it: its schemas take a tenth of a second to load.
    from fencepost.kafka_bridge.dialect import KafkaDialect

    return KafkaDialect(topics)
