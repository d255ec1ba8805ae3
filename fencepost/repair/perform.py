"""Carries out a plan: sets the damaged originals aside, and writes logs that a broker leads again.

Rule: every file that is replaced or removed is first copied whole into a directory `NAME~1`. A repair that is
interrupted leaves a directory that is damaged as before, or repaired; it is started again.
"""

# Order of the writes to one partition, so that no kill in between hides damage:
#
#     1  copies of all files that change, in NAME~1, synced
#     2  snapshots that cover lost batches are removed: the broker must not trust them with a new log
#     3  files that belong to no log are removed. The manifest no longer describes a log file, but still says
#        how far the log went. Log files are replaced, each atomically
#     4  the log start; then the other derived files are removed: until now they were evidence of the damage.
#        The manifest is replaced, because it names the topic id
#     5  the journal opens the log as at a start of the broker, which builds the indexes again, and appends
#     6  the mark of a clean shutdown says where each of the logs ends: a second repair needs a witness, too

from __future__ import annotations

from contextlib import suppress

import attrs

from fencepost.check.snapshot_files import SNAPSHOT_SUFFIX
from fencepost.journal.data_directory import name_aside, read_clean_mark
from fencepost.journal.indexes import AbortedRange, CorruptIndex, ProducerSnapshot
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import (
    CLEAN_FILE,
    LOG_START_FILE,
    MANIFEST_FILE,
    Manifest,
    ManifestState,
    SyncedSegment,
    decode_manifest,
    encode_clean_mark,
    encode_manifest,
    read_log_start,
    write_log_start,
)
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import DamagedLog, Storage, StorageError
from fencepost.protocol.batches import place, read_marker
from fencepost.protocol.terms import NO_OFFSET, NO_TOPIC_ID
from fencepost.repair.plan import LogPlan, Plan
from fencepost.repair.salvage import epoch_before, repaired_bytes

OWN_FILES_ASIDE = "data-directory"  # `data-directory~1` has the files of the data directory itself


def perform(storage: Storage, plan: Plan) -> list[str]:
    """Repair a locked data directory; return the directories that hold what was set aside. StorageError when
    the disk fails or changes meanwhile; then a part of the plan may be done.
    """
    asides: list[str] = []
    if plan.files:
        asides.append(set_aside(storage, OWN_FILES_ASIDE, list(plan.files), of=""))
        for name, content in plan.files.items():
            if content is None:
                storage.remove(name)
            else:
                storage.replace(name, content, durable=True)
    _forget_clean(storage, {str(log.log.partition) for log in plan.logs} | {*plan.aside})
    closed: dict[str, SyncedSegment] = {}
    for log in plan.logs:
        asides += _repair(storage, log)
        closed[str(log.log.partition)] = _reopen(storage, log)
    for name in plan.aside:
        aside = name_aside(name, storage.directories())
        storage.rename_directory(name, aside)
        asides.append(aside)
    storage.sync_directory("")
    if closed:
        storage.replace(CLEAN_FILE, encode_clean_mark(read_clean_mark(storage) | closed), durable=True)
    return asides


def set_aside(storage: Storage, name: str, files: list[str], *, of: str) -> str:
    """Copy files of a directory into a new one next to it, durably; return its name."""
    aside = name_aside(name, storage.directories())
    storage.make_directory(aside)
    for file in files:
        data = storage.read_file(f"{of}/{file}" if of else file)
        if data is not None:
            storage.replace(f"{aside}/{file}", data, durable=True)
    storage.sync_directory("")
    return aside


def _forget_clean(storage: Storage, names: set[str]) -> None:
    """The mark of a clean shutdown no longer vouches for these partitions."""
    closed = read_clean_mark(storage)
    if names & closed.keys():
        left = {name: segment for name, segment in closed.items() if name not in names}
        storage.replace(CLEAN_FILE, encode_clean_mark(left), durable=True)


