"""How close Fencepost is to Apache Kafka 4.3.1: what can be set to be an older Kafka, and what is otherwise
on purpose. docs/fidelity.md is made from these tables.

Rule: whatever is not listed here is meant to be as in Kafka, and is a mistake if it is not.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.kafka_fixes import FIXES
from fencepost.protocol import tables


@attrs.frozen(kw_only=True)
class Value:
    """One value of a setting that makes a broker or a client an older one."""

    setting: str
    value: str
    means: str
    source: str
    opens: str
    """Which anomaly there is with it, by Kafka's number."""
    is_default: bool = False


VALUES: Final = (
    Value(
        setting="transaction_version",
        value="0",
        means="as in 0.11: all transactions of a producer share an epoch, and it adds partitions itself",
        source="KIP-98, KIP-360, KIP-588",
        opens="a late EndTxn ends the next transaction (KAFKA-17754); a late batch joins it (KAFKA-14402); a "
        "rotation of producer ids is forgotten with its coordinator (KAFKA-20310)",
    ),
    Value(
        setting="transaction_version",
        value="1",
        means="the same, with records that can say more in the log of transactions",
        source="KIP-890",
        opens="a late EndTxn ends the next transaction (KAFKA-17754); a late batch joins it (KAFKA-14402)",
    ),
    Value(
        setting="transaction_version",
        value="2",
        means="an epoch for each transaction; partition leaders add their partitions themselves",
        source="KIP-890 part 2, 4.0",
        opens="none that is known",
        is_default=True,
    ),
    Value(
        setting="partition_verification",
        value="true",
        means="a partition's leader asks the coordinator about batches of older clients",
        source="KIP-890 part 1, 3.6",
        opens="none of its own",
        is_default=True,
    ),
    Value(
        setting="partition_verification",
        value="false",
        means="it takes them as they come",
        source="transaction.partition.verification.enable",
        opens="a batch that comes after its marker opens a transaction that hangs for good (KAFKA-14402)",
    ),
    Value(
        setting="transaction_version of a producer",
        value="0",
        means="a client from before 4.0: Produce 11, EndTxn 4, AddPartitionsToTxn 3, TxnOffsetCommit 4",
        source="KIP-890",
        opens="on any broker what transaction_version 0 opens, as far as its own transactions go",
    ),
    Value(
        setting="transaction_version of a producer",
        value="2",
        means="a client of today: Produce 12, EndTxn 5, TxnOffsetCommit 5",
        source="KIP-890 part 2, 4.0",
        opens="none that is known",
        is_default=True,
    ),
)


@attrs.frozen(kw_only=True)
class Difference:
    """Something that is otherwise than in Apache Kafka, and stays so."""

    what: str
    kafka: str
    here: str
    because: str
    noticed: str
    """How somebody who uses it comes upon it."""


