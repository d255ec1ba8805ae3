"""`fencepost transactions`: what coordinators and partition leaders know, fencing, and hanging transactions.

Rule: commands, options and columns are those of kafka-transactions.sh (KIP-664, KIP-994, KIP-1152). Times and
durations are readable, so their titles have no unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import attrs
from cyclopts import Parameter

from fencepost.cli.errors import FAILED, OK, CommandFailed, WrongUsage
from fencepost.cli.likely_names import NameKind, suggesting
from fencepost.cli.options import (
    LOCAL,
    AsJson,
    AtLeastZero,
    ClusterOptions,
    InPartition,
    Int64,
    InTopic,
    check_id,
    described_topic,
    partitions_of,
)
from fencepost.cli.output import Columns, print_done, print_entry, print_rows
from fencepost.cli.positions import Refusals, split_refusals, unreadable
from fencepost.cli.table import Duration, Moment
from fencepost.cli.times import now_ms
from fencepost.client.admin import AbortSpec, TransactionListing
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import ProducerDescription, TransactionDescription
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATE_TRANSACTION_BUFFER_MS,
    MINUTE_MS,
    NO_OFFSET,
    NO_TIMESTAMP,
    TopicPartition,
    TransactionState,
)

StateName = Literal["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
STATES: Final = {state.title: state for state in TransactionState}


class Described(NamedTuple):
    coordinator_id: int
    found: TransactionDescription

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not complete."""
        return self.found.state.is_open

    @property
    def start(self) -> Moment | None:
        """When this transaction began, or the last one of this id."""
        return None if self.found.start_ms == NO_TIMESTAMP else Moment(self.found.start_ms)


class Opened(NamedTuple):
    """An open transaction as its partition leader describes it."""

    partition: TopicPartition
    producer: ProducerDescription


def _last(producer: ProducerDescription) -> Moment | None:
    return None if producer.last_timestamp == NO_TIMESTAMP else Moment(producer.last_timestamp)


LISTED: Columns[TransactionListing] = (
    ("transactional_id", "TransactionalId", lambda entry: entry.transactional_id),
    ("coordinator_id", "Coordinator", lambda entry: entry.coordinator_id),
    ("producer_id", "ProducerId", lambda entry: entry.producer_id),
    ("state", "TransactionState", lambda entry: entry.state.title),
)
DESCRIBED: Columns[Described] = (
    ("coordinator_id", "CoordinatorId", lambda row: row.coordinator_id),
    ("transactional_id", "TransactionalId", lambda row: row.found.transactional_id),
    ("producer_id", "ProducerId", lambda row: row.found.producer_id),
    ("producer_epoch", "ProducerEpoch", lambda row: row.found.producer_epoch),
    ("state", "TransactionState", lambda row: row.found.state.title),
    ("timeout_ms", "TransactionTimeout", lambda row: Duration(row.found.timeout_ms)),
    ("start_ms", "CurrentTransactionStartTime", lambda row: row.start),
    (
        "duration_ms",
        "TransactionDuration",
        lambda row: None if row.start is None or not row.is_open else Duration(now_ms() - row.start),
    ),
    ("partitions", "TopicPartitions", lambda row: [str(where) for where in row.found.partitions]),
)
PRODUCERS: Columns[ProducerDescription] = (
    ("producer_id", "ProducerId", lambda entry: entry.producer_id),
    ("producer_epoch", "ProducerEpoch", lambda entry: entry.producer_epoch),
    ("latest_coordinator_epoch", "LatestCoordinatorEpoch", lambda entry: entry.coordinator_epoch),
    ("last_sequence", "LastSequence", lambda entry: entry.last_sequence),
    ("last_timestamp_ms", "LastTimestamp", _last),
    (
        "current_transaction_start_offset",
        "CurrentTransactionStartOffset",
        lambda entry: None if entry.open_since_offset == NO_OFFSET else entry.open_since_offset,
    ),
)
HANGING: Columns[Opened] = (
    ("topic", "Topic", lambda row: row.partition.topic),
    ("partition", "Partition", lambda row: row.partition.partition),
    ("producer_id", "ProducerId", lambda row: row.producer.producer_id),
    ("producer_epoch", "ProducerEpoch", lambda row: row.producer.producer_epoch),
    ("coordinator_epoch", "CoordinatorEpoch", lambda row: row.producer.coordinator_epoch),
    ("start_offset", "StartOffset", lambda row: row.producer.open_since_offset),
    ("last_timestamp_ms", "LastTimestamp", lambda row: _last(row.producer)),
    ("duration_ms", "Duration", lambda row: Duration(now_ms() - row.producer.last_timestamp)),
)

