"""Our own client for the copier, which knows the clients of Kafka."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import fencepost
from fencepost import TopicPartition
from fencepost.protocol.errors import FencepostError
from tests.kafka_bridge.libraries import POLL_S, Access, Message, Reported

NAME = "fencepost"


@contextmanager
def reporting() -> Generator[None]:
    """Raise our errors as Reported."""
    try:
        yield
    except FencepostError as problem:
        raise Reported(type(problem).__name__, problem) from problem


class OurProducer:
    """fencepost.Producer, transactional."""

    def __init__(self, access: Access, transactional_id: str) -> None:
        self._producer = fencepost.Producer(access.servers, transactional_id=transactional_id)
        with reporting():
            self._producer.init_transactions()

    def begin(self) -> None:
        with reporting():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int = 0) -> None:
        with reporting():
            self._producer.send(topic, value, key=key, partition=partition)

    def flush(self) -> None:
        with reporting():
            self._producer.flush()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None:
        with reporting():
            self._producer.send_offsets_to_transaction(dict(offsets), member)

    def commit(self) -> None:
        with reporting():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with reporting():
            self._producer.abort_transaction()

    def close(self) -> None:
        with reporting():
            self._producer.close()


class OurConsumer:
    """fencepost.Consumer, a member of a group, or without one a reader."""

    def __init__(
        self,
        access: Access,
        *,
        group: str | None = None,
        instance: str | None = None,
        strategy: str = "range",
    ) -> None:
        self._consumer = fencepost.Consumer(
            access.servers,
            group_id=group,
            group_instance_id=instance,
            partition_assignment_strategy=[strategy],
            session_timeout_ms=6_000,
            heartbeat_interval_ms=50,
        )

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assign(self, part: TopicPartition) -> None:
        self._consumer.assign([part])

    def poll(self, count: int) -> list[Message]:
        with reporting():
            batches = self._consumer.poll(int(1_000 * POLL_S))
        return [
            Message(
                partition=batch.partition.partition,
                offset=record.offset,
                key=record.key,
                value=record.value,
                headers=record.headers or (),
                timestamp_ms=record.timestamp,
            )
            for batch in batches
            for record in batch
        ]

    def assignment(self) -> set[TopicPartition]:
        return set(self._consumer.assignment())

    def member(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        with reporting():
            self._consumer.close()
