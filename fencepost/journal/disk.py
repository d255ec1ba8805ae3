"""The real disk: files in one directory, one write per append, reads by position, flock for the owner.

Rule: no other file of journal/ touches the operating system, and every OSError becomes a StorageError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

from fencepost.journal.storage import (
    TEMPORARY_SUFFIX,
    DirectoryInUse,
    MissingFile,
    NoAccess,
    NotADataDirectory,
    StorageError,
)
from fencepost.protocol.batches import Buffer
from fencepost.protocol.forked_process import in_child

LOCK_FILE = ".lock"
RESERVE_FILE = ".reserve"
_URI: Final = re.compile(r"([A-Za-z][\w+.-]+):/")
RESERVE_BYTES: Final = 256 * 1024  # two thousand records of the cluster's metadata
BLOCK_BYTES: Final = 4_096
SYNC_THREADS: Final = 16  # with more, few more syncs would be shared, and each thread may open a file


GIVE_THE_RIGHTS: Final = "give the user of this process the right to read and write it"
ELSEWHERE: Final = "choose another directory"
INSTEAD: Final = ", or use another directory"
MOVE: Final = "move what is there out of the data directory, or restore it from a copy"


@contextmanager
def _storage_errors(doing: str, *, blocked: str = MOVE, then: str = "") -> Generator[None]:
    """Turns an OSError into a StorageError that says what failed, and what to do about it: `blocked` if
    something else is in the place of the file, `then` if neither a permission nor another file is the cause.
    """
    try:
        yield
    except OSError as error:
        problem = f"cannot {doing}: {error.strerror or error}"
        otherwise = f"{problem}; {then}" if then else problem
        match error:
            case FileNotFoundError():
                raise MissingFile(otherwise) from error
            case PermissionError():
                raise NoAccess(f"{problem}; {GIVE_THE_RIGHTS}") from error
            case (
                NotADirectoryError()
                | IsADirectoryError()
                | FileExistsError()
                | OSError(errno=errno.ELOOP | errno.ENXIO)  # a link to itself, a pipe that nobody reads
            ):
                raise NoAccess(f"{problem}; {blocked}") from error
            case _:
                raise StorageError(otherwise) from error


def _open_file(path: str, flags: int) -> int:
    """The descriptor of a regular file. OSError for anything else: opening a pipe would wait for its other
    end.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    found = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is a pipe or a device, not a file"
    raise IsADirectoryError(errno.EISDIR, found)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # on macOS, fsync does not flush the drive's cache
    else:
        os.fdatasync(descriptor)  # fdatasync does write the file size, which reads need


def _allocate(descriptor: int, size: int) -> None:
    """Allocate the blocks of a file before its content is written, so that no rename has to do it."""
    if sys.platform == "linux" and size:
        # Not every file system can do this. If the disk is full, the write that follows fails.
        with suppress(OSError):
            os.posix_fallocate(descriptor, 0, size)


def _ancestors(path: str) -> Iterator[str]:
    """Every directory above an absolute path, and above the targets of the links in it."""
    waiting, seen = [path], set[str]()
    while waiting:
        path = waiting.pop()
        parent, name = os.path.split(path)
        if path in seen or parent == path:
            continue
        seen.add(path)
        if name == os.pardir:  # above the directory that a link leads to, not above the link
            waiting.append(os.path.realpath(path))
        elif name in ("", os.curdir):
            waiting.append(parent)
        else:
            yield os.path.realpath(parent)
            waiting.append(parent)
            with _storage_errors(f"follow {path}"):
                if os.path.islink(path):
                    waiting.append(os.path.join(parent, os.readlink(path)))


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # not Linux: then only synced bytes count as promised
        return ""


