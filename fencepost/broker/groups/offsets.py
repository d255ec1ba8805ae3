"""OffsetCommit, TxnOffsetCommit and OffsetFetch at the group coordinator.

Rule: a TxnOffsetCommit is verified like a Produce (KIP-890); then the group checks its member (KIP-447).
"""

# The group coordinator's partition is one more partition of the transaction: it is added or verified through
# the same guard (partitions/produce.py), and the same marker decides it. Both kinds of check matter: a zombie
# producer must be fenced by its epoch even if its consumer is still a member, and a zombie consumer by its
# generation even if its producer id is new. The first protects a fixed transactional id per input partition
# (KIP-98); the second protects a single producer per process (KIP-447).

# Theory of operation
#
#     producer               group coordinator                          transaction coordinator
#     TxnOffsetCommit  --->  BEFORE_ASKING: the epoch
#                            start_verification(), park the request --> add or verify __consumer_offsets-n
#                            _check_member: member, generation     <--- NONE
#                            OFFSET_CHECKS: the epoch, the guard
#                            append: the offsets are pending
#       <--- NONE ---------  durable
#     EndTxn  ----------------------------------------------------->    PREPARE_COMMIT
#                            COMMIT marker: the offsets are committed <- WriteTxnMarkers

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from fencepost.broker.contract import Answered, Refused, Reply, ReplyTo
from fencepost.broker.groups import rebalance
from fencepost.broker.groups import state as groups
from fencepost.broker.groups.consumer_group import ConsumerGroup, tombstones
from fencepost.broker.groups.consumer_heartbeat import check_commit, check_identity
from fencepost.broker.groups.state import Groups
from fencepost.broker.leader_log import GroupLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.checks import NO_GUARD, UNGUARDED, TransactionalOffsets, judge
from fencepost.broker.partitions.produce import ask_coordinator, asks_coordinator
from fencepost.broker.purgatory import InFlightAddOffsets
from fencepost.broker.transactions.tables import ClientVersion
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_group_log import ConsumerEntry, TopicIdPartition
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, group_batch
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_GENERATION,
    NO_MEMBER,
    NO_SEQUENCE,
    TopicPartition,
    coordinator_partition,
    java_length,
)

NO_IDENTITY: Final = (NO_GENERATION, NO_MEMBER, None)
"""Generation, member and instance of a commit without member identity."""

# Refusals of partition or transaction coordinator, as the committing producer sees them
# (GroupCoordinatorService).
ADD_ERRORS: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


_NO_COORDINATOR: Final = Refused(
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "no node coordinates the transactional id now",
    source="KIP-890, AddPartitionsToTxnManager",
)
NO_GROUP_ID: Final = Refused(
    ErrorCode.INVALID_GROUP_ID, "the group id is empty", source="GroupCoordinatorService.isGroupIdNotEmpty"
)
NOT_COORDINATOR: Final = Refused(
    ErrorCode.NOT_COORDINATOR,
    "this node does not coordinate the group",
    source="CoordinatorRuntime.contextOrThrow",
)
TOO_LARGE: Final = Refused(
    ErrorCode.UNKNOWN_SERVER_ERROR,  # as GroupCoordinatorService.handleOperationException maps it
    "its records are larger than max.message.bytes of the coordinator's topic",
    source="GroupCoordinatorService.handleOperationException",
)


def group_log(node: Node, group_id: str) -> GroupLog | Refused:
    """The log of the group's coordinator, if this node is the coordinator."""
    number = coordinator_partition(group_id, node.coordinator_count(CONSUMER_OFFSETS_TOPIC))
    log = node.coordinator_log(Groups, TopicPartition(CONSUMER_OFFSETS_TOPIC, number))
    return log or NOT_COORDINATOR


def write_entries(node: Node, log: GroupLog, entries: GroupBatch, now: int, *, must: bool) -> bool:
    """Append records as one batch. Returns False, and changes nothing, if it is too large, unless it `must`
    be written.
    """
    batch = group_batch(entries, timestamp=now)
    if node.is_too_large(len(batch)) and not must:
        return False
    node.append(log, batch, entries)
    return True


def _answers(
    request: m.OffsetCommit | m.TxnOffsetCommit, errors: list[ErrorCode]
) -> tuple[m.PartitionError, ...]:
    return tuple(
        m.PartitionError(offset.topic, offset.partition, error)
        for offset, error in zip(request.offsets, errors, strict=True)
    )