def _repair(storage: Storage, plan: LogPlan) -> list[str]:
    directory = str(plan.log.partition)
    altered = [segment for segment in plan.log.segments if segment.is_altered]
    changed = [*[segment.file for segment in altered], *plan.log.strays, *sorted(plan.derived)]
    if plan.log_start is not None:
        changed.append(f"{directory}/{LOG_START_FILE}")
    present = storage.files(directory)
    files = [name for path in changed if (name := path.rpartition("/")[2]) in present]
    asides = [set_aside(storage, directory, files, of=directory)] if files else []
    storage.make_directory(directory)
    for path in plan.derived:
        if path.endswith(SNAPSHOT_SUFFIX):
            storage.remove(path)
    for path in plan.log.strays:
        storage.remove(path)
    if altered:
        _forget_files(storage, f"{directory}/{MANIFEST_FILE}", directory)
    for segment in altered:
        content = repaired_bytes(storage, segment, epoch_before(plan.log, segment))
        storage.replace(segment.file, content, durable=True)
    if plan.log_start is not None:
        write_log_start(storage, directory, plan.log_start, plan.topic_id)
    for path in plan.derived:
        if path == f"{directory}/{MANIFEST_FILE}" and plan.topic_id != NO_TOPIC_ID:
            manifest = _manifest_of(plan, read_log_start(storage, directory))
            storage.replace(path, encode_manifest(manifest, directory=directory), durable=True)
        else:
            storage.remove(path)
    storage.sync_directory(directory)
    return asides


def _forget_files(storage: Storage, path: str, directory: str) -> None:
    """Let a manifest describe no log file: a repair that is started again would take those of this one for
    files of another log.
    """
    data = storage.read_file(path)
    with suppress(CorruptIndex):
        if data is not None:
            manifest = attrs.evolve(decode_manifest(data, directory=directory), segments=())
            storage.replace(path, encode_manifest(manifest, directory=directory), durable=True)


def _manifest_of(plan: LogPlan, stored_log_start: int) -> Manifest:
    """A manifest that is true of the repaired log and promises nothing. It has the topic id, so that a repair
    that was interrupted puts the topic back under the same id when it is started again.
    """
    base = plan.log.segments[0].base_offset if plan.log.segments else 0
    start = min(max(stored_log_start, base), plan.model.end_offset)
    state = _state_of(plan, start)
    return Manifest(
        topic_id=plan.topic_id,
        log_start_offset=start,
        last_stable_offset=state.last_stable_offset,
        high_watermark=state.high_watermark,
        open_transactions=state.open_transactions,
        segments=(),
        snapshots=(),
        durable_end=NO_OFFSET,
        boot_id="",
    )


def _state_of(plan: LogPlan, first_offset: int) -> ManifestState:
    model = plan.model
    return ManifestState(
        last_stable_offset=max(model.last_stable_offset, first_offset),
        high_watermark=model.end_offset,
        open_transactions=tuple(
            OpenTransaction(offset, producer_id, model.producers[producer_id].producer_epoch)
            for offset, producer_id in model.open_transactions()
        ),
    )


def _reopen(storage: Storage, plan: LogPlan) -> SyncedSegment:
    """Let the journal judge the log as a start will, rebuild its indexes, and append; then close it as a stop
    does. Returns the last segment for the mark of a clean shutdown.
    """
    try:
        journal = Journal(storage, plan.log.partition, topic_id=plan.topic_id)
    except DamagedLog as problem:  # its advice is for a broker, which has changed nothing
        raise StorageError(problem.because) from problem
    epoch = max(0, journal.leader_epoch)
    for batch in plan.appended:
        header = place(batch, base_offset=journal.log_end_offset, leader_epoch=epoch)
        marker = read_marker(batch) if header.is_control else None
        aborted = len(plan.model.aborted)
        plan.model.apply(header, marker)
        entry = AbortedRange(*plan.model.aborted[-1]) if len(plan.model.aborted) > aborted else None
        journal.append(batch, header, leader_epoch=epoch, aborted=entry)
    producers = None
    if journal.segments.oldest_offset and journal.newest_snapshot(journal.log_end_offset) is None:
        # The snapshot that stood for deleted segments is lost. A new one says that this is all that is known.
        producers = [ProducerSnapshot(number, *known) for number, known in plan.model.producers.items()]
    # The beginning of an open transaction may have been deleted.
    journal.close(_state_of(plan, journal.segments.batch_start(journal.log_start_offset)), producers)
    assert journal.next_clean_mark is not None, "a journal that has failed raises"
    return journal.next_clean_mark
