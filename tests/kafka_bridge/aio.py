"""aiokafka for the stories: its clients live in an event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

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

NAME = "aiokafka"
KAFKA: Any = import_module("aiokafka")  # it has no types
ADMIN: Any = import_module("aiokafka.admin")
ERRORS: Any = import_module("aiokafka.errors")
RANGE: Any = import_module("aiokafka.coordinator.assignors.range").RangePartitionAssignor

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread, and calls into it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await in the loop; an error of the library becomes Reported."""
        with reporting():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def started(self, make: Callable[[], Any]) -> Any:
        """A client, made and started in the loop."""
        return self.call(_started(make))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _other_tasks() -> list[str]:
    return [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def _started(make: Callable[[], Any]) -> Any:
    client = make()
    try:
        await client.start()
    except BaseException:
        await (client.close if hasattr(client, "close") else client.stop)()
        raise
    return client


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
        "retry_backoff_ms": 10,
    }
    if access.cafile is not None:
        settings["ssl_context"] = ssl.create_default_context(cafile=access.cafile)
    if access.mechanism is not None:
        settings |= {
            "sasl_mechanism": access.mechanism,
            "sasl_plain_username": access.username,
            "sasl_plain_password": access.password,
        }
    return settings


class AioProducer:
    """aiokafka.AIOKafkaProducer."""

    def __init__(
        self,
        loop: LoopThread,
        access: Access,
        transactional_id: str | None,
        timeout_ms: int,
        compression: str | None,
    ) -> None:
        self._loop = loop
        self._sent: list[Awaitable[Any]] = []
        self._producer = loop.started(
            lambda: KAFKA.AIOKafkaProducer(
                **_common(access),
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                enable_idempotence=True,
                compression_type=compression,
                max_request_size=100_000_000,  # the broker shall refuse what is too large
            )
        )

    def begin(self) -> None:
        self._loop.call(self._producer.begin_transaction())

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
        sending = self._producer.send(
            topic, value, key, partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        self._sent.append(self._loop.call(sending))

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        self._loop.call(_all(sent))

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None:
        meant = {KAFKA.TopicPartition(*part): offset for part, offset in offsets.items()}
        self._loop.call(self._producer.send_offsets_to_transaction(meant, member))

    def commit(self) -> None:
        self._loop.call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.call(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.call(_quietly(self._producer.stop(), self._sent))


async def _all(sent: list[Awaitable[Any]]) -> None:
    for outcome in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _quietly(stopping: Awaitable[Any], sent: list[Awaitable[Any]]) -> None:
    """Stop; nobody asks any more what became of the records."""
    await asyncio.gather(stopping, *sent, return_exceptions=True)


class AioConsumer:
    """aiokafka.AIOKafkaConsumer."""

    def __init__(
        self,
        loop: LoopThread,
        access: Access,
        *,
        isolation: str,
        group: str | None = None,
        instance: str | None = None,
    ) -> None:
        self._loop = loop
        self._group = group
        self._consumer = loop.started(
            lambda: KAFKA.AIOKafkaConsumer(
                **_common(access),
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level=isolation,
                partition_assignment_strategy=(RANGE,),
                session_timeout_ms=6_000,
                heartbeat_interval_ms=50,
                fetch_max_wait_ms=50,
            )
        )

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assign(self, part: TopicPartition) -> None:
        async def in_loop() -> None:  # it makes futures
            self._consumer.assign([KAFKA.TopicPartition(*part)])

        self._loop.call(in_loop())

    def poll(self, count: int) -> list[Message]:
        polled = self._consumer.getmany(timeout_ms=1_000 * POLL_S, max_records=count)
        return messages_of(self._loop.call(polled))

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*part) for part in self._consumer.assignment()}

    def member(self) -> Any:
        return self._group  # it does not know KIP-447

    def commit(self) -> None:
        self._loop.call(self._consumer.commit())

    def committed(self, part: TopicPartition) -> int | None:
        return self._loop.call(self._consumer.committed(KAFKA.TopicPartition(*part)))

    def end(self, part: TopicPartition) -> int:
        return self._loop.call(self._consumer.end_offsets([part]))[part]

    def offset_at(self, part: TopicPartition, timestamp_ms: int) -> int:
        asked = {KAFKA.TopicPartition(*part): timestamp_ms}
        return self._loop.call(self._consumer.offsets_for_times(asked))[part].offset

    def close(self) -> None:
        self._loop.call(self._consumer.stop())