def _check_member(
    node: Node,
    log: GroupLog,
    request: m.OffsetCommit | m.TxnOffsetCommit,
    now: int,
    client_version: ClientVersion,
) -> Refused | None:
    """Why the group refuses the whole request, or None. A member's own commit extends its session."""
    state = log.coordinator
    in_transaction = isinstance(request, m.TxnOffsetCommit)
    if (consumers := state.consumers.get(request.group_id)) is not None:
        return _check_consumer(node, consumers, request, client_version)
    group = state.group(request.group_id, now=now)
    identity = (request.generation_id, request.member_id, request.group_instance_id)
    if in_transaction and not node.settings.fixes.group_fencing:
        identity = NO_IDENTITY  # before KIP-447 a TxnOffsetCommit had no member identity
    error = rebalance.check_commit(group, *identity, in_transaction=in_transaction)
    if error is ErrorCode.GROUP_ID_NOT_FOUND and not knows_epochs(client_version):
        error = ErrorCode.ILLEGAL_GENERATION
    if error is not NO_ERROR:
        return _not_a_member(error, request)
    if group is not None and group.members and not in_transaction:
        turn = rebalance.Turn(group, now, node.settings)
        rebalance.touch(turn, request.member_id)
        groups.keep_live(state, turn.group)
    return None


def knows_epochs(client_version: ClientVersion) -> bool:
    """Whether the committing client knows the consumer protocol (KIP-848)."""
    return client_version.unknown is not ErrorCode.STALE_MEMBER_EPOCH


def _check_consumer(
    node: Node,
    group: ConsumerGroup,
    request: m.OffsetCommit | m.TxnOffsetCommit,
    client_version: ClientVersion,
) -> Refused | None:
    """The same in a group of the consumer protocol, where heartbeats alone extend a session."""
    in_transaction = isinstance(request, m.TxnOffsetCommit)
    epoch = request.generation_id
    has_identity = (epoch, request.member_id, request.group_instance_id) != NO_IDENTITY
    if in_transaction and not (has_identity and node.settings.fixes.group_fencing):
        return None
    if request.member_id in group.subscriptions and not (in_transaction or knows_epochs(client_version)):
        return Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            "is from a version that does not know the consumer protocol",
            source="KIP-848, ConsumerGroup.validateOffsetCommit",
        )
    for offset in request.offsets:
        topic = node.cluster.topics.get(offset.topic)
        if topic is None or offset.partition not in topic.leaders:
            continue  # it has an error of its own
        part = TopicIdPartition(topic.topic_id, offset.partition)
        error = check_commit(group, request.member_id, epoch, part)
        if error is not NO_ERROR:
            # TxnOffsetCommit has no version that knows of member epochs.
            is_stale = in_transaction and error is ErrorCode.STALE_MEMBER_EPOCH
            return _not_a_member(ErrorCode.ILLEGAL_GENERATION if is_stale else error, request)
    return None


def _not_a_member(error: ErrorCode, request: m.OffsetCommit | m.TxnOffsetCommit) -> Refused:
    who = f"member {request.member_id!r} in generation {request.generation_id}"
    if request.member_id == NO_MEMBER:
        who = "a committer without a member id"
    return Refused(
        error,
        f"group {request.group_id} does not accept a commit from {who}",
        source="KIP-447, ClassicGroup.validateOffsetCommit",
        table="MEMBERSHIP",
    )


def _errors(
    node: Node, request: m.OffsetCommit | m.TxnOffsetCommit, refused: Refused | None
) -> list[ErrorCode]:
    """One error per offset. An unknown partition takes precedence over a refusal of the whole request."""

    def error(offset: m.OffsetToCommit) -> ErrorCode:
        if node.cluster.leader(TopicPartition(offset.topic, offset.partition)) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if refused is not None:
            return refused.error
        is_too_long = java_length(offset.metadata) > groups.OFFSET_METADATA_LENGTH_MAX
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_long else NO_ERROR

    return [error(offset) for offset in request.offsets]


def commit(node: Node, request: m.OffsetCommit, to: ReplyTo, now: int, client_version: ClientVersion) -> None:
    """OffsetCommit: committed as soon as the record is in the log."""
    log = group_log(node, request.group_id)
    if isinstance(log, Refused):
        node.note_ruling(to, log)
        body = m.OffsetCommitReply(partitions=_answers(request, _errors(node, request, log)))
        node.outcome.effects.append(Reply(to, body))
        return
    answers = _answers(request, _write(node, log, request, to, now, client_version, guard=UNGUARDED))
    node.after(log, (Reply(to, m.OffsetCommitReply(partitions=answers)),))


