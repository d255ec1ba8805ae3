"""A log loses the records that a consumer has read, and new ones get their offsets: our consumer reads the
new ones as librdkafka does (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

import fencepost
from fencepost import Admin, BrokerProcess, OffsetAndMetadata, OffsetOutOfRange, Producer, TopicPartition
from tests.kafka_bridge import confluent, ours
from tests.kafka_bridge.confluent import ConfluentConsumer
from tests.kafka_bridge.libraries import POLLS_MAX, Access, Reported, texts
from tests.kafka_bridge.ours import OurConsumer
from tests.topics import create_topic

PART: Final = TopicPartition("t", 0)
NEW: Final = [f"new{number}" for number in range(8)]
PARTITIONS: Final = 4
NO_DELAY: Final = {"group.initial.rebalance.delay.ms": 0}
POLL_MS: Final = 100

Reader = OurConsumer | ConfluentConsumer


def _confluent(address: str, group: str | None) -> Reader:
    return ConfluentConsumer(Access(servers=address), isolation="read_committed", group=group)


def _ours(address: str, group: str | None) -> Reader:
    return OurConsumer(Access(servers=address), group=group)


both = pytest.mark.parametrize("kind", [_confluent, _ours], ids=[confluent.NAME, ours.NAME])
Kind = Callable[[str, str | None], Reader]


@contextmanager
def reader(broker: BrokerProcess, kind: Kind) -> Generator[Reader]:
    """A reader of t-0, in no group."""
    with closing(kind(broker.address, None)) as found:
        found.assign(PART)
        yield found


def create(broker: BrokerProcess, partitions: int = 1) -> None:
    create_topic(broker.address, PART.topic, partitions=partitions)


def create_again(broker: BrokerProcess, partitions: int = 1) -> None:
    with Admin(broker.address) as admin:
        admin.delete_topic(PART.topic)
    create(broker, partitions)


def send(broker: BrokerProcess, *values: str, partitions: int = 1) -> None:
    with Producer(broker.address) as producer:
        for at, value in enumerate(values):
            producer.send(PART.topic, value.encode(), partition=at % partitions)


def keep(broker: BrokerProcess, value: str) -> None:
    """A record on the disk. No transaction does it: its marker is synced some time after the commit, and that
    sync could keep the records that a test wants to lose.
    """
    send(broker, value)
    broker.restart()  # a clean stop syncs


def lose(broker: BrokerProcess) -> None:
    """The power takes the plain records that came after the one that was kept."""
    broker.power_cut()
    broker.restart()
    with Admin(broker.address) as admin:
        assert admin.end_offsets([PART]) == {PART: 1}


def read(consumer: Reader, count: int) -> list[str]:
    """The next records. librdkafka reports a topic that is gone for a moment, and goes on."""
    got: list[str] = []
    for _ in range(POLLS_MAX):
        try:
            got += texts(consumer.poll(count - len(got)))
        except Reported as problem:
            if problem.name != "UNKNOWN_TOPIC_OR_PART":
                raise
        if len(got) >= count:
            return got
    raise AssertionError(f"only {got} have come")


@both
def test_a_topic_that_is_created_again_is_read_from_its_beginning(kind: Kind, tmp_path: Path) -> None:
    old = [f"old{number}" for number in range(5)]
    with BrokerProcess(tmp_path) as broker:
        create(broker)
        send(broker, *old)
        with reader(broker, kind) as consumer:
            assert read(consumer, len(old)) == old
            create_again(broker)
            send(broker, *NEW)
            assert read(consumer, len(NEW)) == NEW


@both
def test_a_member_of_a_group_reads_all_partitions_of_a_topic_that_is_created_again(
    kind: Kind, tmp_path: Path
) -> None:
    old, new = ([f"{age}{number}" for number in range(20)] for age in ("old", "new"))
    with BrokerProcess(tmp_path, override=NO_DELAY) as broker:
        create(broker, PARTITIONS)
        send(broker, *old, partitions=PARTITIONS)
        with closing(kind(broker.address, "g")) as consumer:
            consumer.subscribe(PART.topic)
            assert sorted(read(consumer, len(old))) == sorted(old)
            create_again(broker, PARTITIONS)
            send(broker, *new, partitions=PARTITIONS)
            assert sorted(read(consumer, len(new))) == sorted(new)


@both
def test_a_reader_of_records_that_a_power_cut_has_lost_reads_what_replaces_them(
    kind: Kind, tmp_path: Path
) -> None:
    lost = [f"lost{number}" for number in range(4)]
    with BrokerProcess(tmp_path, sync="commit") as broker:
        create(broker)
        keep(broker, "kept")
        send(broker, *lost)
        with reader(broker, kind) as consumer:
            assert read(consumer, 5) == ["kept", *lost]
            lose(broker)
            send(broker, *NEW)
            assert read(consumer, len(NEW)) == NEW


def test_a_loop_that_is_left_goes_back_to_its_place_and_notices_that_it_is_gone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        create(broker)
        send(broker, "old0", "old1", "old2")
        with fencepost.Consumer(broker.address) as consumer:
            consumer.assign([PART])
            assert next(iter(consumer)).value == b"old0"
            create_again(broker)
            send(broker, *NEW)
            got: list[str] = []
            for record in consumer:
                got.append(record.value.decode())
                if len(got) == len(NEW):
                    break
            assert got == NEW


def test_a_committed_position_that_a_power_cut_has_lost_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The offsets were committed by a transaction, so they survive the records that they cover."""
    with BrokerProcess(tmp_path, sync="commit") as broker:
        create(broker)
        keep(broker, "kept")
        send(broker, "lost0", "lost1", "lost2", "lost3")
        with fencepost.Consumer(broker.address, group_id="g") as consumer:
            consumer.assign([PART])
            offsets: dict[TopicPartition, int | OffsetAndMetadata] = {}
            for _ in range(POLLS_MAX):
                for batch in consumer.poll(POLL_MS):
                    offsets[PART] = OffsetAndMetadata(batch.next_offset, leader_epoch=batch.leader_epoch)
                if consumer.position(PART) == 5:
                    break
            with Producer(broker.address, transactional_id="copier") as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        lose(broker)
        send(broker, *NEW)
        with closing(_ours(broker.address, "g")) as heir:
            heir.assign(PART)
            assert read(heir, len(NEW)) == NEW
        (line,) = [found.getMessage() for found in caplog.records if found.name == "fencepost.client"]
        assert line.startswith("partition t-0 has lost records before offset 5")
        with fencepost.Consumer(broker.address, group_id="g", auto_offset_reset="none") as strict:
            strict.assign([PART])
            with pytest.raises(OffsetOutOfRange, match=r"t-0 has lost .* offset 5.* at offset 1"):
                strict.poll(60_000)
