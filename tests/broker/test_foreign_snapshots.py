"""Producer snapshots of another log, which an operator put into a partition's directory: the broker believes
none of them, and reads the log instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest

from fencepost.journal.indexes import ProducerSnapshot, encode_snapshot
from fencepost.journal.segments import SNAPSHOT, file_name
from fencepost.journal.storage import directory_name
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_OFFSET, NO_SEQUENCE
from tests.broker.requests import COMMIT, NOBODY, ORDERS, Identity
from tests.broker.story import Memory, Story

END = 6  # a b | commit | c d | commit


def a_story() -> tuple[Story, Memory, Identity]:
    """A broker with two transactions of one producer in one log."""
    storage = Memory()
    story = Story(storage=storage)
    me = story.identity()
    for values in ("a b", "c d"):
        assert story.produce(me, values).error is ErrorCode.NONE
        story.ended(me, COMMIT)
        me = me._replace(producer_epoch=me.producer_epoch + 1)
    story.settle()
    return story, storage, me


def producer(
    of: Identity, last_offset: int, *, last_sequence: int, first_offset: int = NO_OFFSET
) -> ProducerSnapshot:
    return ProducerSnapshot(
        producer_id=of.producer_id,
        producer_epoch=of.producer_epoch,
        last_sequence=last_sequence,
        last_offset=last_offset,
        offset_delta=1,
        timestamp=1,
        coordinator_epoch=0,
        first_offset=first_offset,
    )


STRANGER = Identity(999, 0)
LAST = r"the batch before it is not the last one that it knows of producer \d+"


def older(me: Identity, epochs: int) -> Identity:
    return me._replace(producer_epoch=me.producer_epoch - epochs)


CASES: Final[list[tuple[int, Callable[[Identity], list[ProducerSnapshot]], str]]] = [
    (1, lambda me: [], "no batch begins at offset 1"),
    (END - 2, lambda me: [], "no batch begins at offset 4"),
    (END, lambda me: [producer(STRANGER, 4, last_sequence=1)], "no batch of producer 999 ends at offset 4"),
    (END, lambda me: [producer(me, 2, last_sequence=1)], r"no batch of producer \d+ ends at offset 2"),
    (END, lambda me: [producer(me, 4, last_sequence=9)], r"no batch of producer \d+ ends at offset 4"),
    (
        END,
        lambda me: [producer(STRANGER, NO_OFFSET, last_sequence=NO_SEQUENCE, first_offset=3)],
        "no transaction of producer 999 begins at offset 3",
    ),
    (
        END,
        lambda me: [producer(me, 4, last_sequence=1, first_offset=4)],
        r"no transaction of producer \d+ begins at offset 4",
    ),
    (
        END,
        lambda me: [producer(me, 4, last_sequence=1, first_offset=2)],
        r"no transaction of producer \d+ begins at offset 2",  # a marker
    ),
    (3, lambda me: [producer(me, 4, last_sequence=1)], "it names offset 4"),
    (END - 1, lambda me: [], r"it does not name the transaction of producer \d+ that is open there"),
    # Older snapshots of this log, under another name.
    (END, lambda me: [producer(older(me, 2), 1, last_sequence=1, first_offset=0)], LAST),
    (END - 1, lambda me: [producer(older(me, 1), 1, last_sequence=1)], LAST),
    (END, lambda me: [producer(older(me, 1), 4, last_sequence=1)], LAST),
]


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize(("offset", "producers", "why"), CASES)
def test_a_snapshot_of_another_log_is_removed_and_the_log_is_served(
    offset: int, producers: Callable[[Identity], list[ProducerSnapshot]], why: str, *, is_stopped: bool
) -> None:
    story, storage, me = a_story()
    story.host.stop() if is_stopped else story.kill()
    name = file_name(offset, SNAPSHOT)
    storage.replace(f"{directory_name(ORDERS)}/{name}", encode_snapshot(producers(me)), durable=True)
    story.start()
    story.settle()
    assert story.visible() == "a b c d"
    (line,) = [trouble.text for trouble in story.host.troubles if name in trouble.text]
    assert "was not written for this log" in line
    assert re.search(why, line)
    assert name not in storage.files(directory_name(ORDERS))
    # The producers are those of the log: the next batch follows the last one.
    assert story.produce(me, "e f").error is ErrorCode.NONE
    story.ended(me, COMMIT)
    assert story.produce(NOBODY, "g", name=None).error is ErrorCode.NONE
    story.host.stop()
    story.start()
    story.settle()
    assert story.visible() == "a b c d e f g"
    assert not [trouble for trouble in story.host.troubles if "snapshot" in trouble.text]


def test_of_many_producers_those_that_wrote_last_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.journal.snapshots.CHECKED_MAX", 1)
    story, storage, _ = a_story()
    story.host.stop()
    many = [producer(Identity(1_000 + number, 0), 1, last_sequence=1) for number in range(3)]
    data = encode_snapshot([*many, producer(STRANGER, 4, last_sequence=1)])
    storage.replace(f"{directory_name(ORDERS)}/{file_name(END, SNAPSHOT)}", data, durable=True)
    story.start()
    story.settle()
    (line,) = [trouble.text for trouble in story.host.troubles if SNAPSHOT in trouble.text]
    assert "no batch of producer 999 ends at offset 4" in line
