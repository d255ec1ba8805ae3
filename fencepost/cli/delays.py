"""Tells the user of `produce` why the broker does not acknowledge records, and that the producer retries.

Rule: one line on stderr when acknowledgements are overdue, and one when records are acknowledged again; in
between, one if the reason has changed, at most every ten seconds. If the producer gives up records (an abort,
an error), they are no longer overdue, but not acknowledged either.
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
CHECK_INTERVAL_S: Final = 0.5
REPORT_INTERVAL_S: Final = 10.0  # the reasons alternate while a log gets a leader, fails, and so on


@contextmanager
def reporting_delays(producer: Producer, pending: Collection[SendFuture]) -> Generator[None]:
    """Report delays of the producer and its sends in flight, during this block."""
    is_over = Event()
    watcher = Thread(target=watch, args=(producer, pending, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def watch(producer: Producer, pending: Collection[SendFuture], is_over: Event) -> None:
    """Report until `is_over` is set."""
    reported: dict[TopicPartition, tuple[ErrorCode, float]] = {}
    waiting: dict[TopicPartition, ProducerBatch | None] = {}
    while not is_over.wait(CHECK_INTERVAL_S):
        overdue = producer.overdue(OVERDUE_MS)
        for partition, error in overdue.items():
            before, reported_at = reported.get(partition, (None, -inf))
            if before is not error and monotonic() - reported_at >= REPORT_INTERVAL_S:
                _print(f"{partition}: no acknowledgement for {OVERDUE_MS // 1000} s: {_why(error)}")
                reported[partition] = (error, monotonic())
                waiting[partition] = _oldest(partition, pending)
        for partition in reported.keys() - overdue.keys():
            batch = waiting[partition]
            if batch is not None and batch.base_offset >= 0:
                _print(f"{partition}: the broker acknowledges records again")
            del reported[partition]


def _oldest(partition: TopicPartition, pending: Collection[SendFuture]) -> ProducerBatch | None:
    """The batch of this partition that has waited longest."""
    batches = (sent.batch for sent in tuple(pending))
    return next((batch for batch in batches if batch.where == partition and not batch.is_done), None)


def _why(error: ErrorCode) -> str:
    if error is NO_ERROR:
        return "the broker does not answer. Waiting; press Ctrl-C to give up"
    return f"{error.meaning} ({error.name}). Retrying; press Ctrl-C to give up"


def _print(line: str) -> None:
    print(f"fencepost: {line}", file=sys.stderr, flush=True)
