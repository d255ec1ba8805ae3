"""The planted bugs that the simulator has to find: each a mistake that somebody could make in the cores.

Rule: an edit is as small as the mistake would be, and made in the real function. docs/mutations.json records
the first seed that shows each.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.planting import Edit, Mutation

# What becomes of longer passages.
_MARKERS_AT_ONCE: Final = """\
state.pending[name] = header.next_offset
    if record is not None and record.state.is_prepared:
        node.markers_due[log.partition.key, name] = now"""

_ANY_RETRY_ENDED_WELL: Final = """\
    if is_retry and record.state.is_complete:
        return record.state
    cell: Cell = """

_TRANSACTIONS_OFFSETS_LOST: Final = """\
if isinstance(request, m.OffsetCommit):
        node.append(log, batch, entries)"""

_APPENDS_RECORD: Final = "header = node.append("

_ADDED_IN_MEMORY: Final = """\
known = state.records.get(name)
    if known is not None and record is not None and known.state is record.state is ONGOING:
        transactions.apply(state, entries)
        return
    header = node.append("""

_ABORTED_AFTER_ALL: Final = """\
        if record.state.is_prepared:
            aborted = type(record.state).PREPARE_ABORT
            state.records[name] = record._replace(state=aborted)"""

_EPOCH_KEPT: Final = """\
    )
    assert isinstance(decision, Decision)
    ((_, prepared),) = decision.entries
    kept = prepared._replace(producer_epoch=record.producer_epoch)
    return Decision(((name, kept),), decision.effects, decision.note)"""

_GRANTED_ALL_THE_SAME: Final = """\
    if grant is Grant.ABORT_FIRST:
        grant = Grant.NEXT_EPOCH
    if False:"""

_PENDING_FORGOTTEN: Final = """\
if hasattr(log.coordinator, 'pending'):
        log.coordinator.pending = type(log.coordinator.pending)()
    self.logs[order.partition] = log"""

_NUMBERED_AGAIN: Final = """\
        elif batch.attempts:
            from fencepost.protocol.batches import renumber
            queue._number(batch)
            renumber(batch.data, producer_id=queue.producer_id,
                     producer_epoch=queue.producer_epoch, base_sequence=batch.base_sequence)
        batch.in_flight = """

_MEMBERSHIP_OF_NOW: Final = """\
ConsumerGroupMetadata(
            group_id=self.group_id,
            generation_id=self.member.generation_id,
            member_id=self.member.member_id,
            group_instance_id=self.settings.group_instance_id,
        )"""

OF_PARTITIONS: Final = (
    Mutation(
        "the LSO is one too high",
        breaks="read_committed readers get the first batch of the oldest open transaction.",
        edits=(
            Edit(
                "broker.partitions.partition:Partition.last_stable_offset",
                {"min(first, self.high_watermark)": "min(first + 1, self.high_watermark)"},
            ),
        ),
    ),
    Mutation(
        "a dedup window of one batch",
        breaks="Of five batches in flight, only a retry of the last is recognised (Redpanda 3038).",
        edits=(Edit("broker.partitions.partition:_apply_data", {"[-CACHED_BATCHES_MAX:]": "[-1:]"}),),
    ),
    Mutation(
        "a duplicate is answered with the log end offset",
        breaks="A batch that is already in the log is acknowledged with the wrong offset (Redpanda 3003).",
        edits=(
            Edit(
                "broker.partitions.checks:judge",
                {"_duplicate(written, producer, ": "Duplicate(partition.log_end_offset - 1, "},
            ),
        ),
    ),
    Mutation(
        "gaps in a sequence are accepted",
        breaks="A batch overtakes the one before it, which was lost and is retried later (KIP-98).",
        edits=(
            Edit(
                "broker.partitions.checks:_is_out_of_order",
                {"written.base_sequence != expected": "written.base_sequence < expected"},
            ),
        ),
    ),
    Mutation(
        "a partition does not compare epochs",
        breaks="A zombie writes into the transaction of the producer that replaced it (KIP-890).",
        edits=(
            Edit(
                "broker.partitions.partition:Partition.is_open",
                {" and producer.producer_epoch == producer_epoch": ""},
            ),
            Edit(
                "broker.partitions.checks:_has_older_epoch",
                {"written.producer_epoch < producer.producer_epoch": "False"},
            ),
        ),
    ),
    Mutation(
        "a batch is appended after its marker",
        breaks="A batch is appended although a marker was written after the batch was verified "
        "(KAFKA-14884).",
        edits=(
            Edit(
                "broker.partitions.checks:_lost_its_guard", {"entry is None or entry.guard != guard": "False"}
            ),
            Edit(
                "broker.partitions.checks:_has_older_epoch",
                {"written.producer_epoch < producer.producer_epoch": "False"},
            ),
        ),
    ),
    Mutation(
        "replies do not wait for the disk",
        breaks="A write is acknowledged before it is durable under --sync commit or all.",
        edits=(Edit("broker.node:Node.after", {"state.high_watermark == state.log_end_offset": "True"}),),
    ),
    Mutation(
        "a snapshot forgets open transactions",
        breaks="The next leader does not know where the oldest undecided transaction begins.",
        workload="compaction",
        edits=(
            Edit(
                "broker.partitions.partition:_snapshot_entry",
                {"first_offset=producer.current_txn_first_offset": "first_offset=-1"},
            ),
        ),
    ),
    Mutation(
        "a new leader forgets the producers",
        breaks="A new leader does not recognise a retry of a batch that its predecessor wrote.",
        edits=(
            Edit(
                "broker.partitions.partition:restore",
                {"(cached,) if entry.last_offset != NO_OFFSET else ()": "()"},
            ),
        ),
    ),
    Mutation(
        "a marker at the high watermark counts as durable",
        breaks="The LSO passes a marker that the last sync did not reach.",
        edits=(
            Edit(
                "broker.partitions.partition:advance_high_watermark",
                {"ended.marker_offset >= offset": "ended.marker_offset > offset"},
            ),
        ),
    ),
    Mutation(
        "a new leader begins at the start of its log",
        breaks="The high watermark and the LSO go back with each change of leaders (KAFKA-2334, KIP-207).",
        rule="I2 monotone",
        edits=(
            Edit(
                "broker.node:Node.rebuild",
                {
                    "advance_high_watermark(state, state.log_end_offset)": (
                        "advance_high_watermark(state, state.log_start_offset)"
                    )
                },
            ),
        ),
    ),
)

OF_COORDINATORS: Final = (
    Mutation(
        "markers are sent before PREPARE is durable",
        breaks="Partitions learn of a decision that the coordinator's log may yet lose.",
        edits=(
            Edit(
                "broker.transactions.handlers:write_record",
                {"state.pending[name] = header.next_offset": _MARKERS_AT_ONCE},
            ),
        ),
    ),
    Mutation(
        "EndTxn ignores the epoch",
        breaks="A zombie ends the transaction of the producer that replaced it (KAFKA-17754).",
        edits=(
            Edit(
                "broker.transactions.end_txn:_end_cell",
                {
                    '"fencing" not in settings.broken or record': "record",
                    "if not is_retry and not (": "if False and not (",
                },
            ),
        ),
    ),
    Mutation(
        "every retried EndTxn succeeds",
        breaks="A commit that lost to a timeout is acknowledged.",
        edits=(Edit("broker.transactions.end_txn:_end_cell", {"    cell: Cell = ": _ANY_RETRY_ENDED_WELL}),),
    ),
    Mutation(
        "a retry of EndTxn is not recognised",
        breaks="A producer that retries EndTxn after a lost reply is fenced (KIP-890).",
        edits=(
            Edit(
                "broker.transactions.end_txn:_is_retry",
                {"request.producer_epoch == record.producer_epoch - 1": "False"},
            ),
        ),
    ),
    Mutation(
        "the previous epoch is forgotten",
        breaks="A producer that retries InitProducerId after a lost reply is fenced (KIP-360).",
        edits=(
            Edit("broker.transactions.init_producer_id:_expectation", {"expected == last_epoch": "False"}),
        ),
    ),
    Mutation(
        "an identity is granted twice",
        breaks="A new owner of a transactional id gets the epoch of the previous owner.",
        edits=(
            Edit(
                "broker.transactions.init_producer_id:_next_identity",
                {"producer_epoch=record.producer_epoch + 1": "producer_epoch=record.producer_epoch"},
            ),
        ),
    ),
    Mutation(
        "a new owner leaves the old transaction open",
        breaks="InitProducerId does not abort the transaction of the previous owner (Redpanda 3232).",
        edits=(
            Edit(
                "broker.transactions.init_producer_id:decide_identity",
                {"    if grant is Grant.ABORT_FIRST:": _GRANTED_ALL_THE_SAME},
            ),
        ),
    ),
    Mutation(
        "added partitions are kept in memory only",
        breaks="A transaction's later partitions are not logged, so the next coordinator does not know them"
        " (Redpanda 6018).",
        edits=(Edit("broker.transactions.handlers:write_record", {_APPENDS_RECORD: _ADDED_IN_MEMORY}),),
    ),
    Mutation(
        "a transaction is logged with its first partition only",
        breaks="The coordinator has all partitions in memory but only one in its log, so after a failover "
        "the others never get a marker.",
        edits=(
            Edit(
                "protocol.transaction_log:_transaction_value",
                {"_partitions(record.partitions, ": "_partitions(record.partitions[:1], "},
            ),
            # The rules have to see it without the comparison of memory and log.
            Edit("simulator.judges.white_box:_compare", {"assert known == written,": "assert True,"}),
        ),
    ),
    Mutation(
        "a new coordinator aborts decided commits",
        breaks="After a failover PREPARE_COMMIT is carried out with ABORT markers.",
        edits=(
            Edit(
                "broker.transactions.markers:resume",
                {"        if record.state.is_prepared:": _ABORTED_AFTER_ALL},
            ),
        ),
    ),
    Mutation(
        "COMPLETE before all markers are written",
        breaks="A marker that a partition could not append is never retried.",
        edits=(Edit("broker.transactions.markers:take_marker_answers", {" if error is NO_ERROR": ""}),),
    ),
    Mutation(
        "markers are never retried",
        breaks="After a marker request to a dead leader the transaction stays in PREPARE_* (compare "
        "KAFKA-16352).",
        edits=(
            Edit(
                "broker.transactions.markers:_retry_markers",
                {"node.markers_due[log.partition.key, name] = due_ms": "pass"},
            ),
        ),
    ),
    Mutation(
        "a timeout keeps the epoch",
        breaks="A producer whose transaction timed out can still write and end transactions.",
        edits=(
            Edit(
                "broker.transactions.end_txn:decide_timeout",
                {"return prepare(": "decision = prepare(", "    )  # fmt: skip": _EPOCH_KEPT},
            ),
        ),
    ),
    Mutation(
        "a block of producer ids is handed out twice",
        breaks="Two nodes give the same ids to different producers (KIP-730).",
        edits=(
            Edit(
                "broker.cluster.controller:_apply",
                {"state.next_producer_id = record.next_producer_id": "pass"},
            ),
        ),
    ),
)

OF_OFFSETS: Final = (
    Mutation(
        "offsets of an aborted transaction take effect",
        breaks="A group skips records whose results were aborted (KIP-98).",
        edits=(Edit("broker.groups.state:_decide_pending", {"result is TransactionResult.COMMIT": "True"}),),
    ),
    Mutation(
        "offsets of a transaction are lost",
        breaks="The offsets are acknowledged but never written, so the next consumer processes the records "
        "again.",
        edits=(
            Edit(
                "broker.groups.offsets:_write",
                {"node.append(log, batch, entries)": _TRANSACTIONS_OFFSETS_LOST},
            ),
        ),
    ),
    Mutation(
        "a new leader forgets pending offsets",
        breaks="A commit marker finds nothing to commit after a failover.",
        edits=(Edit("broker.node:Node.rebuild", {"self.logs[order.partition] = log": _PENDING_FORGOTTEN}),),
    ),
)

OF_JOURNALS: Final = (
    Mutation(
        "aborted transactions are searched in one segment only",
        breaks="Readers get aborted records whose ABORT marker is in a later segment.",
        edits=(
            Edit(
                "journal.log_segments:LogSegments.aborted_between",
                {"index(fetch_offset) :]": "index(fetch_offset) :][:1]"},
            ),
        ),
    ),
    Mutation(
        "aborted transactions are skipped only from their start",
        breaks="A reader in the middle of an aborted transaction gets the rest of it.",
        edits=(
            Edit(
                "journal.indexes:TransactionIndex.collect",
                {"if aborted.first_offset < upper": "if fetch_offset <= aborted.first_offset < upper"},
            ),
        ),
    ),
    Mutation(
        "a replaced leader may still write",
        breaks="The journal takes batches of an older leader epoch.",
        edits=(
            Edit("journal.journal:Journal.append", {"leader_epoch < self.leader_epoch": "False"}),
            Edit("journal.journal:Journal.lead", {"leader_epoch < self.leader_epoch": "False"}),
        ),
    ),
    Mutation(
        "recovery accepts a torn batch",
        breaks="A batch that was half written when the power failed is not detected.",
        edits=(Edit("journal.segments:walk_batches", {"not checksum_matches(window, at, header)": "False"}),),
    ),
)

OF_CLIENTS: Final = (
    Mutation(
        "a reader forgets all aborted transactions at the first marker",
        breaks="After one producer's ABORT marker, readers get the aborted records of the others.",
        edits=(
            Edit(
                "client.consumer_records:AbortedFilter.drops",
                {"self._aborted.discard(header.producer_id)": "self._aborted.clear()"},
            ),
        ),
    ),
    Mutation(
        "a reader that starts in mid-batch gets the whole batch",
        breaks="Records are returned twice, the second time at offsets of other records.",
        edits=(
            Edit(
                "client.consumer_records:ConsumedBatch.columns",
                {"columns if skipped == 0 else _without_first(columns, skipped)": "columns"},
            ),
        ),
    ),
    Mutation(
        "a reader that starts in mid-batch skips one record",
        breaks="The record at the position is skipped, and later ones are returned one offset too early.",
        edits=(
            Edit("client.consumer_records:_without_first", {"skipped if deltas": "skipped + 1 if deltas"}),
        ),
    ),
    Mutation(
        "an unknown commit outcome is treated as an abort",
        breaks="After a lost reply the producer reports that the transaction failed, and continues.",
        edits=(
            Edit(
                "client.producer:ProducerMachine._ended", {"committing and finished.call.indefinite": "False"}
            ),
        ),
    ),
    Mutation(
        "a batch is retried with a new sequence",
        breaks="A retry is a new batch to the broker, so both are in the log.",
        edits=(Edit("client.delivery:Delivery._take", {"        batch.in_flight = ": _NUMBERED_AGAIN}),),
    ),
    Mutation(
        "a full batch overtakes those that wait",
        breaks="Records of a transaction are stored in another order than they were sent.",
        rule="int-nonmonotonic-send",
        edits=(
            Edit(
                "client.accumulator:Accumulator.close",
                {"queue.ready.append(batch)": "queue.ready.appendleft(batch)"},
            ),
        ),
    ),
    Mutation(
        "refused batches are sent again in reverse order",
        breaks="A producer without transactions stores its records in another order (KAFKA-5494).",
        rule="nonmonotonic-send",
        edits=(
            Edit(
                "client.batch:PartitionQueue.adopt",
                {"self.is_broken = False": "self.is_broken = False\n    self.unacked.reverse()"},
            ),
        ),
    ),
)

_RETURNED: Final = "if not dropped and not header.is_control and header.record_count:"

OF_READERS: Final = (
    Mutation(
        "the record at offset 0 is not returned",
        breaks="Nobody ever reads the first record of a partition.",
        rule="lost-write",
        edits=(
            Edit(
                "client.consumer_records:select",
                {_RETURNED: _RETURNED.replace(":", " and header.base_offset:")},
            ),
        ),
    ),
    Mutation(
        "only the first partition of a topic is returned",
        breaks="Nobody reads the others, whose positions move all the same.",
        rule="unseen",
        edits=(
            Edit(
                "client.consumer_records:select",
                {_RETURNED: _RETURNED.replace(":", " and not partition.partition:")},
            ),
        ),
    ),
    Mutation(
        "a reader that starts in mid-batch begins at its start",
        breaks="The reader gets records again, at their own offsets.",
        rule="nonmonotonic-poll",
        edits=(
            Edit(
                "client.consumer_records:select",
                {"base_offset=max(position, header.base_offset)": "base_offset=header.base_offset"},
            ),
        ),
    ),
    Mutation(
        "the batches of a fetch are returned in reverse order",
        breaks="The application gets newer records before older ones.",
        rule="int-nonmonotonic-poll",
        edits=(
            Edit(
                "client.consumer:ConsumerMachine.take",
                {"batches += selection.batches": "batches += selection.batches[::-1]"},
            ),
        ),
    ),
    Mutation(
        "the second batch of a fetch is left out",
        breaks="The reader skips records that others read.",
        rule="int-poll-skip",
        edits=(
            Edit(
                "client.consumer:ConsumerMachine.take",
                {"batches += selection.batches": "batches += selection.batches[:1] + selection.batches[2:]"},
            ),
        ),
    ),
    Mutation(
        "a reader of committed records fetches at read_uncommitted",
        breaks="It gets records whose transactions are not decided.",
        rule="undecided-read",
        edits=(
            Edit(
                "client.consumer:ConsumerMachine._fetch_request",
                {"self.settings.isolation_level": "type(self.settings.isolation_level)(0)"},
            ),
        ),
    ),
    Mutation(
        "the committed offset is one too high",
        breaks="The next owner of the partition leaves a record out.",
        rule="missing-output",
        edits=(
            Edit(
                "client.topic_partition_state:TopicPartitionState.committable",
                {"OffsetAndMetadata(self.seen,": "OffsetAndMetadata(self.seen + 1,"},
            ),
        ),
    ),
    Mutation(
        "a leader ignores the isolation level",
        breaks="A transaction reads its own records before it commits.",
        rule="precommitted-read",
        edits=(
            Edit(
                "broker.partitions.fetch:_plan_fetch",
                {"before=state.end_for(isolation_level)": "before=state.high_watermark"},
            ),
            Edit(
                "broker.partitions.fetch:complete_fetch",
                {"reply.request.isolation_level is READ_COMMITTED": "False"},
            ),
        ),
    ),
    Mutation(
        "a consumer fetches ahead at read_uncommitted, and without a bound",
        breaks="Two transactions read each other's records before they commit.",
        rule="G1c",
        edits=(
            Edit(
                "client.consumer:ConsumerMachine._fetch",
                {"state.in_flight is not None or state.fetched": "state.in_flight is not None"},
            ),
            Edit(
                "client.consumer:ConsumerMachine._fetch_request",
                {"self.settings.isolation_level": "type(self.settings.isolation_level)(0)"},
            ),
        ),
    ),
    Mutation(
        "a reader does not notice ABORT markers",
        breaks="It drops the next transaction of the producer in this partition, and returns it in others.",
        rule="torn-transaction",
        edits=(
            Edit(
                "client.consumer_records:AbortedFilter.drops",
                {"self._aborted.discard(header.producer_id)": "pass"},
            ),
        ),
    ),
    Mutation(
        "the last batch of a reader's first fetch is left out",
        breaks="The last reader misses an input whose result is in the output.",
        rule="foreign-output",
        edits=(
            Edit(
                "client.consumer_records:select",
                {
                    _RETURNED: _RETURNED.replace(
                        ":", " and (position or not at or at + header.size < len(data)):"
                    )
                },
            ),
        ),
    ),
)

OF_TOPICS: Final = (
    Mutation(
        "a leader does not compare topic ids",
        breaks="A late batch for a deleted topic enters the next topic of its name.",
        workload="topics",
        edits=(Edit("broker.partitions.produce:_log_of", {"topic_id != NO_TOPIC_ID and": "False and"}),),
    ),
    Mutation(
        "recovery does not compare topic ids",
        breaks="The records of a deleted topic appear in the next topic of its name.",
        workload="topics",
        edits=(
            Edit(
                "journal.manifest:Manifest.other_topic", {"_are_two_topics(self.topic_id, topic_id)": "False"}
            ),
        ),
    ),
    Mutation(
        "a deletion is not synced",
        breaks="After a loss of power, the directory of a deleted topic is there again.",
        workload="topics",
        edits=(Edit("broker.led_logs:LedLogs.remove", {"host.directory.finish_deleting()": "pass"}),),
    ),
    Mutation(
        "the offsets of a deleted topic are kept",
        breaks="A group reads the next topic of the name from the middle.",
        workload="topics",
        edits=(Edit("broker.groups.offsets:forget_topics", {"if gone:": "if False:"}),),
    ),
    Mutation(
        "a snapshot of the metadata forgets producer ids",
        breaks="The next block of producer ids is one that was granted before.",
        workload="topics",
        edits=(
            Edit(
                "broker.cluster.controller:snapshot_of",
                {"next_producer_id=state.next_producer_id": "next_producer_id=0"},
            ),
        ),
    ),
)

OF_GROUPS: Final = (
    Mutation(
        "TxnOffsetCommit is not checked against the group's members",
        breaks="A member that was replaced commits what its successor has copied already (KIP-447).",
        workload="groups",
        edits=(
            Edit("broker.groups.offsets:_check_member", {"not node.settings.fixes.group_fencing": "True"}),
        ),
    ),
    Mutation(
        "a transaction commits offsets under the consumer's latest membership",
        breaks="A member that was removed from the group commits without a member id, which every group "
        "accepts (KIP-447).",
        workload="groups",
        edits=(
            Edit(
                "client.consumer:ConsumerMachine.group_metadata", {"self.member.metadata": _MEMBERSHIP_OF_NOW}
            ),
        ),
    ),
    Mutation(
        "an eager member keeps what it should revoke",
        breaks="It continues to read while the group gives its partitions to others.",
        workload="groups",
        edits=(
            Edit(
                "client.group_member:GroupMember._calls_before_joining",
                {"partitions),) if partitions else ()": "partitions),) if False else ()"},
            ),
        ),
    ),
    Mutation(
        "a member sends no heartbeats",
        breaks="The group removes the member, which does not notice: its commits are refused forever.",
        workload="groups",
        edits=(
            Edit(
                "client.group_member:GroupMember.step",
                {"self._heartbeat_call is None and now": "False and now"},
            ),
        ),
    ),
    Mutation(
        "a moving partition is not withheld",
        breaks="The new owner begins to read before the old one has given the partition up (KIP-429).",
        workload="groups",
        edits=(
            Edit("client.assignors:assign_sticky", {"owners.get(where, member_id) == member_id": "True"}),
        ),
    ),
    Mutation(
        "a withheld partition waits forever",
        breaks="The static member that gives up the partition restarts before it rejoins, and no further "
        "rebalance follows, so nobody gets the partition.",
        workload="groups",
        edits=(
            Edit(
                "client.group_leader:assign",
                {"if is_withheld or (reply.skip_assignment and is_cooperative):": "if False:"},
            ),
        ),
    ),
)

OF_DAMAGE: Final = (
    Mutation(
        "the manifest is not consulted about where a log ends",
        breaks="A damaged end is mistaken for a torn one, and acknowledged records are truncated.",
        workload="damage",
        edits=(
            Edit(
                "journal.recovery:Recovery._read_identity",
                {"self._read_witness(MANIFEST_FILE, decode_manifest)": "None"},
            ),
        ),
    ),
    Mutation(
        "every invalid byte is a torn tail",
        breaks="Damage in the middle of a log truncates everything after it, even records that the "
        "manifest vouches for.",
        workload="damage",
        edits=(
            Edit(
                "journal.recovery:Recovery._refuse_shortened",
                {"if end < promised:": "if False:", "if after is not None:": "if False:"},
            ),
        ),
    ),
    Mutation(
        "a missing file is an empty log",
        breaks="A log whose files are gone silently starts empty.",
        workload="damage",
        edits=(
            Edit(
                "journal.recovery:Recovery._refuse_missing",
                {"if missing:": "if False:", "if is_known and not sizes:": "if False:"},
            ),
            Edit("journal.recovery:Recovery._refuse_shortened", {"if end < promised:": "if False:"}),
        ),
    ),
    Mutation(
        "a missing directory is a new log",
        breaks="A partition that vanished silently starts empty.",
        workload="damage",
        edits=(
            Edit(
                "simulator.world.journals:ClusterJournals.journal",
                {"is_known=partition in self.listed": "is_known=False"},
            ),
        ),
    ),
    Mutation(
        "a reader does not compare checksums",
        breaks="An application gets bytes that no client wrote.",
        workload="damage",
        rule="phantom",
        edits=(Edit("protocol.batches:check", {"not checksum_matches(data, at, header)": "False"}),),
    ),
    Mutation(
        "a reader of damaged bytes gets no error",
        breaks="The reader waits forever for records that exist, and nothing is reported.",
        workload="damage",
        edits=(
            Edit(
                "broker.partitions.fetch:complete_fetch",
                {'error, records = _unreadable(plan.partition, problem, report), b""': 'records = b""'},
            ),
        ),
    ),
    Mutation(
        "a fetch does not check that its batches are contiguous",
        breaks="Base offsets and batch lengths, which no checksum covers, are used as read from the disk.",
        workload="damage",
        edits=(Edit("journal.segments:Segment.read", {"not _are_linked(data, offset)": "False"}),),
    ),
)

OF_COMPACTION: Final = (
    Mutation(
        "compaction goes beyond the last stable offset",
        breaks="A committed record is removed in favour of one whose transaction aborts later.",
        workload="compaction",
        edits=(
            Edit(
                "journal.cleaning:_cleanable", {"segment.end_offset > rules.before or is_young": "is_young"}
            ),
        ),
    ),
    Mutation(
        "the latest record of a key is removed",
        breaks="Readers never learn the value of the key.",
        workload="compaction",
        edits=(
            Edit(
                "journal.compaction:Cleaner._thinned",
                {"latest.get(_shortened(key), offset) <= offset": "_shortened(key) not in latest"},
            ),
        ),
    ),
    Mutation(
        "aborted records replace committed ones",
        breaks="An aborted record removes the committed value of its key.",
        workload="compaction",
        edits=(
            Edit(
                "journal.compaction:Survey.update",
                {"if is_dirty and fits and not _is_aborted(header, self._aborted):": "if is_dirty and fits:"},
            ),
        ),
    ),
    Mutation(
        "a marker is removed before the records of its transaction",
        breaks="Aborted records are left, and nothing says that they were aborted.",
        workload="compaction",
        edits=(
            Edit("journal.compaction:Cleaner._kept", {"None if _is_aborted(header, self._aborted) else": ""}),
            Edit("journal.compaction:Cleaner._kept_marker", {"if has_batches or header": "if header"}),
        ),
    ),
    Mutation(
        "a COMMIT marker is removed before the records of its transaction",
        breaks="Committed records become part of their producer's next transaction, which is aborted.",
        workload="compaction",
        edits=(Edit("journal.compaction:Cleaner._kept_marker", {"if has_batches or header": "if header"}),),
    ),
    Mutation(
        "tombstones are removed at once",
        breaks="A reader that has the older value keeps it forever.",
        workload="compaction",
        edits=(
            Edit(
                "journal.compaction:Cleaner._thinned",
                {"horizon is not None and horizon <= self._now": "True"},
            ),
        ),
    ),
    Mutation(
        "a tombstone removes no older value",
        breaks="When the tombstone itself is removed later, the key has its old value again.",
        workload="compaction",
        rule="stale-value",
        edits=(
            Edit(
                "journal.compaction:Survey._note_keys",
                {"if record.key is not None": "if record.key is not None and not record.is_tombstone"},
            ),
        ),
    ),
    Mutation(
        "young records are cleaned",
        breaks="A reader misses records that min.compaction.lag.ms should have kept for it.",
        workload="compaction",
        edits=(
            Edit(
                "journal.cleaning:_cleanable",
                {"segment.end_offset > rules.before or is_young": "segment.end_offset > rules.before"},
            ),
        ),
    ),
    Mutation(
        "a segment is as old as its first record",
        breaks="Retention deletes records that are younger than retention.ms.",
        workload="compaction",
        edits=(
            Edit(
                "journal.journal:Journal.deletable_before",
                {"segment.max_timestamp <": "segment.first_timestamp <"},
            ),
        ),
    ),
    Mutation(
        "once retention has deleted a segment, it deletes the next one, too",
        breaks="Records that retention should have kept are deleted.",
        workload="compaction",
        edits=(
            Edit(
                "journal.journal:Journal.deletable_before",
                {"(is_old or is_too_much)": "(is_old or is_too_much or segment.base_offset == start > 0)"},
            ),
        ),
    ),
    Mutation(
        "the cleaned segment is not synced",
        breaks="After a power failure, neither the old records nor the cleaned ones are left.",
        workload="compaction",
        edits=(Edit("journal.cleaning:Cleaning._write", {"cleaned.sync(indexes=True)": "pass"}),),
    ),
    Mutation(
        "the records left in a batch are renumbered",
        breaks="A record is read at the offset of one that was removed.",
        workload="compaction",
        edits=(
            Edit(
                "protocol.thinning:_kept_columns",
                {"list(kept if deltas is None else _selected(deltas, kept))": "list(range(len(kept)))"},
            ),
        ),
    ),
)

_SENT_TO: Final = "state.pending_markers.setdefault(name, set(record.partitions))"
_SENT_TO_TOPICS: Final = (
    "state.pending_markers.setdefault(name, {TopicPartition(where.topic, number) for where in "
    "record.partitions for number in {0, where.partition}})"
)

OF_ANSWERS_AND_TIMEOUTS: Final = (
    Mutation(
        "transactional offsets are acknowledged before they are durable",
        breaks="After a loss of power, a transaction commits without the offsets that were acknowledged.",
        workload="power",
        edits=(
            Edit(
                "broker.groups.offsets:_append",
                {
                    "node.after(log, (Reply(to, m.TxnOffsetCommitReply(partitions=answers)),))": (
                        "node.outcome.effects.append(Reply(to, m.TxnOffsetCommitReply(partitions=answers)))"
                    )
                },
            ),
        ),
    ),
    Mutation(
        "offsets are acknowledged before they are durable",
        breaks="After a loss of power, a group starts again before the offset that was acknowledged.",
        workload="requests",
        edits=(
            Edit(
                "broker.groups.offsets:commit",
                {
                    "node.after(log, (Reply(to, m.OffsetCommitReply(partitions=answers)),))": (
                        "node.outcome.effects.append(Reply(to, m.OffsetCommitReply(partitions=answers)))"
                    )
                },
            ),
        ),
    ),
    Mutation(
        "each added partition restarts the timeout",
        breaks="A transaction stays open as long as its producer adds partitions, and readers wait.",
        edits=(
            Edit(
                "broker.transactions.add_partitions:decide_partitions",
                {"start_ms = found.start_ms if found.state is ONGOING else now": "start_ms = now"},
            ),
        ),
    ),
    Mutation(
        "the timeout of InitProducerId is ignored",
        breaks="A transaction stays open for longer than its producer asked for.",
        edits=(
            Edit(
                "broker.transactions.init_producer_id:_first_identity",
                {"timeout_ms=request.transaction_timeout_ms": "timeout_ms=900_000"},
            ),
        ),
    ),
    Mutation(
        "transactions time out an hour early",
        breaks="Transactions that may still commit are aborted.",
        edits=(Edit("broker.transactions.state:timed_out", {"due_ms < now": "due_ms < now + 3_600_000"}),),
    ),
    Mutation(
        "timeouts wait for producer ids",
        breaks="Without the controller, transactions stay open although their end needs no new producer id.",
        edits=(
            Edit(
                "broker.transactions.handlers:_abort_one",
                {"isinstance(decided, Decision)": "isinstance(decided, Decision) and fresh is not None"},
            ),
        ),
    ),
    Mutation(
        "a completed transaction keeps its partitions",
        breaks="The next transaction sends markers to partitions to which it did not write.",
        edits=(
            Edit(
                "broker.transactions.end_txn:complete",
                {"state=cell, partitions=(), update_ms": "state=cell, update_ms"},
            ),
        ),
    ),
    Mutation(
        "markers go to further partitions of the topic",
        breaks="A marker is written to a partition that is not in the transaction.",
        edits=(Edit("broker.transactions.markers:_send_markers", {_SENT_TO: _SENT_TO_TOPICS}),),
    ),
)

OF_MARKERS: Final = (
    Mutation(
        "a partition does not compare the epochs of markers",
        breaks="A late marker of an earlier transaction is written after the marker of the next one.",
        edits=(
            Edit(
                "broker.partitions.checks:_is_stale",
                {"marker.producer_epoch < producer.producer_epoch": "False"},
            ),
        ),
    ),
    Mutation(
        "every coordinator writes its markers with epoch 0",
        breaks="A partition cannot tell a coordinator that was replaced from its successor.",
        edits=(Edit("broker.transactions.markers:_marker", {"state.coordinator_epoch": "0"}),),
    ),
)

OF_LISTINGS: Final = (
    Mutation(
        "the latest offset ignores the isolation level",
        breaks="A reader of committed records that starts at the latest offset misses what is undecided.",
        workload="requests",
        edits=(
            Edit(
                "broker.partitions.fetch:_plan_offset",
                {
                    "before, start, epoch = state.end_for(isolation_level)": (
                        "before, start, epoch = state.high_watermark"
                    )
                },
            ),
        ),
    ),
    Mutation(
        "the earliest offset is always 0",
        breaks="A reader begins at records that retention has deleted, and gets OFFSET_OUT_OF_RANGE.",
        workload="compaction",
        edits=(
            Edit(
                "broker.partitions.fetch:_plan_offset",
                {"found = (start, NO_LEADER_EPOCH if": "found = (0, NO_LEADER_EPOCH if"},
            ),
        ),
    ),
    Mutation(
        "a lookup by time passes the last stable offset",
        breaks="A reader of committed records gets an offset that it cannot read yet.",
        workload="requests",
        edits=(
            Edit(
                "broker.partitions.time_lookups:TimeLookups._search",
                {
                    "if found is not None and found.offset < plan.before:": "if found is not None:",
                    "if header.base_offset >= plan.before:": "if False:",
                },
            ),
        ),
    ),
)

OF_OFFSETS_ALONE: Final = (
    Mutation(
        "a transaction that contains only offsets is taken for an empty one",
        breaks="Its commit succeeds without an EndTxn, so the offsets never take effect.",
        workload="groups",
        edits=(Edit("client.transaction_offsets:TransactionOffsets.submit", {"is_sent = True": "pass"}),),
    ),
)

OF_IDENTITIES: Final = (
    Mutation(
        "a retried EndTxn is not recognised after a rotation",
        breaks="A producer that retries the EndTxn that used up its producer id is refused.",
        workload="identities",
        edits=(Edit("broker.transactions.end_txn:_is_retry", {"return rotated and": "return False and"}),),
    ),
    Mutation(
        "the last epoch is used before the producer id is replaced",
        breaks="The next EndTxn needs an epoch that does not exist.",
        workload="identities",
        edits=(
            Edit(
                "broker.transactions.end_txn:prepare",
                {
                    "record.producer_epoch >= LAST_GRANTED_EPOCH": (
                        "record.producer_epoch > LAST_GRANTED_EPOCH"
                    )
                },
            ),
        ),
    ),
    Mutation(
        "a coordinator does not compare producer ids",
        breaks="A zombie whose producer id was replaced writes under the epoch of the next one.",
        workload="identities",
        edits=(
            Edit("broker.transactions.state:check_identity", {"producer_id != record.producer_id": "False"}),
        ),
    ),
    Mutation(
        "a partition does not compare the coordinators of markers",
        breaks="A marker of a coordinator that was replaced is written after that of its successor.",
        workload="identities",
        edits=(
            Edit(
                "broker.partitions.checks:_is_of_an_older_coordinator",
                {"marker.coordinator_epoch < producer.coordinator_epoch": "False"},
            ),
        ),
    ),
    Mutation(
        "a transactional id expires during a transaction",
        breaks="Nobody decides the transaction, and readers wait forever.",
        workload="identities",
        edits=(Edit("broker.expiration:expired", {"not record.state.is_open and ": ""}),),
    ),
    Mutation(
        "the age of a transactional id is that of its transaction",
        breaks="An id expires although its owner has just ended a long transaction, or has just begun.",
        workload="identities",
        edits=(
            Edit(
                "broker.expiration:expired", {"record.update_ms <= before_ms": "record.start_ms <= before_ms"}
            ),
        ),
    ),
)

# A broker reads what it has in memory, and serves clients well; these mistakes are for readers of the files.
OF_FILES: Final = (
    Mutation(
        "an aborted transaction is written to the index twice",
        breaks="Readers of the files cannot tell which records of the segment were aborted.",
        edits=(
            Edit(
                "journal.segments:Segment.append_aborted",
                {"self.transaction_index.append(aborted)": "2 * self.transaction_index.append(aborted)"},
            ),
        ),
    ),
    Mutation(
        "a full segment's time index lacks the newest time",
        breaks="Readers that look for a time start in a segment after the one that has it.",
        edits=(Edit("journal.journal:Journal._start_segment", {"full.complete_time_index()": "pass"}),),
    ),
)

MUTATIONS: Final = (
    *OF_PARTITIONS,
    *OF_COORDINATORS,
    *OF_OFFSETS,
    *OF_JOURNALS,
    *OF_CLIENTS,
    *OF_READERS,
    *OF_TOPICS,
    *OF_GROUPS,
    *OF_DAMAGE,
    *OF_COMPACTION,
    *OF_ANSWERS_AND_TIMEOUTS,
    *OF_MARKERS,
    *OF_LISTINGS,
    *OF_OFFSETS_ALONE,
    *OF_IDENTITIES,
    *OF_FILES,
)
