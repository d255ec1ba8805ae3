"""kafka-clients for the stories: Apache Kafka's own library in Java.

One Java process for each version serves all stories of a run. py4j calls its classes, so that no Java is
written here. A call takes about 0.2 ms. `make kafka-clients` provides the jars.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final

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

TARGET: Final = Path(__file__).parent.parent / "kafka_clients" / "target"
JARS: Final = TARGET / "jars"
OLDER_JARS: Final = TARGET / "older"
NEWEST: Final = "kafka-clients-4.3.1"
# The last one that breaks off at some features (KAFKA-17011), and one from before KRaft and idempotence by
# default.
OLDER: Final = ("kafka-clients-3.7.2", "kafka-clients-2.8.2")
NAMES: Final = (NEWEST, *OLDER)
JAVA_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # for many short runs
PY4J: Any = import_module("py4j.java_gateway")  # it has no types
JavaError: Any = import_module("py4j.protocol").Py4JJavaError
SERIALIZATION: Final = "org.apache.kafka.common.serialization"
LOGIN_MODULES: Final = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}


@contextmanager
def reporting() -> Generator[None]:
    """Raise the library's errors as Reported."""
    try:
        yield
    except JavaError as problem:
        raised = problem.java_exception
        if raised.getClass().getSimpleName() == "ExecutionException":  # that of a future holds the library's
            raised = raised.getCause()
        raise Reported(raised.getClass().getSimpleName(), problem) from problem


def _common(access: Access) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": access.servers,
        "security.protocol": access.protocol,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 50,
    }
    if access.cafile is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": access.cafile}
    if access.mechanism is not None:
        module = f"org.apache.kafka.common.security.{LOGIN_MODULES[access.mechanism]}"
        login = f'{module} required username="{access.username}" password="{access.password}";'
        settings |= {"sasl.mechanism": access.mechanism, "sasl.jaas.config": login}
    return settings


def _classpath(name: str) -> str:
    """The jars of the newest version; for an older one its jar, and those that are not Apache Kafka's."""
    if name == NEWEST:
        return f"{JARS}/*"
    others = (jar for jar in JARS.glob("*.jar") if not jar.name.startswith("kafka"))
    return os.pathsep.join(map(str, (OLDER_JARS / f"{name}.jar", *others)))


class Machine:
    """A Java process, and the classes of this version in it."""

    def __init__(self, name: str) -> None:
        port, token, self._process = PY4J.launch_gateway(
            classpath=_classpath(name),
            javaopts=list(JAVA_OPTIONS),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        parameters = PY4J.GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self._gateway: Any = PY4J.JavaGateway(gateway_parameters=parameters)
        self.java: Any = self._gateway.jvm.java
        self.kafka: Any = self._gateway.jvm.org.apache.kafka
        assert name.endswith(self.kafka.common.utils.AppInfoParser.getVersion())

    def static(self, name: str, method: str) -> Any:
        """A static method of a class that also has a method of this name: py4j finds only the latter."""
        return PY4J.JavaMember(method, None, f"z:{name}", self._gateway._gateway_client)

    def partition(self, part: TopicPartition) -> Any:
        """Kafka's TopicPartition."""
        return self.kafka.common.TopicPartition(part.topic, part.partition)

    def milliseconds(self, duration_s: float) -> Any:
        """A Duration."""
        return self.java.time.Duration.ofMillis(int(1_000 * duration_s))

    def threads(self) -> list[str]:
        """The names of Kafka's threads."""
        names: list[str] = [each.getName() for each in self.java.lang.Thread.getAllStackTraces().keySet()]
        return [name for name in names if name.startswith("kafka-")]

    def close(self) -> None:
        self._gateway.shutdown()
        self._process.stdin.close()  # at which it ends
        self._process.wait()
        self._process.stdout.close()


class JavaProducer:
    """org.apache.kafka.clients.producer.KafkaProducer."""

    def __init__(
        self,
        machine: Machine,
        access: Access,
        transactional_id: str | None,
        timeout_ms: int,
        compression: str | None,
    ) -> None:
        settings = _common(access) | {
            "key.serializer": f"{SERIALIZATION}.ByteArraySerializer",
            "value.serializer": f"{SERIALIZATION}.ByteArraySerializer",
            "compression.type": compression or "none",
            "enable.idempotence": True,
            "max.request.size": 100_000_000,  # the broker shall refuse what is too large
        }
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._machine = machine
        self._sent: list[Any] = []
        with reporting():
            self._producer: Any = machine.kafka.clients.producer.KafkaProducer(settings)
            if transactional_id is not None:
                self._init_transactions()

    def _init_transactions(self) -> None:
        try:
            self._producer.initTransactions()
        except JavaError:
            self.close()
            raise

    def begin(self) -> None:
        with reporting():
            self._producer.beginTransaction()

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
        header = self._machine.kafka.common.header.internals.RecordHeader
        sent = [header(name, content) for name, content in headers]
        record = self._machine.kafka.clients.producer.ProducerRecord
        with reporting():
            self._sent.append(self._producer.send(record(topic, partition, timestamp_ms, key, value, sent)))

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        with reporting():
            self._producer.flush()
            for future in sent:
                future.get()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Any) -> None:
        committed = self._machine.kafka.clients.consumer.OffsetAndMetadata
        meant = {self._machine.partition(part): committed(offset) for part, offset in offsets.items()}
        with reporting():
            self._producer.sendOffsetsToTransaction(meant, member)

    def commit(self) -> None:
        self._sent = []  # a transaction fails as a whole
        with reporting():
            self._producer.commitTransaction()

    def abort(self) -> None:
        self._sent = []
        with reporting():
            self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close(self._machine.milliseconds(PATIENCE_S))