def _no_room() -> bool:
    return False


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """None if the file has gone since it was listed: a running broker replaces and removes files."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return None


def _is(kind: Callable[[], bool]) -> bool:
    """Whether a directory entry is of this kind; False for a link that leads to itself."""
    try:
        return kind()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def uri_scheme(location: str) -> str | None:
    """The scheme of a URI, also of one that `Path` has shortened; None for a path. No error repeats the rest,
    since it may contain credentials.
    """
    found = _URI.match(location)
    return None if found is None else found[1]


class DiskFile:
    """An open descriptor. Every read names its position, so that readers and the writer share no file
    position.
    """

    __slots__ = ("_closing", "_descriptor", "_identity", "_make_room", "_path", "_size")

    def __init__(
        self, path: str, *, create: bool, read_only: bool, make_room: Callable[[], bool] = _no_room
    ) -> None:
        """`make_room` is called when the disk is full; it returns whether there is more room now."""
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        with _storage_errors(f"open {path}"):
            self._descriptor = _open_file(path, flags)
            found = os.fstat(self._descriptor)
        self._size = found.st_size
        self._identity = (found.st_dev, found.st_ino)
        self._path = path
        self._make_room = make_room
        self._closing = threading.Lock()  # a worker may sync the file while the event loop closes it

    @property
    def size(self) -> int:
        return self._size

    # `append` and `read` spell out `_storage_errors`: they run for every batch, and a generator as a context
    # manager costs a microsecond or more.
    def append(self, data: Buffer) -> None:
        written, size = 0, len(data)
        while written < size:
            try:
                # A disk that fills up writes a part, and refuses the rest at the next call.
                written += os.write(self._descriptor, memoryview(data)[written:] if written else data)
            except OSError as error:
                if not (error.errno == errno.ENOSPC and self._make_room()):
                    raise StorageError(f"cannot write {self._path}: {error.strerror or error}") from error
        self._size += written

    def read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            # POSIX lets pread return less than was asked for. Only an empty result is the end of the file.
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size and (data := os.pread(self._descriptor, size - got, position + got)):
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror or error}") from error
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        with _storage_errors(f"truncate {self._path}"):
            os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        # `close` waits for the sync. Otherwise it could free the descriptor between the check and the sync,
        # and the system could give its number to another file.
        with _storage_errors(f"sync {self._path}"), self._closing:
            if self._descriptor >= 0:
                _sync(self._descriptor)
                return
            # The file was closed meanwhile. A sync is of the file, so a new descriptor serves as well.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _sync(descriptor)
            finally:
                os.close(descriptor)

    def is_in_place(self) -> bool:
        with _storage_errors(f"examine {self._path}"):
            try:
                found = os.stat(self._path)
            except FileNotFoundError:
                return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        with _storage_errors(f"close {self._path}"), self._closing:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)


class DiskStorage:
    """A data directory on the real disk. Nothing is created before `lock`, so that a wrong path stays as it
    is.

    `read_only` opens files for reading only, which works on a read-only mount, too.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        read_only: bool = False,
        reserved_for: str | None = None,
        starts_writeback: bool = True,
    ) -> None:
        """`reserved_for`: the directory whose files may use the last RESERVE_BYTES of a full disk.

        `starts_writeback`: when `replace` returns, the file system has begun to write the new file, even if
        it need not be durable (ext4: auto_da_alloc). Otherwise a loss of power can leave a file that is empty
        or full of zeros in its place, but a rename takes a tenth of a millisecond instead of one or more.
        """
        self._starts_writeback = starts_writeback
        self._reserved_for = reserved_for
        self.location = os.fspath(directory)
        self.boot_id = _boot_id()
        self._read_only = read_only
        self._locks: list[int] = []

    def parents(self) -> Iterator[DiskStorage]:
        for path in dict.fromkeys(_ancestors(os.path.join(os.getcwd(), self.location))):
            yield DiskStorage(path, read_only=True)

    def claim(self) -> None:
        try:
            self._lock_directory(fcntl.LOCK_EX, instead=INSTEAD)
        except NotADataDirectory:
            return  # `lock` creates it, or says what is in its place
        except BaseException:
            self.unlock()
            raise

    def lock(self) -> None:
        """Create the directory if it is missing, and lock it. The lock belongs to this object, even within
        one process.
        """
        blocked = f"move what is in its place, or {ELSEWHERE}"
        with _storage_errors(f"create the data directory {self.location}", blocked=blocked, then=ELSEWHERE):
            os.makedirs(self.location, exist_ok=True)
        try:
            if not self._locks:
                self._lock_directory(fcntl.LOCK_EX, instead=INSTEAD)
            with _storage_errors(f"write to the data directory {self.location}", then=ELSEWHERE):
                descriptor = _open_file(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT)
            self._lock(descriptor, fcntl.LOCK_EX, instead=INSTEAD)
        except BaseException:
            self.unlock()
            raise
        # Only the message to a second broker uses this number, so a full disk may refuse it. The lock is
        # flock's, which ends with the process, so a crash leaves no stale lock.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        if self._reserved_for is not None:
            self._reserve()

    def _reserve(self) -> None:
        """Fill up the reserve before other files fill the disk. On a full disk, it keeps its size."""
        with suppress(OSError), open(self._path(RESERVE_FILE), "ab", opener=_open_file) as file:
            file.write(bytes(max(0, RESERVE_BYTES - file.tell())))

    def _use_reserve(self) -> bool:
        """Release one block of the reserve; of more, other files would take the rest."""
        try:
            size = os.stat(self._path(RESERVE_FILE)).st_size
            os.truncate(self._path(RESERVE_FILE), max(0, size - BLOCK_BYTES))
        except OSError:
            return False
        return size > 0

    def keep_out(self) -> None:
        """Lock brokers out while a tool reads the directory, until `unlock`; creates and writes nothing."""
        try:
            self._lock_directory(fcntl.LOCK_SH, instead="")
            with _storage_errors(f"open {self._path(LOCK_FILE)}"):
                descriptor = _open_file(self._path(LOCK_FILE), os.O_RDONLY)
            self._lock(descriptor, fcntl.LOCK_SH, instead="")
        except MissingFile:
            return  # no broker has started here, or somebody removed the file; the directory is locked
        except BaseException:
            self.unlock()
            raise

    def _lock_directory(self, how: int, *, instead: str) -> None:
        """Lock the directory itself, so that nobody can remove the lock. Over NFS, only this machine sees it,
        so LOCK_FILE is locked, too.
        """
        with _storage_errors(f"open {self.location}"):
            try:
                descriptor = os.open(self.location, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise self._no_directory() from None
        self._lock(descriptor, how, instead=instead)

    def _lock(self, descriptor: int, how: int, *, instead: str) -> None:
        # It was opened with O_CLOEXEC: a child process that inherited it would hold the lock longer than the
        # broker.
        self._locks.append(descriptor)
        in_child(self, DiskStorage.unlock)
        with _storage_errors(f"lock {self.location}"):
            try:
                # LOCK_NB: a second broker that waited here would look as if it hung.
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryInUse(f"{self._why_in_use(descriptor)}{instead}") from error

    def _why_in_use(self, descriptor: int) -> str:
        """Who has locked the directory, and what to do. Only a broker's lock excludes the shared lock of a
        tool.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = (self.read_file(LOCK_FILE) or b"").decode("ascii", "replace").strip() or "unknown"
            return f"{self.location} is in use by a broker (process {owner}): stop it first"
        return f"`fencepost check` or `fencepost repair` reads {self.location}: wait until it has ended"

    def unlock(self) -> None:
        # Not LOCK_UN: a forked process closes its copies, too, and the locks are its parent's.
        while self._locks:
            with suppress(OSError):  # the descriptor is free even then
                os.close(self._locks.pop())

    def exists(self) -> bool:
        # lexists: a dangling link is there, too, and no directory may be created in its place.
        return os.path.lexists(self.location)

    def directories(self) -> list[str]:
        with _storage_errors(f"list {self.location}"):
            try:
                with os.scandir(self.location) as entries:
                    return sorted(entry.name for entry in entries if _is(entry.is_dir))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._no_directory() from error

    def _no_directory(self) -> NotADataDirectory:
        scheme = uri_scheme(self.location)
        if scheme is not None:
            return NotADataDirectory(
                f"a URI ({scheme}:) is not a local directory: give the path of a copy; only audit, export "
                "and PySpark read URIs"
            )
        problem = (
            f"{self.location} is not a directory"
            if self.exists()
            else f"there is no directory {self.location or repr(self.location)}"
        )
        what = f"{problem}: give the directory that a broker was started with"
        return NotADataDirectory(what, location=self.location)

    def files(self, directory: str) -> dict[str, int]:
        with _storage_errors(f"list {self._path(directory)}"):
            try:
                with os.scandir(self._path(directory)) as entries:
                    sizes = {entry.name: _size_of(entry) for entry in entries if _is(entry.is_file)}
            except FileNotFoundError:
                return {}
        return {name: size for name, size in sorted(sizes.items()) if size is not None}

    def read_file(self, path: str) -> bytes | None:
        with _storage_errors(f"read {self._path(path)}"):
            try:
                with open(self._path(path), "rb", opener=_open_file) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        is_reserved_for = path.partition("/")[0] == self._reserved_for
        make_room = self._use_reserve if is_reserved_for else _no_room
        return DiskFile(self._path(path), create=create, read_only=self._read_only, make_room=make_room)

    def make_directory(self, name: str) -> None:
        with _storage_errors(f"make {self._path(name)}"):
            os.makedirs(self._path(name), exist_ok=True)

    def rename_directory(self, name: str, new_name: str) -> None:
        with _storage_errors(f"rename {self._path(name)}"), suppress(FileNotFoundError):
            os.rename(self._path(name), self._path(new_name))

    def remove_directory(self, name: str) -> None:
        with _storage_errors(f"remove {self._path(name)}"):
            path = self._path(name)
            if os.path.islink(path):
                # An operator put the partition on another disk: its files go, that directory stays.
                if os.path.isdir(path):
                    with os.scandir(path) as entries:
                        for entry in entries:
                            os.unlink(entry.path)
                os.unlink(path)
                return
            with suppress(FileNotFoundError):
                shutil.rmtree(path)

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        target = self._path(path)
        with _storage_errors(f"replace {target}"):
            # If durable, the content is synced before the rename, the rename before the return. In another
            # order a power failure could leave the new name with an empty file.
            with open(target + TEMPORARY_SUFFIX, "wb", opener=_open_file) as file:
                if not (durable or self._starts_writeback):
                    _allocate(file.fileno(), len(data))
                file.write(data)
                file.flush()  # all of it, or OSError: a single unbuffered write may take only a part
                if durable:
                    _sync(file.fileno())
            os.replace(target + TEMPORARY_SUFFIX, target)
        if durable:
            self.sync_directory(path.rpartition("/")[0])

    def rename(self, path: str, new_path: str) -> None:
        with _storage_errors(f"rename {self._path(path)}"):
            os.replace(self._path(path), self._path(new_path))

    def remove(self, path: str) -> None:
        with _storage_errors(f"remove {self._path(path)}"), suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def sync_directory(self, directory: str) -> None:
        with _storage_errors(f"sync the directory {self._path(directory)}"):
            descriptor = os.open(self._path(directory), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        # In threads: a file system combines the syncs that wait at the same time.
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            waiting = [pool.submit(task) for task in tasks]
        problems = [problem for each in waiting if (problem := each.exception()) is not None]
        if problems:
            raise problems[0]

    def _path(self, path: str) -> str:
        return os.path.join(self.location, path)
