"""A simulated disk: after a power failure only synced data is certain to be there, and the last write may be
torn. On request it damages synced data.

Rule: every choice of what survives comes from the chooser that it was given, in a fixed order, so a run can
be replayed.
"""

# Theory of operation. Each file and each directory is a node with three parts: what a process sees, what is
# certainly on the disk, and the changes in between, in their order. `sync` moves the line:
#
#     synced ─── change ─── change ─── change ───▶ content        `kill`: the process dies, content stays
#        ▲                    ▲
#        certain              the chooser cuts here               `lose_power`: the rest is gone
#
# The chooser keeps a prefix of the changes, since appends to one file and entries of a journaling directory
# reach a disk in order (ext4, data=ordered). A piece of the first lost append may be there: its first bytes,
# zeros of its length (the size was written, but not the data), or bytes and then zeros. Files and their
# directory are cut on their own, so a synced file may have lost its name: a broker must sync both.
#
# There are disks that keep a later append to a file and lose an earlier one. A journal takes that for damage:
# a valid batch that follows invalid bytes may have been acknowledged, so it refuses the log.
#
# Damage is different: it changes bytes and names that were synced, which no promise of a disk covers.
# `overwrite` changes bytes (a flipped bit, a lost sector), `vanish` takes a name away while open handles keep
# the file, and `misdirect` lets one read return bytes from another place.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from fencepost.journal.memory import Entry, MemoryDirectory, MemoryFile, MemoryStorage
from fencepost.journal.storage import StorageError, StorageFile
from fencepost.protocol.batches import Buffer

Choose = Callable[[int], int]  # n -> one of 0 .. n
Breaks = Callable[[str, str], bool]  # (operation, path) -> whether it fails this time; APPEND or SYNC
APPEND: Final = "append"
SYNC: Final = "sync"


class _Node(MemoryFile):
    """A file: its content, its synced content, and the changes since."""

    __slots__ = ("since", "synced")

    def __init__(self) -> None:
        super().__init__()
        self.synced = b""
        self.since: list[bytes | int] = []  # bytes: appended; a number: truncated to that size

    def append(self, data: Buffer) -> None:
        self.content += data
        self.since.append(bytes(data))

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.since.append(size)

    def sync(self) -> None:
        # A copy, since `content` goes on growing.
        self.synced = bytes(self.content)
        self.since.clear()

    def overwrite(self, at: int, data: bytes) -> None:
        """Change bytes in place, those on the disk and those that a process sees."""
        end = at + len(data)
        assert end <= self.size, "damage changes bytes, and adds none"
        self.content[at:end] = data
        self.synced = self.synced[:at] + data[: max(0, len(self.synced) - at)] + self.synced[end:]

    def lose_power(self, choose: Choose) -> None:
        """Keep some of the first unsynced writes. A part of the next one may be there, too: its bytes, zeros
        of that length, or its bytes and then zeros up to its full length, as file systems leave them.
        """
        kept = choose(len(self.since))
        torn = self.since[kept] if kept < len(self.since) else 0
        self.content = bytearray(self.synced)
        for change in self.since[:kept]:
            if isinstance(change, int):
                del self.content[change:]
            else:
                self.content += change
        if isinstance(torn, bytes):
            part = torn[: choose(len(torn))]
            rest = bytes(len(torn) - len(part))
            self.content += (part, bytes(len(part)), part + rest)[choose(2)]
        self.sync()


class _Directory(MemoryDirectory):
    """A directory: its entries, its synced entries, and the changes since (None: removed), each of them
    atomic.
    """

    __slots__ = ("since", "synced")

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, Entry] = {}
        self.since: list[Mapping[str, Entry | None]] = []

    def change(self, changes: Mapping[str, Entry | None]) -> None:
        super().change(changes)
        self.since.append(changes)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.since.clear()

    def vanish(self, name: str) -> None:
        """Lose an entry, synced or not."""
        self.names.pop(name, None)
        self.synced.pop(name, None)
        self.since = [{key: entry for key, entry in change.items() if key != name} for change in self.since]

    def lose_power(self, choose: Choose) -> None:
        """Keep some of the first unsynced changes of entries, as a journaling file system does."""
        kept = choose(len(self.since))
        self.names = self.synced
        for changes in self.since[:kept]:
            super().change(changes)
        self.sync()
        # Sorted: each entry draws from the chooser, and a replay must draw in the same order.
        for _, entry in sorted(self.names.items()):
            assert isinstance(entry, _Node | _Directory), "a simulated disk holds only its own entries"
            entry.lose_power(choose)


class Misdirection(NamedTuple):
    """Where a read takes place instead, if it begins before byte `below`."""

    node: MemoryFile
    shift: int
    below: int


