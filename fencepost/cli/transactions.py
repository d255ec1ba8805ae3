"""`fencepost transactions` but for what hangs: what coordinators and partition leaders know, and fencing.

Rule: the columns and options of Kafka's kafka-transactions.sh, in Kafka's words (KIP-664, KIP-994, KIP-1152).
"""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from fencepost.cli.bootstrap import ANSWER_MS, DEFAULT, AsJson, Bootstrap, Int64, reach
from fencepost.cli.errors import WRONG_USAGE, CommandFailed
from fencepost.cli.printing import Json, print_json, print_table
from fencepost.client.shells.sync import Admin
from fencepost.protocol.messages import ProducerDescription, TransactionDescription
from fencepost.protocol.terms import NO_OFFSET, NO_TIMESTAMP, TopicPartition, TransactionState

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
        Only transactions that have been open for longer than so many milliseconds; below 0 all. Ids without
        a start time are listed too, as in Kafka.
    transactional_id_pattern
        Only ids that this regular expression matches as a whole.
    state
        Only ids in this state. May be given several times.
    producer_id
        Only ids that own this producer id. May be given several times.
    """
    states = tuple(STATES[name] for name in state)
    filters = (states, producer_id, duration_filter, transactional_id_pattern)
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
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
    """Show where one transactional id stands: coordinator, producer, state, times, open partitions."""
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
        found = admin.describe_transaction(transactional_id)
        coordinator_id = admin.find_coordinator(transactional_id)
    row = row_of(found, coordinator_id=coordinator_id, now_ms=now_ms())
    if as_json:
        print_json(row)
    else:
        partitions = ",".join(f"{part.topic}-{part.partition}" for part in found.partitions)
        print_rows(DESCRIBED, [{**row, "partitions": partitions}], as_json=False)


def row_of(found: TransactionDescription, *, coordinator_id: int, now_ms: int) -> Row:
    """A described transaction; start and duration are None while none is open."""
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
    """Show the producers that a partition remembers, each with where its open transaction starts.

    Parameters
    ----------
    topic
        The topic.
    partition
        Which of its partitions.
    broker_id
        Ask this broker instead of whichever leads the partition.
    """
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
        where = partition_of(admin, topic, partition)
        leader = admin.describe_topic(topic).leaders[partition]
        if broker_id not in (None, leader):  # a partition has one replica
            raise CommandFailed(
                f"broker {broker_id} has no {where}", then=f"broker {leader} leads it", code=WRONG_USAGE
            )
        producers = admin.describe_producers(where, broker_id)
    print_rows(PRODUCERS, [row_of_producer(producer) for producer in producers], as_json=as_json)


def force_terminate_transaction(
    transactional_id: Annotated[str, Parameter("--transactionalId")], *, bootstrap: Bootstrap = DEFAULT
) -> None:
    """Fence whoever has a transactional id, and abort what it has open.

    Parameters
    ----------
    transactional_id
        The id. Its next owner goes on as after any other end.
    """
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
        admin.describe_transaction(transactional_id)  # an id with a typing error would be made
        admin.force_terminate_transaction(transactional_id)
    print(f"Fenced the producer of {transactional_id}.")


def row_of_producer(producer: ProducerDescription) -> Row:
    """One producer as Kafka's tool tells it; -1 stands for an unknown coordinator epoch or sequence."""
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
    """The partition if there is one; CommandFailed or RequestFailed at once, sooner than a client gives up
    looking for its leader.
    """
    count = len(admin.describe_topic(topic).leaders)
    if not 0 <= partition < count:
        raise CommandFailed(
            f"topic {topic} has no partition {partition}", then=f"it has 0 to {count - 1}", code=WRONG_USAGE
        )
    return TopicPartition(topic, partition)


def print_rows(columns: dict[str, str], rows: list[Row], *, as_json: bool) -> None:
    """Rows under Kafka's column names, or as one JSON list."""
    if as_json:
        print_json(rows)
    else:
        print_table(tuple(columns.values()), [tuple(row[name] for name in columns) for row in rows])


def now_ms() -> int:
    """Milliseconds since 1970, what start times and timestamps are measured against."""
    return time.time_ns() // 1_000_000
