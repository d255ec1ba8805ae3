"""The three storages keep the same promises; the real one also for two threads, the simulated one also for a
loss of power."""

import errno
import os
import random
import resource
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.journal.disk import ELSEWHERE, RESERVE_BYTES, DiskStorage
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.simulated import APPEND, SYNC, SimulatedStorage
from fencepost.journal.storage import DirectoryInUse, NoAccess, Storage, StorageError, StorageFile, claimed
from tests.attack.small_disk import small_disk


def keep_all(most: int) -> int:
    return most


def keep_nothing(_most: int) -> int:
    return 0


@pytest.fixture(params=["disk", "memory", "simulated"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: dict[str, Callable[[], Storage]] = {
        "disk": lambda: DiskStorage(tmp_path / "data"),
        "memory": MemoryStorage,
        "simulated": lambda: SimulatedStorage(keep_all),
    }
    opened = made[request.param]()
    opened.lock()
    return opened


def test_files_grow_at_their_end_and_are_cut_there(storage: Storage) -> None:
    storage.make_directory("d")
    storage.make_directory("d")
    file = storage.open("d/log", create=True)
    for data in (b"one", bytearray(b"two"), memoryview(b"three")):
        file.append(data)
    assert (file.size, file.read(0, 100), file.read(3, 3), file.read(11, 5)) == (
        11,
        b"onetwothree",
        b"two",
        b"",
    )
    file.sync()
    file.truncate(4)
    file.append(b"!")
    assert (file.size, file.read(0, 100), storage.read_file("d/log")) == (5, b"onet!", b"onet!")
    file.close()
    file.close()
    file.sync()  # a worker may come late
    assert storage.open("d/log").read(0, 9) == b"onet!"


@pytest.mark.parametrize("lost", ["d/log", "d"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_removed_is_not_in_its_place(tmp_path: Path, lost: str, *, is_replaced: bool) -> None:
    disk, simulated = DiskStorage(tmp_path / "data"), SimulatedStorage(keep_all)
    files: list[StorageFile] = []
    for each in (disk, simulated):
        each.lock()
        each.make_directory("d")
        files.append(each.open("d/log", create=True))
    assert [file.is_in_place() for file in files] == [True, True]
    (tmp_path / "data" / lost).rename(tmp_path / "elsewhere")
    simulated.vanish(lost)
    for each in (disk, simulated) if is_replaced else ():
        each.make_directory("d")
        each.open("d/log", create=True).close()
    for file in files:
        file.append(b"lost")
    assert [file.is_in_place() for file in files] == [False, False]


def test_names(storage: Storage) -> None:
    storage.make_directory("b")
    storage.make_directory("a")
    for name in ("2", "1"):
        storage.replace(f"a/{name}", b"x" * int(name), durable=True)
    storage.replace("a/2", memoryview(b"yyy"), durable=False)
    assert storage.exists()
    assert storage.directories() == ["a", "b"]
    assert storage.files("a") == {"1": 1, "2": 3}
    storage.sync_directory("a")
    storage.sync_directory("")
    storage.remove("a/1")
    storage.remove("a/1")
    storage.rename_directory("a", "c")
    assert (storage.files("a"), storage.files("c"), storage.files("nowhere")) == ({}, {"2": 3}, {})
    assert (storage.read_file("c/2"), storage.read_file("a/2")) == (b"yyy", None)
    storage.remove_directory("c")
    storage.remove_directory("c")
    assert storage.directories() == ["b"]


def test_a_missing_file_is_an_error_in_words(storage: Storage) -> None:
    storage.make_directory("d")
    for path in ("d/log", "nowhere/log"):
        with pytest.raises(StorageError, match=r"d/log|nowhere"):
            storage.open(path)
    with pytest.raises(StorageError):
        storage.open("nowhere/log", create=True)


def test_a_file_that_is_being_replaced_is_never_seen_half(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    storage.replace("file", contents[0], durable=False)
    seen: set[bytes | None] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(storage.read_file("file"))

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(200):
        storage.replace("file", contents[turn % 2], durable=False)
    done.set()
    reader.join()
    assert seen <= set(contents)


def test_syncs_in_one_thread_and_appends_and_closes_in_another(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    for turn in range(50):
        file = storage.open(f"log{turn}", create=True)
        failures: list[StorageError] = []

        def sync_often(file: StorageFile = file, failures: list[StorageError] = failures) -> None:
            try:
                for _ in range(5):
                    file.sync()
            except StorageError as error:
                failures.append(error)

        worker = threading.Thread(target=sync_often)
        worker.start()
        for _ in range(20):
            file.append(b"x" * 1_000)
        file.close()
        worker.join()
        assert failures == []
        assert storage.files("")[f"log{turn}"] == 20_000


def test_a_read_only_disk_is_never_written(tmp_path: Path) -> None:
    DiskStorage(tmp_path).replace("log", b"abc", durable=False)
    file = DiskStorage(tmp_path, read_only=True).open("log")
    assert file.read(0, 3) == b"abc"
    with pytest.raises(StorageError, match="cannot write"):
        file.append(b"d")


def test_a_disk_that_fills_up_takes_a_part_and_then_says_so_in_words(tmp_path: Path) -> None:
    file = DiskStorage(tmp_path).open("log", create=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        file.append(b"x" * 600)
        with pytest.raises(StorageError, match=r"cannot write .*log: File too large"):
            file.append(b"y" * 600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (file.size, file.read(0, 9_999)) == (600, b"x" * 600 + b"y" * 400)


@pytest.mark.trio
async def test_the_last_room_of_a_full_disk_is_for_the_metadata(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "small", "1m") as disk:
        if disk is None:
            return  # not allowed on this system
        storage = DiskStorage(disk.path / "data", reserved_for="metadata-0")
        storage.lock()
        for name in ("orders-0", "metadata-0"):
            storage.make_directory(name)
        orders, metadata = (storage.open(f"{name}/log", create=True) for name in ("orders-0", "metadata-0"))
        with pytest.raises(StorageError, match="No space left on device"):
            orders.append(bytes(1 << 20))
        metadata.append(bytes(RESERVE_BYTES // 2))
        with pytest.raises(StorageError, match="No space left on device"):
            metadata.append(bytes(RESERVE_BYTES))
        metadata.close()
        orders.close()
        storage.unlock()


# --- what a loss of power leaves
# -------------------------------------------------------------------------------


def test_a_file_that_the_disk_takes_only_a_part_of_is_not_replaced(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    storage.replace("small.json", b"old", durable=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot replace"):
            storage.replace("small.json", bytes(1500), durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert storage.read_file("small.json") == b"old"


@pytest.mark.parametrize("content", [b"new", b""])
@pytest.mark.parametrize("can_allocate", [True, False])
@pytest.mark.parametrize("starts_writeback", [True, False])
def test_a_replaced_file_has_its_blocks_before_the_rename_where_the_rename_must_not_write_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    *,
    can_allocate: bool,
    starts_writeback: bool,
) -> None:
    sizes: list[tuple[int, int]] = []  # of the file before, and of what is to be allocated

    def allocate(descriptor: int, _position: int, size: int) -> None:
        sizes.append((os.fstat(descriptor).st_size, size))
        if not can_allocate:
            raise OSError(errno.EOPNOTSUPP, "this file system cannot")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    storage = DiskStorage(tmp_path, starts_writeback=starts_writeback)
    storage.replace("a", b"old", durable=True)
    assert sizes == []
    storage.replace("a", content, durable=False)
    assert storage.read_file("a") == content
    assert sizes == ([(0, 3)] if content and not starts_writeback else [])


def test_a_directory_that_is_a_link_is_removed_with_the_files_it_leads_to(tmp_path: Path) -> None:
    """An operator may keep a partition on another disk; the directory there is the operator's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    storage = DiskStorage(tmp_path / "data")
    storage.lock()
    (tmp_path / "data" / "orders-0").symlink_to(elsewhere)
    storage.open("orders-0/00.log", create=True).append(b"x")
    storage.rename_directory("orders-0", ".deleted")
    storage.remove_directory(".deleted")
    storage.remove_directory(".deleted")
    assert (storage.directories(), list(elsewhere.iterdir())) == ([], [])


def test_what_was_synced_is_there_and_nothing_else_is_sure() -> None:
    storage = SimulatedStorage(keep_nothing)
    storage.make_directory("d")
    file = storage.open("d/log", create=True)
    file.append(b"synced")
    file.sync()
    storage.sync_directory("d")
    storage.sync_directory("")
    file.append(b"lost")
    storage.open("d/other", create=True).append(b"lost with its name")
    storage.lose_power()
    assert storage.files("d") == {"log": 6}
    assert storage.read_file("d/log") == b"synced"


def test_a_synced_file_in_a_directory_that_was_not_is_lost() -> None:
    storage = SimulatedStorage(keep_nothing)
    storage.make_directory("d")
    file = storage.open("d/log", create=True)
    file.append(b"synced")
    file.sync()
    storage.sync_directory("d")
    storage.lose_power()
    assert storage.directories() == []


def test_the_last_write_may_be_torn_as_it_was_or_as_zeros_or_with_zeros_behind_it() -> None:
    left: set[bytes | None] = set()
    for seed in range(300):
        storage = SimulatedStorage(_chooser(seed))
        storage.replace("log", b"ab", durable=True)
        file = storage.open("log")
        file.append(b"cd")
        file.append(b"ef")
        storage.lose_power()
        left.add(storage.read_file("log"))
    first = {b"ab", b"abc", b"ab\0", b"ab\0\0", b"abc\0", b"abcd"}
    assert left == first | {b"abcde", b"abcd\0", b"abcd\0\0", b"abcde\0", b"abcdef"}


def _chooser(seed: int) -> Callable[[int], int]:
    chance = random.Random(seed)
    return lambda most: chance.randint(0, most)


def test_a_replaced_file_is_the_old_or_the_new_one_when_it_was_synced() -> None:
    for durable, allowed in (
        (True, {b"new"}),
        (False, {b"old", b"", b"n", b"ne", b"new", b"\0", b"\0\0", b"\0\0\0", b"n\0\0", b"ne\0"}),
    ):
        left: set[bytes | None] = set()
        for seed in range(200):
            storage = SimulatedStorage(_chooser(seed))
            storage.replace("file", b"old", durable=True)
            storage.replace("file", b"new", durable=durable)
            storage.lose_power()
            left.add(storage.read_file("file"))
        assert left == allowed


def test_a_claim_keeps_others_out_and_changes_nothing(tmp_path: Path) -> None:
    one, other = DiskStorage(tmp_path / "data"), DiskStorage(tmp_path / "data")
    with claimed(one):
        assert not one.exists(), "a claim does not make the directory, so that a start that fails leaves none"
    one.lock()
    one.unlock()
    before = one.files("")
    with claimed(one):
        for take in (other.claim, other.lock, other.keep_out):
            with pytest.raises(DirectoryInUse, match="is in use by a broker"):
                take()
        assert one.files("") == before
        one.lock()  # its own claim is not in the way
        with pytest.raises(DirectoryInUse):
            other.claim()
    other.lock()


def test_a_killed_process_loses_its_handles_and_no_bytes() -> None:
    storage = SimulatedStorage(keep_nothing)
    storage.lock()
    file = storage.open("log", create=True)
    file.append(b"written")
    storage.kill()
    for use in (lambda: file.append(b"x"), lambda: file.read(0, 1), file.sync, lambda: file.truncate(0)):
        with pytest.raises(StorageError, match="a process that is dead"):
            use()
    storage.lock()
    assert storage.read_file("log") == b"written"


def test_the_same_choices_leave_the_same_files() -> None:
    def left(seed: int) -> dict[str, bytes | None]:
        storage = SimulatedStorage(_chooser(seed))
        for name in "abcdef":
            storage.open(name, create=True).append(name.encode() * 10)
        storage.lose_power()
        return {name: storage.read_file(name) for name in storage.files("")}

    assert left(3) == left(3)
    assert len({repr(left(seed)) for seed in range(10)}) > 1


def test_a_simulated_disk_breaks_when_it_is_told_to() -> None:
    broken: set[str] = set()
    storage = SimulatedStorage(lambda most: most // 2, breaks=lambda operation, _path: operation in broken)
    file = storage.open("log", create=True)
    broken.add(SYNC)
    for sync in (file.sync, lambda: storage.sync_directory("")):
        with pytest.raises(StorageError, match="cannot sync"):
            sync()
    broken.add(APPEND)
    with pytest.raises(StorageError, match="cannot write"):
        file.append(b"abcd")
    assert storage.read_file("log") == b"ab", "a part was written"


def test_a_file_that_goes_while_its_directory_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker replaces its manifests five times a second."""
    scandir = os.scandir

    @contextmanager
    def listed(path: str) -> Generator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "t-0" / "a").unlink()
        yield found

    (tmp_path / "t-0").mkdir()
    for name in ("a", "b"):
        (tmp_path / "t-0" / name).write_bytes(b"x")
    monkeypatch.setattr(os, "scandir", listed)
    assert DiskStorage(tmp_path, read_only=True).files("t-0") == {"b": 1}


def refused(use: Callable[[], object]) -> str:
    """What the error says. A call that waits for the other end of a pipe is interrupted."""

    def give_up(_number: int, _frame: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(5)
    try:
        with pytest.raises(StorageError) as problem:
            use()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return str(problem.value)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "it is a pipe or a device, not a file; move what is there out of the data directory"),
        (os.mkdir, "Is a directory; move what is there out of the data directory"),
    ],
)
def test_what_is_no_file_is_refused_at_once(make: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    for name in ("log", "json.tmp", ".lock"):
        make(tmp_path / name)
    storage = DiskStorage(tmp_path)
    reader = DiskStorage(tmp_path, read_only=True)
    for use in (
        lambda: storage.open("log"),
        lambda: reader.open("log"),
        lambda: reader.read_file("log"),
        reader.keep_out,
    ):
        assert what in refused(use)
    for use in (storage.lock, lambda: storage.replace("json", b"x", durable=False)):
        assert str(tmp_path) in refused(use)


def test_a_path_through_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(DiskStorage(tmp_path / "file" / "data").lock)
    assert "cannot create the data directory" in said
    assert said.endswith("Not a directory; move what is in its place, or choose another directory")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG])
def test_where_no_directory_can_be_made_the_next_step_is_another_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /proc, or a disk that is mounted read-only."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "makedirs", fails)
    said = refused(DiskStorage(tmp_path / "data").lock)
    assert said == f"cannot create the data directory {tmp_path}/data: {os.strerror(number)}; {ELSEWHERE}"
    monkeypatch.undo()
    monkeypatch.setattr("fencepost.journal.disk._open_file", fails)
    said = refused(DiskStorage(tmp_path / "data").lock)
    assert said == f"cannot write to the data directory {tmp_path}/data: {os.strerror(number)}; {ELSEWHERE}"


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "give the user of this process the right"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "move what is there out"),
    ],
)
def test_what_only_an_operator_can_change_is_told_apart(
    error: OSError, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str) -> None:
        raise error

    monkeypatch.setattr(os, "scandir", refuse)  # permissions do not stop root
    with pytest.raises(NoAccess, match=f"cannot list {tmp_path}/orders-0: {error.strerror}; {then}"):
        DiskStorage(tmp_path).files("orders-0")


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def linked_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("name", ["orders-0", "orders-0/log", ".deleted", "notes"])
@pytest.mark.parametrize("make", [linked_to_itself, linked_to_nothing])
def test_a_link_that_leads_nowhere_hides_no_other_file(
    make: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    for other in ("orders-0", "orders-1"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "json").write_bytes(b"x")
    if name == "orders-0":
        (tmp_path / name).rename(tmp_path / "elsewhere")
    make(tmp_path / name)
    storage = DiskStorage(tmp_path)
    assert {"orders-1"} <= set(storage.directories())
    assert storage.files("orders-1") == {"json": 1}
    if name == "orders-0/log":
        assert storage.files("orders-0") == {"json": 1}
    assert name not in storage.files("")
    storage.remove_directory(".deleted")


@pytest.mark.parametrize("make", [linked_to_itself, linked_to_nothing, Path.touch, os.mkfifo])
def test_what_is_no_directory_is_not_made_one(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "orders-0")
    with pytest.raises(NoAccess, match="orders-0: File exists; move what is there out of the data directory"):
        DiskStorage(tmp_path).make_directory("orders-0")


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    linked_to_itself(tmp_path / "log")
    for use in (lambda: DiskStorage(tmp_path).open("log"), lambda: DiskStorage(tmp_path).read_file("log")):
        with pytest.raises(NoAccess, match="log: Too many levels of symbolic links; move what is there out"):
            use()


def test_a_lock_works_on_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the process is only for a message."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("ftruncate", "pwrite"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)
            storage = DiskStorage(tmp_path)
            storage.lock()
            storage.unlock()
