"""`fencepost check` on log directories of Apache Kafka: nothing is wrong with a good one, and every planted
fault is found."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs
import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding, Severity
from fencepost.journal.indexes import decode_snapshot, encode_snapshot
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import NoAccess
from fencepost.protocol.batches import CRC_START, BatchHeader, build_marker, place, read_header, walk
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.terms import TransactionResult
from tests.kafka_directories import NAMES, directory_of
from tests.protocol.headers import put_header

NAME: Final = "02-transactions"
LAST: Final = "audit-0/00000000000000000582"
ABORTS: Final = "audit-0/00000000000000000159"  # a segment with three ABORT markers
PAY: Final = "pay-0/00000000000000000001"
STATES: Final = "__transaction_state-0/00000000000000000000.log"


def found(storage: MemoryStorage) -> list[Finding]:
    return check_directory(storage).found


def content(storage: MemoryStorage, path: str) -> bytearray:
    return bytearray(storage.read_file(path) or b"")


def put(storage: MemoryStorage, path: str, data: bytes | bytearray) -> None:
    storage.replace(path, data, durable=False)


def patched(path: str, layout: str, at: int, value: int) -> Callable[[MemoryStorage], None]:
    """Overwrites a number in a file."""

    def plant(storage: MemoryStorage) -> None:
        data = content(storage, path)
        struct.pack_into(layout, data, at, value)
        put(storage, path, data)

    return plant


def cut(path: str, size: int) -> Callable[[MemoryStorage], None]:
    """Takes bytes from the end of a file."""
    return lambda storage: put(storage, path, content(storage, path)[:-size])


def text(path: str, old: str, new: str) -> Callable[[MemoryStorage], None]:
    """Changes a line of a checkpoint."""
    return lambda storage: put(storage, path, content(storage, path).decode().replace(old, new).encode())


def changed(
    path: str, which: Callable[[BatchHeader], bool], **fields: int
) -> Callable[[MemoryStorage], None]:
    """Changes the header of the first batch that fits, with a new checksum."""

    def plant(storage: MemoryStorage) -> None:
        data = content(storage, path)
        at, header = next((at, header) for at, header in walk(data) if which(header))
        data[at : at + header.size] = sealed(data[at : at + header.size], **fields)
        put(storage, path, data)

    return plant


def sealed(batch: bytearray, **fields: int) -> bytearray:
    """The batch with other fields in its header, and with its checksum."""
    put_header(batch, attrs.evolve(read_header(batch), **fields))
    put_header(batch, attrs.evolve(read_header(batch), crc=crc32c(batch[CRC_START:])))
    return batch


def without(path: str, which: Callable[[BatchHeader], bool]) -> Callable[[MemoryStorage], None]:
    """Takes the first batch that fits out of a log, as if compaction had removed it."""

    def plant(storage: MemoryStorage) -> None:
        data = content(storage, path)
        at, header = next((at, header) for at, header in walk(data) if which(header))
        put(storage, path, data[:at] + data[at + header.size :])

    return plant


def turned(storage: MemoryStorage) -> None:
    """A COMMIT marker becomes an ABORT marker."""
    path = f"{PAY}.log"
    data = content(storage, path)
    for at, header in walk(data):
        if header.is_control and header.size == 78 and data[at + 61 + 8] == int(TransactionResult.COMMIT):
            marker = build_marker(
                TransactionResult.ABORT,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=0,
                timestamp=header.max_timestamp,
            )
            place(marker, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
            data[at : at + header.size] = marker
            break
    put(storage, path, data)


def remembered_wrong(storage: MemoryStorage) -> None:
    path = f"{ABORTS}.snapshot"
    first, *others = decode_snapshot(bytes(content(storage, path)))
    put(storage, path, encode_snapshot([first._replace(last_sequence=77), *others]))


def forgotten(storage: MemoryStorage) -> None:
    """The snapshot of the end no longer knows the producer with the open transaction."""
    path = "audit-0/00000000000000000625.snapshot"
    known = decode_snapshot(bytes(content(storage, path)))
    put(storage, path, encode_snapshot([each for each in known if each.first_offset < 0]))


def is_data(header: BatchHeader) -> bool:
    return header.is_transactional and not header.is_control and header.base_sequence > 0


@attrs.frozen
class Fault:
    """What is damaged, and the finding that must be there."""

    name: str
    plant: Callable[[MemoryStorage], None]
    file: str
    says: str


def renamed(name: str, to: str) -> Callable[[MemoryStorage], None]:
    """Gives a partition's directory the name of another one."""

    def plant(storage: MemoryStorage) -> None:
        if to in storage.directories():
            storage.remove_directory(to)
        storage.rename_directory(name, to)

    return plant


