"""The data directory of a broker: its owner, its partitions, and the mark of a clean shutdown.

Rule: the mark is removed before anything is written. It names only partitions that were closed whole and not
opened since. A partition's directory that was there and is gone is damage, not an empty log.
"""

# Theory of operation
#
#     <data directory>/
#         .lock                  held with flock while a broker runs
#         meta.json              format and cluster id; says that the directory is Fencepost's
#         clean-shutdown.json    the mark: partitions whose files need no check; absent while a broker runs
#         partitions.json        the witness: partitions that have a directory; at most as old as a manifest
#         <topic>-<partition>/   one journal each (journal.py)
#         .deleted/              a partition whose deletion a crash interrupted
#
# A start refuses a directory of other files, locks, reads the mark, removes it durably, and finishes an
# interrupted deletion. Only then may anything be written. If the mark stayed until after the first write, a
# crash would leave a mark that vouches for unsynced bytes, and the next start would trust them unread.
#
# Kafka has the same mark (.kafka_cleanshutdown, CleanShutdownFileHandler), for the whole directory. This one
# names partitions: when one disk write failed, only that partition is recovered from its bytes.
#
# A new partition gets its directory with its first batch, so a directory that is absent may be right. The
# witness tells the difference, as a manifest does for one log: it lists each directory, and whether its name
# was synced. Until the machine restarts, unsynced names count as well.

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import decode_json, encode_json
from fencepost.journal.storage import (
    TEMPORARY_SUFFIX,
    DamagedLog,
    NotADataDirectory,
    Storage,
    StorageReader,
    directory_name,
    parse_directory_name,
)
from fencepost.protocol.terms import TopicPartition

META_FILE: Final = "meta.json"
META_VERSION: Final = 1
CLEAN_FILE: Final = "clean-shutdown.json"
CLEAN_VERSION: Final = 1
WITNESS_FILE: Final = "partitions.json"
WITNESS_VERSION: Final = 1
DELETED_DIRECTORY: Final = ".deleted"  # not the name of a partition's directory
DEFAULT_CLUSTER_ID: Final = "fencepost"
# What a directory may hold before the first start: of a new file system, and of a start that was interrupted.
_EXPECTED: Final = frozenset({"lost+found", META_FILE + TEMPORARY_SUFFIX})