def _write(
    node: Node,
    log: GroupLog,
    request: m.OffsetCommit | m.TxnOffsetCommit,
    to: ReplyTo,
    now: int,
    client_version: ClientVersion,
    *,
    guard: int,
) -> list[ErrorCode]:
    """Append the offsets that have no problem, as one batch. Returns one error per offset of the request."""
    # At the append, not before the coordinator is asked: the group may have rebalanced in between.
    refused = _check_member(node, log, request, now, client_version)
    if refused is not None:
        node.note_ruling(to, refused, partition=log.partition.key)
    errors = _errors(node, request, refused)
    good = [offset for offset, error in zip(request.offsets, errors, strict=True) if error is NO_ERROR]
    if not good:
        return errors
    if isinstance(request, m.TxnOffsetCommit):
        refused = _check_producer(node, log, request, client_version, guard=guard)
        if refused is not None:
            node.note_ruling(to, refused, table="OFFSET_CHECKS")
            return _errors(node, request, refused)
    # If the names alone are too large, no batch is built: that could take a second for a request of 1 MiB.
    names = sum(len(request.group_id) + len(each.topic) + len(each.metadata) for each in good)
    if names > node.settings.message_max_bytes:
        return _errors(node, request, TOO_LARGE)
    entries = GroupBatch(groups.entries_of(request, good, node.topic_id, now=now))
    if isinstance(request, m.TxnOffsetCommit):
        batch = group_batch(
            entries,
            timestamp=now,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            transactional=True,
        )
    else:
        batch = group_batch(entries, timestamp=now)
    if node.is_too_large(len(batch)):
        return _errors(node, request, TOO_LARGE)
    node.append(log, batch, entries)
    return errors


def _check_producer(
    node: Node, log: GroupLog, request: m.TxnOffsetCommit, client_version: ClientVersion, *, guard: int
) -> Refused | None:
    """The log's own checks of a transactional batch."""
    written = TransactionalOffsets(request.producer_id, request.producer_epoch)
    verdict = judge(log.partition, written, verification_guard=guard, checks=node.settings.offset_checks)
    if not isinstance(verdict, Refused):
        return None
    return attrs.evolve(verdict, error=client_version.downgrade(verdict.error))


def commit_in_transaction(
    node: Node, request: m.TxnOffsetCommit, to: ReplyTo, now: int, client_version: ClientVersion
) -> None:
    """TxnOffsetCommit: pending until the producer's transaction ends. The first one of a transaction adds the
    partition to it, or verifies it.
    """
    # Without a partition that exists any refusal will do: `_errors` then answers each offset with
    # UNKNOWN_TOPIC_OR_PARTITION.
    is_possible = request.group_id and _names_known_partition(node, request)
    log = group_log(node, request.group_id) if is_possible else NO_GROUP_ID
    if isinstance(log, Refused):
        _refuse(node, request, to, log)
        return
    if not asks_coordinator(node, client_version):
        _append(node, log, request, to, now, guard=UNGUARDED, client_version=client_version)
        return
    state = log.partition
    written = TransactionalOffsets(request.producer_id, request.producer_epoch)
    verdict = judge(state, written, verification_guard=NO_GUARD, checks=node.settings.checks_before_asking)
    if isinstance(verdict, Refused):
        _refuse(node, request, to, verdict, table="BEFORE_ASKING", decided_by=log)
    elif state.is_open(request.producer_id, request.producer_epoch):
        _append(node, log, request, to, now, guard=NO_GUARD, client_version=client_version)
    else:
        guard = partition.start_verification(
            state,
            request.producer_id,
            producer_epoch=request.producer_epoch,
            sequence=NO_SEQUENCE,
            starts_at_zero=client_version.transaction_version.adds_implicitly,
            now=now,
        )
        why = InFlightAddOffsets(
            request=request, to=to, key=state.key, verification_guard=guard, client_version=client_version
        )
        who = (request.transactional_id, request.producer_id, request.producer_epoch)
        if not ask_coordinator(node, *who, (state.key,), why):
            _refuse(node, request, to, _NO_COORDINATOR)


def _names_known_partition(node: Node, request: m.TxnOffsetCommit) -> bool:
    """Whether any partition of the request exists; if none does, nothing is added to the transaction."""
    return any(node.cluster.leader(TopicPartition(o.topic, o.partition)) for o in request.offsets)