class SimulatedFile:
    """A handle; it is invalid after the process that opened it has died."""

    __slots__ = ("_generation", "_node", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, path: str, node: MemoryFile) -> None:
        self._storage = storage
        self._generation = storage.generation
        self._path = path
        self._node = node

    @property
    def size(self) -> int:
        return self._node.size

    def append(self, data: Buffer) -> None:
        self._check()
        if self._storage.breaks(APPEND, self._path):
            # A part is written, so that a journal which trusts the size of the file after a failure is
            # caught.
            self._node.append(memoryview(data)[: self._storage.choose(len(data))])
            raise StorageError(f"cannot write {self._path}: the simulated disk refused")
        self._node.append(data)

    def read(self, position: int, size: int) -> bytes:
        self._check()
        if self._path in self._storage.misdirected:
            node, position = self._storage.redirected(self._path, self._node, position)
            return node.read(position, size)
        return self._node.read(position, size)

    def truncate(self, size: int) -> None:
        self._check()
        self._node.truncate(size)

    def is_in_place(self) -> bool:
        return self._storage.leads_to(self._path, self._node)

    def sync(self) -> None:
        self._check()
        if self._storage.breaks(SYNC, self._path):
            raise StorageError(f"cannot sync {self._path}: the simulated disk refused")
        self._node.sync()

    def close(self) -> None:
        """A simulated file has no handle in the operating system."""

    def _check(self) -> None:
        if self._generation != self._storage.generation:
            raise StorageError(f"{self._path} was opened by a process that is dead")


class SimulatedStorage(MemoryStorage):
    """A data directory in memory that keeps a disk's promises and no others. `kill` ends the process,
    `lose_power` stops the machine.
    """

    file = _Node
    directory = _Directory

    def __init__(self, choose: Choose, *, breaks: Breaks | None = None, location: str = "simulated") -> None:
        super().__init__(location)
        self.choose = choose
        self.breaks: Breaks = breaks or (lambda _operation, _path: False)
        self.generation = 0
        self.misdirected: dict[str, Misdirection] = {}

    def kill(self) -> None:
        """The process dies: its lock and handles are gone, its writes stay."""
        # A worker of the dead process may still hold handles. Their writes must not reach the next process.
        self.generation += 1
        self.unlock()

    def lose_power(self) -> None:
        """The machine stops: only synced data, and the unsynced data that the chooser keeps, is left."""
        self.kill()
        self.boot_id = f"{int(self.boot_id) + 1}"
        assert isinstance(self._top, _Directory), "a simulated disk holds only its own entries"
        self._top.lose_power(self.choose)

    # --- damage

    def content_of(self, path: str) -> bytes | None:
        """What the disk stores, whatever a read returns; None if there is no such file."""
        return super().read_file(path)

    def overwrite(self, path: str, at: int, data: bytes) -> None:
        """Change bytes of a file."""
        self._node(path).overwrite(at, data)

    def vanish(self, path: str) -> None:
        """Lose a file, or a directory with all its files."""
        directory, _, name = path.rpartition("/")
        found = self._directory(directory)
        assert isinstance(found, _Directory), f"no directory holds {path!r}"
        found.vanish(name)

    def misdirect(self, path: str, to: str, *, shift: int, below: int) -> None:
        """Let the next read of `path` that begins before byte `below` return bytes of the file `to` instead,
        from `shift` bytes further on.
        """
        self.misdirected[path] = Misdirection(self._node(to), shift, below)

    def redirected(self, path: str, node: MemoryFile, position: int) -> tuple[MemoryFile, int]:
        """Where this read really takes place."""
        misdirection = self.misdirected[path]
        if position >= misdirection.below:
            return node, position
        del self.misdirected[path]
        return misdirection.node, position + misdirection.shift

    def _node(self, path: str) -> _Node:
        node = self._find(path)
        assert isinstance(node, _Node), f"there is no file {path!r}"
        return node

    def read_file(self, path: str) -> bytes | None:
        file = self._find(path)
        if file is None or path not in self.misdirected:
            return super().read_file(path)
        node, position = self.redirected(path, file, 0)
        return node.read(position, node.size)

    def sync_directory(self, directory: str) -> None:
        if self.breaks(SYNC, directory):
            raise StorageError(f"cannot sync {directory!r}: the simulated disk refused")
        super().sync_directory(directory)

    def leads_to(self, path: str, node: MemoryFile) -> bool:
        """Whether the path still names this file."""
        return self._find(path) is node

    def _opened(self, path: str, file: MemoryFile) -> StorageFile:
        # Small files, too, are written through a handle, so that faults of appends and syncs strike them.
        return SimulatedFile(self, path, file)
