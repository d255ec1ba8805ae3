"""A good data directory with a bit of everything, and ways to damage a copy of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import attrs

from fencepost.journal.indexes import ProducerSnapshot, decode_snapshot, encode_snapshot, snapshot_checksum
from fencepost.journal.journal import JournalSettings
from fencepost.journal.manifest import CHECKSUM, CLEAN_FILE, WRITTEN_AS, encode_json
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.batches import CRC_START, HEADER_SIZE, place, read_header
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOON,
    ORDERS,
    Identity,
    batch,
    identity_of,
    init_request,
    produce_batches,
    produced,
)
from tests.broker.story import Memory, Story, offsets_log_of, transaction_log_of
from tests.protocol.headers import put_header

SEGMENT_BYTES: Final = 30_000
BIG: Final = "x" * 5_000  # an index entry for nearly each batch
SMALL: Final = TopicPartition("orders", 1)
START: Final = "00000000000000000000"

ORDERS_LOG: Final = f"orders-0/{START}.log"
SMALL_LOG: Final = f"orders-1/{START}.log"
PAY_LOG: Final = f"{transaction_log_of('pay')}/{START}.log"
LEFT_LOG: Final = f"{transaction_log_of('left')}/{START}.log"
OFFSETS_LOG: Final = f"{offsets_log_of('group')}/{START}.log"
METADATA_LOG: Final = f"__cluster_metadata-0/{START}.log"


class Teller:
    """Tells the story, each batch a millisecond after the one before."""

    def __init__(self) -> None:
        self.story = Story(journal=JournalSettings(segment_bytes=SEGMENT_BYTES))
        self.batches = 0

    def write(
        self,
        who: Identity,
        values: str,
        *,
        sequence: int = 0,
        key: TopicPartition = ORDERS,
        name: str | None = "pay",
    ) -> None:
        """A batch that is accepted."""
        self.batches += 1
        records = batch(
            who, values, sequence=sequence, transactional=name is not None, timestamp=NOON + self.batches
        )
        reply = self.story.ask(produce_batches({key: records}, name=name))
        assert produced(reply)[key].error is ErrorCode.NONE

    def tell(self) -> Story:
        """Commits and aborts over several segments and partitions, committed offsets, a producer without
        transactions, and a transaction that is left open.
        """
        story = self.story
        me, other, left = story.identity(), story.identity("other"), story.identity("left")
        for sequence in range(8):
            self.write(me, BIG, sequence=sequence)
        self.write(me, BIG, key=SMALL)  # so much that a stop writes a snapshot
        assert story.commit_offset(me, "group", 3) is ErrorCode.NONE
        me = story.ended(me, COMMIT)
        self.write(other, "other", name="other")
        for sequence in range(4):
            self.write(me, BIG, sequence=sequence)
        self.write(me, "c", key=SMALL)
        me = story.ended(me, ABORT)
        story.ended(other, COMMIT, "other")
        plain = identity_of(story.ask(init_request(None)))
        for sequence in range(3):
            self.write(plain, "p", sequence=sequence, key=SMALL, name=None)
        self.write(left, "open", key=SMALL, name="left")
        self.write(left, "more", key=SMALL, sequence=1, name="left")
        return story


@cache
def _closed() -> MemoryStorage:
    story = Teller().tell()
    story.host.stop()
    assert isinstance(story.storage, Memory)
    return story.storage


@cache
def _killed() -> MemoryStorage:
    story = Teller().tell()
    story.host.write_manifests()
    story.kill()
    assert isinstance(story.storage, Memory)
    return story.storage


def closed() -> Directory:
    """A copy of what a broker leaves that stops cleanly."""
    return Directory(_closed())


def killed() -> Directory:
    """A copy of what a broker leaves that dies."""
    return Directory(_killed())


class Directory(MemoryStorage):
    """A copy of a data directory, with ways to damage it."""

    def __init__(self, good: MemoryStorage) -> None:
        super().__init__("copy")
        for directory in ["", *good.directories()]:
            if directory:
                self.make_directory(directory)
            for name in good.files(directory):
                path = f"{directory}/{name}" if directory else name
                self.put(path, good.read_file(path) or b"")

    def put(self, path: str, data: bytes) -> None:
        """Puts a file."""
        self.replace(path, data, durable=True)

    def put_directory(self, partition: TopicPartition, source: Directory, of: TopicPartition) -> None:
        """Puts a partition's directory: a copy of that `of` a partition in a source."""
        self.make_directory(str(partition))
        for name in source.files(str(of)):
            self.put(f"{partition}/{name}", source.get(f"{of}/{name}"))

    def get(self, path: str) -> bytes:
        """A file that is there."""
        data = self.read_file(path)
        assert data is not None, path
        return data

    def logs(self, directory: str) -> list[str]:
        """The log files of a partition."""
        return [f"{directory}/{name}" for name in self.files(directory) if name.endswith(".log")]

    def batches(self, path: str) -> list[bytes]:
        """The batches of a log file."""
        data, found, at = self.get(path), list[bytes](), 0
        while at < len(data):
            size = read_header(data, at).size
            found.append(data[at : at + size])
            at += size
        return found

    def put_batches(self, path: str, batches: list[bytes]) -> None:
        """Writes batches end to end, their offsets dense, each with its own leader epoch."""
        offset, out = int(path[-24:-4]), bytearray()
        for data in batches:
            placed = bytearray(data)
            place(placed, base_offset=offset, leader_epoch=read_header(data).leader_epoch)
            out += placed
            offset = read_header(placed).next_offset
        self.put(path, bytes(out))

    def change(self, path: str, number: int, *, sealed: bool = True, **fields: int) -> None:
        """Changes fields of a batch's header; the checksum is made anew if it is `sealed`."""
        batches = self.batches(path)
        batches[number] = altered(batches[number], sealed=sealed, **fields)
        self.put(path, b"".join(batches))

    def change_payload(self, path: str, number: int, change: Callable[[bytes], bytes]) -> None:
        """Changes the records of a batch, and its checksum with them."""
        batches = self.batches(path)
        data = batches[number]
        batches[number] = altered(data[:HEADER_SIZE] + change(data[HEADER_SIZE:]))
        self.put(path, b"".join(batches))

    def flip(self, path: str, at: int) -> None:
        """Flips the bits of one byte."""
        data = bytearray(self.get(path))
        data[at] ^= 0xFF
        self.put(path, bytes(data))

    def cut(self, path: str, count: int) -> None:
        """Takes bytes away from the end."""
        self.put(path, self.get(path)[:-count])

    def grow(self, path: str, data: bytes) -> None:
        """Adds bytes at the end."""
        self.put(path, self.get(path) + data)

    def change_json(self, path: str, change: Callable[[Any], None]) -> None:
        """Changes a JSON file's content in place, and seals it again: a lie with the right checksum."""
        content = json.loads(self.get(path))
        del content[WRITTEN_AS], content[CHECKSUM]
        change(content)
        self.put(path, encode_json(content, place=path))

    def vouch_for(self, path: str) -> None:
        """Lets the manifest and the mark of a clean stop describe a log that was changed."""
        directory, crc = path.partition("/")[0], read_header(self.batches(path)[-1]).crc
        self.change_json(f"{directory}/manifest.json", lambda all_: all_["segments"][-1].update(last_crc=crc))
        self.change_json(CLEAN_FILE, lambda mark: mark[directory].update(last_crc=crc))

    def last_snapshot(self, directory: str) -> str:
        """The newest snapshot of a partition."""
        return max(f"{directory}/{name}" for name in self.files(directory) if name.endswith(".snapshot"))

    def change_snapshot(
        self, path: str, change: Callable[[list[ProducerSnapshot]], list[ProducerSnapshot]]
    ) -> None:
        """Changes what a snapshot says, and its checksum with it, also in the files that name it."""
        data = encode_snapshot(change(decode_snapshot(self.get(path))))
        self.put(path, data)
        directory, _, name = path.partition("/")
        entry = {"offset": int(name[:20]), "checksum": snapshot_checksum(data)}

        def noted(manifest: dict[str, Any]) -> None:
            others = [each for each in manifest["snapshots"] if each["offset"] != entry["offset"]]
            manifest["snapshots"] = [*others, entry]

        def marked(mark: dict[str, dict[str, int]]) -> None:
            if mark[directory]["end_offset"] == entry["offset"]:
                mark[directory]["snapshot"] = entry["checksum"]

        self.change_json(f"{directory}/manifest.json", noted)
        self.change_json(CLEAN_FILE, marked)


def altered(data: bytes, *, sealed: bool = True, **fields: int) -> bytes:
    """A batch with other fields in its header."""
    out = bytearray(data)
    put_header(out, attrs.evolve(read_header(data), **fields))
    if sealed:
        put_header(out, attrs.evolve(read_header(out), crc=crc32c(bytes(out[CRC_START:]))))
    return bytes(out)
