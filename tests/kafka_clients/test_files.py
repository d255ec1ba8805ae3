"""kafka-dump-log reads the data directory of a broker that only Kafka's clients have used."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

import fencepost
from fencepost import TopicPartition
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.java import Java
from tests.kafka_bridge.libraries import Access, Message, consume
from tests.kafka_clients import tools

ORDERS = TopicPartition("orders", 0)
COPIES = TopicPartition("copies", 0)
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT_BYTES = 1 << 20  # the least that Kafka allows
PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = 2, 3, 4, 5

BATCH = re.compile(
    r"^baseOffset: \d+ lastOffset: (?P<last>\d+) .* position: (?P<position>\d+) CreateTime: (?P<time>\d+) "
    r".* magic: 2 compresscodec: (?P<codec>\w+) .* isvalid: true$",
    re.MULTILINE,
)
RECORD = re.compile(
    r"^\| offset: (?P<offset>\d+) CreateTime: (?P<time>\d+) .* key: (?P<key>.*) payload: (?P<value>.*)$",
    re.MULTILINE,
)
MARKER = re.compile(r"^\| offset: (\d+) .* endTxnMarker: (\w+) coordinatorEpoch: 0$", re.MULTILINE)
INDEX_ENTRY = re.compile(r"^offset: (\d+) position: (\d+)$", re.MULTILINE)
TIME_ENTRY = re.compile(r"^timestamp: (\d+) offset: (\d+)$", re.MULTILINE)
ABORTED_ENTRY = re.compile(
    r"^version: 0 producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)$", re.MULTILINE
)


@attrs.frozen
class Written:
    """A data directory, and what a read_uncommitted reader of `orders` got from its broker."""

    directory: Path
    messages: list[Message]
    aborted: list[tuple[int, int]]  # the first record and the marker of each transaction

    def files(self, kind: str, topic: str = "*") -> list[Path]:
        """The files of this kind, such as log, of a topic."""
        return sorted(self.directory.glob(f"{topic}-*/*.{kind}"))

    def dump(self, kind: str, topic: str, *options: str) -> str:
        """What the tool says about all these files."""
        return dump(self.files(kind, topic), *options)


def dump(files: list[Path], *options: str) -> str:
    """What the tool prints, and then its complaints."""
    assert files
    ran = tools.process(tools.DUMP_LOG, *options, "--files", ",".join(map(str, files)))
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    directory = tmp_path_factory.mktemp("data")
    with closing(Java()) as java, fencepost.Broker(str(directory), override=IMPATIENT) as broker:
        access = Access(servers=broker.address)
        with closing(java.admin(access)) as admin:
            admin.create_topic("orders", configs={"segment.bytes": str(SEGMENT_BYTES)})
            admin.create_topic("copies")
        aborted = write(java, access)
        with closing(java.reader(access, ORDERS, isolation="read_uncommitted")) as reader:
            messages = consume(reader, 30 * len(COMPRESSIONS) + 20 + 90)
        copy(java, access)
    return Written(directory, messages, aborted)


def write(java: Java, access: Access) -> list[tuple[int, int]]:
    """Records in every compression, then transactions, then more than a segment."""
    for compression in COMPRESSIONS:
        with closing(java.producer(access, compression=compression)) as producer:
            for number in range(30):
                producer.send("orders", b"%d" % number * 40, key=compression.encode())
            producer.flush()
    with closing(java.producer(access, "till")) as producer:
        for number in range(4):
            producer.begin()
            for _ in range(5):
                producer.send("orders", b"transaction %d" % number, key=b"till")
            producer.flush()
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    with closing(java.producer(access)) as producer:
        for number in range(90):
            producer.send("orders", b"x" * 15_000, key=b"%d" % number)
        producer.flush()
    # Each transaction has five records and a marker.
    first = 30 * len(COMPRESSIONS)
    return [(first + 6 * number, first + 6 * number + 5) for number in (1, 3)]


def copy(java: Java, access: Access) -> None:
    """A transaction that copies three records, with the offset of its reader."""
    with (
        closing(java.consumer(access, "orders", group="copiers")) as reader,
        closing(java.producer(access, "copier")) as producer,
    ):
        producer.begin()
        for message in consume(reader, 3):
            producer.send("copies", message.value)
        producer.send_offsets({ORDERS: 3}, reader.member())
        producer.commit()


def decoded(text: str) -> Iterator[tuple[Any, Any]]:
    """The keys and values of an internal topic, as the tool decodes them."""
    for record in RECORD.finditer(text):
        value = record["value"]
        yield json.loads(record["key"]), None if value == "<DELETE>" else json.loads(value)


def test_data_is_read(written: Written) -> None:
    text = written.dump("log", "orders", "--print-data-log")
    assert [
        (int(record["offset"]), int(record["time"]), record["key"], record["value"])
        for record in RECORD.finditer(text)
    ] == [
        (message.offset, message.timestamp_ms, (message.key or b"").decode(), message.text)
        for message in written.messages
    ]
    assert {batch["codec"] for batch in BATCH.finditer(text)} == set(COMPRESSIONS)
    assert text.count("baseOffset: ") == len(BATCH.findall(text))  # each is valid
    ends = dict(MARKER.findall(text))
    assert list(ends.values()) == ["COMMIT", "ABORT", "COMMIT", "ABORT"]
    assert [int(offset) for offset, end in ends.items() if end == "ABORT"] == [
        marker for _, marker in written.aborted
    ]


def test_the_states_of_transactions_are_read(written: Written) -> None:
    states: dict[str, list[int]] = {"till": [], "copier": []}
    partitions: set[tuple[str, ...]] = set()
    for key, value in decoded(written.dump("log", "__transaction_state", "--transaction-log-decoder")):
        assert key["type"] == "0"
        states[key["data"]["transactionalId"]].append(value["data"]["transactionStatus"])
        if key["data"]["transactionalId"] == "copier" and value["data"]["transactionPartitions"]:
            partitions.add(tuple(each["topic"] for each in value["data"]["transactionPartitions"]))
    assert [state for state in states["till"] if state > 1] == 2 * [
        PREPARE_COMMIT, COMPLETE_COMMIT, PREPARE_ABORT, COMPLETE_ABORT
    ]  # fmt: skip
    assert states["copier"][-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]
    assert ("__consumer_offsets", "copies") in {tuple(sorted(topics)) for topics in partitions}


def test_groups_and_offsets_are_read(written: Written) -> None:
    text = written.dump("log", "__consumer_offsets", "--offsets-decoder")
    offsets: dict[tuple[str, str, int], int] = {}
    members: list[str] = []
    for key, value in decoded(text):
        if key["type"] == "1":
            where = key["data"]
            offsets[where["group"], where["topic"], where["partition"]] = value["data"]["offset"]
        else:
            assert key == {"type": "2", "data": {"group": "copiers"}}
            members += [each["assignment"]["assignedPartitions"] for each in value["data"]["members"]]
    assert offsets == {("copiers", "orders", 0): 3}
    assert [{"topic": "orders", "partitions": [0]}] in members
    assert [end for _, end in MARKER.findall(text)] == ["COMMIT"]


def test_the_metadata_of_the_cluster_is_read(written: Written) -> None:
    text = written.dump("log", "__cluster_metadata", "--cluster-metadata-decoder")
    assert '"type":"TOPIC_RECORD","version":0,"data":{"name":"orders"' in text
    assert "isvalid: false" not in text


def test_indexes_point_to_batches(written: Written) -> None:
    batches = list(BATCH.finditer(written.dump("log", "orders")))
    assert len(written.files("log", "orders")) == 2
    at = {(batch["last"], batch["position"]) for batch in batches}
    text = written.dump("index", "orders") + written.dump("timeindex", "orders")
    entries = INDEX_ENTRY.findall(text)
    assert len(entries) > 50
    assert set(entries) <= at
    times = {(batch["time"], batch["last"]) for batch in batches}
    time_entries = TIME_ENTRY.findall(text)
    assert len(time_entries) > 50
    assert set(time_entries) <= times
    assert complaints(text) == []


def test_the_transaction_index_names_aborted_transactions(written: Written) -> None:
    entries = ABORTED_ENTRY.findall(written.dump("txnindex", "orders"))
    assert [(int(first), int(last), int(stable)) for first, last, stable in entries] == [
        (first, marker, marker + 1) for first, marker in written.aborted
    ]


def test_snapshots_name_producers(written: Written) -> None:
    text = written.dump("snapshot", "orders")
    assert re.search(r"^producerId: \d+ .* currentTxnFirstOffset: OptionalLong.empty ", text, re.MULTILINE)


def test_all_indexes_of_the_directory_are_sane(written: Written) -> None:
    files = written.files("index") + written.files("timeindex")
    text = dump(files, "--index-sanity-check")
    assert complaints(text) == []
    assert len(re.findall(r"(passed sanity check|is empty)\.$", text, re.MULTILINE)) == len(files)


def complaints(text: str) -> list[str]:
    """The lines in which the tool reports what does not fit."""
    return re.findall(r"^(?:Mismatches|Found|Non-consecutive|The following).*$", text, re.MULTILINE)


@pytest.mark.parametrize(("kind", "at"), [("index", 12), ("timeindex", 4)])
def test_the_tool_complains_about_an_altered_index(
    written: Written, kind: str, at: int, tmp_path: Path
) -> None:
    place = shutil.copytree(written.directory / "orders-0", tmp_path / "orders-0")
    file = min(place.glob(f"*.{kind}"))
    data = bytearray(file.read_bytes())
    struct.pack_into(">I", data, at, 7)
    file.write_bytes(data)
    assert complaints(dump([file])) != []
