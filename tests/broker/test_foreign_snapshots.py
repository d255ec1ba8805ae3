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
from tests.broker.requests import COMMIT, NOBODY, ORDERS, Identity, identity_of, init_request
from tests.broker.story import LARGE, Memory, Story
from tests.broker.test_every_byte import contents, disk_with

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
    # After a stop, the small files know better than the log.
    assert re.search("none was there at offset" if is_stopped else why, line)
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
    story.kill()
    many = [producer(Identity(1_000 + number, 0), 1, last_sequence=1) for number in range(3)]
    data = encode_snapshot([*many, producer(STRANGER, 4, last_sequence=1)])
    storage.replace(f"{directory_name(ORDERS)}/{file_name(END, SNAPSHOT)}", data, durable=True)
    story.start()
    story.settle()
    (line,) = [trouble.text for trouble in story.host.troubles if SNAPSHOT in trouble.text]
    assert "no batch of producer 999 ends at offset 4" in line


# --- a sibling: a copy of the data directory that went on by itself, in batches with the same offsets


def plain(story: Story, values: str) -> None:
    assert story.produce(NOBODY, values, name=None).error is ErrorCode.NONE


def my_history(story: Story, mine: Identity, left: Identity) -> None:
    """A retry, an open transaction and a plain batch."""
    assert story.produce(mine, f"m {LARGE}", sequence=2, name=None).base_offset == 2
    assert story.produce(left, "open", name="left").base_offset == 4
    plain(story, "z")


def their_history(story: Story, _mine: Identity, _left: Identity) -> None:
    """Nothing of these producers."""
    for values in (f"t {LARGE}", "t", "z"):
        plain(story, values)


def sibling(
    first: dict[str, bytes],
    history: Callable[[Story, Identity, Identity], None],
    ids: list[Identity],
    *,
    ends: Callable[[Story], None],
    is_rolled: bool,
) -> Memory:
    """The directory of a story that went on like this."""
    storage = disk_with(first)
    story = Story.over(storage)
    history(story, *ids)
    if is_rolled:
        story.host.roll(story.host.directory.journal(ORDERS))
        plain(story, "last")
    ends(story)
    return storage


def stops(story: Story) -> None:
    story.settle()
    story.host.stop()


def dies(story: Story) -> None:
    story.settle()
    while story.host.write_manifests():
        pass
    story.kill()


@pytest.mark.parametrize("is_rolled", [True, False])
@pytest.mark.parametrize("ends", [stops, dies])
def test_a_snapshot_of_a_sibling_is_not_believed(ends: Callable[[Story], None], *, is_rolled: bool) -> None:
    """The batches that it names are all in this log, and the one before it has no producer."""
    storage = Memory()
    story = Story(storage=storage)
    mine, left = identity_of(story.ask(init_request(None))), story.identity("left")
    assert story.produce(mine, "a b", name=None).base_offset == 0
    stops(story)
    first, ids = contents(storage), [mine, left]
    me = sibling(first, my_history, ids, ends=ends, is_rolled=is_rolled)
    they = sibling(first, their_history, ids, ends=ends, is_rolled=is_rolled)
    place = f"{directory_name(ORDERS)}/{file_name(6, SNAPSHOT)}"
    if ends is dies and not is_rolled:  # no snapshot, where no one took one
        assert they.read_file(place) is None
        me.replace(place, encode_snapshot([producer(mine, 1, last_sequence=1)]), durable=True)
    else:
        theirs = they.read_file(place)
        assert theirs is not None
        assert theirs != me.read_file(place)
        me.replace(place, theirs, durable=True)
    after = Story.over(me)
    assert after.visible() == "a b m " + LARGE
    assert after.produce(mine, f"m {LARGE}", sequence=2, name=None).base_offset == 2
    # One that no small file lists may have been written right before a kill.
    told = [trouble.text for trouble in after.host.troubles if place in trouble.text]
    assert bool(told) == (is_rolled or ends is stops)
