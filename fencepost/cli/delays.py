"""What `produce` says while the broker does not acknowledge: why, and that it tries again.

Rule: one line on stderr when it begins, when the reason changes, and when it is over.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from fencepost.client.shells.sync import Producer
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import TopicPartition

OVERDUE_MS: Final = 2_000
LOOK_EVERY_S: Final = 0.5


@contextmanager
def told_of_delays(producer: Producer) -> Generator[None]:
    """Watch the producer during this block."""
    is_over = Event()
    watcher = Thread(target=_watch, args=(producer, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(producer: Producer, is_over: Event) -> None:
    told: dict[TopicPartition, ErrorCode] = {}
    while not is_over.wait(LOOK_EVERY_S):
        overdue = producer.overdue(OVERDUE_MS)
        for partition, error in overdue.items():
            if told.get(partition) is not error:
                _tell(f"{partition}: no acknowledgement for {OVERDUE_MS // 1000} s: {_why(error)}")
        for partition in told.keys() - overdue.keys():
            _tell(f"{partition}: acknowledged again")
        told = overdue


def _why(error: ErrorCode) -> str:
    if error is NO_ERROR:
        return "the broker does not answer. Waiting; Ctrl-C gives up"
    return f"{error.meaning} ({error.name}). Trying again; Ctrl-C gives up"


def _tell(line: str) -> None:
    print(f"fencepost: {line}", file=sys.stderr, flush=True)
