"""A broker held against the naive model: its answers, its memory and its files say what a full scan says.

Rule: each comparison takes one side from an answer, a file or a snapshot, and the other from the kept logs.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from fencepost.broker.contract import BecomeLeader
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.journal.indexes import AbortedRange
from fencepost.protocol import messages as m
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tests.broker import naive_log
from tests.broker.chronicle import Chronicle
from tests.broker.naive_answers import PREPARED
from tests.broker.naive_coordinators import Offsets, TransactionRecord, offsets, transactional_ids
from tests.broker.naive_log import NONE
from tests.broker.requests import COMMITTED, body_of, fetch_request, next_offset, visible_values
from tests.broker.story import LogEntry

INDEX_ENTRY: Final = struct.Struct(">hqqqq")  # version, producer, first, last and last stable offset
INDEXED_EVERY: Final = 4_096  # bytes of a segment, for its offset index


def check(story: Chronicle, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
    """Everything there is to compare. What waits for the disk is not asked for: then the high watermarks are
    given.
    """
    story.catch_up()
    _check_bounds(story, high_watermarks or {})
    _check_memory(story)
    _check_indexes(story)
    if high_watermarks is None:
        _check_producers(story)
        _check_ids(story)
        _check_offsets(story)
        for key in story.keys:
            if key.topic not in INTERNAL_TOPICS:
                read(story, key, story.kept[key].log_start, 1 << 20)


def bounds(story: Chronicle, key: TopicPartition, high_watermark: int | None = None) -> tuple[int, int, int]:
    """Log start, last stable offset and high watermark of a log that is durable to its end, or so far."""
    kept = story.kept[key]
    durable = kept.end if high_watermark is None else high_watermark
    return kept.log_start, naive_log.stable_offset(kept.lines, durable, kept.log_start), durable


def _check_bounds(story: Chronicle, high_watermarks: Mapping[TopicPartition, int]) -> None:
    keys = story.keys
    parts = (
        m.FetchPartition(
            topic=key.topic,
            partition=key.partition,
            current_leader_epoch=NO_LEADER_EPOCH,
            fetch_offset=story.kept[key].end,
            max_bytes=1,
        )
        for key in keys
    )
    request = m.Fetch(
        max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=COMMITTED, partitions=tuple(parts)
    )
    for key, part in zip(keys, body_of(story.peek(request), m.FetchReply).partitions, strict=True):
        found = (part.log_start_offset, part.last_stable_offset, part.high_watermark)
        assert (part.error, found) == (ErrorCode.NONE, bounds(story, key, high_watermarks.get(key))), key


def _check_memory(story: Chronicle) -> None:
    for key in story.keys:
        found = partition.snapshot(story.partition(key))
        assert found == naive_log.snapshot(story.meaning(key).known), f"producers of {key}"


def _check_indexes(story: Chronicle) -> None:
    """Every aborted transaction whose marker is left has its entry, in the segment of the marker."""
    for key in story.keys:
        bases = sorted(story.segments(key))
        entries: list[AbortedRange] = []
        for base, data in sorted(story.index_files(key).items()):
            here = [AbortedRange(*fields[1:]) for fields in INDEX_ENTRY.iter_unpack(data)]
            last = [bases[bisect_right(bases, entry.last_offset) - 1] for entry in here]
            assert set(last) <= {base}, f"{key}: an entry of another segment in {base}"
            entries += here
        oldest = bases[0] if bases else 0
        expected = [entry for entry in story.meaning(key).aborted if entry.last_offset >= oldest]
        assert entries == expected, f"the aborted transactions of {key}"


def _check_producers(story: Chronicle) -> None:
    keys = story.keys
    request = m.DescribeProducers(partitions=tuple(keys))
    parts = body_of(story.peek(request), m.DescribeProducersReply).partitions
    for key, part in zip(keys, parts, strict=True):
        assert part.error is ErrorCode.NONE
        assert _described(part) == story.meaning(key).known.keys(), f"producers of {key}"
        for found in part.producers:
            known = story.meaning(key).known[found.producer_id]
            said = (
                found.producer_epoch, found.last_sequence, found.last_timestamp, found.coordinator_epoch,
                found.open_since_offset,
            )  # fmt: skip
            assert said == (
                known.epoch, known.last_sequence, known.timestamp, known.coordinator_epoch,
                known.current_txn_first_offset,
            ), f"producer {found.producer_id} in {key}"  # fmt: skip


def _described(part: m.DescribedProducers) -> set[int]:
    return {producer.producer_id for producer in part.producers}


# --- coordinators ----------------------------------------------------------------------------------------


def ids(story: Chronicle) -> dict[str, TransactionRecord]:
    """Every transactional id, and what its log says last."""
    found: dict[str, TransactionRecord] = {}
    for key in story.keys:
        if key.topic == TRANSACTION_STATE_TOPIC:
            found |= story.said(key, transactional_ids)
    return dict(sorted(found.items()))


def group_offsets(story: Chronicle) -> list[Offsets]:
    """Of each log of group coordinators."""
    return [story.said(key, offsets) for key in story.keys if key.topic == CONSUMER_OFFSETS_TOPIC]


def _check_ids(story: Chronicle) -> None:
    expected = ids(story)
    listed = body_of(
        story.peek(m.ListTransactions(states=(), producer_ids=(), duration_ms=-1)), m.ListTransactionsReply
    ).transactions
    found = [(each.transactional_id, each.producer_id, each.state) for each in listed]
    assert found == [(name, record.producer_id, record.state) for name, record in expected.items()]
    request = m.DescribeTransactions(transactional_ids=tuple(expected))
    for one in body_of(story.peek(request), m.DescribeTransactionsReply).transactions:
        record = expected[one.transactional_id]
        assert (one.producer_id, one.producer_epoch, one.state, one.timeout_ms, one.start_ms) == (
            record.producer_id, record.producer_epoch, record.state, record.timeout_ms, record.start_ms
        )  # fmt: skip
        partitions = set(one.partitions)
        if record.state in PREPARED:
            assert partitions <= set(record.partitions)  # those that have their marker are left out
        else:
            assert partitions == set(record.partitions)


def _check_offsets(story: Chronicle) -> None:
    for found in group_offsets(story):
        keys = found.committed.keys() | found.pending
        for group in sorted({key.group_id for key in keys}):
            of_group = sorted(key for key in keys if key.group_id == group)
            asked = tuple(TopicPartition(key.topic, key.partition) for key in of_group)
            for require_stable in (False, True):
                request = m.OffsetFetch(group_id=group, require_stable=require_stable, partitions=asked)
                told = body_of(story.peek(request), m.OffsetFetchReply).offsets
                for key, part in zip(of_group, told, strict=True):
                    record = found.committed.get(key)
                    expected = (ErrorCode.NONE, NONE if record is None else record.offset)
                    if require_stable and key in found.pending:
                        expected = (ErrorCode.UNSTABLE_OFFSET_COMMIT, NONE)
                    assert (part.error, part.offset) == expected, key


# --- readers ---------------------------------------------------------------------------------------------


def read(story: Chronicle, key: TopicPartition, offset: int, max_bytes: int) -> m.FetchedPartition:
    """One Fetch of a read_committed reader: it gets whole batches below the last stable offset, and hears
    of every aborted transaction among them.
    """
    request = fetch_request(key, offset=offset, max_bytes=max_bytes)
    (part,) = body_of(story.peek(request), m.FetchReply).partitions
    log_start, stable, _ = bounds(story, key)
    if not log_start <= offset <= story.kept[key].end:
        assert part.error is ErrorCode.OFFSET_OUT_OF_RANGE
        return part
    assert part.error is ErrorCode.NONE
    assert bool(part.records) == (offset < stable)
    if not part.records:
        assert part.aborted == ()
        return part
    headers = [header for _, header in walk(part.records)]
    wanted = [header for header, _ in story.kept[key].batches if header.next_offset > offset]
    assert headers == wanted[: len(headers)]
    assert headers[-1].next_offset <= stable
    told = [(each.producer_id, each.first_offset) for each in part.aborted or ()]
    among = _overlapping(story, key, offset, headers[-1].next_offset)
    segments = story.segments(key)
    later = [base for base in sorted(segments) if base > headers[0].base_offset]
    in_reach = _overlapping(story, key, offset, later[0] if later else story.kept[key].end)
    assert set(among) <= set(told) <= set(in_reach)
    if max(segments.values()) < INDEXED_EVERY:  # an offset index has entries only further on
        assert told == in_reach
    return part


def _overlapping(story: Chronicle, key: TopicPartition, start: int, end: int) -> list[tuple[int, int]]:
    return [
        (found.producer_id, found.first_offset)
        for found in story.meaning(key).aborted
        if found.last_offset >= start and found.first_offset < end
    ]


def read_all(story: Chronicle, key: TopicPartition, max_bytes: int) -> None:
    """What a consumer makes of a partition from its start on is what was committed, each value once."""
    kept = story.kept[key]
    values: list[str] = []
    offset, stable = kept.log_start, bounds(story, key)[1]
    while offset < stable:
        part = read(story, key, offset, max_bytes)
        values += visible_values(part)
        offset = next_offset(part)
    committed = set(naive_log.committed_lines(kept.lines, stable))
    expected = [
        LogEntry(header, batch).text
        for (header, batch), line in zip(kept.batches, kept.lines, strict=True)
        if line in committed and line.end > kept.log_start
    ]
    assert " ".join(values) == " ".join(expected)


# --- recovery --------------------------------------------------------------------------------------------


def check_recovery(story: Chronicle) -> None:
    """`recover(log) == forget_notes(live)`, where nobody was forgotten, who is in no log."""
    story.catch_up()
    for key in story.keys:
        kept, live = story.kept[key], story.partition(key)
        if not nobody_is_forgotten(story, key):
            continue
        heir = Node(story.settings)
        heir.rebuild(
            BecomeLeader(
                partition=key,
                leader_epoch=live.leader_epoch,
                log_start_offset=kept.log_start,
                oldest_offset=0,
                batch_start=live.log_start_batch_offset,
                batches=iter(kept.batches),
            )
        )
        found, expected = story.host.node.state_of(key), heir.state_of(key)
        assert found == expected, f"{key} is another after recovery: {found}, {expected}"


def nobody_is_forgotten(story: Chronicle, key: TopicPartition) -> bool:
    """Whether the log alone tells of everybody, and nothing of him, that the leader knows."""
    known = naive_log.producers(story.kept[key].lines)
    return naive_log.snapshot(known) == naive_log.snapshot(story.meaning(key).known)
