"""The data directory: one owner, no strangers, and a mark that never promises too much."""

import errno
import os
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.journal.catalogue import Catalogue
from fencepost.journal.data_directory import (
    META_FILE,
    META_VERSION,
    DataDirectory,
    check_data_directory,
    partitions_in,
)
from fencepost.journal.disk import LOCK_FILE, DiskStorage
from fencepost.journal.manifest import (
    CLEAN_FILE,
    MANIFEST_FILE,
    ManifestState,
    decode_clean_mark,
    encode_json,
)
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import (
    DamagedLog,
    DirectoryInUse,
    NotADataDirectory,
    StorageError,
    directory_name,
    parse_directory_name,
)
from fencepost.protocol.terms import NO_TOPIC_ID, TOPIC_NAME_LENGTH_MAX, TopicPartition, topic_name_problem
from tests.journal.logs import ORDERS, Writer, files_of, flip

PAYMENTS = TopicPartition("payments", 0)

LEGAL = string.ascii_letters + string.digits + "._-"
OTHERS = TopicPartition("others", 3)


@given(st.text(LEGAL, min_size=1, max_size=TOPIC_NAME_LENGTH_MAX), st.integers(0, 99_999))
def test_every_legal_topic_has_a_directory_and_comes_back(topic: str, number: int) -> None:
    partition = TopicPartition(topic, number)
    if topic_name_problem(topic) is None:
        assert parse_directory_name(directory_name(partition)) == partition
        assert len(directory_name(partition)) <= 255, "what a file system takes as a name"


@given(st.text(max_size=12) | st.text(LEGAL + "/\\ ٣", max_size=6))
def test_no_other_directory_is_taken_for_a_partition(name: str) -> None:
    partition = parse_directory_name(name)
    assert partition is None or directory_name(partition) == name


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-01",
        "orders--",
        "orders-+1",
        "..-0",
        ".deleted",
        "orders-2147483648",
    ],
)
def test_names_that_are_no_partition(name: str) -> None:
    assert parse_directory_name(name) is None


@pytest.mark.parametrize(
    "partition", [TopicPartition("a/b", 0), TopicPartition("", 0), TopicPartition("a", -1)]
)
def test_a_topic_that_nobody_could_make_is_our_bug(partition: TopicPartition) -> None:
    with pytest.raises(AssertionError, match="a journal for"):
        directory_name(partition)


def test_topics_of_all_kinds_on_a_real_disk(tmp_path: Path) -> None:
    topics = [
        "a",
        "-",
        "--",
        "...",
        "a-b.c_D-0",
        ".lock",
        "x" * TOPIC_NAME_LENGTH_MAX,
        "meta.json",
        "__cluster_metadata",
    ]
    partitions = sorted(TopicPartition(topic, number) for topic in topics for number in (0, 12_345))
    data = DataDirectory.open(DiskStorage(tmp_path))
    for partition in partitions:
        Writer(data.journal(partition)).plain()
    assert data.partitions() == partitions
    data.close()
    data = DataDirectory.open(DiskStorage(tmp_path))
    assert [data.journal(partition).log_end_offset for partition in data.partitions()] == [1] * len(
        partitions
    )
    data.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    data = DataDirectory.open(DiskStorage(tmp_path))
    for _ in range(2):
        with pytest.raises(
            DirectoryInUse, match=rf"is in use by a broker \(process {os.getpid()}\): stop it"
        ):
            DataDirectory.open(DiskStorage(tmp_path))
    data.close()
    DataDirectory.open(DiskStorage(tmp_path)).close()


