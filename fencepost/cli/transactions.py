"""`fencepost transactions`: what coordinators and partition leaders know, fencing, and hanging transactions.

Rule: commands, options and columns are those of kafka-transactions.sh (KIP-664, KIP-994, KIP-1152).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal

import attrs
from cyclopts import Parameter, validators

from fencepost.cli.errors import WRONG_USAGE, CommandFailed
from fencepost.cli.options import ANSWER_MS, DEFAULT, AsJson, Bootstrap, Int64, reach
from fencepost.cli.output import Json, print_json, print_table
from fencepost.client.admin import AbortSpec, TopicDescription
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import ProducerDescription, TransactionDescription
from fencepost.protocol.terms import (
    LATE_TRANSACTION_BUFFER_MS,
    MINUTE_MS,
    NO_OFFSET,
    NO_TIMESTAMP,
    TopicPartition,
    TransactionState,
)

StateName = Literal["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
STATES: Final = {state.title: state for state in TransactionState}

Row = dict[str, Json]
LISTED: Final = {
    "transactional_id": "TransactionalId",
    "coordinator": "Coordinator",
    "producer_id": "ProducerId",
    "state": "TransactionState",
}
DESCRIBED: Final = {
    "coordinator_id": "CoordinatorId",
    "transactional_id": "TransactionalId",
    "producer_id": "ProducerId",
    "producer_epoch": "ProducerEpoch",
    "state": "TransactionState",
    "timeout_ms": "TransactionTimeoutMs",
    "start_ms": "CurrentTransactionStartTimeMs",
    "duration_ms": "TransactionDurationMs",
    "partitions": "TopicPartitions",
}
PRODUCERS: Final = {
    "producer_id": "ProducerId",
    "producer_epoch": "ProducerEpoch",
    "latest_coordinator_epoch": "LatestCoordinatorEpoch",
    "last_sequence": "LastSequence",
    "last_timestamp": "LastTimestamp",
    "current_transaction_start_offset": "CurrentTransactionStartOffset",
}


def list_transactions(
    *,
    duration_filter: Int64 = NO_TIMESTAMP,
    transactional_id_pattern: str | None = None,
    state: tuple[StateName, ...] = (),
    producer_id: tuple[Int64, ...] = (),
    bootstrap: Bootstrap = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that coordinators know.

    Parameters
    ----------
    duration_filter
        Only transactions that have been open for longer than this number of milliseconds; a negative number
        lists all. Ids without a start time are always listed, as in Kafka.
    transactional_id_pattern
        Only ids that match this regular expression as a whole.
    state
        Only ids in this state. Repeatable.
    producer_id
        Only ids with this producer id. Repeatable.
    """
    states = tuple(STATES[name] for name in state)
    filters = (states, producer_id, duration_filter, transactional_id_pattern)
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        try:
            listed = sorted(admin.list_transactions(*filters), key=lambda entry: entry.transactional_id)
        except ValueError as problem:
            raise CommandFailed(f"--transactional-id-pattern {problem}", code=WRONG_USAGE) from problem
    rows: list[Row] = [
        {
            "transactional_id": entry.transactional_id,
            "coordinator": entry.coordinator_id,
            "producer_id": entry.producer_id,
            "state": entry.state.title,
        }
        for entry in listed
    ]
    print_rows(LISTED, rows, as_json=as_json)


def describe_transaction(
    transactional_id: str, *, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False
) -> None:
    """Show one transactional id: coordinator, producer, state, times, and the partitions of its transaction.

    Parameters
    ----------
    transactional_id
        The transactional id.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        found = admin.describe_transaction(transactional_id)
        coordinator_id = admin.find_coordinator(transactional_id)
    row = row_of(found, coordinator_id=coordinator_id, now_ms=now_ms())
    if as_json:
        print_json(row)
    else:
        partitions = ",".join(f"{part.topic}-{part.partition}" for part in found.partitions)
        print_rows(DESCRIBED, [{**row, "partitions": partitions}], as_json=False)


def row_of(found: TransactionDescription, *, coordinator_id: int, now_ms: int) -> Row:
    """A described transaction; start and duration are None if no transaction is open."""
    is_open = found.start_ms != NO_TIMESTAMP
    return {
        "coordinator_id": coordinator_id,
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state.title,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if is_open else None,
        "duration_ms": now_ms - found.start_ms if is_open else None,
        "partitions": [f"{part.topic}-{part.partition}" for part in found.partitions],
    }


def describe_producers(
    *,
    topic: str,
    partition: int,
    broker_id: int | None = None,
    bootstrap: Bootstrap = DEFAULT,
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
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        where = partition_of(admin, topic, partition)
        leader = admin.describe_topic(topic).leaders[partition]
        if broker_id not in (None, leader):  # a partition has one replica
            raise CommandFailed(
                f"broker {broker_id} has no replica of {where}",
                then=f"its leader is broker {leader}",
                code=WRONG_USAGE,
            )
        producers = admin.describe_producers(where, broker_id)
    print_rows(PRODUCERS, [row_of_producer(producer) for producer in producers], as_json=as_json)


def force_terminate_transaction(
    transactional_id: Annotated[str, Parameter("--transactionalId")], *, bootstrap: Bootstrap = DEFAULT
) -> None:
    """Fence the producer of a transactional id and abort its open transaction.

    Parameters
    ----------
    transactional_id
        The transactional id. A new producer can use it right away.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        admin.describe_transaction(transactional_id)  # a mistyped id would be created
        admin.force_terminate_transaction(transactional_id)
    print(f"Fenced the producer of {transactional_id}.")