class KeepingConsumer(AioConsumer):
    """A consumer whose partitions are revoked within poll() only, as with the other libraries. It needs that:
    its offsets come without its generation, so nobody refuses those of a partition that it has lost.
    """

    def subscribe(self, topic: str) -> None:
        self._kept = asyncio.Lock()
        self._consumer.subscribe([topic], listener=RevokedWhenFree(self._kept))

    def poll(self, count: int) -> list[Message]:
        return messages_of(self._loop.call(self._poll_and_keep(count)))

    async def _poll_and_keep(self, count: int) -> Any:
        if self._kept.locked():
            self._kept.release()
        polled = await self._consumer.getmany(timeout_ms=1_000 * POLL_S, max_records=count)
        if polled:
            await self._kept.acquire()
        return polled

    def close(self) -> None:
        self._loop.call(self._release_and_stop())

    async def _release_and_stop(self) -> None:
        if self._kept.locked():
            self._kept.release()
        await self._consumer.stop()


class RevokedWhenFree(KAFKA.ConsumerRebalanceListener):
    """Partitions go when a lock is free."""

    def __init__(self, kept: asyncio.Lock) -> None:
        self._kept = kept

    async def on_partitions_revoked(self, revoked: Any) -> None:
        async with self._kept:
            pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class AioAdmin:
    """aiokafka.admin.AIOKafkaAdminClient."""

    def __init__(self, loop: LoopThread, access: Access) -> None:
        self._loop = loop
        self._admin = loop.started(lambda: ADMIN.AIOKafkaAdminClient(**_common(access)))

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = ADMIN.NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        created = self._loop.call(self._admin.create_topics([new]))
        self._check([error for _, error, *_ in created.topic_errors])

    def delete_topic(self, topic: str) -> None:
        deleted = self._loop.call(self._admin.delete_topics([topic]))
        self._check([error for _, error in deleted.topic_error_codes])

    def _check(self, errors: list[int]) -> None:
        with reporting():
            for error in errors:
                if error:
                    raise ERRORS.for_code(error)

    def topics(self) -> set[str]:
        return set(self._loop.call(self._admin.list_topics()))

    def groups(self) -> set[str]:
        return {group for group, *_ in self._loop.call(self._admin.list_consumer_groups())}

    def group_state(self, group: str) -> str:
        (described,) = self._loop.call(self._admin.describe_consumer_groups([group]))
        _, _, state, *_ = described.groups[0]
        return state

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        found = self._loop.call(self._admin.list_consumer_group_offsets(group))
        return {TopicPartition(*part): each.offset for part, each in found.items()}

    def delete_records(self, part: TopicPartition, before: int) -> None:
        asked = {KAFKA.TopicPartition(*part): ADMIN.RecordsToDelete(before)}
        self._loop.call(self._admin.delete_records(asked))

    def close(self) -> None:
        self._loop.call(self._admin.close())


class Aio(Library):
    """aiokafka."""

    name = NAME

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def _producer(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> AioProducer:
        return AioProducer(self._loop, access, transactional_id, timeout_ms, compression)

    def _consumer(
        self, access: Access, isolation: str, group: str | None = None, instance: str | None = None
    ) -> AioConsumer:
        return AioConsumer(self._loop, access, isolation=isolation, group=group, instance=instance)

    def admin(self, access: Access) -> AioAdmin:
        return AioAdmin(self._loop, access)

    def left(self) -> list[str]:
        return self._loop.call(_other_tasks())
