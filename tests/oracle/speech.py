"""The table of requests that recordings may hold: how each is asked here, and how its answer is told.

Rule: every request that the recorder can write down has a line, in one table or the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from fencepost.broker.contract import Reply
from fencepost.protocol.messages import Request
from tests.oracle import speech_of_consumers as consumers
from tests.oracle import speech_of_data as data
from tests.oracle import speech_of_groups as groups
from tests.oracle import speech_of_members as members
from tests.oracle import speech_of_transactions as transactions
from tests.oracle.phrasing import Asking, Telling, Told, tell_error


@attrs.frozen
class Speech:
    """One request: the arguments that a recording gives, our message of it, and our answer as recorded."""

    args: frozenset[str]
    ask: Callable[[Asking], Request] = attrs.field(kw_only=True)
    tell: Callable[[Reply, Telling], Told] = attrs.field(kw_only=True)


def _line(args: str, ask: Callable[[Asking], Request], tell: Callable[[Reply, Telling], Told]) -> Speech:
    return Speech(frozenset(args.split()), ask=ask, tell=tell)


_PRODUCER: Final = "transactional_id producer epoch"
_MEMBER: Final = "group generation member instance"
_BATCH: Final = "records sequence transactional control corrupt magic value_size timestamp"

SPEECH: Final = {
    "InitProducerId": _line(f"{_PRODUCER} timeout_ms", transactions.ask_init, transactions.tell_identity),
    "AddPartitionsToTxn": _line(
        f"{_PRODUCER} partitions verify_only", transactions.ask_add, transactions.tell_added
    ),
    "AddOffsetsToTxn": _line(f"{_PRODUCER} group", transactions.ask_add_offsets, tell_error),
    "EndTxn": _line(f"{_PRODUCER} commit", transactions.ask_end, transactions.tell_ended),
    "WriteTxnMarkers": _line(
        "producer epoch commit partitions coordinator_epoch transaction_version markers",
        transactions.ask_markers,
        transactions.tell_markers,
    ),
    "DescribeTransactions": _line(
        "transactional_ids", transactions.ask_describe, transactions.tell_transactions
    ),
    "ListTransactions": _line("states producers duration_ms", transactions.ask_list, transactions.tell_list),
    "Produce": _line(f"{_PRODUCER} partition acks {_BATCH} parts", data.ask_produce, data.tell_produced),
    "Fetch": _line(
        "partition offset isolation max_bytes partition_max_bytes leader_epoch parts",
        data.ask_fetch,
        data.tell_fetched,
    ),
    "ListOffsets": _line(
        "partition timestamp isolation leader_epoch", data.ask_list_offsets, data.tell_listed_offset
    ),
    "DeleteRecords": _line("partition offset", data.ask_delete_records, data.tell_records_deleted),
    "DescribeProducers": _line("partition", data.ask_describe_producers, data.tell_producers),
    "OffsetCommit": _line(f"{_MEMBER} offsets metadata_size", groups.ask_commit, groups.tell_committed),
    "TxnOffsetCommit": _line(
        f"{_PRODUCER} {_MEMBER} offsets metadata_size",
        groups.ask_commit_in_transaction,
        groups.tell_committed,
    ),
    "OffsetFetch": _line(
        "group partitions require_stable member epoch", groups.ask_offsets, groups.tell_offsets
    ),
    "JoinGroup": _line(
        "group member instance session_ms rebalance_ms protocol protocol_type protocols topics",
        members.ask_join,
        members.tell_joined,
    ),
    "SyncGroup": _line(
        f"{_MEMBER} assignments protocol protocol_type", members.ask_sync, members.tell_synced
    ),
    "Heartbeat": _line(_MEMBER, members.ask_heartbeat, tell_error),
    "LeaveGroup": _line("group member instance members", members.ask_leave, members.tell_left),
    "ConsumerGroupHeartbeat": _line(
        "group member epoch topics owned instance assignor rebalance_ms",
        consumers.ask_heartbeat,
        consumers.tell_heartbeat,
    ),
    "ConsumerGroupDescribe": _line("group", consumers.ask_describe, consumers.tell_described),
    "ListGroups": _line("states", members.ask_list, members.tell_listed),
    "DescribeGroups": _line("group", members.ask_describe, members.tell_described),
    "DeleteGroups": _line("group", members.ask_delete, members.tell_deleted),
    "OffsetDelete": _line("group partitions", members.ask_delete_offsets, members.tell_offsets_deleted),
    "FindCoordinator": _line("key type", groups.ask_find, tell_error),
    "CreatePartitions": _line("topic count", groups.ask_create_partitions, groups.tell_partitions_created),
    "DeleteTopics": _line("topic", groups.ask_delete_topic, groups.tell_topic_deleted),
}
"""The requests that Fencepost serves."""

NOT_SERVED: Final[dict[str, frozenset[str]]] = {}
"""Those that it does not: what Kafka answered to them is played as a difference."""

KNOWN: Final = {name: line.args for name, line in SPEECH.items()} | NOT_SERVED
"""Every request with its arguments."""