FAULTS = [
    Fault("a directory of another topic", renamed("pay-0", "audit-0"), "audit-0", "has topic id"),
    Fault("a partition that is not there", renamed("pay-0", "pay-7"), "pay-7", "has no partition 7 of pay"),
    Fault("a bit is flipped", patched(f"{LAST}.log", ">B", 100, 0xFF), f"{LAST}.log", "checksum"),
    Fault("the end is torn after a stop", cut(f"{LAST}.log", 5), f"{LAST}.log", "not a complete batch"),
    Fault(
        "an offset comes twice",
        changed("audit-0/00000000000000000025.log", lambda header: header.base_offset > 30, base_offset=25),
        "audit-0/00000000000000000025.log",
        "a batch begins at offset 25 where",
    ),
    Fault(
        "a sequence is left out",
        changed(f"{LAST}.log", is_data, base_sequence=9_000),
        f"{LAST}.log",
        "sequence 9000 where",
    ),
    Fault(
        "an index points elsewhere",
        patched(f"{PAY}.index", ">I", 4, 77),
        f"{PAY}.index",
        "entry 0 is OffsetEntry",
    ),
    Fault(
        "an index names another offset",
        patched(f"{PAY}.index", ">I", 8, 2),
        f"{PAY}.index",
        "entry 1 is OffsetEntry",
    ),
    Fault(
        "a time index lies",
        patched(f"{PAY}.timeindex", ">q", 0, 77),
        f"{PAY}.timeindex",
        "entry 0 is TimeEntry",
    ),
    Fault(
        "a time index ends early", cut(f"{PAY}.timeindex", 12), f"{PAY}.timeindex", "the newest timestamp is"
    ),
    Fault(
        "an abort is not indexed",
        lambda at: at.remove(f"{ABORTS}.txnindex"),
        f"{ABORTS}.txnindex",
        "3 of 3 entries",
    ),
    Fault(
        "an index of aborts lies",
        patched(f"{ABORTS}.txnindex", ">q", 10, 12),
        f"{ABORTS}.txnindex",
        "entry 0 is",
    ),
    Fault("a producer is remembered wrong", remembered_wrong, f"{ABORTS}.snapshot", "last_sequence 77"),
    Fault(
        "an open transaction is forgotten", forgotten, "audit-0/00000000000000000625.snapshot", "is missing"
    ),
    Fault("a marker says the opposite", turned, f"{PAY}.log", "decided COMMIT"),
    Fault(
        "a high watermark is beyond the log",
        text("replication-offset-checkpoint", "audit 0 625", "audit 0 626"),
        "replication-offset-checkpoint",
        "626 of audit-0, whose log ends at 625",
    ),
    Fault(
        "leader epochs are of another log",
        text("audit-0/leader-epoch-checkpoint", "0 0", "3 0"),
        "audit-0/leader-epoch-checkpoint",
        "leader epoch 3 at offset 0",
    ),
    Fault(
        "records of the coordinator are damaged",
        lambda at: put(at, STATES, _unreadable(content(at, STATES))),
        STATES,
        "unreadable records",
    ),
]


def _unreadable(data: bytearray) -> bytearray:
    header = next(header for _, header in walk(data))
    batch = data[: header.size]
    batch[61 : header.size] = b"\xff" * (header.size - 61)
    return sealed(batch) + data[header.size :]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_a_good_directory(name: str) -> None:
    findings = check_directory(directory_of(name))
    assert findings.found == []
    assert findings.batches > 100


