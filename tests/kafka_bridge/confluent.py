"""confluent-kafka for the stories: librdkafka, the library in C."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fencepost import TopicPartition
from tests.kafka_bridge.libraries import (
    CLASSIC,
    PATIENCE_S,
    POLL_S,
    Access,
    Headers,
    Library,
    Message,
    Reported,
)

NAME = "confluent-kafka"
KAFKA: Any = import_module("confluent_kafka")  # its stubs leave most types open
ADMIN: Any = import_module("confluent_kafka.admin")


@contextmanager
def reporting() -> Generator[None]:
    """Raise the library's errors as Reported."""
    try:
        yield
    except KAFKA.KafkaException as problem:
        raise Reported(problem.args[0].name(), problem) from problem


def _common(access: Access) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": access.servers,
        "security.protocol": access.protocol,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "log_level": 0,
    }
    if access.cafile is not None:
        settings["ssl.ca.location"] = access.cafile
    if access.mechanism is not None:
        settings |= {
            "sasl.mechanism": access.mechanism,
            "sasl.username": access.username,
            "sasl.password": access.password,
        }
    return settings


def _parts(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    return [KAFKA.TopicPartition(part.topic, part.partition, offset) for part, offset in offsets.items()]


class ConfluentProducer:
    """confluent_kafka.Producer."""

    def __init__(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> None:
        settings = _common(access) | {"linger.ms": 0, "compression.type": compression or "none"}
        settings["enable.idempotence"] = True
        settings["message.max.bytes"] = 100_000_000  # the broker shall refuse what is too large
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
            settings["message.timeout.ms"] = min(timeout_ms, 60_000)
        self._problems: list[Any] = []
        # A transaction fails as a whole. With callbacks, a fatal error ends in a SystemError.
        self._on_delivery = self._delivered if transactional_id is None else None
        self._producer: Any = KAFKA.Producer(settings)
        if transactional_id is not None:
            with reporting():
                self._producer.init_transactions(PATIENCE_S)

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
            self._producer.produce(
                topic,
                value,
                key,
                partition,
                headers=list(headers),
                on_delivery=self._on_delivery,
                **({} if timestamp_ms is None else {"timestamp": timestamp_ms}),
            )

    def _delivered(self, problem: Any, _: Any) -> None:
        if problem is not None:
            self._problems.append(problem)

    def flush(self) -> None:
        with reporting():
            assert self._producer.flush(PATIENCE_S) == 0
            problems, self._problems = self._problems, []
            for problem in problems:
                raise KAFKA.KafkaException(problem)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None:
        with reporting():
            self._producer.send_offsets_to_transaction(_parts(offsets), member, PATIENCE_S)

    def commit(self) -> None:
        with reporting():
            self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        with reporting():
            self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        del self._producer


class ConfluentConsumer:
    """confluent_kafka.Consumer."""

    def __init__(
        self,
        access: Access,
        *,
        isolation: str,
        group: str | None = None,
        instance: str | None = None,
        protocol: str = CLASSIC,
        strategy: str = "range",
    ) -> None:
        settings = _common(access) | {
            "group.id": group or "none",  # it requires one, and does not join it without a subscription
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 50,
            "group.protocol": protocol,
        }
        if protocol == CLASSIC:  # in the other one the broker decides
            settings |= {
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 50,
            }
        if instance is not None:
            settings["group.instance.id"] = instance
        self._consumer: Any = KAFKA.Consumer(settings)

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assign(self, part: TopicPartition) -> None:
        self._consumer.assign(_parts({part: KAFKA.OFFSET_BEGINNING}))

    def poll(self, count: int) -> list[Message]:
        got: list[Message] = []
        first: Any = self._consumer.poll(POLL_S)
        if first is None:
            return got
        # consume() waits for as many as it may return.
        rest: list[Any] = self._consumer.consume(count - 1, 0) if count > 1 else []
        with reporting():
            for message in (first, *rest):
                if message.error() is not None:
                    raise KAFKA.KafkaException(message.error())
                got.append(
                    Message(
                        partition=message.partition(),
                        offset=message.offset(),
                        key=message.key(),
                        value=message.value(),
                        headers=message.headers() or [],
                        timestamp_ms=message.timestamp()[1],
                    )
                )
        return got

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(part.topic, part.partition) for part in self._consumer.assignment()}

    def member(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def commit(self) -> None:
        with reporting():
            self._consumer.commit(asynchronous=False)

    def committed(self, part: TopicPartition) -> int | None:
        with reporting():
            (committed,) = self._consumer.committed([KAFKA.TopicPartition(*part)], PATIENCE_S)
        return committed.offset if committed.offset >= 0 else None

    def end(self, part: TopicPartition) -> int:
        with reporting():
            _, end = self._consumer.get_watermark_offsets(KAFKA.TopicPartition(*part), PATIENCE_S)
        return end

    def offset_at(self, part: TopicPartition, timestamp_ms: int) -> int:
        asked = [KAFKA.TopicPartition(part.topic, part.partition, timestamp_ms)]
        with reporting():
            (found,) = self._consumer.offsets_for_times(asked, PATIENCE_S)
        return found.offset

    def close(self) -> None:
        """Leave the group. Raises AssertionError if librdkafka does not come to an end with it: its close()
        has no timeout, so it runs in a thread, and a hang costs one test and not all that follow.
        """
        closing = threading.Thread(target=self._consumer.close, name="close", daemon=True)
        # Its callback for a rebalance holds the GIL while it waits for librdkafka's own thread, which may not
        # answer any more (seen once, with 2.16.1). Then nothing in Python goes on, and the process must end.
        faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)
        closing.start()
        closing.join(PATIENCE_S)
        faulthandler.cancel_dump_traceback_later()
        assert not closing.is_alive(), f"close() has not returned within {PATIENCE_S} s"


class ConfluentAdmin:
    """confluent_kafka.admin.AdminClient."""

    def __init__(self, access: Access) -> None:
        self._admin: Any = ADMIN.AdminClient(_common(access))

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = ADMIN.NewTopic(topic, partitions, 1, config=dict(configs or {}))
        self._all(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        self._all(self._admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        with reporting():
            return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def brokers(self) -> list[tuple[str, int]]:
        """The addresses that the broker tells."""
        with reporting():
            brokers: dict[int, Any] = self._admin.list_topics(timeout=PATIENCE_S).brokers
        return [(broker.host, broker.port) for broker in brokers.values()]

    def groups(self) -> set[str]:
        with reporting():
            return {each.group_id for each in self._admin.list_consumer_groups().result(PATIENCE_S).valid}

    def group_state(self, group: str) -> str:
        described = self._all(self._admin.describe_consumer_groups([group]))
        return described[0].state.name.title().replace("_", "")

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        asked = KAFKA.ConsumerGroupTopicPartitions(group)
        (found,) = self._all(self._admin.list_consumer_group_offsets([asked]))
        return {TopicPartition(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def delete_records(self, part: TopicPartition, before: int) -> None:
        self._all(self._admin.delete_records(_parts({part: before})))

    def _all(self, futures: Mapping[Any, Any]) -> list[Any]:
        with reporting():
            return [future.result(PATIENCE_S) for future in futures.values()]

    def close(self) -> None:
        pass


class Confluent(Library):
    """confluent-kafka, with consumers of this group protocol."""

    name = NAME

    def __init__(self, protocol: str = CLASSIC) -> None:
        self._protocol = protocol

    def _producer(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> ConfluentProducer:
        return ConfluentProducer(access, transactional_id, timeout_ms, compression)

    def _consumer(
        self, access: Access, isolation: str, group: str | None = None, instance: str | None = None
    ) -> ConfluentConsumer:
        protocol = CLASSIC if group is None else self._protocol
        return ConfluentConsumer(
            access, isolation=isolation, group=group, instance=instance, protocol=protocol
        )

    def admin(self, access: Access) -> ConfluentAdmin:
        return ConfluentAdmin(access)

    def left(self) -> list[str]:
        return []  # its threads are not Python's, and end with its objects
