"""The data directory of a broker: its owner, its partitions, and the mark of a clean shutdown.

Rule: the mark is removed before anything is written. It names only logs that were closed completely and have
not been opened since. If the directory of a partition has disappeared, that is damage, not an empty log.
"""

# Theory of operation
#
#     <data directory>/
#         .lock                  held with flock while a broker runs, like the directory itself
#         meta.json              format and cluster id; says that the directory is Fencepost's
#         catalogue.txt          which partitions have a log (catalogue.py)
#         clean-shutdown.json    the mark: the logs that need no check, as closed; while a broker runs, only
#                                those that it has refused
#         <topic>-<partition>/   one journal each (journal.py)
#         .deleted/              a partition whose deletion a crash interrupted
#
# A start refuses a directory with other files, and a new directory inside another data directory. It locks,
# reads the mark, removes it durably, and finishes an interrupted deletion. Only then may anything be written.
# If the mark stayed until after the first write, a crash would leave a mark that vouches for unsynced bytes,
# and the next start would trust them unread.
#
# Kafka has the same mark (.kafka_cleanshutdown, CleanShutdownFileHandler), for the whole directory. This one
# names partitions: when one disk write failed, only that partition is recovered from its bytes.
#
# A log that is refused is not opened, so the mark still names it: at once, since the broker may be killed,
# and after the next stop. Otherwise a repair of a log whose files are gone could not know where it ended, and
# would assign its offsets again; and a start after a loss of power could take what is left of a log for all
# of it. If the first log of a start is refused, nothing was opened, and the whole mark is put back. When the
# file of an open log is removed or replaced, the mark gets the end of this log, for the same reasons.
#
# A stop must not take long with 10,000 partitions. A log without new writes is not touched. The others are
# synced by several threads, one sync for each. Everything else is in the mark, a single file: for each
# log its last segment, with the checksums of its indexes. After a loss of power an unsynced index differs
# from its checksum, and is rebuilt. Kafka has one file for all partitions of a directory for the same reason
# (recovery-point-offset-checkpoint).

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from typing import Final

from fencepost.journal.catalogue import CATALOGUE_FILE, Catalogue
from fencepost.journal.indexes import CorruptIndex, ProducerSnapshot
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import (
    CLEAN_FILE,
    ManifestState,
    SyncedSegment,
    decode_clean_mark,
    decode_json,
    encode_clean_mark,
    encode_json,
    why_foreign,
)
from fencepost.journal.open_files import OpenFiles
from fencepost.journal.storage import (
    TEMPORARY_SUFFIX,
    DamagedLog,
    NoAccess,
    NotADataDirectory,
    Storage,
    StorageError,
    StorageReader,
    directory_name,
    parse_directory_name,
)
from fencepost.protocol.terms import NO_TOPIC_ID, TopicPartition

META_FILE: Final = "meta.json"
META_VERSION: Final = 3
META_BYTES_MAX: Final = 10_000  # a larger file of this name belongs to another program
DELETED_DIRECTORY: Final = ".deleted"  # not the name of a partition's directory
DEFAULT_CLUSTER_ID: Final = "fencepost"
OPEN_FILES_DEFAULT: Final = 500  # below the usual limit of 1,024 file descriptors
# What a directory may hold before the first start: from a new file system, or from an interrupted start.
_EXPECTED: Final = frozenset({"lost+found", META_FILE + TEMPORARY_SUFFIX})


State = tuple[ManifestState, Sequence[ProducerSnapshot]]
"""What the leader of a log knows at its end."""


