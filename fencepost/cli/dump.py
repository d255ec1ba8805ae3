"""`fencepost dump`: describes the contents of a log, as text or as JSON.

Each file yields facts: one JSON object per batch, marker, record, state or index entry. A fact has a "kind";
`TEXTS` has a sentence for each kind, and `--json` prints the facts themselves.

Rule: takes no lock and writes nothing, so it can read the files of a running broker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import attrs

from fencepost.check.findings import counted
from fencepost.cli.errors import AND_THE_RIGHTS, OK, STDOUT, CommandFailed, WrongUsage, complain
from fencepost.cli.log_files import (
    StoredBatch,
    Torn,
    check_is_log,
    partition_directories,
    partition_of,
    read_batches,
    refuse_pipe,
    segment_files,
)
from fencepost.cli.options import NOT_EMPTY, AsJson, Flag
from fencepost.cli.output import Json, print_json, text_of
from fencepost.cli.table import moment
from fencepost.journal.disk import DiskStorage
from fencepost.journal.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    decode_snapshot,
    without_preallocated,
)
from fencepost.journal.layouts import is_kafka
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.journal.segments import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, parse_file_name
from fencepost.protocol.batches import CONTROL_TYPES, MAGIC_COLUMNS, control_type, marker_in
from fencepost.protocol.compression import compression_name
from fencepost.protocol.consumer_group_log import (
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
)
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.kraft_log import read_kraft_records
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.offsets_log import GroupRecord, read_group_batch
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions


def dump(
    path: Path,
    /,
    *,
    topic: Annotated[tuple[str, ...], NOT_EMPTY] = (),
    records: Flag = False,
    indexes: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Describe the contents of a log file or data directory.

    Parameters
    ----------
    path
        A data directory, a partition directory, or one file: .log, .index, .timeindex, .txnindex, .snapshot,
        manifest.json.
    topic
        Only this topic of a data directory. Repeatable.
    records
        Also show the records of data batches.
    indexes
        Also show the entries of offset and time indexes in a directory. Those of a single file are always
        shown.
    """
    check_is_log(path)
    check_topics(path, topic)
    if path.is_file():
        dump_file(path, records=records, as_json=as_json, titled=False)
        return OK
    unread: list[str] = []
    for number, directory in enumerate(directories_of(path, topic)):
        if not as_json:
            print(f"\n{directory.name}" if number else directory.name)
        with _reporting_unread(unread):
            for file in files_of_partition(directory, indexes=indexes):
                with _reporting_unread(unread):
                    dump_file(file, records=records, as_json=as_json, titled=True)
    if unread:
        raise CommandFailed(
            f"{path} was not printed whole", then=f"check the files named above{AND_THE_RIGHTS}"
        )
    return OK


@contextmanager
def _reporting_unread(unread: list[str]) -> Generator[None]:
    """Reports a file or a directory that cannot be read, and notes it."""
    try:
        yield
    except (CommandFailed, OSError) as problem:
        why, then = str(problem), ""
        if isinstance(problem, CommandFailed):
            then = problem.then
        elif problem.filename in (None, STDOUT):
            raise
        else:
            why = f"cannot read {problem.filename}: {problem.strerror}"
        sys.stdout.flush()
        complain(why, then=then)
        unread.append(why)


def check_topics(path: Path, topics: tuple[str, ...]) -> None:
    """CommandFailed if the directory has no log of a requested topic: a topic without records has none."""
    if not topics:
        return
    partitions = partition_directories(path) if path.is_dir() else []
    present = {partition.topic for partition, _ in partitions}
    for topic in topics:
        if topic not in present:
            raise CommandFailed(
                f"{path} has no log of a topic {topic}",
                then=f"it has those of {', '.join(sorted(present))}"
                if present
                else "--topic needs a data directory; leave it out for a single file or partition",
            )


def directories_of(path: Path, topics: tuple[str, ...]) -> list[Path]:
    """The partitions of a data directory, or the directory of one partition itself."""
    partitions = partition_directories(path)
    if not partitions:
        return [path.resolve()]
    return [directory for partition, directory in partitions if not topics or partition.topic in topics]


