"""A word count of Kafka Streams with exactly_once_v2, killed together with its broker again and again."""

from __future__ import annotations

import json
import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from fencepost import TopicPartition
from tests.cli.processes import fencepost as command
from tests.cli.processes import read_ready, started
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.libraries import Access, Message, consume
from tests.kafka_clients import tools
from tests.topics import create_topic

APPLICATION: Final = Path(__file__).parent / "WordCount.java"
PROCESS_ID: Final = "00000000-0000-4000-8000-000000000001"
TRANSACTIONAL_ID: Final = f"word-count-{PROCESS_ID}-1"  # that of its first thread
# After which record of the coordinator the broker stops, and dies together with the application. Every life
# has at least two transactions, because words are counted after the commit of those that split their line,
# and each has at least two records ONGOING: its data, and its offsets.
DEATHS: Final = ("PREPARE_COMMIT #2", "ONGOING #3", "COMPLETE_COMMIT #2", "PREPARE_COMMIT #1")
OFTEN_MS: Final = 100
NEVER_MS: Final = 500_000
WORDS: Final = ("fence", "post", "epoch", "marker", "zombie", "offset", "leader", "commit")
LINES_PER_LIFE: Final = 300
WORDS_PER_LINE: Final = 5
QUICK: Final = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500")
COUNTS: Final = TopicPartition("counts", 0)
END: Final = b"the end"


class House:
    """A directory and a port, where one broker and one application succeed each other."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.state = directory / "state"
        self.port = "0"
        # Streams takes the id from here, so that a transactional id names the successor of a killed process.
        place = self.state / "word-count"
        place.mkdir(parents=True)
        (place / "kafka-streams-process-metadata").write_text(json.dumps({"processId": PROCESS_ID}))

    @property
    def access(self) -> Access:
        return Access(servers=f"127.0.0.1:{self.port}")

    @contextmanager
    def broker(self, *options: str) -> Generator[subprocess.Popen[str]]:
        """The broker, until it is killed."""
        settings = [part for each in QUICK for part in ("--override", each)]
        with started("serve", str(self.data), "--port", self.port, *settings, *options) as process:
            self.port = str(read_ready(process)["port"])
            yield process

    @contextmanager
    def application(self, *, commits_after_ms: int = OFTEN_MS) -> Generator[None]:
        """The word count, until it is killed."""
        arguments = (self.access.servers, str(self.state), str(commits_after_ms))
        process = subprocess.Popen(tools.java(str(APPLICATION), *arguments))
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def create_topics(self) -> None:
        create_topic(self.access.servers, "lines", 2)
        create_topic(self.access.servers, COUNTS.topic, 1)

    def write(self, topic: str, values: Sequence[bytes]) -> None:
        with closing(Confluent().producer(self.access)) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value, partition=number % 2 if topic == "lines" else 0)
            producer.flush()

    def dies_after(self, record: str) -> None:
        """Broker and application, killed when the coordinator has written this record."""
        fault = f"when coordinator of {TRANSACTIONAL_ID} appends {record} do pause node 1"
        with self.broker("--fault", fault) as stopped, self.application():
            assert stopped.stdout is not None
            assert record.partition(" ")[0] in json.loads(stopped.stdout.readline())["point"]

    def dies_in_a_transaction(self) -> None:
        """Broker and application, killed when there are counts that will never be committed."""
        with (
            self.broker(),
            self.application(commits_after_ms=NEVER_MS),
            closing(Confluent().reader(self.access, COUNTS, isolation="read_uncommitted")) as reader,
        ):
            consume(reader, 1)

    def counts(self, isolation: str) -> list[Message]:
        """The records of `counts`, up to the last one."""
        got: list[Message] = []
        with closing(Confluent().reader(self.access, COUNTS, isolation=isolation)) as reader:
            while not got or got[-1].value != END:
                got += consume(reader, 1)
        return got[:-1]


def counts_by_word(messages: Sequence[Message]) -> dict[str, list[int]]:
    """The counts of each word in the order in which they came."""
    counts: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        (count,) = struct.unpack(">q", message.value or b"")
        counts[(message.key or b"").decode()].append(count)
    return counts


def test_each_word_is_counted_once_although_broker_and_application_die(tmp_path: Path) -> None:
    house, random, written = House(tmp_path), Random(1), Counter[str]()

    def write_lines() -> None:
        lines = [random.choices(WORDS, k=WORDS_PER_LINE) for _ in range(LINES_PER_LIFE)]
        house.write("lines", [" ".join(line).encode() for line in lines])
        written.update(word for line in lines for word in line)

    with house.broker():
        house.create_topics()
        write_lines()
    house.dies_after("COMPLETE_COMMIT #1")  # this transaction has split lines into words, and counted none
    house.dies_in_a_transaction()
    for record in DEATHS:
        with house.broker():
            write_lines()
        house.dies_after(record)
    with house.broker(), house.application():
        with closing(Confluent().reader(house.access, COUNTS)) as reader:
            consume(reader, written.total())
    with house.broker():
        house.write(COUNTS.topic, [END])
        committed, all_of_them = house.counts("read_committed"), house.counts("read_uncommitted")
    assert counts_by_word(committed) == {word: list(range(1, count + 1)) for word, count in written.items()}
    assert len(all_of_them) > len(committed), "the transaction in which they died was aborted"
    checked = command("check", str(house.data))
    assert checked.returncode == 0, checked.stdout
