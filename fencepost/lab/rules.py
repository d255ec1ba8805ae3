"""A reason, and the rules of errors that a node decides without a row of its own.

Rule: a reason names its source: a KIP, or the class of Kafka that says the same.
"""

from __future__ import annotations

from typing import Final, NotRequired, TypedDict

import attrs

from fencepost.protocol.errors import ErrorCode


class ReasonEntry(TypedDict):
    """A reason in a document."""

    text: str
    rule: str
    source: str
    table: NotRequired[str]
    error: NotRequired[str]


@attrs.frozen(kw_only=True)
class Reason:
    """One sentence, with the row of the table, its error, and the KIP or Kafka's class that it is from."""

    text: str
    rule: str
    source: str
    table: str = ""
    error: str = ""

    def as_json(self) -> ReasonEntry:
        """Its fields that are not empty."""
        why: ReasonEntry = {"text": self.text, "rule": self.rule, "source": self.source}
        if self.table:
            why["table"] = self.table
        if self.error:
            why["error"] = self.error
        return why


# --- replies whose error is decided without a row --------------------------------------------------------

GROUP_SOURCE: Final = "ClassicGroup, GroupMetadataManager"

ERRORS: Final[dict[str, tuple[str, str, str]]] = {
    "REBALANCE_IN_PROGRESS": (
        "the group is between two generations, so its members have to join again",
        GROUP_SOURCE,
        "MEMBERSHIP",
    ),
    "UNKNOWN_MEMBER_ID": (
        "the group has no member with this id",
        "ClassicGroup.validateMember",
        "MEMBERSHIP",
    ),
    "ILLEGAL_GENERATION": (
        "the member's generation is not the group's present one",
        "KIP-447, ClassicGroup.validateOffsetCommit",
        "MEMBERSHIP",
    ),
    "FENCED_INSTANCE_ID": (
        "another member has taken this group instance id",
        "KIP-345, ClassicGroup.validateMember",
        "MEMBERSHIP",
    ),
    "MEMBER_ID_REQUIRED": (
        "a new member gets its id first and joins with it, so that a lost reply leaves no ghost",
        "KIP-394",
        "",
    ),
    "INCONSISTENT_GROUP_PROTOCOL": (
        "the member shares no assignor with all others",
        "ClassicGroup.supportsProtocols",
        "",
    ),
    "INVALID_SESSION_TIMEOUT": (
        "the session timeout is not between group.min.session.timeout.ms and group.max.session.timeout.ms",
        "GroupMetadataManager.classicGroupJoin",
        "",
    ),
    "INVALID_GROUP_ID": ("the group id is empty", "GroupCoordinatorService.isGroupIdNotEmpty", ""),
    "NOT_COORDINATOR": (
        "another node leads the partition of __consumer_offsets or __transaction_state with this id",
        "CoordinatorRuntime.contextOrThrow, TransactionStateManager.getTransactionState",
        "",
    ),
    "INVALID_REQUEST": (
        "the request contradicts itself, leaves something out or names something twice",
        "ControllerApis, KafkaApis",
        "",
    ),
    "INVALID_TOPIC_EXCEPTION": (
        "the topic is internal, or no topic can have this name",
        "Topic.validate, ControllerApis",
        "",
    ),
    "NOT_LEADER_OR_FOLLOWER": (
        "another node leads the partition, or none does",
        "ReplicaManager.getPartitionOrError",
        "",
    ),
    "FENCED_LEADER_EPOCH": (
        "the reader's leader epoch is older than the leader's",
        "KIP-320, Partition.checkCurrentLeaderEpoch",
        "",
    ),
    "UNKNOWN_LEADER_EPOCH": (
        "the reader's leader epoch is newer than the leader's",
        "KIP-320, Partition.checkCurrentLeaderEpoch",
        "",
    ),
    "KAFKA_STORAGE_ERROR": (
        "the partition's log is damaged, or its disk has failed",
        "ReplicaManager.getPartitionOrError",
        "",
    ),
    "GROUP_ID_NOT_FOUND": ("there is no such group", "GroupMetadataManager.group", "MEMBERSHIP"),
    "UNSTABLE_OFFSET_COMMIT": (
        "an offset of a transaction that is not decided yet is pending, and the reader asked for stable ones",
        "KIP-447, OffsetMetadataManager.fetchOffsets",
        "",
    ),
    "TRANSACTION_ABORTABLE": (
        "the partition is not in the transaction that the coordinator knows",
        "KIP-890, TransactionCoordinator.handleVerifyPartitionsInTransaction",
        "",
    ),
    "UNKNOWN_TOPIC_OR_PARTITION": ("there is no such partition", "KafkaApis, MetadataCache.contains", ""),
    "TOPIC_AUTHORIZATION_FAILED": (
        "clients may not add a partition of an internal topic",
        "KafkaApis.handleAddPartitionsToTxnRequest",
        "",
    ),
    "OPERATION_NOT_ATTEMPTED": (
        "another partition of the request is refused, and all are added or none",
        "KafkaApis.handleAddPartitionsToTxnRequest",
        "",
    ),
    "TRANSACTIONAL_ID_NOT_FOUND": (
        "the coordinator knows no such transactional id",
        "KIP-664, TransactionCoordinator.handleDescribeTransactions",
        "",
    ),
}
"""What a reply with this error means, its source, and the table that was read, if there was one."""


CONTROLLERS: Final = {
    **dict.fromkeys(("CreateTopics", "DeleteTopics", "CreatePartitions"), "ReplicationControlManager"),
    **dict.fromkeys(("IncrementalAlterConfigs", "DescribeConfigs"), "ConfigurationControlManager"),
}
"""Kafka's class that answers an administrator; an error of part of such a reply has its own words."""

PART_ERROR: Final = "UNKNOWN_TOPIC_OR_PARTITION"
"""The error of a part that does not exist: it takes precedence over a refusal of the whole request."""


def reason_of_reply(name: str, api: str, error: str | None, reason: Reason | None) -> Reason | None:
    """ReasonEntry a node answers with this error, or without one. `reason`: the first ruling about the
    request, if there was one. Its error may differ: a part of a request may have an error of its own, and an
    old client gets an error that it knows.
    """
    if error is None:
        return None if reason is None or reason.error else reason
    if reason is not None and reason.error == error:
        return reason
    known = ERRORS.get(error)
    if known is None and api in CONTROLLERS:
        known = (ErrorCode[error].meaning, CONTROLLERS[api], "")
    if known is None or (reason is not None and error != PART_ERROR):
        if reason is None:
            return None
        return attrs.evolve(
            reason, text=f"{reason.text.removesuffix('.')}; its client knows it as {error}.", error=error
        )
    because, source, table = known
    return Reason(
        text=f"{name} answers {api} with {error}, because {because}.",
        rule=because,
        table=table,
        error=error,
        source=source,
    )