def row_of_producer(producer: ProducerDescription) -> Row:
    """One producer with the fields of Kafka's tool; -1 is an unknown coordinator epoch or sequence."""
    start = producer.open_since_offset
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "latest_coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "current_transaction_start_offset": None if start == NO_OFFSET else start,
    }


def partition_of(admin: Admin, topic: str, partition: int) -> TopicPartition:
    """The partition, if it exists; else CommandFailed or RequestFailed.

    A client that asked for the leader of a missing partition would retry until its timeout.
    """
    count = len(admin.describe_topic(topic).leaders)
    if not 0 <= partition < count:
        raise CommandFailed(
            f"topic {topic} has no partition {partition}",
            then=f"its partitions are {in_range(count)}",
            code=WRONG_USAGE,
        )
    return TopicPartition(topic, partition)


def in_range(count: int) -> str:
    """`0`, or `0 to 3`: the partition numbers of a topic with so many partitions."""
    return "0" if count == 1 else f"0 to {count - 1}"


def print_rows(columns: dict[str, str], rows: list[Row], *, as_json: bool) -> None:
    """Rows under Kafka's column names, or as one JSON list."""
    if as_json:
        print_json(rows)
    else:
        print_table(tuple(columns.values()), [tuple(row[name] for name in columns) for row in rows])


def now_ms() -> int:
    """Milliseconds since 1970, as in start times and timestamps."""
    return time.time_ns() // 1_000_000


MAX_TRANSACTION_TIMEOUT_MIN: Final = 15  # Kafka's default of transaction.max.timeout.ms
PRODUCERS_AT_ONCE: Final = 500  # as Kafka's tool asks

HANGING: Final = {
    "topic": "Topic",
    "partition": "Partition",
    "producer_id": "ProducerId",
    "producer_epoch": "ProducerEpoch",
    "coordinator_epoch": "CoordinatorEpoch",
    "start_offset": "StartOffset",
    "last_timestamp": "LastTimestamp",
    "duration_min": "Duration(min)",
}
Minutes = Annotated[int, Parameter(validator=validators.Number(gte=0))]


@attrs.frozen
class Opened:
    """An open transaction, as its partition leader describes it."""

    partition: TopicPartition
    producer: ProducerDescription = attrs.field(kw_only=True)

    def row(self, now_ms: int) -> Row:
        """One line of find-hanging."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "coordinator_epoch": self.producer.coordinator_epoch,
            "start_offset": self.producer.open_since_offset,
            "last_timestamp": self.producer.last_timestamp,
            "duration_min": (now_ms - self.producer.last_timestamp) // MINUTE_MS,
        }


# KIP-664: partitions are asked before coordinators. A transaction that begins between the two questions is
# then unknown to the partition answer and cannot look like a hanging one.


def find_hanging(
    *,
    broker_id: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    max_transaction_timeout: Minutes = MAX_TRANSACTION_TIMEOUT_MIN,
    bootstrap: Bootstrap = DEFAULT,
    as_json: AsJson = False,
) -> None:
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
        Skip transactions whose last record is newer than this number of minutes: their coordinator may still
        time them out.
    """
    if topic is None and (broker_id is None or partition is not None):
        raise CommandFailed(
            "find-hanging needs --topic or --broker-id, and --partition needs --topic",
            then="for example: fencepost transactions find-hanging --topic TOPIC",
            code=WRONG_USAGE,
        )
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        searched = partitions_to_search(admin, broker_id, topic, partition)
        now = now_ms()
        candidates = [
            opened
            for opened in open_transactions(admin, searched)
            if now - opened.producer.last_timestamp > max_transaction_timeout * MINUTE_MS
        ]
        known = known_transactions(admin, sorted({found.producer.producer_id for found in candidates}))
    rows = [opened.row(now) for opened in hanging_among(candidates, known)]
    print_rows(HANGING, rows, as_json=as_json)


