"""Fetch and ListOffsets: the offsets that a reader may see, and the reply built from them.

Rule: the node plans with offsets alone; `complete_*`, called by the host, read the journal.
"""

# Theory of operation (Kafka: DelayedFetch)
#
#     fetch: plan --- enough, or an error -----------------------------------> ReplyFetched --> complete_fetch
#              | too little                                                         ^
#              v                                                                    |
#            parked                                                                 |
#              |-- MeasureFetch --> FetchMeasured: fetch.min.bytes are there -------|
#              |-- high watermark or LSO moved: wake_readers plans, may measure ----|
#              |-- the leadership ended: wake_readers finds the error --------------|
#              '-- fetch.max.wait.ms is over: end_waits ----------------------------'
#
# A plan is made and bounded at one moment, and the bytes are read right after it in the same step's effects.
# So a reader never sees bytes of a batch that was appended, or became durable, after its bound was taken. A
# parked fetch keeps its request only, and is planned again when it is answered.
#
# At read_committed the reply contains all records below the LSO, aborted ones included, together with the
# list of aborted transactions that overlap them. The client filters: the broker would otherwise have to parse
# and copy batches (KIP-98; the client's side is client/consumer_records.py).

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final

from fencepost.broker.contract import (
    EpochPlan,
    FetchMeasured,
    FetchPlan,
    MeasureFetch,
    OffsetPlan,
    Refused,
    ReplyEpochEnds,
    ReplyFetched,
    ReplyListed,
    ReplyTo,
)
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import READ_COMMITTED
from fencepost.broker.partitions.time_lookups import NO_RECORD, FoundRecord, TimeLookups
from fencepost.broker.purgatory import ParkedFetch
from fencepost.journal.journal import Journal
from fencepost.journal.storage import DamagedLog, StorageError
from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import ROUND_WORK_MAX
from fencepost.protocol.batches import Buffer, read_header
from fencepost.protocol.errors import NO_ERROR, ErrorCode, FencepostError, ProtocolViolation
from fencepost.protocol.terms import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from fencepost.protocol.wire_protocol import FetchEncoding

OpenJournal = Callable[[TopicPartition], Journal]
Report = Callable[[str], None]

# The largest reply, whatever the reader requests: one reader must not occupy the broker's memory.
FETCH_BYTES_MAX: Final = 50 * 1024 * 1024  # fetch.max.bytes
# Most fetches are answered before their deadline, which stays in the heap: removing it costs more than
# passing over it. Once this many have outlived their fetches, they are removed together.
OUTLIVED_MIN: Final = 64
OUTLIVED_FACTOR: Final = 2
_ENDS: Final = frozenset(
    {LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP}
)
_NOWHERE: Final = (NO_OFFSET, NO_LEADER_EPOCH)


# --- planning --------------------------------------------------------------------------------------------


def fetch(node: Node, request: m.Fetch, to: ReplyTo, now: int) -> None:
    """Answer at once if there is enough data or an error; else park the request for max_wait_ms
    (DelayedFetch). The bytes are in the logs, so the host measures them if one batch may not be enough.
    """
    parts = {TopicPartition(part.topic, part.partition): part for part in request.partitions}
    plans = _plans(node, request, parts)
    if _is_enough(request, plans) or _bytes_wanted(request) <= 0 or request.max_wait_ms <= 0 or not plans:
        _answer(node, request, to, plans)
        return
    node.tickets += 1
    until_ms = now + request.max_wait_ms
    node.fetches[node.tickets] = ParkedFetch(to=to, request=request, parts=parts, until_ms=until_ms)
    if len(node.fetch_deadlines) >= OUTLIVED_MIN + OUTLIVED_FACTOR * len(node.fetches):
        node.fetch_deadlines = sorted((parked.until_ms, ticket) for ticket, parked in node.fetches.items())
    else:
        heappush(node.fetch_deadlines, (until_ms, node.tickets))
    node.fetches_of.setdefault(to.connection, set()).add(node.tickets)
    for key in parts:
        node.readers.setdefault(key, set()).add(node.tickets)
    node.wake_at(until_ms)
    _measure(node, node.tickets, request, plans)


