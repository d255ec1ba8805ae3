"""kafka-python for the stories: the library in pure Python."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fencepost import TopicPartition
from tests.kafka_bridge.libraries import (
    PATIENCE_S,
    POLL_S,
    Access,
    Headers,
    Library,
    Message,
    Reported,
    messages_of,
)

NAME = "kafka-python"
KAFKA: Any = import_module("kafka")  # it has no types
ERRORS: Any = import_module("kafka.errors")
KAFKA_NET_SOCKET: Any = import_module("kafka.net.inet").KafkaNetSocket
CLOSING = "closing"
_ASSIGNORS = "kafka.coordinator.assignors"
ASSIGNORS: Mapping[str, Any] = {
    "range": import_module(f"{_ASSIGNORS}.range").RangePartitionAssignor,
    "cooperative-sticky": import_module(f"{_ASSIGNORS}.cooperative_sticky").CooperativeStickyAssignor,
}


class SelfClosingSocket(socket.socket):
    """Closes itself when it is forgotten; a plain socket would warn."""

    def __del__(self) -> None:
        self.close()


class ClosingSockets(KAFKA_NET_SOCKET):
    """Makes sockets that close themselves: the library forgets some open, when a connection fails and when a
    client is closed while it connects.

    The library chooses the maker of its sockets by the scheme of the proxy.
    """

    SCHEMES = (CLOSING,)

    def socket(self, *given: int) -> socket.socket:
        return SelfClosingSocket(*given)


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
        "proxy_url": f"{CLOSING}://",
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
            self._init_transactions()

    def _init_transactions(self) -> None:
        try:
            with reporting():
                self._producer.init_transactions()
        except Reported:
            self.close()
            raise

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
        self._producer.close(PATIENCE_S)  # with 0 its thread would go on and connect again


class KafkaPythonConsumer:
    """kafka.KafkaConsumer."""

    def __init__(
        self,
        access: Access,
        *,
        isolation: str,
        group: str | None = None,
        instance: str | None = None,
        strategy: str = "range",
    ) -> None:
        with reporting():
            self._consumer: Any = KAFKA.KafkaConsumer(
                **_common(access),
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level=isolation,
                partition_assignment_strategy=(ASSIGNORS[strategy],),
                session_timeout_ms=6_000,
                heartbeat_interval_ms=50,
                fetch_max_wait_ms=50,
                metrics_enabled=False,
            )

    def subscribe(self, topic: str) -> None:
        with reporting():
            self._consumer.subscribe([topic])
            # Without metadata it would join with no partitions, and again when it knows them.
            self._consumer.partitions_for_topic(topic)

    def assign(self, part: TopicPartition) -> None:
        with reporting():
            self._consumer.assign([KAFKA.TopicPartition(*part)])

    def poll(self, count: int) -> list[Message]:
        with reporting():
            polled = self._consumer.poll(1_000 * POLL_S, max_records=count)
        return messages_of(polled)

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


class KafkaPython(Library):
    """kafka-python."""

    name = NAME

    def _producer(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> KafkaPythonProducer:
        return KafkaPythonProducer(access, transactional_id, timeout_ms, compression)

    def _consumer(
        self, access: Access, isolation: str, group: str | None = None, instance: str | None = None
    ) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(access, isolation=isolation, group=group, instance=instance)

    def admin(self, access: Access) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(access)

    def left(self) -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("kafka-")]
