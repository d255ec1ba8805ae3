"""Bytes of a data directory flipped, and every file removed, one at a time: detected or harmless, never
wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

from fencepost.journal.segments import LOG
from fencepost.journal.storage import StorageError, StorageReader
from fencepost.protocol.batches import checksum_matches, walk
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.messages import DeleteRecords, DeleteRecordsPartition, FetchedPartition, FetchReply
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    fetch_request,
    next_offset,
    visible_values,
)
from tests.broker.story import Memory, Story

Place = tuple[TopicPartition, IsolationLevel]
Seen = dict[Place, list[str]]
PLACES: list[Place] = [(key, isolation) for key in (ORDERS, OTHERS) for isolation in IsolationLevel]
BATCHES_MAX = 20  # more than a partition has: a reader that gets more runs in circles
DETECTED = "detected"


class DamagedStory(Story):
    """A broker as a server runs it, on what a disk has left."""

    def start(self) -> None:
        super().start()
        self.host.contains_failures = True
        self.host.node.contain = self.host._contain  # pyright: ignore[reportPrivateUsage] - as the host itself


def written() -> dict[str, bytes]:
    """The files of a broker that was stopped: records that are committed, aborted, deleted and plain."""
    storage = Memory()
    story = Story(storage=storage)
    story.produce(NOBODY, "gone", key=OTHERS, name=None)
    me = story.identity()
    story.produce(me, "a b")
    story.produce(me, "x", key=OTHERS)
    me = story.ended(me, COMMIT)
    story.produce(me, "aborted")
    me = story.ended(me, ABORT)
    story.produce(me, "c")
    story.ended(me, COMMIT)
    story.produce(NOBODY, "d", name=None)
    trim = DeleteRecordsPartition(topic=OTHERS.topic, partition=OTHERS.partition, offset=1)
    story.ask(DeleteRecords(timeout_ms=1_000, partitions=(trim,)))
    story.settle()
    story.host.stop()
    return contents(storage)


def contents(storage: StorageReader) -> dict[str, bytes]:
    paths = [
        f"{directory}/{name}" for directory in storage.directories() for name in storage.files(directory)
    ]
    return {path: storage.read_file(path) or b"" for path in [*paths, *storage.files("")]}


def disk_with(files: dict[str, bytes]) -> Memory:
    storage = Memory()
    fill(storage, files)
    return storage


def fill(storage: Memory, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        directory = path.rpartition("/")[0]
        if directory:
            storage.make_directory(directory)
        storage.replace(path, content, durable=False)  # in memory, a sync does nothing but take time


def is_whole(part: FetchedPartition, offset: int) -> bool:
    """Whether an answer is what a client accepts: whole batches, the first with `offset`, without a gap."""
    expected = offset
    for at, header in walk(part.records):
        follows = header.base_offset == expected or (header.base_offset < expected <= header.last_offset)
        if not (follows and checksum_matches(part.records, at, header)):
            return False
        expected = header.next_offset
    return expected > offset


def read(story: Story, key: TopicPartition, isolation: IsolationLevel) -> Iterator[str]:
    """The records of a partition with their offsets, as a client reads them: it checks what it gets."""
    offset = 1 if key == OTHERS else 0
    for _ in range(BATCHES_MAX):
        reply = story.ask(fetch_request(key, isolation, offset=offset))
        if not isinstance(reply.body, FetchReply) or reply.body.partitions[0].error:
            yield DETECTED
            return
        (part,) = reply.body.partitions
        if not part.records:
            return
        if not is_whole(part, offset):
            yield DETECTED
            return
        yield f"{offset}: {' '.join(visible_values(part))}"
        offset = next_offset(part)
    yield DETECTED


def seen_on(storage: Memory, said: list[str] | None = None) -> Seen | None:
    """What readers see after a start on this disk; None if the broker refuses to start. What it says of the
    disk is added to `said`.
    """
    try:
        story = DamagedStory.over(storage)
    except StorageError as problem:
        if said is not None:
            said.append(str(problem))
        return None
    if said is not None:
        said += [trouble.text for trouble in story.host.troubles]
    seen: Seen = {}
    for key, isolation in PLACES:
        try:
            seen[key, isolation] = list(read(story, key, isolation))
        except ProtocolViolation:  # the client refuses the bytes
            seen[key, isolation] = [DETECTED]
    return seen


def verdict(seen: Seen | None, whole: Seen) -> str:
    if seen is None:
        return "refused"
    if seen == whole:
        return "harmless"
    differ = [place for place in whole if seen[place] != whole[place]]
    # A reader that got an error in the end may have seen a true beginning, and no more.
    if all(
        seen[place][-1:] == [DETECTED] and whole[place][: len(seen[place]) - 1] == seen[place][:-1]
        for place in differ
    ):
        return DETECTED
    return "wrong"


def test_what_readers_see_of_a_whole_directory() -> None:
    seen = seen_on(disk_with(written()))
    assert seen is not None
    assert "aborted" not in " ".join(seen[ORDERS, IsolationLevel.READ_COMMITTED])
    assert "aborted" in " ".join(seen[ORDERS, IsolationLevel.READ_UNCOMMITTED])
    assert "gone" not in " ".join(seen[OTHERS, IsolationLevel.READ_UNCOMMITTED])


def flips(
    bit_of: Callable[[], int], *, skips: Callable[[], bool] = lambda: False
) -> Iterator[tuple[str, str]]:
    """One bit of each byte in turn that is not skipped: the place, and the verdict."""
    files = written()
    whole = seen_on(disk_with(files))
    assert whole is not None
    for path, content in files.items():
        for at in range(len(content)):
            if skips():
                continue
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit_of()
            yield f"{path} {at}", verdict(seen_on(disk_with({**files, path: bytes(flipped)})), whole)


def removals() -> Iterator[tuple[str, str]]:
    """Each file missing in turn: its path, and the verdict; "silent" if the broker does not name a log."""
    files = written()
    whole = seen_on(disk_with(files))
    assert whole is not None
    for path in files:
        rest = {name: content for name, content in files.items() if name != path}
        said: list[str] = []
        found = verdict(seen_on(disk_with(rest), said), whole)
        is_named = any(path.partition("/")[0] in text for text in said)
        yield path, found if is_named or not path.endswith(LOG) or found == "wrong" else "silent"


def test_a_third_of_all_bytes_flipped() -> None:
    """`make sweep` flips every bit of every byte."""
    random_ = random.Random(1)
    found = dict(flips(lambda: random_.randrange(8), skips=lambda: random_.randrange(3) > 0))
    counts = Counter(found.values())
    assert [place for place, kind in found.items() if kind == "wrong"] == [], counts
    assert min(counts[kind] for kind in ("harmless", "refused", DETECTED)) > 50


def test_every_file_removed() -> None:
    found = dict(removals())
    assert [path for path, kind in found.items() if kind in ("wrong", "silent")] == []
