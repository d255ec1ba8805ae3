"""Which wire protocol a new connection speaks: the broker serves both on one port.

Rule: the first bytes decide, and the connection keeps its protocol.
"""

# Both kinds of frame begin with their length. Then ours has the length of its header and a msgpack array of
# five, and Kafka's an API key, a version, and a correlation id. So the ninth byte is 0x95 in ours, and the
# first byte of a correlation id in Kafka's: 0x95 there would be a negative number, and clients count from 0.

from __future__ import annotations

from enum import Enum
from typing import Final

from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.frames import FrameReader
from fencepost.protocol.wire_protocol import (
    Asked,
    FencepostProtocol,
    NodeTopics,
    Operations,
    SessionRoom,
    WireProtocol,
)

_DECIDING: Final = 9  # bytes
ARRAY_OF_FIVE: Final = 0x95  # msgpack
HTTP: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ")  # as lengths, all larger than a frame may be


class ServedProtocol(Enum):
    """What a broker answers on its port."""

    KAFKA = "kafka"
    FENCEPOST = "fencepost"
    BOTH = "both"


class ProtocolSwitchedOff(ProtocolViolation):
    """The client speaks a protocol that this broker does not serve."""


class Undecided(FencepostProtocol):
    """A connection of which too little has arrived to know what its client speaks. It is refused in
    Fencepost's frames.
    """

    def __init__(
        self, topics: NodeTopics, sessions: SessionRoom, operations: Operations, served: ServedProtocol
    ) -> None:
        self.frames: FrameReader = _FirstBytes()
        self._topics = topics
        self._sessions = sessions
        self._operations = operations
        self._served = served

    def decided(self) -> WireProtocol:
        """The protocol of the bytes that have arrived; this object itself while they do not suffice. Raises
        ProtocolSwitchedOff if it is not served.
        """
        start = self.frames.peek(_DECIDING)
        if len(start) < _DECIDING:
            return self
        if start.startswith(HTTP):
            raise ProtocolViolation("its client speaks HTTP; only the port of --metrics-port answers that")
        is_ours = start[-1] == ARRAY_OF_FIVE
        spoken = ServedProtocol.FENCEPOST if is_ours else ServedProtocol.KAFKA
        if self._served not in (spoken, ServedProtocol.BOTH):
            raise ProtocolSwitchedOff(
                f"its client speaks the protocol {spoken.value!r}, and this broker serves "
                f"{self._served.value!r} only; start the broker with --protocol both"
            )
        protocol = FencepostProtocol() if is_ours else self._kafka()
        protocol.frames.frame_size_max = self.frames.frame_size_max
        protocol.frames.add(self.frames.peek(self.frames.arrived))
        return protocol

    def _kafka(self) -> WireProtocol:
        # At the first connection that needs it: its schemas take a tenth of a second to load.
        from fencepost.kafka_bridge.connection import KafkaProtocol

        return KafkaProtocol(self._topics, self._sessions, self._operations)

    def ask(self, frame: memoryview) -> Asked:
        raise AssertionError("no frame is read before the protocol is known")


class _FirstBytes(FrameReader):
    """Bytes in which no frame can be found yet."""

    def announced(self) -> None:
        return None

    def take(self) -> None:
        return None