class DataDirectory:
    """The journals of one broker. A journal is opened at its first use and stays open."""

    def __init__(
        self,
        storage: Storage,
        *,
        settings: JournalSettings,
        cluster_id: str,
        catalogue: Catalogue,
        clean: dict[str, SyncedSegment],
        names: Iterable[str],
        open_files: OpenFiles,
    ) -> None:
        self.cluster_id = cluster_id
        self._storage = storage
        self._settings = settings
        self._catalogue = catalogue
        self._clean = clean  # the last segments of logs that were closed cleanly and not opened since
        self._marked: dict[str, SyncedSegment] = {}  # those of them that the mark on the disk names
        self._refused: set[str] = set()
        self._open_files = open_files
        self._journals: dict[TopicPartition, Journal] = {}
        # Listed once: a start asks for every partition, and each listing has an entry per partition.
        self._names = set(names)
        self.warning = _warning(catalogue.why_incomplete) if _partitions_of(self._names) else ""
        """What the operator should know about the directory as it was found; empty if there is nothing."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        settings: JournalSettings | None = None,
        cluster_id: str = DEFAULT_CLUSTER_ID,
        open_files: int = OPEN_FILES_DEFAULT,
    ) -> DataDirectory:
        """Lock the directory and read its mark; a new directory gets `cluster_id`. At most `open_files` log
        files are open at a time.

        DirectoryInUse when another broker has locked it, NotADataDirectory when it holds something else.
        """
        # Before the lock, because the lock creates a file.
        refuse_wrong_place(storage)
        storage.lock()
        try:
            found = _cluster_id(storage)
            if found is None:
                content = encode_json({"format": META_VERSION, "cluster_id": cluster_id}, place=META_FILE)
                storage.replace(META_FILE, content, durable=True)
            clean = read_clean_mark(storage)
            # Before the mark, which says that these logs were synced, is removed.
            catalogue = Catalogue(storage, synced=clean)
            _remove_mark(storage)
            storage.remove_directory(DELETED_DIRECTORY)
            names = storage.directories()
        # Also for KeyboardInterrupt: a process that continues would keep the directory locked.
        except BaseException:
            storage.unlock()
            raise
        return cls(
            storage,
            settings=settings or JournalSettings(),
            cluster_id=found or cluster_id,
            catalogue=catalogue,
            clean=clean,
            names=names,
            open_files=OpenFiles(open_files),
        )

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a log, or had one that has vanished; sorted."""
        return sorted(_partitions_of({*self._storage.directories(), *self._catalogue}))

    def journal(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> Journal:
        """The log of a partition; opened and recovered, or created, at its first use. DamagedLog when it was
        there and has vanished, or is the log of another topic than `topic_id`.
        """
        journal = self._journals.get(partition)
        if journal is None:
            name = directory_name(partition)
            try:
                journal = Journal(
                    self._storage,
                    partition,
                    settings=self._settings,
                    open_files=self._open_files,
                    clean_mark=self._clean.get(name),
                    is_known=name in self._catalogue,
                    topic_id=topic_id,
                    on_names_synced=partial(self._catalogue.mark_synced, name),
                )
            except (DamagedLog, NoAccess):
                self._refused.add(name)
                if name in self._clean and name not in self._marked:
                    self._mark(self._refused if self._journals else self._clean)
                raise
            # From here on its files may change, and the mark that was read no longer covers them.
            self._unmark(name)
            self._catalogue.add(name)
            self._names.add(name)
            self._journals[partition] = journal
        return journal

    def has(self, partition: TopicPartition) -> bool:
        """Whether the partition has a log, or had one that has vanished; does not create one."""
        name = directory_name(partition)
        return name in self._names or name in self._catalogue

    def holds(self, journal: Journal) -> bool:
        """Whether this is still the open log of its partition: neither deleted nor given up."""
        return self._journals.get(journal.partition) is journal

    def give_up(self, partition: TopicPartition) -> None:
        """Drop a log whose disk failed; the next `journal` recovers it from the disk. If its file is gone,
        the mark names its end from now on.
        """
        journal = self._journals.pop(partition, None)
        if journal is not None:
            # Without the mark nothing is wrong yet, and a stop writes it again.
            with suppress(StorageError):
                if self._keep_end(journal):
                    self._mark(self._refused)
            journal.abandon()

    def _keep_end(self, journal: Journal) -> bool:
        """Remember where a log ended whose file was removed or replaced; returns whether it was."""
        name, end = directory_name(journal.partition), journal.lost_end()
        if end is not None:
            self._clean[name] = end
            self._refused.add(name)
        return end is not None

    def delete(self, partition: TopicPartition, topic_id: bytes) -> str | None:
        """Delete a partition and its records, damaged ones too. The rename makes them disappear at once, even
        if a crash interrupts the rest. Files of another topic are set aside: returns their new name.
        """
        name = directory_name(partition)
        if why_foreign(self._storage, name, topic_id):
            return self.set_aside(partition)
        self.give_up(partition)
        self._unmark(name)
        self._catalogue.remove(name)
        self._storage.remove_directory(DELETED_DIRECTORY)
        self._storage.rename_directory(name, DELETED_DIRECTORY)
        self._storage.remove_directory(DELETED_DIRECTORY)
        self._names.discard(name)
        return None

    def finish_deleting(self) -> None:
        """Return when no loss of power can bring a deleted partition back, or make it look missing; call it
        after `delete`.
        """
        self._catalogue.sync_removals()

    def set_aside(self, partition: TopicPartition) -> str | None:
        """Rename the directory of a partition whose records the metadata does not know, and return its new
        name. They may be all that is left after damage to the metadata, so they are not deleted. None when
        there is no directory.
        """
        self.give_up(partition)
        name = directory_name(partition)
        self._unmark(name)
        self._catalogue.remove(name)
        self._catalogue.sync_removals()
        if name not in self._names:
            return None
        aside = name_aside(name, self._names)
        self._storage.rename_directory(name, aside)
        self._storage.sync_directory("")
        self._names.discard(name)
        self._names.add(aside)
        return aside

    def _mark(self, names: Iterable[str]) -> None:
        """Let the mark on the disk name these of the logs that were closed cleanly."""
        self._marked = {name: self._clean[name] for name in names if name in self._clean}
        if self._marked:
            self._storage.replace(CLEAN_FILE, encode_clean_mark(self._marked), durable=True)
        else:
            _remove_mark(self._storage)

    def _unmark(self, name: str) -> None:
        """This log was opened, or is about to be removed: the mark no longer covers it. If the mark on the
        disk names it, one for the refused logs takes its place.
        """
        self._clean.pop(name, None)
        self._refused.discard(name)
        if name in self._marked:
            self._mark(self._refused)

    def close(self, led: Mapping[TopicPartition, State] = {}) -> None:
        """Close every journal, write the mark for those that were closed completely, and release the lock.
        `led` are the states of leaders that are at the end of their logs.
        """
        try:
            journals, failed = self._journals, None
            try:
                self._storage.run_all(
                    [partial(journal.close, *led.get(key, ())) for key, journal in journals.items()]
                )
            except StorageError as problem:  # the other logs were closed completely
                failed = problem
            self._storage.sync_directory("")
            for partition, journal in journals.items():
                # A journal that failed gets no mark, so the next start recovers it.
                if journal.next_clean_mark is not None:
                    self._clean[directory_name(partition)] = journal.next_clean_mark
                else:
                    self._keep_end(journal)
            self._storage.replace(CLEAN_FILE, encode_clean_mark(self._clean), durable=True)
            if failed is not None:
                raise failed
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release everything without writing, as a crash does."""
        for journal in self._journals.values():
            journal.abandon()
        with suppress(StorageError):
            self._catalogue.close()
        self._storage.unlock()


def name_aside(name: str, names: Container[str]) -> str:
    """A new name for a directory that is set aside: `orders-0~1`. "~" is in no topic's name, so it is not the
    name of a partition.
    """
    return next(new for n in count(1) if (new := f"{name}~{n}") not in names)


def partitions_in(storage: StorageReader) -> list[TopicPartition]:
    """The partitions in a data directory, sorted; NotADataDirectory when it does not exist."""
    return sorted(_partitions_of(storage.directories()))


def _partitions_of(names: Iterable[str]) -> list[TopicPartition]:
    parsed = (parse_directory_name(name) for name in names)
    return [partition for partition in parsed if partition is not None]


def _warning(why_incomplete: str) -> str:
    """The sentence about a catalogue that may not list all logs; empty if it does."""
    if not why_incomplete:
        return ""
    lost = "if a log that it listed is gone, too, this start does not notice it"
    return (
        f"{CATALOGUE_FILE}: {why_incomplete}; {lost}. It is written again, with the logs whose files are here"
    )


def check_data_directory(storage: StorageReader) -> str:
    """The cluster id of a broker's data directory; NotADataDirectory for any other directory."""
    storage.directories()  # raises NotADataDirectory when the directory does not exist
    cluster_id = _cluster_id(storage)
    if cluster_id is None:
        raise NotADataDirectory(
            f"{storage.location} is not a data directory (it has no {META_FILE}): give the directory that "
            "`fencepost serve` was started with, not a parent or a subdirectory",
            location=storage.location,
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


def refuse_wrong_place(storage: Storage) -> None:
    """NotADataDirectory if this is not a data directory and must not become one."""
    names = [*storage.directories(), *storage.files("")] if storage.exists() else []
    if META_FILE not in names:
        refuse_nested(storage)
        _refuse_strangers(storage, names)


def refuse_nested(storage: Storage) -> None:
    """NotADataDirectory if this lies in a data directory, whose broker would take it for a log of its own."""
    outer = next(filter(_is_data_directory, storage.parents()), None)
    if outer is not None:
        raise NotADataDirectory(
            f"{storage.location} lies in the data directory {outer.location}, which cannot hold another one",
            location=storage.location,
        )


def _is_data_directory(storage: StorageReader) -> bool:
    try:
        # Opened directly: the directory may hold a million other files.
        with closing(storage.open(META_FILE)) as file:
            is_small = file.size <= META_BYTES_MAX
        return is_small and _cluster_id(storage) is not None
    except StorageError:  # another program's file, or one that this process may not read
        return False


def _refuse_strangers(storage: Storage, names: Iterable[str]) -> None:
    """Protect other people's files from a mistyped path: no log and no lock file is created among them."""
    strangers = [name for name in names if name not in _EXPECTED and not name.startswith(".")]
    if strangers:
        raise NotADataDirectory(
            f"{storage.location} holds other files ({strangers[0]}) and no {META_FILE}, so it is not a data "
            "directory: give an empty or a new directory, or the data directory itself, not a parent or a "
            "subdirectory",
            location=storage.location,
        )


def read_clean_mark(storage: StorageReader) -> dict[str, SyncedSegment]:
    """The logs that were closed cleanly: the name of the directory, and the last segment. None after a kill,
    nor while a broker runs, except those that it has refused.
    """
    data = storage.read_file(CLEAN_FILE)
    try:
        return {} if data is None else decode_clean_mark(data)
    except CorruptIndex:  # without a mark, a start only takes longer
        return {}


def _remove_mark(storage: Storage) -> None:
    """Remove the mark durably: after a power failure it must not come back. An earlier start may have removed
    it, and failed or died before the sync.
    """
    storage.remove(CLEAN_FILE)
    storage.sync_directory("")