def _answer(node: Node, request: m.Fetch, to: ReplyTo, plans: tuple[FetchPlan, ...]) -> None:
    limit = min(request.max_bytes, FETCH_BYTES_MAX)
    reply = ReplyFetched(to, plans=plans, request=request, max_bytes=limit)
    node.outcome.effects.append(reply)


def _answer_parked(node: Node, ticket: int) -> None:
    parked = forget_fetch(node, ticket)
    _answer(node, parked.request, parked.to, _plans(node, parked.request, parked.parts))


def _plans(
    node: Node, request: m.Fetch, parts: Mapping[TopicPartition, m.FetchPartition]
) -> tuple[FetchPlan, ...]:
    """Plans for parts of a request. If a partition is named twice, its last entry counts, as in Kafka, which
    collects them in a map (FetchRequest.fetchData).
    """
    return tuple([_plan_fetch(node, key, part, request.isolation_level) for key, part in parts.items()])


def _is_enough(request: m.Fetch, plans: Iterable[FetchPlan]) -> bool:
    """Whether the reply is due, as far as offsets tell. A reader learns of an error at once."""
    # Every batch has at least one byte, so fetch.min.bytes of 1, the clients' default, needs no measuring.
    if request.min_bytes > 1:
        return any(plan.error for plan in plans)
    return any(plan.error or plan.fetch_offset < plan.before for plan in plans)


def _bytes_wanted(request: m.Fetch) -> int:
    return min(request.min_bytes, request.max_bytes, FETCH_BYTES_MAX)


def _measure(node: Node, ticket: int, request: m.Fetch, plans: Iterable[FetchPlan]) -> None:
    readable = tuple([plan for plan in plans if plan.fetch_offset < plan.before])
    if readable:
        effect = MeasureFetch(ticket=ticket, plans=readable, enough=_bytes_wanted(request))
        node.outcome.effects.append(effect)


def _plan_fetch(
    node: Node, key: TopicPartition, part: m.FetchPartition, isolation_level: IsolationLevel
) -> FetchPlan:
    offset, log = part.fetch_offset, _led(node, key, part.current_leader_epoch)
    if isinstance(log, ErrorCode):
        return _refused_fetch(key, part, log)
    state = log.partition
    # Up to the log end, not the high watermark: for a record that is not durable yet, the reader waits.
    if not state.log_start_offset <= offset <= state.log_end_offset:
        return _refused_fetch(key, part, ErrorCode.OFFSET_OUT_OF_RANGE)
    return FetchPlan(
        partition=key,
        fetch_offset=offset,
        before=state.end_for(isolation_level),
        max_bytes=part.max_bytes,
        high_watermark=state.high_watermark,
        last_stable_offset=state.last_stable_offset,
        log_start_offset=state.log_start_offset,
    )


def _refused_fetch(key: TopicPartition, part: m.FetchPartition, error: ErrorCode) -> FetchPlan:
    return FetchPlan(partition=key, error=error, fetch_offset=part.fetch_offset, max_bytes=part.max_bytes)


def _led(node: Node, key: TopicPartition, current_leader_epoch: int) -> LeaderLog | ErrorCode:
    """The log, if this node leads it under the leader epoch that the reader knows: an offset may mean another
    record under another leadership (KIP-320, Partition.checkCurrentLeaderEpoch).
    """
    log = node.log_of(key)
    if isinstance(log, Refused):
        return log.error
    if current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == log.partition.leader_epoch:
        return log
    is_older = current_leader_epoch < log.partition.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH


