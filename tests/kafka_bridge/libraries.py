"""What the stories ask of a client library: one small interface, which each library implements in a file of
its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import attrs

from fencepost import TopicPartition

PATIENCE_S = 60.0  # a bound on a hang
POLL_S = 0.5
POLLS_MAX = 120
CLASSIC = "classic"  # group.protocol
CONSUMER = "consumer"

Headers = Sequence[tuple[str, bytes | None]]


class Reported(Exception):
    """An error that a library reports, with the library's own name for it."""

    def __init__(self, name: str, problem: BaseException) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


@attrs.frozen(kw_only=True)
class Message:
    """A record as a consumer gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def text(self) -> str:
        return (self.value or b"").decode()


@attrs.frozen(kw_only=True)
class Access:
    """How a client reaches a broker: its address, who it is, and whom it trusts."""

    servers: str
    mechanism: str | None = None
    username: str = ""
    password: str = ""
    cafile: str | None = None

    @property
    def protocol(self) -> str:
        """security.protocol"""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.cafile else "PLAINTEXT")


class Producer(Protocol):
    """A producer; with a transactional id it has called InitProducerId."""

    def begin(self) -> None: ...
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = 0,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a record."""
        ...

    def flush(self) -> None:
        """Wait for the acknowledgements of all records, and raise the first error."""
        ...

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Consumer(Protocol):
    """A member of a group, or a reader of partitions that were assigned to it."""

    def subscribe(self, topic: str) -> None: ...
    def assign(self, part: TopicPartition) -> None: ...
    def poll(self, count: int) -> list[Message]:
        """Up to `count` records, as soon as some are there; none after a moment."""
        ...

    def assignment(self) -> set[TopicPartition]: ...
    def member(self) -> Any:
        """What `send_offsets` takes: the metadata of the group, where a library knows it."""
        ...

    def commit(self) -> None: ...
    def committed(self, part: TopicPartition) -> int | None: ...
    def end(self, part: TopicPartition) -> int:
        """The end of a partition at the isolation level of this consumer."""
        ...

    def offset_at(self, part: TopicPartition, timestamp_ms: int) -> int: ...
    def close(self) -> None: ...


class Admin(Protocol):
    """Topics and groups."""

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def topics(self) -> set[str]: ...
    def groups(self) -> set[str]: ...
    def group_state(self, group: str) -> str: ...
    def offsets(self, group: str) -> dict[TopicPartition, int]: ...
    def delete_records(self, part: TopicPartition, before: int) -> None: ...
    def close(self) -> None: ...


class Library(ABC):
    """A client library of Kafka."""

    name: str

    def producer(
        self,
        access: Access,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = 60_000,
        compression: str | None = None,
    ) -> Producer:
        return self._producer(access, transactional_id, timeout_ms, compression)

    def consumer(
        self,
        access: Access,
        topic: str,
        *,
        group: str,
        isolation: str = "read_committed",
        instance: str | None = None,
    ) -> Consumer:
        """A member of a group."""
        made = self._consumer(access, isolation, group, instance)
        made.subscribe(topic)
        return made

    def reader(self, access: Access, part: TopicPartition, *, isolation: str = "read_committed") -> Consumer:
        """A reader of one partition from its beginning, in no group."""
        made = self._consumer(access, isolation)
        made.assign(part)
        return made

    @abstractmethod
    def _producer(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> Producer: ...

    @abstractmethod
    def _consumer(
        self, access: Access, isolation: str, group: str | None = None, instance: str | None = None
    ) -> Consumer: ...

    @abstractmethod
    def admin(self, access: Access) -> Admin: ...

    @abstractmethod
    def left(self) -> list[str]:
        """The threads and tasks that clients have left behind, although they were closed."""
        ...


def consume(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` records."""
    got: list[Message] = []
    for _ in range(POLLS_MAX):
        got += consumer.poll(count - len(got))
        if len(got) >= count:
            return got
    raise AssertionError(f"{len(got)} of {count} records have come")


def messages_of(polled: Mapping[Any, Sequence[Any]]) -> list[Message]:
    """What aiokafka and kafka-python return for each partition."""
    return [
        Message(
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp_ms=record.timestamp,
        )
        for records in polled.values()
        for record in records
    ]


def texts(messages: Sequence[Message]) -> list[str]:
    """The values of records."""
    return [message.text for message in messages]


def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Poll these consumers at the same time, by which they join their group, until a condition is true."""
    with ThreadPoolExecutor() as threads:
        for _ in range(POLLS_MAX):
            if condition():
                return
            for polled in [threads.submit(consumer.poll, 1) for consumer in consumers]:
                polled.result()
    raise AssertionError("the condition has not become true")
