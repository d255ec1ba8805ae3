"""Fidelity to Apache Kafka 4.3.1: the settings that select an older Kafka, and the intended differences.

docs/fidelity.md shows these tables. Rule: a difference that is not listed here is a bug.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Value:
    """One value of a setting that makes a broker or a client behave like an older one."""

    setting: str
    value: str
    means: str
    source: str
    opens: str
    """The anomaly that it allows, by its number in Kafka's issue tracker."""
    is_default: bool = False


VALUES: Final = (
    Value(
        setting="transaction_version",
        value="0",
        means="as in 0.11: all transactions of a producer share an epoch, and the producer adds partitions",
        source="KIP-98, KIP-360, KIP-588",
        opens="a late EndTxn ends the next transaction (KAFKA-17754); a late batch joins the next "
        "transaction (KAFKA-14402); a "
        "rotation of producer ids is lost when its coordinator fails (KAFKA-20310)",
    ),
    Value(
        setting="transaction_version",
        value="1",
        means="the same, with flexible record versions in the transaction log",
        source="KIP-890",
        opens="a late EndTxn ends the next transaction (KAFKA-17754); a late batch joins the next "
        "transaction (KAFKA-14402)",
    ),
    Value(
        setting="transaction_version",
        value="2",
        means="an epoch per transaction; partition leaders add their partitions to it",
        source="KIP-890 part 2, 4.0",
        opens="none known",
        is_default=True,
    ),
    Value(
        setting="partition_verification",
        value="true",
        means="partition leaders verify batches of older clients with the coordinator",
        source="KIP-890 part 1, 3.6",
        opens="none",
        is_default=True,
    ),
    Value(
        setting="partition_verification",
        value="false",
        means="partition leaders accept such batches without verification",
        source="transaction.partition.verification.enable",
        opens="a batch that arrives after its marker starts a hanging transaction (KAFKA-14402)",
    ),
    Value(
        setting="transaction_version of a producer",
        value="0",
        means="a client before 4.0: Produce 11, EndTxn 4, AddPartitionsToTxn 3, TxnOffsetCommit 4",
        source="KIP-890",
        opens="the anomalies of transaction_version 0 on any broker, for its own transactions",
    ),
    Value(
        setting="transaction_version of a producer",
        value="2",
        means="a current client: Produce 12, EndTxn 5, TxnOffsetCommit 5",
        source="KIP-890 part 2, 4.0",
        opens="none known",
        is_default=True,
    ),
)


@attrs.frozen(kw_only=True)
class Difference:
    """An intended difference from Apache Kafka."""

    what: str
    kafka: str
    here: str
    because: str
    noticed: str
    """How a user notices it."""