def wake_readers(node: Node) -> None:
    """Check the parked fetches of partitions that changed in this step, and answer those with enough data.
    Only these partitions are looked at: a fetch may have thousands.
    """
    marked, node.marked = node.marked, {}
    for ticket in sorted(marked.keys() & node.fetches.keys()):
        parked = node.fetches[ticket]
        changed = {key: parked.parts[key] for key in sorted(marked[ticket])}
        plans = _plans(node, parked.request, changed)
        if _is_enough(parked.request, plans):
            _answer_parked(node, ticket)
        else:
            _measure(node, ticket, parked.request, plans)


def measured(node: Node, arrived: FetchMeasured, now: int) -> None:
    """Answer a parked fetch that has its `min_bytes`, unless it is answered already."""
    parked = node.fetches.get(arrived.ticket)
    if parked is not None:
        sizes = node.fetch_sizes.setdefault(arrived.ticket, {})
        sizes.update(arrived.sizes)
        if sum(sizes.values()) >= _bytes_wanted(parked.request):
            _answer_parked(node, arrived.ticket)


def end_waits(node: Node, now: int) -> None:
    """Answer the fetches whose time is up, with the data that is there. The first deadline then belongs to a
    parked fetch.
    """
    deadlines = node.fetch_deadlines
    while deadlines:
        until_ms, ticket = deadlines[0]
        is_parked = ticket in node.fetches
        if is_parked and until_ms > now:
            return
        heappop(deadlines)
        if is_parked:
            _answer_parked(node, ticket)


def forget_fetch(node: Node, ticket: int) -> ParkedFetch:
    """Remove a parked fetch that is answered now, or whose connection is closed."""
    parked = node.fetches.pop(ticket)
    of_connection = node.fetches_of[parked.to.connection]
    of_connection.discard(ticket)
    if not of_connection:
        del node.fetches_of[parked.to.connection]
    node.fetch_sizes.pop(ticket, None)
    for key in parked.parts:
        node.readers[key].discard(ticket)
        if not node.readers[key]:
            del node.readers[key]
    return parked


def list_offsets(node: Node, request: m.ListOffsets, to: ReplyTo, now: int) -> None:
    """The earliest or latest offset, or the first one at or after a timestamp, within the isolation level."""
    plans = tuple(_plan_offset(node, part, request.isolation_level) for part in request.partitions)
    node.outcome.effects.append(ReplyListed(request, to, plans=plans))


def _plan_offset(node: Node, part: m.ListOffsetsPartition, isolation_level: IsolationLevel) -> OffsetPlan:
    key = TopicPartition(part.topic, part.partition)
    error, before, found = NO_ERROR, NO_OFFSET, _NOWHERE
    is_lookup = part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP
    if not is_lookup and part.timestamp not in _ENDS:
        error = ErrorCode.UNSUPPORTED_VERSION  # a special timestamp of a later Kafka
    elif isinstance(log := _led(node, key, part.current_leader_epoch), ErrorCode):
        error, is_lookup = log, False
    else:
        state = log.partition
        before, start, epoch = state.end_for(isolation_level), state.log_start_offset, state.leader_epoch
        if part.timestamp == LATEST_TIMESTAMP:
            found = (before, epoch)
        elif part.timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            # An empty log has no record to take the epoch from: the next one will have the present epoch.
            is_lookup = start < state.log_end_offset
            found = (start, NO_LEADER_EPOCH if is_lookup else epoch)
    return OffsetPlan(
        partition=key,
        error=error,
        offset=found[0],
        leader_epoch=found[1],
        timestamp=part.timestamp,
        before=before,
        is_lookup=is_lookup,
    )


def offsets_for_leader_epochs(node: Node, request: m.OffsetForLeaderEpoch, to: ReplyTo, now: int) -> None:
    """Where the leader epoch that a reader asks about ends in the log of each partition."""
    parts = {(part.topic, part.partition): part for part in request.partitions}
    plans = tuple(_plan_epoch(node, part) for part in parts.values())
    node.outcome.effects.append(ReplyEpochEnds(to, plans=plans))