def answer_to_add(node: Node, in_flight: InFlightAddOffsets, answer: Answered, now: int) -> None:
    """Handle the coordinator's reply: append the offsets, or refuse the request."""
    error = answer.error
    if isinstance(answer.body, m.AddPartitionsToTxnReply):
        error = answer.body.partitions[0].error
    log = group_log(node, in_flight.request.group_id)
    if (
        error is NO_ERROR
        and not isinstance(log, Refused)
        and log.partition.issued(in_flight.verification_guard)
    ):
        _append(
            node,
            log,
            in_flight.request,
            in_flight.to,
            now,
            guard=in_flight.verification_guard,
            client_version=in_flight.client_version,
        )
        return
    because = f"was not admitted: the transaction coordinator answered {error.name}"
    if error is NO_ERROR:
        error, because = ErrorCode.NOT_COORDINATOR, "was verified for an earlier leadership"
    refused = Refused(
        in_flight.client_version.downgrade(ADD_ERRORS.get(error, error)),
        because,
        source="KIP-890, AddPartitionsToTxnManager",
        table="ADD_ERRORS",
    )
    _refuse(node, in_flight.request, in_flight.to, refused)


def _append(
    node: Node,
    log: GroupLog,
    request: m.TxnOffsetCommit,
    to: ReplyTo,
    now: int,
    *,
    guard: int,
    client_version: ClientVersion,
) -> None:
    answers = _answers(request, _write(node, log, request, to, now, client_version, guard=guard))
    node.after(log, (Reply(to, m.TxnOffsetCommitReply(partitions=answers)),))


def _refuse(
    node: Node,
    request: m.TxnOffsetCommit,
    to: ReplyTo,
    refused: Refused,
    *,
    table: str = "",
    decided_by: GroupLog | None = None,
) -> None:
    """Refuse all offsets. If a log decided this, the reply waits until that log is durable up to its end."""
    node.note_ruling(to, refused, table=table)
    body = m.TxnOffsetCommitReply(partitions=_answers(request, _errors(node, request, refused)))
    reply = Reply(to, body)
    if decided_by is None:
        node.outcome.effects.append(reply)
    else:
        node.after(decided_by, (reply,))


def fetch(node: Node, request: m.OffsetFetch, to: ReplyTo, now: int) -> None:
    """OffsetFetch. A group that does not exist has no offsets (-1), which is not an error."""
    log = group_log(node, request.group_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    group = log.coordinator.consumers.get(request.group_id)
    if group is not None and (request.member_id is not None or request.member_epoch >= 0):
        error = check_identity(group, request.member_id or NO_MEMBER, request.member_epoch)
        if error is not NO_ERROR:
            node.after(log, (Reply(to, error=error),))
            return
    if not node.settings.fixes.require_stable:
        request = attrs.evolve(request, require_stable=False)
    node.after(log, (Reply(to, m.OffsetFetchReply(offsets=groups.fetch(log.coordinator, request))),))


def forget_topics(node: Node, log: GroupLog, topics: Collection[str], now: int) -> None:
    """Delete the offsets of deleted topics. A new topic of that name would otherwise be read from the middle
    (GroupCoordinatorService.onMetadataUpdate).
    """
    gone = [key for key in groups.offset_keys(log.coordinator) if key.topic in topics]
    if gone:
        forget_offsets(node, log, gone, now)


def forget_former_topics(node: Node, log: GroupLog, now: int) -> None:
    """Delete the offsets of topics that were deleted while this log had no leader. They may have been created
    again since.
    """
    gone = groups.keys_of_former_topics(log.coordinator, node.cluster.is_deleted)
    if gone:
        forget_offsets(node, log, gone, now)


def forget_offsets(
    node: Node,
    log: GroupLog,
    keys: Sequence[OffsetKey],
    now: int,
    *,
    group_ids: Sequence[str] = (),
    consumers: tuple[ConsumerEntry, ...] = (),
) -> None:
    """Write a tombstone for each of these offsets, and then for these groups: several batches if one would
    be too large.
    """
    entries = GroupBatch(
        tuple([(key, None) for key in keys]), tuple([(group_id, None) for group_id in group_ids]), consumers
    )
    if not write_entries(node, log, entries, now, must=len(keys) <= 1):
        # A kill in between leaves fewer offsets, and the group: it comes last. From that state
        # expiration, or a repeated request, continues. No reply leaves before the last batch is durable.
        middle = len(keys) // 2
        forget_offsets(node, log, keys[:middle], now)
        forget_offsets(node, log, keys[middle:], now, group_ids=group_ids, consumers=consumers)


def forget_group(node: Node, log: GroupLog, group_id: str, now: int) -> None:
    """Write tombstones for a group and for each of its offsets, pending or not."""
    state = log.coordinator
    groups.forget_live(state, group_id)
    keys = groups.offset_keys_of(state, group_id)
    consumers = state.consumers.get(group_id)
    if consumers is None:
        forget_offsets(node, log, keys, now, group_ids=(group_id,))
    else:
        forget_offsets(node, log, keys, now, consumers=tombstones(consumers))