def test_a_directory_has_one_owner_among_processes_and_a_dead_one_is_none(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom fencepost.journal.data_directory import DataDirectory\n"
        "from fencepost.journal.disk import DiskStorage\n"
        "DataDirectory.open(DiskStorage(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse, match=str(owner.pid)):
            DataDirectory.open(DiskStorage(tmp_path))
        owner.kill()
    DataDirectory.open(DiskStorage(tmp_path)).close()


@pytest.mark.parametrize("way", ["data", "link", "moved"])
def test_whoever_removes_the_lock_file_lets_nobody_in(tmp_path: Path, way: str) -> None:
    path = tmp_path / "data"
    data = DataDirectory.open(DiskStorage(path))
    (path / LOCK_FILE).unlink()
    if way == "link":
        (tmp_path / way).symlink_to(path)
    else:
        path.rename(tmp_path / way)
    for enter in (DiskStorage.lock, DiskStorage.keep_out):
        with pytest.raises(DirectoryInUse, match=r"is in use by a broker \(process unknown\): stop it first"):
            enter(DiskStorage(tmp_path / way))
    assert not (tmp_path / way / LOCK_FILE).exists()
    data.abandon()
    DataDirectory.open(DiskStorage(tmp_path / way)).close()


@pytest.mark.parametrize("has_lock_file", [True, False])
def test_tools_read_together_and_keep_a_broker_out(tmp_path: Path, *, has_lock_file: bool) -> None:
    DataDirectory.open(DiskStorage(tmp_path)).close()
    if not has_lock_file:
        (tmp_path / LOCK_FILE).unlink()
    tools = [DiskStorage(tmp_path, read_only=True) for _ in range(2)]
    for tool in tools:
        tool.keep_out()
    for tool in tools:
        with pytest.raises(DirectoryInUse, match=r"`fencepost repair` reads .*: wait until it has ended"):
            DataDirectory.open(DiskStorage(tmp_path))
        tool.unlock()
    DataDirectory.open(DiskStorage(tmp_path)).close()


def test_a_lock_that_the_file_system_refuses_is_no_other_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    for enter in (DiskStorage.lock, DiskStorage.keep_out):
        with pytest.raises(StorageError, match=r"^cannot lock .*: No locks available$"):
            enter(DiskStorage(tmp_path))


def test_two_owners_in_memory_are_refused_too() -> None:
    storage = MemoryStorage()
    DataDirectory.open(storage)
    with pytest.raises(DirectoryInUse):
        DataDirectory.open(storage)


def test_the_cluster_id_is_given_once() -> None:
    storage = MemoryStorage()
    DataDirectory.open(storage, cluster_id="first").close()
    data = DataDirectory.open(storage, cluster_id="second")
    assert data.cluster_id == "first"
    assert check_data_directory(storage) == "first"


def test_a_directory_of_somebody_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(NotADataDirectory, match=r"thesis\.txt.*give an empty or a new directory"):
        DataDirectory.open(DiskStorage(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("way", ["orders-9", "orders-9/deeper", "other/../orders-9", "link/orders-9"])
def test_no_directory_begins_inside_another_one(tmp_path: Path, way: str) -> None:
    """The broker of the outer one would take `orders-9` for a log."""
    outer = tmp_path / "data"
    DataDirectory.open(DiskStorage(outer)).close()
    (tmp_path / "data" / "other").mkdir()
    (tmp_path / "data" / "link").symlink_to(outer)
    before = sorted(outer.rglob("*"))
    with pytest.raises(NotADataDirectory, match=f"lies in the data directory {outer}"):
        DataDirectory.open(DiskStorage(outer / way))
    assert sorted(outer.rglob("*")) == before


@pytest.mark.parametrize(
    "way", ["data/orders-9", "data/orders-9/deeper", "mine", "mine/deeper", "data/../mine"]
)
def test_a_link_in_a_data_directory_leads_to_no_other_one(tmp_path: Path, way: str) -> None:
    """An operator puts a partition on another disk in this way, so the broker of the first one follows it."""
    (tmp_path / "disk").mkdir()
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()
    (tmp_path / "data" / "orders-9").symlink_to("../disk")
    (tmp_path / "mine").symlink_to("data/orders-9")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotADataDirectory, match=f"lies in the data directory {tmp_path}/data, which"):
        DataDirectory.open(DiskStorage(f"{tmp_path}/{way}"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_beside_the_target_of_a_link_is_no_part_of_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "disk").mkdir(parents=True)
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()
    (tmp_path / "data" / "orders-9").symlink_to(tmp_path / "elsewhere" / "disk")
    DataDirectory.open(DiskStorage(f"{tmp_path}/data/orders-9/../more")).close()
    assert META_FILE in os.listdir(tmp_path / "elsewhere" / "more")


def test_a_new_directory_lists_no_directory_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million files in them."""
    listed, scan = list[str](), os.scandir

    def watched(path: str) -> object:
        listed.append(path)
        return scan(path)

    monkeypatch.setattr("os.scandir", watched)
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()
    assert listed
    assert [path for path in listed if not path.startswith(f"{tmp_path}/data")] == []


def test_what_was_begun_inside_another_directory_can_still_be_opened(tmp_path: Path) -> None:
    """It is refused only where it would begin."""
    for name in ("data", "inner"):
        DataDirectory.open(DiskStorage(tmp_path / name)).close()
    inner = (tmp_path / "inner").rename(tmp_path / "data" / "inner")
    DataDirectory.open(DiskStorage(inner)).close()


def test_a_large_file_of_the_same_name_above_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / META_FILE).open("wb") as file:
        file.truncate(1 << 40)  # of which the disk stores nothing
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()


def test_a_path_through_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="Too many levels of symbolic links"):
        DataDirectory.open(DiskStorage(tmp_path / "loop" / "data"))


def test_a_file_of_somebody_else_above_does_not_keep_a_directory_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / META_FILE).write_text('{"name": "my project"}')
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()
    monkeypatch.chdir(tmp_path / "data")
    DataDirectory.open(DiskStorage("../more")).close()


def test_an_empty_file_system_is_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / f"{META_FILE}.tmp").touch()
    DataDirectory.open(DiskStorage(tmp_path)).close()
    assert partitions_in(DiskStorage(tmp_path)) == []


def test_a_reader_is_told_when_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match=r"has no meta\.json\): give the directory"):
        check_data_directory(DiskStorage(tmp_path, read_only=True))
    with pytest.raises(NotADataDirectory, match=r"^there is no directory .*/nothing: give the directory"):
        check_data_directory(DiskStorage(tmp_path / "nothing", read_only=True))
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").touch()
    for open_it in (check_data_directory, DataDirectory.open):
        with pytest.raises(NotADataDirectory, match="is not a directory"):
            open_it(DiskStorage(tmp_path / "file"))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"format": 1, "cluster_id": "x"}', b'{"format": 3}', b"[1]"]
)
def test_a_log_of_another_version_is_refused(content: bytes) -> None:
    storage = MemoryStorage()
    storage.replace(META_FILE, content, durable=True)
    for open_it in (check_data_directory, DataDirectory.open):
        with pytest.raises(NotADataDirectory, match="cannot read"):
            open_it(storage)
    content = encode_json({"format": META_VERSION, "cluster_id": "x"}, place=META_FILE)
    storage.replace(META_FILE, content, durable=True)
    DataDirectory.open(storage).close()  # the refusals left no lock behind


def damaged_log(storage: MemoryStorage) -> None:
    """Alters a byte under a checksum, which only a start that reads the log can see."""
    (log,) = files_of(storage, "log")
    flip(storage, log, -1)


def is_found(storage: MemoryStorage) -> bool:
    """Whether a start finds the damage: it refuses a log that was synced, and cuts one that was not."""
    data = DataDirectory.open(storage)
    try:
        return data.journal(ORDERS).log_end_offset == 0
    except DamagedLog:
        return True
    finally:
        data.abandon()


def test_after_a_clean_shutdown_logs_are_not_read_again() -> None:
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    assert storage.read_file(CLEAN_FILE) is not None
    damaged_log(storage)
    assert not is_found(storage), "the log is trusted"
    assert storage.read_file(CLEAN_FILE) is None
    assert is_found(storage), "that was no clean shutdown"


def test_a_mark_names_what_was_not_opened_since_it_was_whole() -> None:
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    DataDirectory.open(storage).close()  # opened and closed without touching the partition
    damaged_log(storage)
    assert not is_found(storage)


def test_a_mark_does_not_bless_what_a_crash_left() -> None:
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.abandon()
    data = DataDirectory.open(storage)
    Writer(data.journal(OTHERS)).plain()
    data.close()
    damaged_log(storage)
    assert is_found(storage)


def test_a_mark_whose_removal_was_not_synced_once_does_not_come_back() -> None:
    broken = set[str]()
    storage = SimulatedStorage(lambda _most: 0, breaks=lambda _operation, path: path in broken)
    data = DataDirectory.open(storage)
    journal = data.journal(ORDERS)
    Writer(journal).plain()
    journal.sync()
    state = ManifestState(last_stable_offset=1, high_watermark=1)
    journal.write_manifest(state)
    data.close({ORDERS: (state, ())})
    broken.add("")
    with pytest.raises(StorageError, match="cannot sync"):
        DataDirectory.open(storage)
    broken.clear()
    journal = DataDirectory.open(storage).journal(ORDERS)
    Writer(journal).plain()
    assert journal.sync() == 2
    storage.lose_power()
    assert DataDirectory.open(storage).journal(ORDERS).log_end_offset == 2


def test_a_mark_keeps_what_it_says_of_a_log_that_is_refused() -> None:
    """Also for a start after a loss of power, when the manifest promises less than the mark."""
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    mark = storage.read_file(CLEAN_FILE)
    (log,) = files_of(storage, "log")
    storage.open(log).truncate(storage.files(str(ORDERS))[log.rpartition("/")[2]] - 1)
    for _ in range(3):
        data = DataDirectory.open(storage)
        for _ in range(2):
            with pytest.raises(DamagedLog, match="The record at offset 0 is at stake"):
                data.journal(ORDERS)
        data.close()
        assert storage.read_file(CLEAN_FILE) == mark


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_mark_forgets_a_refused_log_that_is_deleted_or_set_aside(*, is_deleted: bool) -> None:
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    storage.remove_directory(str(ORDERS))
    data = DataDirectory.open(storage)
    with pytest.raises(DamagedLog, match="its files are gone"):
        data.journal(ORDERS)
    if is_deleted:
        data.delete(ORDERS, NO_TOPIC_ID)
    else:
        data.set_aside(ORDERS)
    data.close()
    data = DataDirectory.open(storage)
    assert data.journal(ORDERS).log_end_offset == 0
    data.close()


@pytest.mark.parametrize("how", ["given up", "stopped", "killed", "replaced by an older copy"])
def test_the_end_of_a_log_that_was_removed_stays_known(tmp_path: Path, how: str) -> None:
    """Otherwise a repair would assign its offsets again."""
    data = DataDirectory.open(DiskStorage(tmp_path))
    for partition in (ORDERS, PAYMENTS):
        writer = Writer(data.journal(partition))
        writer.plain()
        writer.journal.sync()
        if partition == ORDERS:
            shutil.copytree(tmp_path / str(ORDERS), tmp_path / "older")
        writer.plain()
    shutil.rmtree(tmp_path / str(ORDERS))
    if how == "replaced by an older copy":
        (tmp_path / "older").rename(tmp_path / str(ORDERS))
    if how == "stopped":
        with pytest.raises(StorageError, match="orders-0"):
            data.close()
    else:
        data.give_up(ORDERS)
        data.abandon() if how == "killed" else data.close()
    for _ in range(2):
        mark = decode_clean_mark((tmp_path / CLEAN_FILE).read_bytes())
        assert mark[str(ORDERS)].end_offset == 2
        assert how == "killed" or mark[str(PAYMENTS)].end_offset == 2, "the other log was closed completely"
        data = DataDirectory.open(DiskStorage(tmp_path))
        with pytest.raises(DamagedLog, match="orders-0: "):
            data.journal(ORDERS)
        assert data.journal(PAYMENTS).log_end_offset == 2
        data.close()


class Busy(MemoryStorage):
    """It can refuse to list the files of a partition."""

    is_busy = False

    def files(self, directory: str) -> dict[str, int]:
        if self.is_busy and directory:
            raise StorageError("too many open files")
        return super().files(directory)


def test_a_log_that_could_not_be_opened_once_is_still_held_to_its_mark() -> None:
    storage = Busy()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    (log,) = files_of(storage, "log")
    storage.open(log).truncate(storage.files(str(ORDERS))[log.rpartition("/")[2]] - 1)
    data = DataDirectory.open(storage)
    storage.is_busy = True
    with pytest.raises(StorageError, match="too many open files"):
        data.journal(ORDERS)
    storage.is_busy = False
    with pytest.raises(DamagedLog, match="The record at offset 0 is at stake"):
        data.journal(ORDERS)
    data.abandon()


def closed_with_two_logs() -> tuple[MemoryStorage, bytes]:
    """A data directory that was closed cleanly, and its mark. The log of ORDERS has lost its last byte."""
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    for partition in (ORDERS, PAYMENTS):
        Writer(data.journal(partition)).plain()
    data.close()
    (log,) = [path for path in files_of(storage, "log") if path.startswith(f"{ORDERS}/")]
    storage.open(log).truncate(storage.files(str(ORDERS))[log.rpartition("/")[2]] - 1)
    storage.boot_id = "after a loss of power"  # the manifest proves only what was synced
    storage.remove(f"{ORDERS}/{MANIFEST_FILE}")
    return storage, storage.read_file(CLEAN_FILE) or b""


def killed_after_a_refusal(storage: MemoryStorage) -> DataDirectory:
    """A start that refuses the log of ORDERS."""
    data = DataDirectory.open(storage)
    with pytest.raises(DamagedLog, match="The record at offset 0 is at stake"):
        data.journal(ORDERS)
    return data


def test_a_start_whose_first_log_is_refused_leaves_the_mark_as_it_was() -> None:
    storage, mark = closed_with_two_logs()
    for _ in range(3):
        killed_after_a_refusal(storage).abandon()
        assert storage.read_file(CLEAN_FILE) == mark


@pytest.mark.parametrize("first", [ORDERS, PAYMENTS])
def test_a_killed_broker_leaves_the_mark_of_a_log_that_it_refused(first: TopicPartition) -> None:
    storage, _ = closed_with_two_logs()
    for _ in range(3):
        data = DataDirectory.open(storage)
        if first == PAYMENTS:
            Writer(data.journal(PAYMENTS)).plain()
        with pytest.raises(DamagedLog):
            data.journal(ORDERS)
        Writer(data.journal(PAYMENTS)).plain()
        assert [*decode_clean_mark(storage.read_file(CLEAN_FILE) or b"")] == [str(ORDERS)]
        data.abandon()
    data = DataDirectory.open(storage)
    assert data.journal(PAYMENTS).log_end_offset == (6 if first == PAYMENTS else 3) + 1
    data.abandon()


def test_a_refused_log_that_is_deleted_has_no_mark() -> None:
    storage, _ = closed_with_two_logs()
    data = killed_after_a_refusal(storage)
    data.journal(PAYMENTS)
    data.delete(ORDERS, NO_TOPIC_ID)
    assert storage.read_file(CLEAN_FILE) is None
    Writer(data.journal(ORDERS)).plain(2)
    data.abandon()
    data = DataDirectory.open(storage)
    assert data.journal(ORDERS).log_end_offset == 2
    data.abandon()


def test_a_refused_log_that_is_whole_again_has_no_mark() -> None:
    storage, _ = closed_with_two_logs()
    (log,) = [path for path in files_of(storage, "log") if path.startswith(f"{ORDERS}/")]
    data = killed_after_a_refusal(storage)
    whole = bytearray(storage.read_file(f"{PAYMENTS}/{log.rpartition('/')[2]}") or b"")
    storage.replace(log, whole, durable=True)
    Writer(data.journal(ORDERS)).plain()
    assert storage.read_file(CLEAN_FILE) is None
    data.abandon()
    data = DataDirectory.open(storage)
    assert data.journal(ORDERS).log_end_offset == 2
    data.abandon()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 4}', b'{"format": 4, "orders-0": 3}'])
def test_a_mark_without_sense_is_no_mark(content: bytes) -> None:
    storage = MemoryStorage()
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    data.close()
    storage.replace(CLEAN_FILE, content, durable=True)
    damaged_log(storage)
    assert is_found(storage)


class Mortal(MemoryStorage):
    """Its process can die before a directory is removed."""

    dies = False

    def remove_directory(self, name: str) -> None:
        if self.dies and name in self.directories():
            raise StorageError("the process died")
        super().remove_directory(name)


def test_a_partition_is_deleted_also_when_the_process_dies_in_between() -> None:
    storage = Mortal()
    data = DataDirectory.open(storage)
    writer = Writer(data.journal(ORDERS))
    writer.plain()
    data.delete(ORDERS, NO_TOPIC_ID)
    assert data.partitions() == []
    with pytest.raises(StorageError, match="was abandoned"):
        writer.plain()
    Writer(data.journal(ORDERS)).plain()
    storage.dies = True
    with pytest.raises(StorageError, match="died"):
        data.delete(ORDERS, NO_TOPIC_ID)
    assert storage.directories() == [".deleted"]
    storage.dies = False
    data.abandon()
    data = DataDirectory.open(storage)
    assert (data.partitions(), storage.directories()) == ([], [])


def test_giving_up_a_log_reads_again_what_is_there() -> None:
    data = DataDirectory.open(MemoryStorage())
    first = data.journal(ORDERS)
    Writer(first).plain()
    assert data.journal(ORDERS) is first
    data.give_up(ORDERS)
    assert not data.holds(first)
    assert data.has(ORDERS)
    assert not data.has(OTHERS)
    assert data.journal(ORDERS) is not first
    assert data.journal(ORDERS).log_end_offset == 1


def test_a_log_that_is_deleted_during_its_first_sync_is_not_missed() -> None:
    """The sync runs in another thread, and notes its success after the deletion."""
    storage = MemoryStorage()
    catalogue = Catalogue(storage, synced=())
    catalogue.add("orders-0")
    catalogue.remove("orders-0")
    catalogue.mark_synced("orders-0")
    assert "orders-0" not in catalogue
    catalogue.close()
    assert "orders-0" not in Catalogue(storage, synced=())
