"""The names that recordings use for what every run numbers anew: producers, coordinators' epochs, members.

Rule: a symbol is bound when an answer first shows its value, and never again.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol.terms import NO_PRODUCER_ID

STRANGER: Final = "P?"
"""A producer id that was never handed out. In an answer it takes the next free symbol like any other."""

STRANGER_ID: Final = 987_654_321  # above all that are handed out, as in the recordings, which sort by id


class NeverBound(LookupError):
    """A question about somebody whom no answer has shown so far: an earlier one was not Kafka's."""


class Symbols:
    """The bindings of one play."""

    def __init__(self) -> None:
        self._producers: dict[int, str] = {}
        self._epochs: dict[int, str] = {}
        self._members: dict[str, str] = {}
        self._topics: dict[str, bytes] = {}

    def producer_id(self, symbol: str | None) -> int:
        """The id behind a symbol; none at all is -1. NeverBound when nobody was shown under it."""
        if symbol is None:
            return NO_PRODUCER_ID
        if symbol == STRANGER:
            return STRANGER_ID
        for producer_id, known in self._producers.items():
            if known == symbol:
                return producer_id
        raise NeverBound(f"nobody was shown as {symbol} so far")

    def producer(self, producer_id: int) -> str | None:
        """The symbol of an id in an answer."""
        if producer_id == NO_PRODUCER_ID:
            return None
        return self._producers.setdefault(producer_id, f"P{len(self._producers) + 1}")

    def coordinator(self, epoch: int) -> str | None:
        """The symbol of a coordinator's epoch."""
        if epoch == -1:
            return None
        return self._epochs.setdefault(epoch, f"C{len(self._epochs) + 1}")

    # Members are named by the conversation, and a name that was never given to anybody is sent as it stands.

    def bind_member(self, name: str, member_id: str) -> None:
        self._members[name] = member_id

    def member_id(self, name: str) -> str:
        return self._members.get(name, name)

    def member(self, member_id: str) -> str | None:
        """The newest name of a member in an answer."""
        return {known: name for name, known in self._members.items()}.get(member_id)

    # Topics have the names of the conversation, and ids that its cluster gave them.

    def bind_topic(self, name: str, topic_id: bytes) -> None:
        self._topics[name] = topic_id

    def topic_id(self, name: str) -> bytes:
        return self._topics[name]

    def topic(self, topic_id: bytes) -> str:
        """The name of a topic in an answer."""
        return next((name for name, known in self._topics.items() if known == topic_id), "?")