DIFFERENCES: Final = (
    Difference(
        what="replication",
        kafka="A partition has followers, an in-sync replica set, and leader elections, including unclean "
        "ones.",
        here="A partition has one log. Its high watermark is its durable end; a new leader has the same log.",
        because="Transactions need logs that keep what they acknowledged; replication is a "
        "separate protocol.",
        noticed="There is no replication factor, acks=1 and acks=-1 are the same, and no run has an unclean "
        "election.",
    ),
    Difference(
        what="controller",
        kafka="A quorum of controllers elects a leader with Raft (KRaft) and detects failed brokers.",
        here="One node leads `__cluster_metadata`; leaders move only on request. There is no failure "
        "detector.",
        because="Tests and scenarios decide when a leader moves, so no run depends on timeouts "
        "of a detector.",
        noticed="A broker is a cluster of one. Clusters of several nodes exist only in the simulator.",
    ),
    Difference(
        what="wire protocol",
        kafka="Requests and replies use Kafka's binary schemas.",
        here="Kafka's clients use these on the same port, in the versions of clients.md. Fencepost's own "
        "client uses msgpack, with Kafka's API keys, versions, names and error codes.",
        because="The cores (the code without I/O) take and return messages; in Python a msgpack codec "
        "takes a few lines.",
        noticed="A client that needs another API raises its own UnsupportedVersion error; so do "
        "kafka-metadata-quorum, kafka-client-metrics, kafka-features if it changes something, and "
        "kafka-configs for users.",
    ),
    Difference(
        what="record format that clients write",
        kafka="Magic 2: varints, record by record.",
        here="Fencepost's own client writes Kafka's 61-byte header with magic 109, followed by msgpack "
        "columns. Batches of Kafka's clients, control batches and, but for sequences, internal topics are "
        "byte for byte Kafka's. A Fetch from a Kafka client gets columns re-encoded as magic 2, without "
        "compression, and a large batch of columns in parts.",
        because="Columns are the fastest format to write and read in pure Python.",
        noticed="Kafka's tools for log files know magic 0 to 2, and cannot read batches that Fencepost's "
        "client wrote.",
    ),
    Difference(
        what="request versions",
        kafka="Every version since Kafka 2.1 (KIP-896); the newest versions use topic ids.",
        here="Kafka's clients are served every version that Kafka 4.3.1 has. In Fencepost's own protocol, "
        "the requests of a transaction have all their versions, and every other request has one. A Produce "
        "identifies its topics by name and id, all other requests by name.",
        because="Only the requests of a transaction change their meaning with the version.",
        noticed="UNSUPPORTED_VERSION, and the reply of ApiVersions.",
    ),
    Difference(
        what="fetch sessions",
        kafka="A Fetch may name only the partitions that changed since the previous Fetch (KIP-227).",
        here="A Kafka client has one session per connection, with up to 1,000 partitions; the session ends "
        "with the connection. Fencepost's own client names all its partitions in every Fetch.",
        because="Clients open another session when they connect again, so a cache for the whole broker saves "
        "nothing here.",
        noticed="max.incremental.fetch.session.cache.slots has no effect. Consumers of more than 1,000 "
        "partitions send larger requests.",
    ),
    Difference(
        what="topics that are deleted during a fetch session",
        kafka="In a session that uses topic ids, a deleted topic gets UNKNOWN_TOPIC_OR_PARTITION, and "
        "INCONSISTENT_TOPIC_ID after a topic of its name was created. Outside of sessions, its id gets "
        "UNKNOWN_TOPIC_ID.",
        here="The id gets UNKNOWN_TOPIC_ID in a session as well.",
        because="Every Fetch looks its ids up anew, so a session need not remember names.",
        noticed="Clients do the same after each of these errors: they ask for metadata.",
    ),
    Difference(
        what="last fetched epoch of a Fetch",
        kafka="Checked: a Fetch may get OFFSET_OUT_OF_RANGE, or a diverging epoch (KIP-595).",
        here="Ignored. The leader epoch of the Fetch is checked (KIP-320), and OffsetForLeaderEpoch is "
        "answered.",
        because="Followers use it to truncate their logs, and there are no followers. "
        "The Java consumer sends -1.",
        noticed="A Fetch beyond the end of the log always gets OFFSET_OUT_OF_RANGE.",
    ),
    Difference(
        what="group protocols",
        kafka="The classic protocol, the consumer protocol (KIP-848), share groups (KIP-932) and streams "
        "groups (KIP-1071).",
        here="The classic protocol and, for Kafka's clients, the consumer protocol. Fencepost's own client "
        "uses the classic one.",
        because="KIP-447 builds on the classic protocol, and Kafka 4 offers both.",
        noticed="Share groups and Kafka Streams with group.protocol=streams are not available.",
    ),
    Difference(
        what="groups that change their protocol",
        kafka="group.consumer.migration.policy=bidirectional: a group that has members can change its "
        "protocol; meanwhile it has members of both protocols.",
        here="As with Kafka's policy `disabled`, only an empty group can change its protocol; its offsets "
        "are kept. A member of the consumer protocol gets GROUP_ID_NOT_FOUND from a classic group with "
        "members, and a classic member INCONSISTENT_GROUP_PROTOCOL from a group of the consumer protocol "
        "with members.",
        because="Online migration matters only to clusters that run for years.",
        noticed="Stop all members of a group before you change group.protocol.",
    ),
    Difference(
        what="subscriptions to a regular expression (KIP-848)",
        kafka="Resolved in the background, so the first heartbeat assigns nothing. The expression matches "
        "only topics that the member is allowed to describe.",
        here="Resolved by the heartbeat that carries it. With ACLs, the member must be allowed to describe "
        "every topic.",
        because="The core does everything within a step, and does not know the member's principal.",
        noticed="Partitions are assigned one heartbeat earlier. The member gets TOPIC_AUTHORIZATION_FAILED "
        "where Kafka leaves topics out.",
    ),
    Difference(
        what="members that become static without leaving (KIP-848)",
        kafka="A member that joins again under its own id, now with an instance id, is assigned nothing "
        "until the next target; topics to which only its old subscription referred count until then.",
        here="It keeps its target, and its old subscription ends at once.",
        because="Every consumer takes a new member id when it starts.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="server-side assignors (KIP-848)",
        kafka="uniform and range, and any class that group.consumer.assignors names. The built-in ones do "
        "not use racks (KAFKA-16694).",
        here="uniform and range. Where members subscribe to different topics, uniform uses another "
        "algorithm. As in Kafka, racks are stored but not used.",
        because="The result of Fencepost's own algorithm is just as balanced.",
        noticed="A partition may go to a different member than in Kafka, but each member gets about as "
        "many partitions.",
    ),
    Difference(
        what="member ids of the classic protocol",
        kafka="The client id, or the instance id of a static member, and a random UUID.",
        here="The same prefix, the leader epoch of the group's log, and a number.",
        because="The cores draw no random numbers, so that a run can be repeated.",
        noticed="A member id such as `billing-0-7`.",
    ),
    Difference(
        what="when a group becomes stable",
        kafka="When the record with the leader's assignment is written; before that it is "
        "CompletingRebalance.",
        here="As soon as the group's leader has sent the assignment. Replies wait until the record is "
        "durable.",
        because="State changes when a batch enters the log, and no client learns of it before the batch is "
        "durable.",
        noticed="DescribeGroups may report Stable a moment earlier.",
    ),
    Difference(
        what="security",
        kafka="TLS, SASL with five mechanisms, delegation tokens, ACLs that can be changed by requests, "
        "quotas.",
        here="TLS, SASL PLAIN and SCRAM-SHA-256, ACLs from a file, no quotas.",
        because="One file of users and one of ACLs, both plain text, are enough to keep unauthorized "
        "clients out.",
        noticed="A change of users or ACLs needs a restart. kafka-acls lists ACLs, but can neither add nor "
        "remove one: The node does not support CREATE_ACLS.",
    ),
    Difference(
        what="ClusterAction",
        kafka="The operation All includes it, super users have it, and Alter on the cluster is enough for "
        "any WriteTxnMarkers.",
        here="An ACL must name it, and a COMMIT marker is accepted only from a client that has it; without "
        "ACLs, only from a client on the same machine.",
        because="An administrator ends a hanging transaction by aborting it; a COMMIT that no coordinator "
        "decided makes records visible that their producer may still abort.",
        noticed="With ACLs, a super user's COMMIT marker or AllocateProducerIds gets "
        "CLUSTER_AUTHORIZATION_FAILED.",
    ),
    Difference(
        what="requests of clients that lack a right",
        kafka="Some look at the state first: if a client may describe topics but not delete them, "
        "DeleteTopics of a topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION; if it may not alter "
        "the settings of a broker, AlterConfigs gets INVALID_REQUEST for another broker or an invalid value.",
        here="Rights are checked before the state.",
        because="A refusal does not tell whether something exists.",
        noticed="TOPIC_AUTHORIZATION_FAILED or CLUSTER_AUTHORIZATION_FAILED in these cases.",
    ),
    Difference(
        what="compaction",
        kafka="Compacted logs have gaps. Internal topics have segments of 100 MiB and keep markers "
        "for a day.",
        here="An empty batch covers what was removed. Internal topics are compacted after each MiB that is "
        "written to them in total, and keep markers for 1 second.",
        because="So a gap is always a sign of damage. Internal topics stay small, because a starting "
        "broker reads the coordinators' logs in full.",
        noticed="A broker starts quickly, however many transactions it has had.",
    ),
    Difference(
        what="delete horizon of a produced batch",
        kafka="The attribute bit is accepted. If the delete horizon has passed, the first compaction "
        "removes the tombstones of the batch.",
        here="Such a batch gets INVALID_RECORD: only compaction may set the bit.",
        because="Otherwise compaction could remove a tombstone before a reader that has read the older "
        "value has read the tombstone.",
        noticed="Only with hand-crafted batches.",
    ),
    Difference(
        what="automatic topic creation",
        kafka="A Metadata request creates unknown topics (auto.create.topics.enable).",
        here="The same for Kafka's clients. Fencepost's own client never asks for it, and gets "
        "UNKNOWN_TOPIC_OR_PARTITION.",
        because="A mistyped name should not create a topic.",
        noticed="`send()` of Fencepost's own client to an unknown topic fails after a second.",
    ),
    Difference(
        what="two-phase commit",
        kafka="KIP-939 is in progress.",
        here="Not implemented.",
        because="No release up to 4.3 has it.",
        noticed="InitProducerId has no fields Enable2Pc and KeepPreparedTxn.",
    ),
    Difference(
        what="last producer epoch",
        kafka="Since KAFKA-20357 (merged April 2026) the log stores it in a tagged field.",
        here="The coordinator keeps it in memory and loses it at a failover, as in the releases up to 4.3.",
        because="The recorded replies come from 4.3.1.",
        noticed="A retry of InitProducerId across a failover gets PRODUCER_FENCED.",
    ),
    Difference(
        what="leader epochs in the metadata log",
        kafka="PartitionChangeRecord has no leader epoch: every reader increments its own.",
        here="The leader epoch is written in tagged field 1000, which Kafka's own readers skip.",
        because="A topic that is created again must start above the epochs of the deleted topic of the same "
        "name.",
        noticed="An additional field in a dump of `__cluster_metadata`.",
    ),
    Difference(
        what="snapshots of the metadata",
        kafka="A snapshot is a file of its own. New topics have leader epoch 0.",
        here="A snapshot is a batch of `__cluster_metadata` that begins with a NoOpRecord with tagged field "
        "1000. Of all deleted topics it keeps only the largest leader epoch, above which new topics begin.",
        because="Every reader of the log reads snapshots, too, and deleted topics leave nothing behind.",
        noticed="New topics may have a leader epoch above 0 after some 1,000 topics were deleted.",
    ),
    Difference(
        what="a failed append to a coordinator's log",
        kafka="The coordinator keeps its role and undoes the change. Before KAFKA-19367, the raised epoch "
        "of a fence stayed in memory (KAFKA-9666).",
        here="The node resigns as leader of the log and reads it again; the change is gone.",
        because="State is what the log says, so a failed append never happened.",
        noticed="NOT_COORDINATOR, where Kafka answers COORDINATOR_NOT_AVAILABLE.",
    ),
    Difference(
        what="a failing disk",
        kafka="The whole log directory goes offline, and a broker without any log directory stops.",
        here="Only the failed log goes offline. After a second the broker leads it again, with the next "
        "leader epoch. If permissions deny access to a log, the broker refuses it until the next start. If "
        "`__cluster_metadata` fails, the broker stops.",
        because="A failed sync is never retried on the same file; the other logs are intact.",
        noticed="KAFKA_STORAGE_ERROR for one partition, which then recovers, or is refused until a restart.",
    ),
    Difference(
        what="a damaged log",
        kafka="Recovery truncates the log at the first invalid batch.",
        here="Recovery truncates only a torn tail. A log is refused if it has lost synced data, or if "
        "valid batches follow the damage.",
        because="In Kafka, other replicas restore what was truncated; here there are none.",
        noticed="KAFKA_STORAGE_ERROR for the partition, until its directory is restored or repaired "
        "(repair.md) and the broker restarts. Without `__cluster_metadata` it does not start.",
    ),
    Difference(
        what="what an acknowledgement waits for",
        kafka="For other replicas; the operating system decides when data reaches the disk.",
        here="For the write; with --sync commit or all, for the sync.",
        because="There are no other replicas to restore data lost in a power failure.",
        noticed="The option --sync, and its cost in throughput.",
    ),
    Difference(
        what="limits on ids, requests, groups and clusters",
        kafka="Ids have up to 32,767 bytes, and requests up to socket.request.max.bytes. Nothing else "
        "limits the number of entries in a request or of partitions in a cluster.",
        here="Ids have up to 249 characters, lists of a request up to 20,000 entries, clusters up to 20,000 "
        "partitions and 8 MiB of settings of topics, and the members of a group up to 8 MiB of metadata.",
        because="One process serves all clients, so one request must not fill its memory or its disk.",
        noticed="INVALID_GROUP_ID, INVALID_REQUEST, GROUP_MAX_SIZE_REACHED or POLICY_VIOLATION; the limits "
        "are in trust.md.",
    ),
    Difference(
        what="settings of brokers, and of internal topics",
        kafka="AlterConfigs and IncrementalAlterConfigs change some of them at run time; groups, client "
        "metrics and the loggers of a broker also have settings.",
        here="A broker's settings are fixed when it starts, and the settings of internal topics follow "
        "from them. Settings of other topics can be changed at run time.",
        because="One process has no other brokers to keep in step, and a restart takes a moment.",
        noticed="INVALID_REQUEST, or INVALID_TOPIC_EXCEPTION for an internal topic. Clients can neither "
        "create nor delete an internal topic, nor add partitions to it. DescribeConfigs of a broker lists "
        "the settings of clients.md, except those of connections and of memory.",
    ),
    Difference(
        what="timestamps of records",
        kafka="message.timestamp.type says whether records have the time of their producer or of the broker.",
        here="The time of their producer.",
        because="The time of a record is what its producer says, and a batch of columns has no bit "
        "that says otherwise.",
        noticed="message.timestamp.type=LogAppendTime gets INVALID_CONFIG.",
    ),
    Difference(
        what="deleting a group with very many offsets",
        kafka="UNKNOWN_SERVER_ERROR if the tombstones do not fit into one batch.",
        here="The tombstones are written in several batches; the group's own tombstone is last.",
        because="It must be possible to delete any group.",
        noticed="After a kill between two batches, the group still exists and has fewer offsets.",
    ),
    Difference(
        what="validation of produced records",
        kafka="Every record is decoded, compressed ones too; offsets and the latest timestamp are rewritten.",
        here="Every record of an uncompressed batch from a Kafka client is checked. If a batch of "
        "columns has more than 2,048 bytes, the broker checks the number and the lengths of the columns, but "
        "not the types of their entries. Up to a limit for each request, it decompresses records for "
        "compacted topics, to find those without a key, and the records of a batch without a latest "
        "timestamp, to find that timestamp. A compressed batch has at most 262,144 records. Offsets must "
        "be 0, 1, 2 ... The latest timestamp is set if the producer left it out, and believed otherwise.",
        because="A small batch may decompress to a large one.",
        noticed="A consumer refuses invalid records. A batch gets INVALID_TIMESTAMP even if only the "
        "timestamp in its header is too far ahead, and INVALID_RECORD, not UNKNOWN_SERVER_ERROR, if its "
        "compression is unknown. Batches beyond a limit get MESSAGE_TOO_LARGE, and Kafka's Java producer "
        "then sends smaller ones.",
    ),
    Difference(
        what="batches of several gzip members or zstd frames",
        kafka="Java consumers read all of them.",
        here="INVALID_RECORD from a compacted topic, whose batches the broker opens. Other topics store "
        "such a batch, but Fencepost's own readers refuse it.",
        because="Other readers see less: librdkafka reads only the records of the first gzip member.",
        noticed="Only with hand-crafted requests; no common producer writes such batches.",
    ),
    Difference(
        what="a Produce that names a partition twice",
        kafka="The last batch is appended. If another entry for the partition does not hold exactly one "
        "batch, the reply is INVALID_RECORD, although the last batch has been appended.",
        here="The last batch is appended. If another entry for the partition does not hold exactly one "
        "batch, the reply is INVALID_RECORD, and nothing is appended.",
        because="What is refused must not be in the log.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="what a request names twice",
        kafka="DescribeGroups, ConsumerGroupDescribe, DescribeConfigs, DescribeProducers, OffsetFetch and "
        "OffsetForLeaderEpoch answer it twice.",
        here="They answer it once; of two entries that ask for different things, the last one counts.",
        because="A small request must not get a reply that is thousands of times larger.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="order of the entries in a reply",
        kafka="That of the request, that of a hash table, or errors first, depending on the API. In some "
        "replies, a topic that a request names in two entries has two entries, and a topic without "
        "partitions has an entry.",
        here="Mostly that of the request. A topic that exists has one entry if any of its partitions is "
        "named.",
        because="Clients look entries up by their names.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="a Fetch that has reached its limit of bytes",
        kafka="The bytes of a partition end at the limit, in the middle of a batch, and what is cut off "
        "counts for the limits of the partitions that follow. Aborted transactions are also listed for "
        "partitions whose records do not fit any more.",
        here="Batches are complete, and aborted transactions are listed for partitions with records.",
        because="Clients drop incomplete batches, and need no list without records.",
        noticed="Only by comparing replies.",
    ),
    Difference(
        what="a timestamp that is looked up after DeleteRecords",
        kafka="As long as a segment below the log start offset exists, ListOffsets may search it and find "
        "nothing.",
        here="Finds the first record at or after the timestamp that can be read.",
        because="The answer does not depend on when segments are deleted.",
        noticed="An offset instead of -1.",
    ),
    Difference(
        what="a refused batch that is much newer than those before",
        kafka="A batch or a marker that is newer than the first batch of its segment by segment.ms begins a "
        "new segment, even if it is then refused or is a duplicate.",
        here="Only what is appended begins a new segment.",
        because="A refused request changes nothing.",
        noticed="Only with hand-crafted timestamps: a Fetch ends at the end of a segment.",
    ),
    Difference(
        what="a duplicate batch with another timestamp",
        kafka="The reply has the timestamp of the batch that was appended.",
        here="The reply has the timestamp of the duplicate.",
        because="A producer that sends a batch again sends the same bytes.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="a commit of which no offset is accepted",
        kafka="If the group does not exist, it is created without offsets, until the next scan for expired "
        "ones.",
        here="Nothing is created.",
        because="A refused request changes nothing.",
        noticed="Only with hand-crafted requests, such as an OffsetCommit without offsets.",
    ),
    Difference(
        what="sequences in `__consumer_offsets`",
        kafka="Batches of offsets have base sequence 0, and DescribeProducers shows the last sequence.",
        here="They have no sequence (-1), as all batches that coordinators write.",
        because="Only batches of producers are checked for duplicates.",
        noticed="In a dump of the log, and in DescribeProducers of this topic.",
    ),
    Difference(
        what="a request to the controller that has no time",
        kafka="Some errors come before the timeout is looked at, others after it.",
        here="CreateTopics and DeleteTopics get REQUEST_TIMED_OUT even for a topic named twice, and "
        "DeleteTopics gets UNKNOWN_TOPIC_ID for an unknown id.",
        because="Both requests are refused in any case.",
        noticed="Only with hand-crafted requests: no client sends a timeout of 0.",
    ),
    Difference(
        what="record errors in the reply to a Produce (KIP-467)",
        kafka="With INVALID_TIMESTAMP, or if records in a compacted topic have no key, the reply lists "
        "the records that caused the refusal, and has a message.",
        here="The list is empty, and the message says what the error means.",
        because="The broker stops at the first reason to refuse a batch.",
        noticed="Kafka's Java producer fails all records of the batch with the same exception, instead of "
        "InvalidRecordException for those that are not listed.",
    ),
    Difference(
        what="transaction verification requests",
        kafka="One at a time per transactional id and broker; a second one makes the first fail with "
        "NETWORK_EXCEPTION.",
        here="Every Produce and TxnOffsetCommit sends its own.",
        because="Verification guards reject late replies, and no batch is rejected needlessly.",
        noticed="Fewer NOT_ENOUGH_REPLICAS at the start of a transaction.",
    ),
    Difference(
        what="marker requests",
        kafka="One WriteTxnMarkers carries the markers of many transactions.",
        here="One WriteTxnMarkers per transaction and leader.",
        because="Requests can be read, delayed and dropped transaction by transaction.",
        noticed="More requests between nodes; the logs are the same.",
    ),
    Difference(
        what="internal topics in transactions",
        kafka="A Produce 12 to an internal topic is refused, but only after the partition was added to the "
        "transaction. WriteTxnMarkers writes to any internal topic.",
        here="Of the internal topics, only `__consumer_offsets` takes part in transactions.",
        because="A marker between the records of a coordinator would end nothing.",
        noticed="DescribeTransactions never lists other internal topics; markers for them get "
        "INVALID_TOPIC_EXCEPTION.",
    ),
    Difference(
        what="invalid producer ids and epochs",
        kafka="A marker with epoch -1, producer id -1 or a negative transaction version gets "
        "UNKNOWN_SERVER_ERROR, and one with another negative producer id is written. A batch with another "
        "negative producer id than -1 is appended again if it is sent again. Without verification, a "
        "TxnOffsetCommit with a negative epoch gets UNKNOWN_SERVER_ERROR, and a TxnOffsetCommit without a "
        "producer id takes effect at once.",
        here="The marker gets INVALID_PRODUCER_EPOCH or INVALID_PRODUCER_ID_MAPPING, and a negative "
        "transaction version is like 0; the batch is a duplicate, as that of any other producer; the offsets "
        "wait for a marker that never comes.",
        because="In Kafka an internal check fails; no client sends such requests.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="requests on which Kafka fails",
        kafka="Some are never answered (4.3.1), such as an AlterConfigs that names a resource twice, a "
        "WriteTxnMarkers that names a partition twice or in which a marker names only unknown partitions, a "
        "Produce with null in place of records, an AddPartitionsToTxn 4 without transactions. Others get "
        "UNKNOWN_SERVER_ERROR, such as a Metadata with an entry that has neither a name nor an id, a Fetch "
        "with a negative limit of bytes, an IncrementalAlterConfigs with an unknown operation.",
        here="What cannot be done is refused, and the other entries get their results. A negative limit is "
        "like 0.",
        because="Every request gets a reply.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="values that no client sends",
        kafka="A Fetch that claims to be a follower's gets NOT_LEADER_OR_FOLLOWER, and one with a leader "
        "epoch below -1 has none. A ListOffsets with another replica id than -1 ignores its isolation level. "
        "A Fetch with epoch 0 and without partitions opens a session. "
        "min.cleanable.dirty.ratio may be NaN, or a hexadecimal number such as 0x1p-1.",
        here="Each Fetch and ListOffsets is a consumer's, and a leader epoch below -1 is too old. There is "
        "no session without partitions. The ratio is a decimal number from 0 to 1.",
        because="They need no code of their own.",
        noticed="Only with hand-crafted requests.",
    ),
    Difference(
        what="an interrupted commit",
        kafka="commitTransaction() raises TimeoutException or InterruptException and may be called again.",
        here="commit_transaction() raises CommitOutcomeUnknown, and the producer must be closed.",
        because="An application that treats an unknown outcome as a failure and resends the records may "
        "create duplicates.",
        noticed="A different exception.",
    ),
    Difference(
        what="default isolation level of a consumer",
        kafka="read_uncommitted.",
        here="read_committed.",
        because="People who use transactions normally want committed reads.",
        noticed="Aborted records are not returned.",
    ),
    Difference(
        what="default auto.offset.reset of a consumer",
        kafka="latest.",
        here="earliest.",
        because="A test or a script normally wants the records written before its consumer started.",
        noticed="A group without committed offsets begins with the oldest records.",
    ),
    Difference(
        what="protocol version of a producer",
        kafka="It follows the features that ApiVersions reports.",
        here="It is set with transaction_version; only `fencepost produce` asks the cluster.",
        because="Old clients can be tested with new brokers, and new clients with old brokers.",
        noticed="UNSUPPORTED_VERSION if a new producer talks to a cluster of version 0, as in Kafka.",
    ),
    Difference(
        what="a batch above max.message.bytes",
        kafka="Java's producer splits it and sends the halves; batch.size is 16 KiB.",
        here="Its records fail with DeliveryFailed, MESSAGE_TOO_LARGE; batch_size is 128 KiB.",
        because="A batch_size below the limit of the topic prevents it.",
        noticed="Small records fail under load if max.message.bytes is below batch_size; the error says so.",
    ),
    Difference(
        what="a partition that does not exist",
        kafka="The clients look for its leader until their time limit, by default for a minute.",
        here="UnknownTopic after a second, from send(), from poll() if assigned, and from an admin.",
        because="A topic that is being created appears within a moment; a wrong name never does.",
        noticed="Errors come sooner.",
    ),
    Difference(
        what="retry backoff of a client",
        kafka="retry.backoff.ms 100, doubling up to a second, with random jitter.",
        here="10 ms (1 ms after CONCURRENT_TRANSACTIONS), doubling up to a second, without jitter.",
        because="A local broker is usually ready again within milliseconds, and runs must be reproducible.",
        noticed="Retries come sooner.",
    ),
)