MAX_TRANSACTION_TIMEOUT_MIN: Final = 15  # Kafka's default of transaction.max.timeout.ms
PRODUCERS_AT_ONCE: Final = 500  # as Kafka's tool asks


def list_transactions(
    *,
    duration_filter: Int64 = NO_TIMESTAMP,
    transactional_id_pattern: str | None = None,
    state: tuple[StateName, ...] = (),
    producer_id: tuple[Int64, ...] = (),
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that coordinators know.

    Parameters
    ----------
    duration_filter
        Only transactions that have been open for longer than this number of milliseconds; a negative number
        lists all. Ids without a start time are always listed, as in Kafka.
    transactional_id_pattern
        Only ids that match this regular expression as a whole (RE2 syntax, as in Kafka).
    state
        Only ids in this state. Repeatable.
    producer_id
        Only ids with this producer id. Repeatable.
    """
    states = tuple(STATES[name] for name in state)
    filters = (states, producer_id, duration_filter, transactional_id_pattern)
    with cluster.connect() as admin:
        try:
            listed = sorted(admin.list_transactions(*filters), key=lambda entry: entry.transactional_id)
        except RequestFailed as problem:
            if problem.error is not ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise
            raise WrongUsage(
                f"the broker refuses --transactional-id-pattern {transactional_id_pattern!r}",
                then="give a pattern in RE2's syntax that does not take too long to match",
            ) from problem
    print_rows(LISTED, listed, as_json=as_json)


def describe_transaction(
    transactional_id: str, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False
) -> None:
    """Show one transactional id: coordinator, producer, state, times, and the partitions of its transaction.

    Parameters
    ----------
    transactional_id
        The transactional id.
    """
    check_id("--transactional-id", transactional_id)
    with cluster.connect() as admin, suggesting(admin, NameKind.TRANSACTIONAL_IDS, transactional_id):
        found = admin.describe_transaction(transactional_id)
        row = Described(admin.find_coordinator(transactional_id), found)
    print_entry(DESCRIBED, row, as_json=as_json)


def describe_producers(
    *,
    topic: InTopic,
    partition: InPartition,
    broker_id: int | None = None,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Show the producer state of a partition, with the first offset of each open transaction.

    Parameters
    ----------
    topic
        The topic.
    partition
        The partition of that topic.
    broker_id
        Ask this broker instead of the leader of the partition.
    """
    with cluster.connect() as admin:
        [where] = partitions_of(admin, topic, [partition])
        leader = admin.describe_topic(topic).leaders[partition]
        if broker_id not in (None, leader):  # a partition has one replica
            raise CommandFailed(
                f"broker {broker_id} has no replica of {where}",
                then=f"give --broker-id {leader} (the leader), or leave the option out",
            )
        producers = admin.describe_producers(where, broker_id)
    print_rows(PRODUCERS, producers, as_json=as_json)


def force_terminate_transaction(
    transactional_id: Annotated[str, Parameter(("--transactional-id", "--transactionalId"))],
    *,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Fence the producer of a transactional id and abort its open transaction.

    Parameters
    ----------
    transactional_id
        The transactional id. A new producer can use it right away.
    """
    check_id("--transactional-id", transactional_id)
    with cluster.connect() as admin, suggesting(admin, NameKind.TRANSACTIONAL_IDS, transactional_id):
        admin.describe_transaction(transactional_id)  # a mistyped id would be created
        admin.force_terminate_transaction(transactional_id)
    print_done(f"Fenced the producer of {transactional_id}.", {"fenced": transactional_id}, as_json=as_json)


# KIP-664: partitions are asked before coordinators. A transaction that begins between the two requests is
# then missing from the reply about the partitions, and cannot look like a hanging one.


def find_hanging(
    *,
    broker_id: int | None = None,
    topic: InTopic | None = None,
    partition: InPartition | None = None,
    max_transaction_timeout: AtLeastZero = MAX_TRANSACTION_TIMEOUT_MIN,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> int:
    """Find hanging transactions: open, but unknown to every coordinator, so they block read_committed
    readers.

    Parameters
    ----------
    broker_id
        Search the partitions that this broker leads.
    topic
        Search this topic.
    partition
        Search only this partition of the topic.
    max_transaction_timeout
        Skip transactions whose last record is at most this many minutes old: their coordinator may still
        time them out.
    """
    if topic is None and (broker_id is None or partition is not None):
        raise WrongUsage(
            "find-hanging needs --topic or --broker-id, and --partition needs --topic",
            then="for example: fencepost transactions find-hanging --topic TOPIC",
        )
    with cluster.connect() as admin:
        searched, refusals = partitions_to_search(admin, broker_id, topic, partition)
        now = now_ms()
        candidates = [
            opened
            for opened in open_transactions(admin, searched)
            if now - opened.producer.last_timestamp > max_transaction_timeout * MINUTE_MS
        ]
        known = known_transactions(admin, sorted({found.producer.producer_id for found in candidates}))
    hanging = hanging_among(candidates, known)
    return _print_found("hanging", hanging, refusals, as_json=as_json)


def find_late(
    *,
    broker_id: int | None = None,
    max_transaction_timeout: AtLeastZero = MAX_TRANSACTION_TIMEOUT_MIN,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> int:
    """Show partitions whose oldest open transaction is past the maximum timeout.

    Parameters
    ----------
    broker_id
        Only the partitions that this broker leads.
    max_transaction_timeout
        The broker's transaction.max.timeout.ms in minutes; a transaction is late when its last record is
        older than that plus five minutes.
    """
    with cluster.connect() as admin:
        searched, refusals = partitions_to_search(admin, broker_id, None, None)
        before_ms = now_ms() - max_transaction_timeout * MINUTE_MS - LATE_TRANSACTION_BUFFER_MS
        oldest = oldest_of_each(open_transactions(admin, searched))
    late = [opened for opened in oldest if opened.producer.last_timestamp < before_ms]
    return _print_found("late", late, refusals, as_json=as_json)


def _print_found(what: str, found: Sequence[Opened], refusals: Refusals, *, as_json: bool) -> int:
    """Prints the transactions that a search found, and returns the exit code; CommandFailed if partitions
    could not be searched.
    """
    if found or as_json:
        print_rows(HANGING, found, as_json=as_json)
    else:
        print(f"No {what} transactions{' in the other partitions' if refusals else ''}.")
    if refusals:
        raise unreadable(refusals)
    return FAILED if found else OK


def oldest_of_each(opened: Iterable[Opened]) -> list[Opened]:
    """The transaction of each partition that holds back its last stable offset."""
    first: dict[TopicPartition, Opened] = {}
    for each in opened:
        known = first.get(each.partition, each)
        first[each.partition] = min(known, each, key=lambda entry: entry.producer.open_since_offset)
    return list(first.values())


def partitions_to_search(
    admin: Admin, broker_id: int | None, topic: str | None, partition: int | None
) -> tuple[list[TopicPartition], Refusals]:
    """The partitions of one topic, or of all topics including internal ones, that the broker leads; and those
    of them whose leaders refuse to be read.
    """
    if broker_id is not None and broker_id not in (brokers := admin.list_brokers()):
        raise CommandFailed(
            f"broker {broker_id} does not exist",
            then=f"the brokers of the cluster are: {', '.join(map(str, brokers))}",
        )
    if topic is not None and partition is not None:
        partitions_of(admin, topic, [partition])
    topics = admin.list_topics() if topic is None else [described_topic(admin, topic)]
    wanted = [
        TopicPartition(described.topic, number)
        for described in topics
        for number, leader in enumerate(described.leaders)
        if broker_id in (None, leader) and partition in (None, number)
    ]
    readable, refusals = split_refusals(admin.list_offsets(wanted, EARLIEST_TIMESTAMP))
    return list(readable), refusals


def open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> Iterator[Opened]:
    for where in partitions:
        for producer in admin.describe_producers(where):
            if producer.open_since_offset != NO_OFFSET:
                yield Opened(where, producer)


def known_transactions(admin: Admin, producer_ids: Sequence[int]) -> list[TransactionDescription]:
    """The transactional ids that own these producer ids, as their coordinators describe them."""
    found: list[TransactionDescription] = []
    for start in range(0, len(producer_ids), PRODUCERS_AT_ONCE):
        for listed in admin.list_transactions((), producer_ids[start : start + PRODUCERS_AT_ONCE]):
            try:
                found.append(admin.describe_transaction(listed.transactional_id))
            except RequestFailed as problem:
                if problem.error is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise  # an id that expired after it was listed owns nothing
    return found


def hanging_among(candidates: Iterable[Opened], known: Iterable[TransactionDescription]) -> list[Opened]:
    """Transactions without a coordinator: no transactional id owns the producer id, or the transaction of
    the owner does not include this partition.
    """
    owned = {(entry.producer_id, key) for entry in known for key in entry.partitions}
    return [opened for opened in candidates if (opened.producer.producer_id, opened.partition) not in owned]


def abort_transaction(
    *,
    topic: InTopic,
    partition: InPartition,
    start_offset: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    coordinator_epoch: int | None = None,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Abort a hanging transaction in one partition by writing a marker there, without its coordinator.

    Parameters
    ----------
    topic
        The topic with the hanging transaction.
    partition
        The partition with the hanging transaction.
    start_offset
        First offset of the transaction, as find-hanging prints it.
    producer_id
        Instead of --start-offset: the producer id, together with --producer-epoch and --coordinator-epoch.
    producer_epoch
        The producer epoch of the marker.
    coordinator_epoch
        The coordinator epoch of the marker.
    """
    with cluster.connect() as admin:
        [where] = partitions_of(admin, topic, [partition])
        match (start_offset, producer_id, producer_epoch, coordinator_epoch):
            case (int(offset), None, None, None):
                spec = spec_at(admin, where, offset)
            case (None, int(who), int(epoch), int(coordinator)):
                spec = AbortSpec(
                    partition=where, producer_id=who, producer_epoch=epoch, coordinator_epoch=coordinator
                )
            case _:
                raise WrongUsage(
                    "abort needs either --start-offset, or --producer-id, --producer-epoch and "
                    "--coordinator-epoch",
                    then="`fencepost transactions find-hanging` prints these values",
                )
        admin.abort_transaction(spec)
    who = f"producer {spec.producer_id} epoch {spec.producer_epoch}"
    print_done(
        f"Wrote an ABORT marker for {who} to {where}.",
        {"topic": topic, **attrs.asdict(spec), "partition": partition},
        as_json=as_json,
    )


def spec_at(admin: Admin, where: TopicPartition, start_offset: int) -> AbortSpec:
    """The open transaction that starts at this offset; CommandFailed if there is none."""
    for _, producer in open_transactions(admin, [where]):
        if producer.open_since_offset == start_offset:
            return AbortSpec(
                partition=where,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=max(producer.coordinator_epoch, 0),  # -1: no marker was written here yet
            )
    raise CommandFailed(
        f"no open transaction in {where} starts at offset {start_offset}",
        then=f"`fencepost transactions describe-producers --topic {where.topic} "
        f"--partition {where.partition}` shows the open transactions",
    )