def _plan_epoch(node: Node, part: m.LeaderEpochPartition) -> EpochPlan:
    key, wanted = TopicPartition(part.topic, part.partition), part.leader_epoch
    log = _led(node, key, part.current_leader_epoch)
    error = log if isinstance(log, ErrorCode) else NO_ERROR
    if isinstance(log, ErrorCode) or wanted == NO_LEADER_EPOCH or wanted > log.partition.leader_epoch:
        return EpochPlan(partition=key, error=error, leader_epoch=NO_LEADER_EPOCH, end_offset=NO_OFFSET)
    # A reply reports nothing that a loss of power can take away, so the current epoch ends here.
    return EpochPlan(
        partition=key,
        error=NO_ERROR,
        leader_epoch=wanted,
        end_offset=log.partition.high_watermark,
        is_lookup=wanted < log.partition.leader_epoch,
    )


# --- measuring and completing ----------------------------------------------------------------------------


def sizes_of(act: MeasureFetch, journal: OpenJournal) -> tuple[tuple[TopicPartition, int], ...]:
    """How many bytes each plan can read, as they are stored. A plan whose bytes cannot be measured has
    `enough`, and so has one whose offset is in an older segment: a Fetch reads to the end of one segment
    (DelayedFetch.tryComplete).
    """
    sizes: list[tuple[TopicPartition, int]] = []
    for plan in act.plans:
        try:
            size = journal(plan.partition).segments.bytes_between(plan.fetch_offset, plan.before)
        except (StorageError, ProtocolViolation):  # its reader learns of it
            size = None
        sizes.append((plan.partition, act.enough if size is None else min(size, plan.max_bytes)))
    return tuple(sizes)


def complete_fetch(
    reply: ReplyFetched,
    journal: OpenJournal,
    report: Report,
    *,
    max_bytes: int,
    encoding: FetchEncoding | None = None,
) -> m.FetchReply:
    """Read the bytes for each plan, and for read_committed the aborted transactions in them. Only the first
    batch may exceed the size limits, so that a large one does not block its reader forever (KIP-74).
    Bytes that cannot be read are reported to the operator. The limits count bytes in the reader's encoding.
    """
    left, has_some = max_bytes, False
    parts: list[m.FetchedPartition] = []
    for plan in reply.plans:
        error, stored, records, aborted = plan.error, b"", b"", None
        try:
            if error is not NO_ERROR:
                if error is ErrorCode.OFFSET_OUT_OF_RANGE and _has_offset(journal(plan.partition), plan):
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # a later leader has written it
            else:
                if plan.fetch_offset < plan.before and not (has_some and left <= 0):
                    size, log = max(0, min(plan.max_bytes, left)), journal(plan.partition)
                    stored = log.segments.read(plan.fetch_offset, max_bytes=size, before=plan.before)
                    records = _encoded(stored, plan, encoding, size, is_first=not has_some)
                    if encoding is not None and not records:
                        left = 0  # else each partition whose first batch does not fit would be read in vain
                if reply.request.isolation_level is READ_COMMITTED:
                    aborted = _aborted(plan, stored, journal) if records else ()
        except (StorageError, ProtocolViolation) as problem:
            error, records = _unreadable(plan.partition, problem, report), b""
            if encoding is not None and encoding.work >= ROUND_WORK_MAX:
                left, has_some = 0, True  # the next ones could cost as much as this one
        left, has_some = left - len(records), has_some or bool(records)
        parts.append(_fetched(plan, error, records, aborted))
    return m.FetchReply(partitions=tuple(parts))


def _encoded(
    stored: bytes, plan: FetchPlan, encoding: FetchEncoding | None, size: int, *, is_first: bool
) -> Buffer:
    """The batches in the reader's encoding; none if they do not fit, unless they are the first ones."""
    records: Buffer = stored
    if encoding is not None:
        where, offset = plan.partition, plan.fetch_offset
        records = encoding.encode(stored, where, offset=offset, max_bytes=size, is_first=is_first)
    return records if is_first or len(records) <= size else b""


