"""How long a start takes after many transactions, and how large the coordinators' logs are by then.

The measurement runs transactions of several transactional ids against a broker without sockets, on a real
directory, and starts a new broker on it, after a kill and after a clean stop. Each transaction commits an
offset, so it writes to `__transaction_state` and to `__consumer_offsets`.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs

from fencepost.broker.contract import Received, ReplyTo
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    NEWEST_VERSION,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorType,
    TransactionResult,
)

CLIENT: Final = 1
START_ATTEMPTS: Final = 3  # the fastest counts
# The logs grow until they are compacted, so how long a start takes goes up and down with them.
SAMPLES: Final = 5
SAMPLE_EVERY: Final = 800  # transactions


@attrs.define
class Broker:
    """A host over a directory; `now` moves with every request."""

    directory: Path
    now: int = 1_800_000_000_000
    asked: int = 0
    host: Host = attrs.field(init=False)

    def start(self) -> float:
        """Start, until all is recovered; how many seconds of work that took."""
        gc.collect()
        began = time.process_time()  # not of the clock: other work on the machine would count
        directory = DataDirectory.open(DiskStorage(self.directory))
        self.host = Host(Node(NodeSettings()), directory)
        self.host.start(self.now)
        self.run()
        return time.process_time() - began

    def run(self) -> None:
        """Everything that is to be done now."""
        while not self.host.is_idle or self.host.upkeep.is_needed:
            self.host.work_until_idle(self.now)
            if self.host.upkeep.is_needed:
                self.host.upkeep.do_some()

    def ask(self, request: m.Request) -> Any:
        """The body of the answer."""
        self.now += 1
        self.asked += 1
        self.host.tick(self.now)
        self.host.offer(Received(request, to=ReplyTo(CLIENT, self.asked), version=NEWEST_VERSION))
        self.run()
        (reply,) = self.host.answers
        self.host.answers.clear()
        assert reply.error is ErrorCode.NONE, reply
        return reply.body


def prepare(broker: Broker) -> None:
    """Create the internal topics and the topic whose offsets are committed."""
    broker.ask(m.CreateTopics(topics=(m.CreateTopic(topic="orders", partition_count=1),)))
    for kind in CoordinatorType:
        broker.ask(m.FindCoordinator(kind=kind, key="anybody"))


def identity(broker: Broker, name: str, *, timeout_ms: int = 60_000) -> tuple[int, int]:
    """A producer id and epoch for a transactional id."""
    request = m.InitProducerId(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    granted = broker.ask(request)
    return granted.producer_id, granted.producer_epoch


def transactions(broker: Broker, names: list[str]) -> Iterator[None]:
    """One transaction after the other, of each id in turn, forever."""
    identities = {name: identity(broker, name) for name in names}
    number = 0
    while True:
        for name in names:
            producer_id, epoch = identities[name]
            offset = m.OffsetToCommit(
                topic="orders", partition=0, offset=number, leader_epoch=NO_LEADER_EPOCH, metadata=""
            )
            request = m.TxnOffsetCommit(
                transactional_id=name,
                group_id=f"group of {name}",
                producer_id=producer_id,
                producer_epoch=epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                offsets=(offset,),
            )
            broker.ask(request)
            ended = broker.ask(
                m.EndTxn(
                    transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
                    result=TransactionResult.COMMIT if number % 10 else TransactionResult.ABORT,
                )
            )  # fmt: skip
            identities[name] = ended.producer_id, ended.producer_epoch
            number += 1
            yield


def measure(count: int, ids: int, place: Path) -> dict[str, Any]:
    """Run so many transactions, then start again; times in seconds, sizes in bytes."""
    broker = Broker(place / "data")
    broker.start()
    prepare(broker)
    running = transactions(broker, [f"id-{number}" for number in range(ids)])
    began = time.perf_counter()
    _advance(running, count)
    took = time.perf_counter() - began
    samples: list[Sample] = []
    for _ in range(SAMPLES):
        samples.append(_sample(broker, place / "copy"))
        _advance(running, SAMPLE_EVERY)
    broker.host.stop()
    return {
        "transactions": count,
        "ids": ids,
        "per_second": round(count / took),
        **{
            name: [round(number, 3) for number in sorted(getattr(each, name) for each in samples)]
            for name in (field.name for field in attrs.fields(Sample))
        },
    }


def _advance(running: Iterator[None], count: int) -> None:
    for _ in islice(running, count):
        pass


@attrs.frozen(kw_only=True)
class Sample:
    """What a start costs at one point between two compactions."""

    start_after_kill_s: float
    start_after_stop_s: float
    transaction_state_bytes: int
    consumer_offsets_bytes: int


def _sample(broker: Broker, place: Path) -> Sample:
    """Start on copies of the directory as it is now, so that the broker itself goes on undisturbed."""
    broker.host.write_manifests()
    shutil.copytree(broker.directory, place)
    copy = Broker(place, now=broker.now)
    killed: list[float] = []
    for _ in range(START_ATTEMPTS):
        killed.append(copy.start())
        copy.host.directory.abandon()  # as a kill does
    copy.start()
    stopped: list[float] = []
    for _ in range(START_ATTEMPTS):
        copy.host.stop()
        stopped.append(copy.start())
    copy.host.stop()
    shutil.rmtree(place)
    return Sample(
        start_after_kill_s=min(killed),
        start_after_stop_s=min(stopped),
        transaction_state_bytes=_size(broker.directory, "__transaction_state"),
        consumer_offsets_bytes=_size(broker.directory, "__consumer_offsets"),
    )


def _size(place: Path, topic: str) -> int:
    return sum(file.stat().st_size for file in place.glob(f"{topic}-*/*.log"))
