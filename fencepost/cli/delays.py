"""What `produce` says while the broker does not acknowledge: why, and that it retries.

Rule: one line on stderr when it begins and one when records are acknowledged again; in between, one if the
reason has changed, at most every ten seconds. Records that the producer gives up (an abort, an error) are no
longer overdue, but that is no acknowledgement.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import Final

from fencepost.client.batch import ProducerBatch
from fencepost.client.shells.sync import Producer, SendFuture
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import TopicPartition

OVERDUE_MS: Final = 2_000
LOOK_EVERY_S: Final = 0.5
AGAIN_AFTER_S: Final = 10.0  # the reasons alternate while a log gets a leader, fails, and so on


@contextmanager
def told_of_delays(producer: Producer, pending: Collection[SendFuture]) -> Generator[None]:
    """Watch the producer, and its sends in flight, during this block."""
    is_over = Event()
    watcher = Thread(target=watch, args=(producer, pending, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def watch(producer: Producer, pending: Collection[SendFuture], is_over: Event) -> None:
    """Say what happens until it is over."""
    told: dict[TopicPartition, tuple[ErrorCode, float]] = {}
    waiting: dict[TopicPartition, ProducerBatch | None] = {}
    while not is_over.wait(LOOK_EVERY_S):
        overdue = producer.overdue(OVERDUE_MS)
        for partition, error in overdue.items():
            before, told_at = told.get(partition, (None, -inf))
            if before is not error and monotonic() - told_at >= AGAIN_AFTER_S:
                _tell(f"{partition}: no acknowledgement for {OVERDUE_MS // 1000} s: {_why(error)}")
                told[partition] = (error, monotonic())
                waiting[partition] = _oldest(partition, pending)
        for partition in told.keys() - overdue.keys():
            batch = waiting[partition]
            if batch is not None and batch.base_offset >= 0:
                _tell(f"{partition}: the broker acknowledges records again")
            del told[partition]


def _oldest(partition: TopicPartition, pending: Collection[SendFuture]) -> ProducerBatch | None:
    """The batch of this partition that has waited longest."""
    batches = (sent.batch for sent in tuple(pending))
    return next((batch for batch in batches if batch.where == partition and not batch.is_done), None)


def _why(error: ErrorCode) -> str:
    if error is NO_ERROR:
        return "the broker does not answer. Waiting; press Ctrl-C to give up"
    return f"{error.meaning} ({error.name}). Retrying; press Ctrl-C to give up"


def _tell(line: str) -> None:
    print(f"fencepost: {line}", file=sys.stderr, flush=True)
