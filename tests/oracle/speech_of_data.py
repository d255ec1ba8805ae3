"""Questions about records, and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.batches import read_marker, walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    IsolationLevel,
)
from tests.oracle.batches import recorded_batch
from tests.oracle.conversation import Fields
from tests.oracle.phrasing import Asking, Telling, Told, body_of, names_of, partition_of, tell_error
from tests.oracle.symbols import Symbols

BYTES_MAX: Final = 10_000_000  # what the recorder's fetches ask for
SHOWN_TIMESTAMP_MAX: Final = 10**9  # a later one is of the day of the recording, and not in it


def ask_produce(asking: Asking) -> m.Request:
    """One batch for one partition, or in `parts` any number for each of several."""
    args = asking.args
    parts = args["parts"] if "parts" in args else {args["partition"]: [args]}
    return m.Produce(
        transactional_id=args.get("transactional_id"),
        acks=args.get("acks", -1),
        timeout_ms=5_000,
        partitions=tuple(_produced(asking, partition, batches) for partition, batches in parts.items()),
    )


def _produced(asking: Asking, partition: str, batches: list[Fields]) -> m.ProducePartition:
    key, records = partition_of(partition), bytearray()
    for batch in batches:
        producer_id = asking.symbols.producer_id(batch.get("producer"))
        records += recorded_batch(
            batch, producer_id=producer_id, now_ms=asking.now_ms, is_kafka=asking.is_kafka
        )
    return m.ProducePartition(topic=key.topic, topic_id=NO_TOPIC_ID, partition=key.partition, records=records)


def tell_produced(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ProduceReply)
    if "parts" in telling.args:
        found = () if body is None else body.partitions
        refused = {key: [reply.error.name, NO_OFFSET] for key in telling.args["parts"]}
        return refused | {f"{p.topic}-{p.partition}": [p.error.name, p.base_offset] for p in found}
    if body is None:
        return {"error": reply.error.name, "offset": NO_OFFSET}
    (part,) = body.partitions
    return {"error": part.error.name, "offset": part.base_offset}


def _isolation(args: Fields) -> IsolationLevel:
    return IsolationLevel[args["isolation"].upper()]


def ask_fetch(asking: Asking) -> m.Request:
    """From one partition, or in `parts` from several, each with its offset."""
    args = asking.args
    size = args.get("max_bytes", BYTES_MAX)
    offsets = args["parts"] if "parts" in args else {args["partition"]: args["offset"]}
    parts = tuple(
        m.FetchPartition(
            topic=key.topic,
            partition=key.partition,
            current_leader_epoch=args.get("leader_epoch", NO_LEADER_EPOCH),
            fetch_offset=offset,
            max_bytes=args.get("partition_max_bytes", BYTES_MAX),
        )
        for key, offset in ((partition_of(text), offset) for text, offset in offsets.items())
    )
    return m.Fetch(
        max_wait_ms=0, min_bytes=0, max_bytes=size, isolation_level=_isolation(args), partitions=parts
    )


def tell_fetched(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.FetchReply)
    if body is None:
        return tell_error(reply, telling)
    if "parts" in telling.args:
        return {
            f"{part.topic}-{part.partition}": [part.error.name, _batches(part, telling.symbols)]
            for part in body.partitions
        }
    (part,) = body.partitions
    told: dict[str, Any] = {
        "error": part.error.name,
        "high_watermark": part.high_watermark,
        "last_stable_offset": part.last_stable_offset,
        "log_start_offset": part.log_start_offset,
    }
    if part.error is not ErrorCode.NONE:
        return told
    told["batches"] = batches = _batches(part, telling.symbols)
    if _isolation(telling.args) is IsolationLevel.READ_UNCOMMITTED:
        telling.listed[telling.args["partition"]] = batches
        return told
    told["aborted"] = sorted(
        [telling.symbols.producer(found.producer_id), found.first_offset] for found in part.aborted or ()
    )
    listed = telling.listed.get(telling.args["partition"], [])
    if isinstance(telling.question.reply.get("batches"), int) and batches == listed[: len(batches)]:
        told["batches"] = len(batches)
    return told


def _batches(part: m.FetchedPartition, symbols: Symbols) -> list[Any]:
    rows: list[Any] = []
    for at, header in walk(part.records):
        row: list[Any] = [header.base_offset, header.last_offset, symbols.producer(header.producer_id)]
        row += [header.producer_epoch, header.base_sequence]
        if header.is_control:
            marker = read_marker(part.records, at)
            row += [marker.result.name, symbols.coordinator(marker.coordinator_epoch)]
        else:
            row += ["transactional" if header.is_transactional else "plain"]
        rows.append(row)
    return rows


TIMESTAMPS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "max timestamp": -3}


def ask_list_offsets(asking: Asking) -> m.Request:
    key, timestamp = partition_of(asking.args["partition"]), asking.args["timestamp"]
    wanted = TIMESTAMPS[timestamp] if isinstance(timestamp, str) else timestamp
    epoch = asking.args.get("leader_epoch", NO_LEADER_EPOCH)
    part = m.ListOffsetsPartition(
        topic=key.topic, partition=key.partition, current_leader_epoch=epoch, timestamp=wanted
    )
    return m.ListOffsets(isolation_level=_isolation(asking.args), partitions=(part,))


def tell_listed_offset(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ListOffsetsReply)
    if body is None:
        return {"error": reply.error.name, "offset": NO_OFFSET}
    (part,) = body.partitions
    told = {"error": part.error.name, "offset": part.offset}
    if isinstance(telling.args["timestamp"], int) and 0 <= part.timestamp < SHOWN_TIMESTAMP_MAX:
        told["timestamp"] = part.timestamp
    return told


def ask_describe_producers(asking: Asking) -> m.Request:
    return m.DescribeProducers(partitions=names_of([asking.args["partition"]]))


def tell_producers(reply: Reply, telling: Telling) -> Told:
    body, symbols = body_of(reply, m.DescribeProducersReply), telling.symbols
    if body is None:
        return tell_error(reply, telling)
    (part,) = body.partitions
    found = [
        {
            "producer": symbols.producer(producer.producer_id),
            "epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "coordinator_epoch": symbols.coordinator(producer.coordinator_epoch),
            "transaction_start_offset": producer.open_since_offset,
        }
        for producer in sorted(part.producers, key=lambda producer: producer.producer_id)
    ]
    return {"error": part.error.name, "producers": found}


def ask_delete_records(asking: Asking) -> m.Request:
    key = partition_of(asking.args["partition"])
    part = m.DeleteRecordsPartition(topic=key.topic, partition=key.partition, offset=asking.args["offset"])
    return m.DeleteRecords(timeout_ms=5_000, partitions=(part,))


def tell_records_deleted(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.DeleteRecordsReply)
    if body is None:
        return {"error": reply.error.name, "low_watermark": NO_OFFSET}
    (part,) = body.partitions
    return {"error": part.error.name, "low_watermark": part.low_watermark}