DIFFERENCES: Final = (
    Difference(
        what="replicas",
        kafka="A partition has followers, a set of replicas in sync, and elections, at need unclean ones.",
        here="A partition has one log. The high watermark is its durable end; whoever leads next has the "
        "same.",
        because="Transactions rest on logs that keep what they acknowledged; how they "
        "do is another protocol.",
        noticed="A replication factor cannot be chosen, acks 1 and -1 are the same, and no run shows an "
        "unclean election.",
    ),
    Difference(
        what="the controller",
        kafka="A quorum of controllers elects a leader by Raft (KRaft), and notices brokers that are gone.",
        here="One node leads __cluster_metadata; leaders move when somebody asks for it.",
        because="Tests and scenarios say when a leader moves, and so no run depends on a failure detector.",
        noticed="A broker is a cluster of one; several nodes live in the simulator.",
    ),
    Difference(
        what="the wire",
        kafka="Requests and answers in Kafka's binary schemas.",
        here="Msgpack under Kafka's API keys, versions, names and error codes.",
        because="The cores take and return messages; what encodes them is a few lines of Python here.",
        noticed="Kafka's own clients cannot connect.",
    ),
    Difference(
        what="records of clients",
        kafka="Magic 2: varints, record by record.",
        here="Kafka's header of 61 bytes with magic 109; inside are msgpack columns. Control batches and "
        "internal topics are Kafka's, byte for byte.",
        because="Columns are what pure Python writes and reads fastest.",
        noticed="Kafka's tools, which know magic 0 to 2, do not read data.",
    ),
    Difference(
        what="versions of requests",
        kafka="Every version since 2.1 (KIP-896), the newest with topic ids.",
        here="All versions of what takes part in a transaction, of everything else one; topics by name.",
        because="Only there do versions decide what a request means.",
        noticed="UNSUPPORTED_VERSION, and what ApiVersions says.",
    ),
    Difference(
        what="fetch sessions",
        kafka="A Fetch may name only what has changed since the last one (KIP-227).",
        here="Every Fetch names all its partitions.",
        because="Less state to lose; what is read is the same.",
        noticed="Larger requests of consumers with many partitions.",
    ),
    Difference(
        what="group protocols",
        kafka="Besides the classic one the consumer protocol (KIP-848), share groups (KIP-932) and "
        "streams groups (KIP-1071).",
        here="The classic protocol.",
        because="It is the one that KIP-447 is about, and all clients speak it.",
        noticed="group.protocol=consumer cannot be chosen.",
    ),
    Difference(
        what="when a group is stable",
        kafka="When the record of the leader's assignment is written; until then it is CompletingRebalance.",
        here="As soon as the leader has assigned. Its answers wait for the record.",
        because="What entered the log is the group's; nobody hears of it before it is durable.",
        noticed="DescribeGroups may say Stable a moment earlier.",
    ),
    Difference(
        what="users, rights and quotas",
        kafka="Authentication, encryption, ACLs and quotas.",
        here="None.",
        because="It is a local broker, on loopback unless told otherwise.",
        noticed="TRANSACTIONAL_ID_AUTHORIZATION_FAILED means only that a transactional batch came "
        "without its id.",
    ),
    Difference(
        what="retention and compaction",
        kafka="Old segments are deleted or compacted.",
        here="Logs grow; only DeleteRecords moves their start.",
        because="Nothing that transactions promise depends on it.",
        noticed="A long life makes a long start, for internal topics are read from their beginning.",
    ),
    Difference(
        what="topics that nobody made",
        kafka="Metadata makes them (auto.create.topics.enable).",
        here="They are UNKNOWN_TOPIC_OR_PARTITION.",
        because="A name that was mistyped should not become a topic.",
        noticed="A producer's send fails after a second if nobody has made the topic.",
    ),
    Difference(
        what="transactions with a foreign coordinator",
        kafka="KIP-939 (two-phase commit) is being built.",
        here="None of it.",
        because="No release up to 4.3 has it.",
        noticed="InitProducerId has no enable_2pc and no keep_prepared_txn.",
    ),
    Difference(
        what="the last producer epoch",
        kafka="Since KAFKA-20357 (merged April 2026) the log holds it, under a tag.",
        here="It is a note of the coordinator and dies with it, as in the releases up to 4.3.",
        because="The recordings are of 4.3.1.",
        noticed="The retry of an InitProducerId across a failover is PRODUCER_FENCED.",
    ),
    Difference(
        what="leader epochs in the metadata log",
        kafka="PartitionChangeRecord has no leader epoch: every reader counts it up by one.",
        here="It is written beside, under tag 1000, which readers of Kafka's skip.",
        because="A topic that is made again must start above the epochs of the last one of its name.",
        noticed="A field of its own in a dump of __cluster_metadata.",
    ),
    Difference(
        what="a coordinator's record that cannot be written",
        kafka="The coordinator stays and takes its step back; until KAFKA-19367 a fence's raised epoch "
        "stayed in memory (KAFKA-9666).",
        here="The node gives up the log's leadership and reads it anew: nothing stays.",
        because="State is what the log says, so a failed append has not happened.",
        noticed="NOT_COORDINATOR, where Kafka says COORDINATOR_NOT_AVAILABLE.",
    ),
    Difference(
        what="a disk that fails",
        kafka="The whole log directory is offline, and a broker without any stops.",
        here="The one log is given up, and led again under the next epoch after a second.",
        because="A failed sync is never tried again on the same file state; other logs are sound.",
        noticed="KAFKA_STORAGE_ERROR for one partition, and then it goes on.",
    ),
    Difference(
        what="what an acknowledgement waits for",
        kafka="Other replicas; the disk is synced at the system's leisure.",
        here="The write; with --sync commit or all, the sync.",
        because="There are no replicas that would outlive a loss of power.",
        noticed="--sync, and its price in speed.",
    ),
    Difference(
        what="questions to the coordinator",
        kafka="One is under way per transactional id and broker; a second one ends the first with "
        "NETWORK_EXCEPTION.",
        here="Every Produce and TxnOffsetCommit asks for itself.",
        because="Guards keep late answers out, and no batch is sent back for nothing.",
        noticed="Fewer NOT_ENOUGH_REPLICAS at the beginning of a transaction.",
    ),
    Difference(
        what="marker requests",
        kafka="One WriteTxnMarkers holds the markers of many transactions.",
        here="One for each transaction and leader.",
        because="What travels can be read and held back transaction by transaction.",
        noticed="More requests between nodes; the logs are the same.",
    ),
    Difference(
        what="internal topics in transactions",
        kafka="A Produce 12 adds them before it is refused; WriteTxnMarkers writes into any.",
        here="Only what holds offsets takes part in transactions.",
        because="A marker between a coordinator's own records ends nothing.",
        noticed="No partition of theirs in DescribeTransactions; markers get INVALID_TOPIC_EXCEPTION.",
    ),
    Difference(
        what="identities that nobody has",
        kafka="UNKNOWN_SERVER_ERROR for a marker with a negative epoch. Where nothing is verified: the same "
        "for a TxnOffsetCommit, and one without a producer id counts at once.",
        here="The marker is INVALID_PRODUCER_EPOCH; the offsets wait for a marker that never comes.",
        because="Kafka fails over a check of its own; no client sends such a thing.",
        noticed="Only by who makes requests by hand.",
    ),
    Difference(
        what="markers by hand for several producers",
        kafka="One with a marker for unknown partitions alone beside others is never answered (4.3.1).",
        here="Each partition has its answer.",
        because="Whoever asks means to hear.",
        noticed="UNKNOWN_TOPIC_OR_PARTITION.",
    ),
    Difference(
        what="a commit that is cut short",
        kafka="commitTransaction() raises TimeoutException or InterruptException; it may be called again.",
        here="It raises CommitOutcomeUnknown, and the producer is done.",
        because="Whoever takes it for a failure and sends again has duplicates.",
        noticed="An exception with a name of its own.",
    ),
    Difference(
        what="isolation.level of a consumer",
        kafka="read_uncommitted unless it is set.",
        here="read_committed unless it is set.",
        because="Whoever comes for transactions means to read what was committed.",
        noticed="Aborted records do not show up.",
    ),
    Difference(
        what="the generation that a producer speaks",
        kafka="It learns it from the features that ApiVersions tells.",
        here="It is told, by transaction_version; only `fencepost produce` asks.",
        because="A client of old beside a broker of today, and the other way round, can be had when one "
        "wants them.",
        noticed="UNSUPPORTED_VERSION where a producer of today meets a cluster of old.",
    ),
    Difference(
        what="pauses of a client",
        kafka="retry.backoff.ms 100, doubling to a second, with chance.",
        here="10 ms, doubling to a second, without chance.",
        because="Most refusals of one local broker last milliseconds, and runs repeat.",
        noticed="Retries come sooner.",
    ),
)


def values_table() -> str:
    """The settings that make a broker or a client an older one."""
    rows = [
        (f"`{row.setting}`", f"{row.value} (default)" if row.is_default else row.value, row.means,
         row.source, row.opens)
        for row in VALUES
    ]  # fmt: skip
    return tables.markdown_table(("setting", "value", "what it is", "from", "anomalies"), rows)


def corrections_table() -> str:
    """Kafka's later corrections."""
    rows = [
        (f"`{knob.name}`", knob.on, knob.off, f"{knob.source}, {knob.since}", knob.opens) for knob in FIXES
    ]
    return tables.markdown_table(("name", "with it (default)", "without it", "from", "what comes back"), rows)


def differences_table() -> str:
    """What is otherwise than in Apache Kafka."""
    rows = [(row.what, row.kafka, row.here, row.because, row.noticed) for row in DIFFERENCES]
    return tables.markdown_table(("what", "Apache Kafka", "here", "why", "how it is noticed"), rows)