def files_of_partition(directory: Path, *, indexes: bool) -> list[Path]:
    """The files to describe: the log and its indexes segment by segment, then snapshots and manifest."""
    kinds = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX) if indexes else (LOG, TRANSACTION_INDEX)
    files = sorted(
        (path for kind in kinds for path in segment_files(directory, kind)),
        key=lambda path: (path.stem, kinds.index(path.suffix[1:])),
    )
    manifest = directory / MANIFEST_FILE
    refuse_pipe(manifest)
    return [*files, *segment_files(directory, SNAPSHOT), *([manifest] if manifest.exists() else [])]


def dump_file(file: Path, *, records: bool, as_json: bool, titled: bool) -> None:
    facts = facts_of_file(file, records=records)
    if as_json:
        for fact in facts:
            print_json(fact)
        return
    if titled and file.stat().st_size:
        print(f"  {file.name}")
    for fact in facts:
        print(in_words(fact))


Fact = dict[str, Json]


def facts_of_file(path: Path, *, records: bool = False) -> Iterator[Fact]:
    """The facts of one file of any kind; a file that cannot be decoded is a fact of kind "damage".

    CommandFailed if the name is not that of a log file.
    """
    where: Fact = {"log": str(partition_of(path.parent.resolve()) or ""), "file": path.name}
    base_offset, kind = parse_file_name(path.name)
    reader = READERS.get(kind or path.name)
    if reader is None:
        raise WrongUsage(
            f"{path} is not a log file",
            then="give a data directory, a partition directory, or one file: .log, .index, .timeindex, "
            ".txnindex, .snapshot, manifest.json",
        )
    try:
        for fact in facts_of_log(path, records=records) if kind == LOG else reader(path, base_offset):
            yield {"kind": fact.pop("kind"), **where, **fact}
    except (FencepostError, ValueError, RecursionError) as problem:  # the last two from a damaged manifest
        yield {"kind": "damage", **where, "because": str(problem)}


def facts_of_log(path: Path, *, records: bool = False) -> Iterator[Fact]:
    """The batches of a `.log` file, each followed by its records: decoded states in an internal topic."""
    partition = partition_of(path.parent.resolve())
    decode = INTERNAL.get(partition.topic if partition else "")
    for batch in read_batches(path):
        if isinstance(batch, Torn):
            yield {"kind": "damage", "position": batch.position, "size": batch.size, "because": batch.because}
            continue
        yield facts_of_batch(batch)
        if not batch.is_intact or batch.header.is_control:
            continue
        if decode is not None:
            yield from decode(batch)
        elif records:
            yield from facts_of_records(batch)


def facts_of_batch(batch: StoredBatch) -> Fact:
    """The header of a batch; a control batch is described as the marker in it, or by its type."""
    header = batch.header
    place: Fact = {"offset": header.base_offset, "position": batch.position, "size": header.size}
    producer: Fact = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
    if header.is_control and batch.is_intact:
        marker = marker_in(batch.data, header)
        if marker is None:
            kind = control_type(batch.data, header)
            what = None if kind is None else CONTROL_TYPES[kind]
            return {"kind": "control", **place, "what": what, "timestamp_ms": header.max_timestamp}
        result: Fact = {"result": marker.result.name, "coordinator_epoch": marker.coordinator_epoch}
        return {"kind": "marker", **place, **producer, **result, "timestamp_ms": header.max_timestamp}
    fact: Fact = {"kind": "batch", **place, "last_offset": header.last_offset, "records": header.record_count}
    if header.producer_id != NO_PRODUCER_ID:
        fact |= producer
    if header.base_sequence != NO_SEQUENCE:
        fact |= {"first_sequence": header.base_sequence, "last_sequence": header.last_sequence}
    return fact | {
        "transactional": header.is_transactional,
        "layout": "columns" if header.magic == MAGIC_COLUMNS else "kafka",
        "compression": compression_name(header.compression),
        "leader_epoch": header.leader_epoch,
        "timestamp_ms": header.max_timestamp,
        "intact": batch.is_intact,
    }


