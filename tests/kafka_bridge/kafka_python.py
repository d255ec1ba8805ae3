"""kafka-python for the stories: the library in pure Python."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fencepost import TopicPartition
from tests.kafka_bridge.libraries import PATIENCE_S, POLL_S, Access, Headers, Message, Reported

NAME = "kafka-python"
KAFKA: Any = import_module("kafka")  # it has no types
ERRORS: Any = import_module("kafka.errors")


@contextmanager
def reporting() -> Generator[None]:
    """Raise the library's errors as Reported."""
    try:
        yield
    except ERRORS.KafkaError as problem:
        raise Reported(type(problem).__name__, problem) from problem


def _common(access: Access) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": access.servers,
        "security_protocol": access.protocol,
        "reconnect_backoff_ms": 10,
        "reconnect_backoff_max_ms": 50,
        "retry_backoff_ms": 10,
        "ssl_cafile": access.cafile,
    }
    if access.mechanism is not None:
        settings |= {
            "sasl_mechanism": access.mechanism,
            "sasl_plain_username": access.username,
            "sasl_plain_password": access.password,
        }
    return settings


class KafkaPythonProducer:
    """kafka.KafkaProducer."""

    def __init__(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> None:
        with reporting():
            self._producer: Any = KAFKA.KafkaProducer(
                **_common(access),
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                compression_type=compression,
                max_request_size=100_000_000,  # the broker shall refuse what is too large
                metrics_enabled=False,
            )
            self._sent: list[Any] = []
            if transactional_id is not None:
                self._producer.init_transactions()

    def begin(self) -> None:
        with reporting():
            self._producer.begin_transaction()

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
        with reporting():
            self._sent.append(
                self._producer.send(topic, value, key, list(headers), partition, timestamp_ms=timestamp_ms)
            )

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        with reporting():
            self._producer.flush(PATIENCE_S)
            for future in sent:
                future.get(PATIENCE_S)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None:
        meant = {
            KAFKA.TopicPartition(*part): KAFKA.OffsetAndMetadata(offset, "", -1)
            for part, offset in offsets.items()
        }
        with reporting():
            self._producer.send_offsets_to_transaction(meant, member)

    def commit(self) -> None:
        with reporting():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with reporting():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(0)


class KafkaPythonConsumer:
    """kafka.KafkaConsumer."""

    def __init__(
        self, access: Access, topic: str, *, group: str, isolation: str, instance: str | None
    ) -> None:
        with reporting():
            self._consumer: Any = KAFKA.KafkaConsumer(
                topic,
                **_common(access),
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level=isolation,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=50,
                fetch_max_wait_ms=50,
                metrics_enabled=False,
            )
            # Without metadata it would join with no partitions, and again when it knows them.
            self._consumer.partitions_for_topic(topic)

    def poll(self, count: int) -> list[Message]:
        with reporting():
            polled = self._consumer.poll(1_000 * POLL_S, max_records=count)
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

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*part) for part in self._consumer.assignment()}

    def member(self) -> Any:
        return self._consumer.group_metadata()

    def commit(self) -> None:
        with reporting():
            self._consumer.commit()

    def committed(self, part: TopicPartition) -> int | None:
        with reporting():
            return self._consumer.committed(KAFKA.TopicPartition(*part))

    def end(self, part: TopicPartition) -> int:
        with reporting():
            return self._consumer.end_offsets([part])[part]

    def offset_at(self, part: TopicPartition, timestamp_ms: int) -> int:
        with reporting():
            return self._consumer.offsets_for_times({KAFKA.TopicPartition(*part): timestamp_ms})[part].offset

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonAdmin:
    """kafka.KafkaAdminClient."""

    def __init__(self, access: Access) -> None:
        with reporting():
            self._admin: Any = KAFKA.KafkaAdminClient(**_common(access))

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}}
        with reporting():
            self._admin.create_topics(new)

    def delete_topic(self, topic: str) -> None:
        with reporting():
            self._admin.delete_topics([topic])

    def topics(self) -> set[str]:
        with reporting():
            return set(self._admin.list_topics())

    def groups(self) -> set[str]:
        with reporting():
            return {each["group_id"] for each in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        with reporting():
            return self._admin.describe_groups([group])[group]["group_state"]

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        with reporting():
            found = self._admin.list_group_offsets([group])[group]
        return {TopicPartition(*part): each.offset for part, each in found.items()}

    def delete_records(self, part: TopicPartition, before: int) -> None:
        with reporting():
            self._admin.delete_records({KAFKA.TopicPartition(*part): before})

    def close(self) -> None:
        self._admin.close()


class KafkaPython:
    """kafka-python."""

    name = NAME

    def producer(
        self,
        access: Access,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = 60_000,
        compression: str | None = None,
    ) -> KafkaPythonProducer:
        return KafkaPythonProducer(access, transactional_id, timeout_ms, compression)

    def consumer(
        self,
        access: Access,
        topic: str,
        *,
        group: str,
        isolation: str = "read_committed",
        instance: str | None = None,
    ) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(access, topic, group=group, isolation=isolation, instance=instance)

    def admin(self, access: Access) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(access)