def find_late(
    *,
    broker_id: int | None = None,
    max_transaction_timeout: Minutes = MAX_TRANSACTION_TIMEOUT_MIN,
    bootstrap: Bootstrap = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show partitions whose oldest open transaction is past its maximum timeout.

    Parameters
    ----------
    broker_id
        Only the partitions that this broker leads.
    max_transaction_timeout
        The broker's transaction.max.timeout.ms in minutes; another five minutes are allowed for ending the
        transaction.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        searched = partitions_to_search(admin, broker_id, None, None)
        now = now_ms()
        before_ms = now - max_transaction_timeout * MINUTE_MS - LATE_TRANSACTION_BUFFER_MS
        oldest = oldest_of_each(open_transactions(admin, searched))
    rows = [opened.row(now) for opened in oldest if opened.producer.last_timestamp < before_ms]
    print_rows(HANGING, rows, as_json=as_json)


def oldest_of_each(opened: Iterable[Opened]) -> list[Opened]:
    """The transaction of each partition that holds back its last stable offset."""
    first: dict[TopicPartition, Opened] = {}
    for each in opened:
        known = first.get(each.partition, each)
        first[each.partition] = min(known, each, key=lambda entry: entry.producer.open_since_offset)
    return list(first.values())


def partitions_to_search(
    admin: Admin, broker_id: int | None, topic: str | None, partition: int | None
) -> list[TopicPartition]:
    """The partitions of one topic, or of all topics including internal ones, that the broker leads."""
    if broker_id is not None and broker_id not in (brokers := admin.list_brokers()):
        raise CommandFailed(
            f"broker {broker_id} does not exist",
            then=f"the brokers of the cluster are: {', '.join(map(str, brokers))}",
            code=WRONG_USAGE,
        )
    if topic is not None and partition is not None:
        partition_of(admin, topic, partition)
    topics: Sequence[TopicDescription] = (
        admin.list_topics() if topic is None else [admin.describe_topic(topic)]
    )
    return [
        TopicPartition(described.topic, number)
        for described in topics
        for number, leader in enumerate(described.leaders)
        if broker_id in (None, leader) and partition in (None, number)
    ]


def open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> Iterator[Opened]:
    """The open transactions of the partitions."""
    for where in partitions:
        for producer in admin.describe_producers(where):
            if producer.open_since_offset != NO_OFFSET:
                yield Opened(where, producer=producer)


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
    topic: str,
    partition: int,
    start_offset: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    coordinator_epoch: int | None = None,
    bootstrap: Bootstrap = DEFAULT,
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
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        match (start_offset, producer_id, producer_epoch, coordinator_epoch):
            case (int(offset), None, None, None):
                spec = spec_at(admin, partition_of(admin, topic, partition), offset)
            case (None, int(who), int(epoch), int(coordinator)):
                spec = AbortSpec(
                    partition=partition_of(admin, topic, partition),
                    producer_id=who,
                    producer_epoch=epoch,
                    coordinator_epoch=coordinator,
                )
            case _:
                raise CommandFailed(
                    "abort needs either --start-offset, or --producer-id, --producer-epoch and "
                    "--coordinator-epoch",
                    then="`fencepost transactions find-hanging` prints these values",
                    code=WRONG_USAGE,
                )
        admin.abort_transaction(spec)
    if as_json:
        print_json({"aborted": {**attrs.asdict(spec), "partition": str(spec.partition)}})
    else:
        print(
            f"Wrote an ABORT marker for producer {spec.producer_id} epoch {spec.producer_epoch} "
            f"to {spec.partition}."
        )


def spec_at(admin: Admin, where: TopicPartition, start_offset: int) -> AbortSpec:
    """The open transaction that starts at this offset; CommandFailed if there is none."""
    for opened in open_transactions(admin, [where]):
        if opened.producer.open_since_offset == start_offset:
            return AbortSpec(
                partition=where,
                producer_id=opened.producer.producer_id,
                producer_epoch=opened.producer.producer_epoch,
                coordinator_epoch=max(
                    opened.producer.coordinator_epoch, 0
                ),  # -1: no marker was written here yet
            )
    raise CommandFailed(
        f"no open transaction in {where} starts at offset {start_offset}",
        then=f"`fencepost transactions describe-producers --topic {where.topic} "
        f"--partition {where.partition}` shows the open transactions",
    )