def facts_of_records(batch: StoredBatch) -> Iterator[Fact]:
    columns, header = read_columns(batch.data, batch.header), batch.header
    for index, value in enumerate(columns.values):
        offset = index if columns.offset_deltas is None else columns.offset_deltas[index]
        later = 0 if columns.timestamp_deltas is None else columns.timestamp_deltas[index]
        headers = (columns.headers[index] if columns.headers is not None else None) or []
        yield {
            "kind": "record",
            "offset": header.base_offset + offset,
            "timestamp_ms": header.base_timestamp + later,
            "key": text_of(None if columns.keys is None else columns.keys[index]),
            "value": text_of(value),
            "headers": [[name, text_of(content)] for name, content in headers],
        }


def facts_of_transactions(batch: StoredBatch) -> Iterator[Fact]:
    """The records of `__transaction_state`: the state of a transactional id."""
    for name, record in read_transactions(batch.data, batch.header):
        fact: Fact = {"kind": "transaction", "offset": batch.header.base_offset, "transactional_id": name}
        yield fact | ({"state": "Dead"} if record is None else facts_of_state(record))


def facts_of_state(record: TransactionRecord) -> Fact:
    """One record of the transaction log."""
    return {
        "state": record.state.title,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "partitions": [str(partition) for partition in record.partitions],
        "timeout_ms": record.timeout_ms,
        "start_ms": record.start_ms,
        "update_ms": record.update_ms,
    }


def facts_of_offsets(batch: StoredBatch) -> Iterator[Fact]:
    """The records of `__consumer_offsets`: committed offsets (pending if the batch is transactional), and the
    members of a group.
    """
    found = read_group_batch(batch.data, batch.header)
    for group_id, group in found.groups:
        fact: Fact = {"kind": "group", "offset": batch.header.base_offset, "group": group_id}
        yield fact | ({"generation": None} if group is None else facts_of_group(group))
    for part, record in found.consumers:
        fact = {"kind": "consumer group", "offset": batch.header.base_offset, "group": part.group_id}
        name = {"of": part.name} if part.name else {}
        yield fact | name | {"part": part.kind.title} | facts_of_consumers(record)
    for key, record in found.offsets:
        yield {
            "kind": "offset",
            "offset": batch.header.base_offset,
            "group": key.group_id,
            "of": f"{key.topic}-{key.partition}",
            "committed": None if record is None else record.offset,
            "transactional": batch.header.is_transactional,
        }


def facts_of_group(record: GroupRecord) -> Fact:
    return {
        "generation": record.generation_id,
        "protocol": record.protocol_name,
        "leader": record.leader,
        "members": [member.member_id for member in record.members],
    }


def facts_of_consumers(record: ConsumerRecord | None) -> Fact:
    """One part of a group of the consumer protocol."""
    match record:
        case None:
            return {"removed": True}
        case GroupEpoch() | TargetEpoch():
            return {"epoch": record.epoch}
        case Subscription():
            return {"instance": record.instance_id, "topics": list(record.topics), "expression": record.regex}
        case ResolvedRegex():
            return {"topics": list(record.topics)}
        case CurrentAssignment():
            return {
                "epoch": record.epoch,
                "state": record.state.title,
                "assigned": len(record.assigned),
                "revoking": len(record.revoking),
            }
        case frozenset():
            return {"partitions": len(record)}


@cache
def _is_of_kafka(directory: Path) -> bool:
    return is_kafka(DiskStorage(directory, read_only=True))


def facts_of_cluster(batch: StoredBatch) -> Iterator[Fact]:
    """The records of `__cluster_metadata`: topics, leaders, blocks of producer ids. Of records of an Apache
    Kafka controller, those that readers need are decoded; of all others, only the kind.
    """
    if _is_of_kafka(batch.file.parent.parent):
        for kraft in read_kraft_records(batch.data, batch.header):
            fields = kraft._asdict()
            del fields["written_ms"]  # as its batch
            what = {"kind": "cluster", "offset": batch.header.base_offset, "what": fields.pop("kind")}
            yield what | {name: _shown(value) for name, value in fields.items() if value is not None}
        return
    for record in read_cluster_records(batch.data, batch.header):
        fields = {name: _shown(value) for name, value in attrs.asdict(record).items()}
        yield {"kind": "cluster", "offset": batch.header.base_offset, "what": type(record).__name__, **fields}