def test_transactions_are_compared_with_markers() -> None:
    assert check_directory(directory_of(NAME)).transactional_ids == 5


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    storage = directory_of(NAME)
    fault.plant(storage)
    problems = [each for each in found(storage) if each.severity is Severity.PROBLEM]
    assert [each for each in problems if each.file == fault.file and fault.says in each.what], problems


def test_a_partition_that_cannot_be_read_is_a_problem_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(storage: MemoryStorage, directory: str) -> dict[str, int]:
        if directory == "pay-1":
            raise NoAccess("cannot list pay-1: Permission denied")
        return original(storage, directory)

    original = MemoryStorage.files
    monkeypatch.setattr(MemoryStorage, "files", files)
    storage = directory_of("02-transactions")
    cut(f"audit-0/{0:020d}.log", 5)(storage)
    problems = {each.file: each.what for each in found(storage) if each.severity is Severity.PROBLEM}
    assert problems["pay-1"] == "cannot list pay-1: Permission denied"
    assert f"audit-0/{0:020d}.log" in problems, "the check went on"


def test_gaps_of_a_compaction_are_no_problem() -> None:
    storage = directory_of("01-plain")
    for name in storage.files("codecs-0"):
        if name.endswith(("index", "snapshot")):
            storage.remove(f"codecs-0/{name}")
    without(f"codecs-0/{0:020d}.log", lambda header: header.base_offset > 20)(storage)
    assert {each.severity for each in found(storage)} == {Severity.PROBLEM}  # the indexes are missing
    assert {each.what for each in found(storage)} == {"the index is missing"}


def test_a_broker_that_was_not_stopped_is_no_problem() -> None:
    """Logs of different moments: the last decision of a transaction may be in one of them only."""
    storage = directory_of(NAME)
    storage.remove(".kafka_cleanshutdown")
    put(storage, STATES, b"")
    put(storage, "__transaction_state-1/00000000000000000000.log", b"")
    cut(f"{LAST}.log", 5)(storage)
    for kind in ("index", "timeindex"):
        put(storage, f"{LAST}.{kind}", content(storage, f"{LAST}.{kind}") + bytes(1_200))
    findings = found(storage)
    assert {each.severity for each in findings} == {Severity.NOTE}
    assert "transactions were not compared with markers" in findings[-1].means


def test_another_brokers_coordinators_are_not_missed() -> None:
    storage = directory_of(NAME)
    storage.remove_directory("__transaction_state-0")
    assert [each for each in found(storage) if each.severity is Severity.PROBLEM] == []


def test_a_follower_may_have_indexed_an_abort_with_a_later_stable_offset() -> None:
    """Its first entry has the stable offset at byte 26, after version, producer id and two offsets."""
    storage = directory_of(NAME)
    (right,) = struct.unpack_from(">q", content(storage, f"{ABORTS}.txnindex"), 26)
    for stable, problems in ((right + 3, 0), (right - 1, 1), (right + 1_000_000, 1)):
        patched(f"{ABORTS}.txnindex", ">q", 26, stable)(storage)
        wrong = [each for each in found(storage) if each.severity is Severity.PROBLEM]
        assert len(wrong) == problems, wrong


@pytest.mark.parametrize(("entry", "is_compacted", "count"), [(0, False, 1), (0, True, 0), (1, True, 1)])
def test_an_abort_without_records_may_be_missing_only_after_a_compaction(
    entry: int, is_compacted: bool, count: int
) -> None:
    """Kafka's cleaner writes no entry for a transaction of which it leaves no batch. The first entry here is
    of one that has only its marker in the log, which begins with this segment.
    """
    storage = directory_of(NAME)
    for name in storage.files("audit-0"):
        if name[0] == "0" and f"audit-0/{name}" < ABORTS:
            storage.remove(f"audit-0/{name}")
    if is_compacted:
        without(f"{ABORTS}.log", lambda header: header.base_offset > 201)(storage)
    index = content(storage, f"{ABORTS}.txnindex")
    size = len(index) // 3
    put(storage, f"{ABORTS}.txnindex", index[: entry * size] + index[(entry + 1) * size :])
    assert [each.file for each in found(storage)].count(f"{ABORTS}.txnindex") == count