class DataDirectory:
    """The journals of one broker. A journal is opened at its first use and stays open."""

    def __init__(
        self, storage: Storage, *, settings: JournalSettings, cluster_id: str, clean: set[str]
    ) -> None:
        self.cluster_id = cluster_id
        self._storage = storage
        self._settings = settings
        self._clean = clean  # partitions that were closed in order and not opened since
        self._journals: dict[TopicPartition, Journal] = {}
        # Listed once: a start asks for every partition, and each listing is as long as there are partitions.
        self._names = set(storage.directories())
        self._witnessed = _read_witness(storage)  # by name, whether it was synced
        self._missing = self._witnessed.keys() - self._names
        self._is_witness_old = False

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        settings: JournalSettings | None = None,
        cluster_id: str = DEFAULT_CLUSTER_ID,
    ) -> DataDirectory:
        """Lock the directory and read its mark; a new directory gets `cluster_id`.

        DirectoryInUse when another broker has locked it, NotADataDirectory when it holds something else.
        """
        # Before the lock, because the lock creates a file.
        _refuse_strangers(storage)
        storage.lock()
        try:
            found = _cluster_id(storage)
            if found is None:
                content = encode_json({"format": META_VERSION, "cluster_id": cluster_id}, place=META_FILE)
                storage.replace(META_FILE, content, durable=True)
            clean = _take_mark(storage)
            storage.remove_directory(DELETED_DIRECTORY)
        # Also for KeyboardInterrupt: a process that goes on would keep the directory locked.
        except BaseException:
            storage.unlock()
            raise
        return cls(
            storage, settings=settings or JournalSettings(), cluster_id=found or cluster_id, clean=clean
        )

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory, or had one that is missing now; sorted."""
        missing = (parse_directory_name(name) for name in self._missing)
        return sorted({*partitions_in(self._storage), *(found for found in missing if found is not None)})

    def journal(self, partition: TopicPartition) -> Journal:
        """The log of a partition; opened and recovered, or created, at its first use. DamagedLog when its
        directory is missing.
        """
        journal = self._journals.get(partition)
        if journal is None:
            name = directory_name(partition)
            if name in self._missing:
                raise missing_directory(self._storage.location, name)
            trusted_clean = name in self._clean
            # From here on its files may change, and the mark that was read no longer covers them.
            self._clean.discard(name)
            self._names.add(name)
            journal = Journal(self._storage, partition, settings=self._settings, trusted_clean=trusted_clean)
            self._journals[partition] = journal
        return journal

    def has(self, partition: TopicPartition) -> bool:
        """Whether the partition has a log, or had one that is missing now; does not create one."""
        name = directory_name(partition)
        return name in self._names or name in self._missing

    def holds(self, journal: Journal) -> bool:
        """Whether this is still the open log of its partition: neither deleted nor given up."""
        return self._journals.get(journal.partition) is journal

    def give_up(self, partition: TopicPartition) -> None:
        """Drop a log whose disk failed; the next `journal` recovers it from the disk."""
        journal = self._journals.pop(partition, None)
        if journal is not None:
            journal.abandon()

    def delete(self, partition: TopicPartition) -> None:
        """Delete a partition and its records, damaged ones too. The rename makes them disappear at once, even
        if a crash interrupts the rest.
        """
        self.give_up(partition)
        name = directory_name(partition)
        if self._forget(name):
            return
        self._storage.remove_directory(DELETED_DIRECTORY)
        self._storage.rename_directory(name, DELETED_DIRECTORY)
        self._storage.remove_directory(DELETED_DIRECTORY)
        self._names.discard(name)

    def _forget(self, name: str) -> bool:
        """A directory may be absent from now on; True when it is missing already."""
        is_missing = name in self._missing
        self._missing.discard(name)
        self._is_witness_old |= self._witnessed.pop(name, None) is not None
        return is_missing

    def set_aside(self, partition: TopicPartition) -> str | None:
        """Rename the directory of a partition whose records the metadata does not know, and return its new
        name; None if nothing is left of it. They may be all that is left after damage to the metadata, so
        they are not deleted.
        """
        self.give_up(partition)
        name = directory_name(partition)
        if self._forget(name):
            return None
        # "~" is in no topic's name, so the new name is not that of a partition.
        aside = next(new for n in count(1) if (new := f"{name}~{n}") not in self._names)
        self._storage.rename_directory(name, aside)
        self._names.discard(name)
        self._names.add(aside)
        return aside

    def witness(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these partitions have a directory, for the next start; not synced. StorageError leaves
        the older note.
        """
        for partition in partitions:
            journal, name = self._journals.get(partition), directory_name(partition)
            if journal is not None:
                known = self._witnessed.get(name)
                if not known and known != journal.is_named:
                    self._witnessed[name], self._is_witness_old = journal.is_named, True
        if not self._is_witness_old:
            return
        content = {
            "format": WITNESS_VERSION,
            "boot_id": self._storage.boot_id,
            "synced": sorted(name for name, synced in self._witnessed.items() if synced),
            "unsynced": sorted(name for name, synced in self._witnessed.items() if not synced),
        }
        self._storage.replace(WITNESS_FILE, encode_json(content, place=WITNESS_FILE), durable=False)
        self._is_witness_old = False

    def close(self) -> None:
        """Close every journal, write the mark for those that are whole, and release the lock.

        A leader closes its own journals before, with manifest and snapshot.
        """
        try:
            for partition, journal in self._journals.items():
                if not journal.closed:
                    journal.close()
                # A journal that failed is not `closed`: without the mark, the next start recovers it.
                if journal.closed:
                    self._clean.add(directory_name(partition))
            self.witness(self._journals)
            content = encode_json(
                {"format": CLEAN_VERSION, "partitions": sorted(self._clean)}, place=CLEAN_FILE
            )
            self._storage.replace(CLEAN_FILE, content, durable=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release everything without writing, as a crash does."""
        for journal in self._journals.values():
            journal.abandon()
        self._storage.unlock()


def missing_directory(location: str, name: str) -> DamagedLog:
    """What to raise for a log whose directory is gone."""
    return DamagedLog(
        location,
        f"{name} is missing. All records of this log are at stake, so it is not served. An empty directory "
        "in its place begins the log anew, without them",
    )


def partitions_in(storage: StorageReader) -> list[TopicPartition]:
    """The partitions in a data directory, sorted; NotADataDirectory when it does not exist."""
    parsed = (parse_directory_name(name) for name in storage.directories())
    return sorted(partition for partition in parsed if partition is not None)


def check_data_directory(storage: StorageReader) -> str:
    """The cluster id of a broker's data directory; NotADataDirectory for any other directory."""
    storage.directories()  # raises NotADataDirectory when the directory does not exist
    cluster_id = _cluster_id(storage)
    if cluster_id is None:
        raise NotADataDirectory(
            f"{storage.location} is not a Fencepost log (it has no {META_FILE}): give the directory that "
            "`fencepost serve` was started with, not a parent or a subdirectory"
        )
    return cluster_id


def _cluster_id(storage: StorageReader) -> str | None:
    data = storage.read_file(META_FILE)
    if data is None:
        return None
    try:
        return str(decode_json(data, place=META_FILE, version=META_VERSION)["cluster_id"])
    except (CorruptIndex, KeyError) as error:
        raise NotADataDirectory(
            f"{storage.location} holds a log that this version cannot read ({error}): "
            f"use the version that wrote it, or restore {META_FILE} from a copy"
        ) from error


def _refuse_strangers(storage: Storage) -> None:
    """Protect other people's files from a mistyped path: no log and no lock file is created among them."""
    if not storage.exists():
        return
    names = [*storage.directories(), *storage.files("")]
    if META_FILE in names:
        return
    strangers = [name for name in names if name not in _EXPECTED and not name.startswith(".")]
    if strangers:
        raise NotADataDirectory(
            f"{storage.location} holds other files ({strangers[0]}) and no Fencepost log: "
            "give an empty or a new directory"
        )


def _read_witness(storage: Storage) -> dict[str, bool]:
    """The directories that must be there, by name, and whether each was synced."""
    data = storage.read_file(WITNESS_FILE)
    try:
        found = {} if data is None else decode_json(data, place=WITNESS_FILE, version=WITNESS_VERSION)
        is_same_boot = bool(storage.boot_id) and found.get("boot_id") == storage.boot_id
        unsynced = found["unsynced"] if is_same_boot else ()
        return {**dict.fromkeys(unsynced, False), **dict.fromkeys(found.get("synced", ()), True)}
    except (CorruptIndex, KeyError, TypeError):  # a loss of power may tear it; then there is no witness
        return {}


def _take_mark(storage: Storage) -> set[str]:
    """The partitions that were closed in order; the mark is removed durably before anything is written."""
    data = storage.read_file(CLEAN_FILE)
    if data is None:
        return set()
    # The removal is synced: after a power failure an old mark must not come back.
    storage.remove(CLEAN_FILE)
    storage.sync_directory("")
    try:
        return set(decode_json(data, place=CLEAN_FILE, version=CLEAN_VERSION)["partitions"])
    except (CorruptIndex, KeyError, TypeError):  # without a mark, a start only takes longer
        return set()