def _has_offset(log: Journal, plan: FetchPlan) -> bool:
    """Whether the log contains an offset that this leader does not know of. Then another node leads already,
    and a reader without a leader epoch (KIP-320) must look for it, not reset its offset.
    """
    return log.log_start_offset <= plan.fetch_offset <= log.log_end_offset


def _unreadable(key: TopicPartition, problem: FencepostError, report: Report) -> ErrorCode:
    """The error for a reader if the disk cannot be read, or its bytes are corrupt."""
    if isinstance(problem, DamagedLog | ProtocolViolation):
        report(f"{key}: {problem}. Readers of this batch get an error; everything else is served")
    return ErrorCode.KAFKA_STORAGE_ERROR if isinstance(problem, StorageError) else ErrorCode.CORRUPT_MESSAGE


def _fetched(
    plan: FetchPlan, error: ErrorCode, records: Buffer, aborted: tuple[m.AbortedTransaction, ...] | None
) -> m.FetchedPartition:
    return m.FetchedPartition(
        topic=plan.partition.topic,
        partition=plan.partition.partition,
        error=error,
        high_watermark=plan.high_watermark,
        last_stable_offset=plan.last_stable_offset,
        log_start_offset=plan.log_start_offset,
        aborted=aborted,
        records=records,
    )


def _aborted(plan: FetchPlan, records: Buffer, journal: OpenJournal) -> tuple[m.AbortedTransaction, ...]:
    """The aborted transactions from the fetch offset to the upper bound of the bytes
    (LocalLog.addAbortedTransactions).
    """
    log = journal(plan.partition)
    upper = log.segments.fetch_upper_bound(read_header(records).base_offset, len(records))
    return tuple(
        m.AbortedTransaction(producer_id=found.producer_id, first_offset=found.first_offset)
        for found in log.segments.aborted_between(plan.fetch_offset, upper=upper)
    )


def complete_list(
    reply: ReplyListed, journal: OpenJournal, report: Report, lookups: TimeLookups
) -> m.ListOffsetsReply:
    """Look up each plan's offset; if no visible record has the timestamp, everything is -1. RoundIsOver if
    `lookups` is to continue in the next round.
    """
    return m.ListOffsetsReply(
        partitions=tuple(
            _listed(plan, journal, report, lookups, place) for place, plan in enumerate(reply.plans)
        )
    )


def _listed(
    plan: OffsetPlan, journal: OpenJournal, report: Report, lookups: TimeLookups, place: int
) -> m.ListedOffset:
    error, found = plan.error, FoundRecord(NO_TIMESTAMP, plan.offset, plan.leader_epoch)
    if plan.is_lookup:
        try:
            log = journal(plan.partition)
            if plan.offset == NO_OFFSET:
                found = lookups.look_up(place, plan, log)
            else:
                found = FoundRecord(NO_TIMESTAMP, plan.offset, log.segments.leader_epoch_at(plan.offset))
        except (StorageError, ProtocolViolation) as problem:
            # A known offset is right without its epoch. Its reader learns of the damage from a Fetch. With an
            # error here it would ask forever.
            unreadable = _unreadable(plan.partition, problem, report)
            if plan.offset == NO_OFFSET:
                error, found = unreadable, NO_RECORD
    return m.ListedOffset(
        topic=plan.partition.topic,
        partition=plan.partition.partition,
        error=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def epoch_end(plan: EpochPlan, journal: OpenJournal, report: Report) -> m.EpochEndOffset:
    error, leader_epoch, end_offset = plan.error, plan.leader_epoch, plan.end_offset
    if plan.is_lookup:
        try:
            leader_epoch, end_offset = journal(plan.partition).segments.end_of_epoch(leader_epoch)
        except (StorageError, ProtocolViolation) as problem:
            error = _unreadable(plan.partition, problem, report)
            leader_epoch, end_offset = NO_LEADER_EPOCH, NO_OFFSET
    return m.EpochEndOffset(
        topic=plan.partition.topic,
        partition=plan.partition.partition,
        error=error,
        leader_epoch=leader_epoch,
        end_offset=end_offset,
    )