def _shown(value: Any) -> Json:
    if isinstance(value, tuple):
        return list(cast("tuple[Json, ...]", value))
    return value.hex() if isinstance(value, bytes) else value


def facts_of_offset_index(path: Path, base_offset: int) -> Iterator[Fact]:
    """Entries of a `.index` file."""
    index = OffsetIndex(without_preallocated(path.read_bytes(), OFFSET_ENTRY.size))
    for offset, position in zip(index.offsets, index.positions, strict=True):
        yield {"kind": "index", "offset": base_offset + offset, "position": position}


def facts_of_time_index(path: Path, base_offset: int) -> Iterator[Fact]:
    """Entries of a `.timeindex` file."""
    index = TimeIndex(without_preallocated(path.read_bytes(), TIME_ENTRY.size))
    for timestamp, offset in zip(index.timestamps, index.offsets, strict=True):
        yield {"kind": "timeindex", "timestamp_ms": timestamp, "offset": base_offset + offset}


def facts_of_aborted(path: Path, _base_offset: int) -> Iterator[Fact]:
    """Entries of a `.txnindex` file: aborted transactions whose marker is in that segment."""
    index = TransactionIndex(path.read_bytes())
    for entry in range(len(index)):
        yield {"kind": "aborted", **index[entry]._asdict()}


def facts_of_snapshot(path: Path, base_offset: int) -> Iterator[Fact]:
    """The producers of a `.snapshot` file."""
    for producer in decode_snapshot(path.read_bytes()):
        yield {"kind": "producer", "at": base_offset, **producer._asdict()}


def facts_of_manifest(path: Path, _base_offset: int) -> Iterator[Fact]:
    yield {"kind": "manifest", "content": json.loads(path.read_text())}


INTERNAL: dict[str, Callable[[StoredBatch], Iterator[Fact]]] = {
    TRANSACTION_STATE_TOPIC: facts_of_transactions,
    CONSUMER_OFFSETS_TOPIC: facts_of_offsets,
    CLUSTER_METADATA_TOPIC: facts_of_cluster,
}

READERS: dict[str, Callable[[Path, int], Iterator[Fact]]] = {
    LOG: lambda path, _base_offset: facts_of_log(path),
    INDEX: facts_of_offset_index,
    TIME_INDEX: facts_of_time_index,
    TRANSACTION_INDEX: facts_of_aborted,
    SNAPSHOT: facts_of_snapshot,
    MANIFEST_FILE: facts_of_manifest,
}


AnyFact = dict[str, Any]  # facts are JSON: what a key holds is known by its kind


def in_words(fact: AnyFact) -> str:
    return TEXTS[fact["kind"]](fact)


def span(first: int, last: int) -> str:
    """`7` or `7-12`."""
    return str(first) if first == last else f"{first}-{last}"


def producer(fact: AnyFact) -> str:
    return f"producer {fact['producer_id']} epoch {fact['producer_epoch']}"


def batch(fact: AnyFact) -> str:
    offsets = f"{span(fact['offset'], fact['last_offset']):>15}"
    if not fact["records"] and "producer_id" not in fact and fact["intact"]:
        return f"{offsets}  no records: compaction removed them, or they were lost before a repair"
    parts = [counted(fact["records"], "record")]
    if "producer_id" in fact:
        parts.append(producer(fact))
    if "first_sequence" in fact:
        parts.append(f"sequence {span(fact['first_sequence'], fact['last_sequence'])}")
    if fact["transactional"]:
        parts.append("in a transaction")
    if fact["compression"] != "none":
        parts.append(fact["compression"])
    parts += [f"{fact['size']:,} bytes", moment(fact["timestamp_ms"])]
    if not fact["intact"]:
        parts.append("DAMAGED: the checksum does not match")
    return f"{offsets}  " + ", ".join(parts)


def marker(fact: AnyFact) -> str:
    return (
        f"{fact['offset']:>15}  {fact['result']} marker: {producer(fact)}, "
        f"coordinator epoch {fact['coordinator_epoch']}, {moment(fact['timestamp_ms'])}"
    )