class JavaConsumer:
    """org.apache.kafka.clients.consumer.KafkaConsumer."""

    def __init__(
        self,
        machine: Machine,
        access: Access,
        *,
        isolation: str,
        group: str | None = None,
        instance: str | None = None,
        protocol: str = CLASSIC,
    ) -> None:
        settings = _common(access) | {
            "key.deserializer": f"{SERIALIZATION}.ByteArrayDeserializer",
            "value.deserializer": f"{SERIALIZATION}.ByteArrayDeserializer",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,  # its thread would race with the story that creates one
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.max.wait.ms": 50,
            "max.poll.records": 1,  # `poll` asks until it has as many as it wants
            "group.protocol": protocol,
        }
        if protocol == CLASSIC:  # in the other one the broker decides
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 50}
        if group is not None:
            settings["group.id"] = group
        if instance is not None:
            settings["group.instance.id"] = instance
        self._machine = machine
        with reporting():
            self._consumer: Any = machine.kafka.clients.consumer.KafkaConsumer(settings)

    def subscribe(self, topic: str) -> None:
        with reporting():
            self._consumer.subscribe([topic])

    def assign(self, part: TopicPartition) -> None:
        with reporting():
            self._consumer.assign([self._machine.partition(part)])

    def poll(self, count: int) -> list[Message]:
        got: list[Message] = []
        patience = self._machine.milliseconds(POLL_S)
        at_once = self._machine.milliseconds(0)
        with reporting():
            while len(got) < count:
                records = list(self._consumer.poll(at_once if got else patience).iterator())
                if not records:
                    break
                got += map(_message, records)
        return got

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(part.topic(), part.partition()) for part in self._consumer.assignment()}

    def member(self) -> Any:
        return self._consumer.groupMetadata()

    def commit(self) -> None:
        with reporting():
            self._consumer.commitSync()

    def committed(self, part: TopicPartition) -> int | None:
        asked = self._machine.partition(part)
        with reporting():
            found = self._consumer.committed({asked})[asked]
        return None if found is None else found.offset()

    def end(self, part: TopicPartition) -> int:
        asked = self._machine.partition(part)
        with reporting():
            return self._consumer.endOffsets([asked])[asked]

    def offset_at(self, part: TopicPartition, timestamp_ms: int) -> int:
        asked = self._machine.partition(part)
        with reporting():
            return self._consumer.offsetsForTimes({asked: timestamp_ms})[asked].offset()

    def close(self) -> None:
        self._consumer.close()


def _message(record: Any) -> Message:
    return Message(
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        headers=[(header.key(), header.value()) for header in record.headers().toArray()],
        timestamp_ms=record.timestamp(),
    )


class JavaAdmin:
    """org.apache.kafka.clients.admin.Admin."""

    def __init__(self, machine: Machine, access: Access) -> None:
        self._machine = machine
        self._classes: Any = machine.kafka.clients.admin
        with reporting():
            self._admin: Any = self._classes.Admin.create(_common(access))

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        one: Any = self._machine.java.util.Optional
        new = self._classes.NewTopic(topic, one.of(partitions), one.empty()).configs(dict(configs or {}))
        with reporting():
            self._admin.createTopics([new]).all().get()

    def delete_topic(self, topic: str) -> None:
        with reporting():
            self._admin.deleteTopics([topic]).all().get()

    def topics(self) -> set[str]:
        with reporting():
            return set(self._admin.listTopics().names().get())

    def groups(self) -> set[str]:
        with reporting():
            return {each.groupId() for each in self._admin.listConsumerGroups().all().get()}

    def group_state(self, group: str) -> str:
        with reporting():
            return self._admin.describeConsumerGroups([group]).all().get()[group].state().toString()

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        with reporting():
            found = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        return {TopicPartition(part.topic(), part.partition()): found[part].offset() for part in found}

    def delete_records(self, part: TopicPartition, before: int) -> None:
        meant = self._machine.static("org.apache.kafka.clients.admin.RecordsToDelete", "beforeOffset")(before)
        with reporting():
            self._admin.deleteRecords({self._machine.partition(part): meant}).all().get()

    def close(self) -> None:
        self._admin.close()


class Java(Library):
    """A version of kafka-clients, with consumers of this group protocol."""

    def __init__(self, name: str = NEWEST, *, protocol: str = CLASSIC) -> None:
        self.name = name
        self._protocol = protocol

    @cached_property
    def _machine(self) -> Machine:
        return Machine(self.name)

    def _producer(
        self, access: Access, transactional_id: str | None, timeout_ms: int, compression: str | None
    ) -> JavaProducer:
        return JavaProducer(self._machine, access, transactional_id, timeout_ms, compression)

    def _consumer(
        self, access: Access, isolation: str, group: str | None = None, instance: str | None = None
    ) -> JavaConsumer:
        protocol = CLASSIC if group is None else self._protocol
        return JavaConsumer(
            self._machine, access, isolation=isolation, group=group, instance=instance, protocol=protocol
        )

    def admin(self, access: Access) -> JavaAdmin:
        return JavaAdmin(self._machine, access)

    def left(self) -> list[str]:
        return self._machine.threads()

    def close(self) -> None:
        """End the Java process, if it was needed."""
        if "_machine" in vars(self):
            self._machine.close()
