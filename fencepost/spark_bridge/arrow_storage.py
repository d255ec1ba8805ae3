"""A data directory on any file system of pyarrow: an object store, HDFS. It is only read.

Rule: no byte is fetched twice, and a reader that moves forward finds the next block fetched ahead. Every
failure is a StorageError, as on a local disk.
"""

# Theory of operation
#
# A request to an object store takes 10 to 100 ms, as long as the transfer of one to ten megabytes. So a file
# is read in blocks, and the next block is fetched while the current one is decoded:
#
#     reader            |-- header --|            |---- batches ----|
#     file     [ 64 KiB ][    256 KiB     ][        1 MiB        ][        4 MiB  ...  8 MiB
#               current    fetched ahead
#
# A block is four times as long as the one before if the reader has moved to its end, or not far past it: a
# plan that looks at one header costs 64 KiB, and a task that reads everything soon gets blocks of 8 MiB. A
# larger request at once begins with a block of its size. A reader that jumps begins with 64 KiB again, so
# what lies between headers that are far apart (large batches) is not fetched.
#
# An open file does not change for its reader: `size` is that at the time of opening. Object stores replace
# objects whole, and the log files of a broker only grow.

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Final

import attrs
import pyarrow as pa
from pyarrow import fs

from fencepost.journal.storage import MissingFile, NotADataDirectory, StorageError

FIRST_BLOCK_BYTES: Final = 64 << 10  # takes no longer than one byte, and holds what a plan looks at
BLOCK_BYTES: Final = 8 << 20  # what a task decodes in 0.1 s; a task holds two
GROWTH: Final = 4
READ_AHEAD_THREADS: Final = 8  # of a process; each open file uses one at a time


class ArrowStorage:
    """A directory of a file system. Objects whose names begin with it are its files."""

    boot_id = ""

    def __init__(self, filesystem: fs.FileSystem, directory: str, *, location: str, advice: str = "") -> None:
        """`location` names the directory in messages; `advice` says where its credentials come from."""
        self.location = location
        self._filesystem = filesystem
        self._directory = directory.rstrip("/")
        self._advice = advice

    def exists(self) -> bool:
        return not self._lacks("")

    def directories(self) -> list[str]:
        # In Google's store, pyarrow lists only directories that have an object of their own, and copies have
        # no such objects (issue 32403 of Arrow). So there, the directories are derived from the paths of all
        # files.
        flat = self._filesystem.type_name == "gcs"
        try:
            found = self._list("", recursive=flat)
        except MissingFile as problem:
            raise NotADataDirectory(
                f"there is no directory {self.location}: give the directory that a broker was started with, "
                "or a copy of it"
            ) from problem
        if flat:
            below = (each.path.removeprefix(f"{self._directory}/").partition("/") for each in found)
            return sorted({name for name, slash, _ in below if slash})
        return sorted(each.base_name for each in found if each.type is fs.FileType.Directory)

    def files(self, directory: str) -> dict[str, int]:
        try:
            found = self._list(directory)
        except MissingFile:
            return {}
        return dict(sorted((each.base_name, each.size) for each in found if each.type is fs.FileType.File))

    def read_file(self, path: str) -> bytes | None:
        try:
            with self._reported("read", path), self._opened(path) as file:
                return file.read()
        except MissingFile:
            return None

    def open(self, path: str) -> ArrowFile:
        with self._reported("open", path):
            file = self._opened(path)
            size = file.size()

        def fetch(position: int, length: int) -> bytes:
            try:
                with self._reported("read", path):
                    return file.read_at(length, position)  # pyright: ignore - the stubs know no arguments
            except StorageError as problem:
                if self._lacks(path):
                    raise MissingFile(f"{self.location}/{path} has disappeared") from problem
                raise

        return ArrowFile(size, fetch, file.close)

    def _list(self, directory: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        with self._reported("list", directory):
            return self._filesystem.get_file_info(fs.FileSelector(self._path(directory), recursive=recursive))

    def _opened(self, path: str) -> pa.NativeFile:
        # libhdfs prints a stack trace for a file that does not exist, and most logs lack some of their files.
        if self._filesystem.type_name == "hdfs" and self._lacks(path):
            raise FileNotFoundError(path)
        return self._filesystem.open_input_file(self._path(path))

    def _lacks(self, path: str) -> bool:
        with self._reported("find", path):
            return self._filesystem.get_file_info(self._path(path)).type is fs.FileType.NotFound

    def _path(self, path: str) -> str:
        return f"{self._directory}/{path}" if path else self._directory

    @contextmanager
    def _reported(self, doing: str, path: str) -> Generator[None]:
        """Turns the errors of pyarrow into ours, with the location and without credentials."""
        try:
            yield
        except (OSError, pa.ArrowException) as problem:
            where = f"{self.location}/{path}" if path else self.location
            text = without_queries(str(problem))
            # Listing a directory that does not exist fails in Google's store without an error number.
            if isinstance(problem, FileNotFoundError) or text.startswith("No such file"):
                raise MissingFile(f"cannot {doing} {where}: there is no such file") from None
            advice = f" ({self._advice})" if self._advice else ""
            raise StorageError(f"cannot {doing} {where}: {text}{advice}") from None


def without_queries(text: str) -> str:
    """Azure's errors repeat URLs, and the query of one may be a token."""
    return re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)