def control(fact: AnyFact) -> str:
    what = fact["what"] or "a control batch that compaction emptied"
    return f"{fact['offset']:>15}  {what}, {moment(fact['timestamp_ms'])}"


def record(fact: AnyFact) -> str:
    key, value = (json.dumps(fact[name], ensure_ascii=False) for name in ("key", "value"))
    headers = f"  headers {json.dumps(fact['headers'], ensure_ascii=False)}" if fact["headers"] else ""
    return f"{fact['offset']:>19}: {key} -> {value}{headers}"


def transaction(fact: AnyFact) -> str:
    name = f"{'':15}  {fact['transactional_id']!r} "
    if fact["state"] == "Dead":
        return name + "was deleted (tombstone)"
    begun = " (BEGIN)" if fact["state"] == "Ongoing" else ""
    where = ": " + ", ".join(fact["partitions"]) if fact["partitions"] else ""
    return f"{name}{fact['state']}{begun}, {producer(fact)}{where}"


def offset(fact: AnyFact) -> str:
    how = ", pending until its transaction commits" if fact["transactional"] else ""
    what = "deletes its offset for" if fact["committed"] is None else f"commits offset {fact['committed']} of"
    return f"{'':15}  group {fact['group']!r} {what} {fact['of']}{how}"


def group(fact: AnyFact) -> str:
    name = f"{'':15}  group {fact['group']!r} "
    if fact["generation"] is None:
        return name + "was deleted (tombstone)"
    members = [f"{each} (leader)" if each == fact["leader"] else each for each in fact["members"]]
    return f"{name}generation {fact['generation']}: " + (", ".join(members) or "no members")


def consumer_group(fact: AnyFact) -> str:
    hidden = {"kind", "log", "file", "offset", "group", "part", "of", "removed"}
    fields = ", ".join(f"{name} {value}" for name, value in fact.items() if name not in hidden)
    of = f" of {fact['of']}" if "of" in fact else ""
    what = "was deleted (tombstone)" if "removed" in fact else fields
    return f"{'':15}  group {fact['group']!r} {fact['part']}{of}: {what}"


def cluster(fact: AnyFact) -> str:
    hidden = {"kind", "log", "file", "offset", "what"}
    fields = ", ".join(f"{name} {value}" for name, value in fact.items() if name not in hidden)
    return f"{'':15}  {fact['what']}: {fields}"


def index(fact: AnyFact) -> str:
    return f"{fact['offset']:>15}  is in the batch at byte {fact['position']:,}"


def timeindex(fact: AnyFact) -> str:
    return f"{fact['offset']:>15}  largest timestamp up to here: {moment(fact['timestamp_ms'])}"


def aborted(fact: AnyFact) -> str:
    first, last = fact["first_offset"], fact["last_offset"]
    return (
        f"{span(first, last):>15}  aborted: producer {fact['producer_id']}, ABORT marker at {last}, "
        f"when the last stable offset was {fact['last_stable_offset']}"
    )


def snapshot(fact: AnyFact) -> str:
    first_offset = fact["first_offset"]
    state = "no open transaction" if first_offset < 0 else f"transaction open since {first_offset}"
    return (
        f"{fact['at']:>15}  {producer(fact)}: last sequence {fact['last_sequence']} at offset "
        f"{fact['last_offset']}, "
        f"coordinator epoch {fact['coordinator_epoch']}, {state}"
    )


def manifest(fact: AnyFact) -> str:
    return f"{'':15}  {json.dumps(fact['content'])}"


def damage(fact: AnyFact) -> str:
    where = f"{fact['size']:,} bytes at byte {fact['position']:,}: " if "position" in fact else ""
    return f"{'':15}  DAMAGED or incomplete: {where}{fact['because']}"


TEXTS: dict[str, Callable[[AnyFact], str]] = {
    "batch": batch,
    "marker": marker,
    "control": control,
    "record": record,
    "transaction": transaction,
    "offset": offset,
    "group": group,
    "consumer group": consumer_group,
    "cluster": cluster,
    "index": index,
    "timeindex": timeindex,
    "aborted": aborted,
    "producer": snapshot,
    "manifest": manifest,
    "damage": damage,
}
