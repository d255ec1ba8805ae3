"""The catalogue of a data directory: which logs it holds, so that a start notices a log that has vanished.

Rule: a log is listed when its files exist, and removed from the list before its files are. A listed log
without files is therefore damaged, and not a new one.
"""

# Theory of operation
#
# Each line of `catalogue.txt` says one thing about one log, and the last line about a log counts:
#
#     orders-0 8f2c...-... 1234567890     its files were made in this boot of the machine
#     orders-0 synced 2345678901          they survive a loss of power
#     orders-0 removed 3456789012         the broker deleted them
#
# The number is the CRC-32C of file name and line. Lines are only added; a start rewrites the list. A loss
# of power may take files that were never synced, so a line of an earlier boot that does not say `synced`
# promises nothing. Lines with `synced` are synced themselves. So are lines with `removed`, by
# `sync_removals`, before the metadata log takes another record: without them a deleted log would look
# damaged once its topic exists again.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.journal.storage import Storage, StorageError
from fencepost.protocol.checksum import crc32c

CATALOGUE_FILE: Final = "catalogue.txt"
SYNCED: Final = "synced"
REMOVED: Final = "removed"


class Catalogue:
    """The logs by the names of their directories. `mark_synced` may run in a different thread from the rest:
    it adds one line in one write.
    """

    def __init__(self, storage: Storage, *, synced: Iterable[str]) -> None:
        """Read the list; the logs in `synced` are known to survive a loss of power."""
        self._storage = storage
        self._has_unsynced_removals = False
        self._is_torn = False  # a write failed, perhaps in the middle of a line
        found = storage.read_file(CATALOGUE_FILE)
        self.why_incomplete = why_incomplete(found)
        """Why it may not list all logs that were there; empty if it does."""
        lines = {} if found is None else read_catalogue(found)
        lines.update(dict.fromkeys(synced, SYNCED))
        self._lines = {
            name: word for name, word in lines.items() if word and word in (SYNCED, storage.boot_id)
        }
        content = b"".join(_line(*line) for line in sorted(self._lines.items()))
        if content != found:
            storage.replace(CATALOGUE_FILE, content, durable=True)
        self._file = storage.open(CATALOGUE_FILE)

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def add(self, name: str) -> None:
        """Note that the files of a log exist."""
        if name not in self._lines:
            self._add(name, self._storage.boot_id)

    def mark_synced(self, name: str) -> None:
        """Note that the files of a log survive a loss of power, so that they are expected after one.

        Nothing happens for a log that was removed while it was synced.
        """
        if self._lines.get(name, SYNCED) != SYNCED:
            self._add(name, SYNCED)
            self._file.sync()

    def remove(self, name: str) -> None:
        """Note that the files of a log will be removed next; those of a refused log are not listed."""
        if name in self._lines:
            self._add(name, REMOVED)
        self._has_unsynced_removals = True

    def sync_removals(self) -> None:
        """Return when no removed log can come back after a loss of power, neither its line nor its files."""
        if self._has_unsynced_removals:
            self._file.sync()
            self._storage.sync_directory("")
            self._has_unsynced_removals = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, name: str, word: str) -> None:
        line = (b"\n" if self._is_torn else b"") + _line(name, word)
        try:
            self._file.append(line)
        except StorageError:
            self._is_torn = True
            raise
        self._is_torn = False
        if word == REMOVED:
            del self._lines[name]
        else:
            self._lines[name] = word


def read_catalogue(data: bytes) -> dict[str, str]:
    """The last word about each log that was not removed; lines that are torn or damaged are left out."""
    words = dict(entry for line in data.split(b"\n") if (entry := _parsed(line)) is not None)
    return {name: word for name, word in words.items() if word != REMOVED}


def damaged_lines(data: bytes) -> dict[int, bytes]:
    """The lines whose checksum does not match, by line number, from 1 on. A last line without its end counts
    as torn, not as damaged.
    """
    *lines, _ = data.split(b"\n")
    return {number: line for number, line in enumerate(lines, 1) if line and _parsed(line) is None}


def why_incomplete(data: bytes | None) -> str:
    """Why a catalogue may not list all logs, None if there is no file; empty if it does."""
    if data is None:
        return "it is missing"
    damaged = damaged_lines(data)
    return f"the checksum of line {min(damaged)} does not match its text" if damaged else ""


def _parsed(line: bytes) -> tuple[str, str] | None:
    """Name and word of an intact line."""
    name, word, _ = (*line.decode("ascii", "replace").split(" "), "", "")[:3]
    return (name, word) if line + b"\n" == _line(name, word) else None


def _line(name: str, word: str) -> bytes:
    text = f"{name} {word}"
    return f"{text} {crc32c(f'{CATALOGUE_FILE} {text}'.encode())}\n".encode()