@attrs.frozen
class _Block:
    """Consecutive bytes of a file."""

    start: int
    data: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


@attrs.frozen
class _PendingBlock:
    """A block that is being fetched."""

    start: int
    stop: int
    data: Future[bytes]


class ArrowFile:
    """An open file that is read in blocks, by one thread."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes], close: Callable[[], None]) -> None:
        """`fetch(position, length)` returns that many bytes from a position on, and may run in another
        thread.
        """
        self.size = size
        self._fetch = fetch
        self._close = close
        self._block = _Block(0, b"")
        self._ahead: _PendingBlock | None = None
        self._length = FIRST_BLOCK_BYTES // GROWTH  # of the newest block

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size)
        parts: list[bytes] = []
        while position < end:
            block = self._block_at(position, end)
            part = block.data[position - block.start : end - block.start]
            if not part:
                break  # the file is shorter than it was when it was opened
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block_at(self, position: int, end: int) -> _Block:
        """The block with the byte at `position`. If it must be fetched, it reaches to `end`."""
        block, ahead = self._block, self._ahead
        if block.start <= position < block.stop:
            return block
        if ahead is not None and ahead.start <= position < ahead.stop:
            self._block = _Block(ahead.start, ahead.data.result())
            self._fetch_ahead()
        else:
            wanted = end - position
            follows = 0 <= position - block.stop <= self._length
            grown = min(BLOCK_BYTES, self._length * GROWTH) if follows else FIRST_BLOCK_BYTES
            self._length = max(grown, min(wanted, BLOCK_BYTES))
            self._drop_ahead()
            self._block = _Block(position, self._fetch(position, max(self._length, wanted)))
            if (block.data and follows) or self._length == BLOCK_BYTES:
                self._fetch_ahead()
        return self._block

    def _fetch_ahead(self) -> None:
        start = self._block.stop
        self._length = min(BLOCK_BYTES, self._length * GROWTH)
        stop = min(start + self._length, self.size)
        self._ahead = None
        if start < stop:
            self._ahead = _PendingBlock(start, stop, _threads().submit(self._fetch, start, stop - start))

    def _drop_ahead(self) -> bool:
        """Forgets the block that is being fetched; returns whether a thread is still fetching it."""
        ahead, self._ahead = self._ahead, None
        return ahead is not None and not ahead.data.cancel() and not ahead.data.done()

    def close(self) -> None:
        ahead = self._ahead
        self._block = _Block(0, b"")
        if self._drop_ahead() and ahead is not None:
            # Nobody needs the rest of that block: the thread that fetches it closes the file.
            ahead.data.add_done_callback(lambda _: self._close())
        else:
            self._close()


@cache
def _threads() -> ThreadPoolExecutor:
    """Created on first use: a Spark worker is a fork, and threads do not survive a fork."""
    return ThreadPoolExecutor(READ_AHEAD_THREADS, thread_name_prefix="read-ahead")
