"""Mistakes to plant in the cores that the conversations of `broker_machine.py` have to find.

Rule: each is made in the real function, as in `tests/simulator/mutations.py`, and changes what a leader
remembers, answers or writes.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.planting import one_edit

OF_READERS: Final = (
    one_edit(
        "the stable end is one too high",
        "broker.partitions.partition:Partition.last_stable_offset",
        "min(first, self.high_watermark)",
        "min(first + 1, self.high_watermark)",
        breaks="Readers meet the first record of an open transaction.",
    ),
    one_edit(
        "the stable end does not wait for the disk",
        "broker.partitions.partition:Partition.first_unstable_offset",
        "if not self.unreplicated_txns:",
        "if True:",
        breaks="A marker counts that a loss of power may take away.",
    ),
    one_edit(
        "the log start is no bound of the stable end",
        "broker.partitions.partition:Partition.first_unstable_in_log",
        "first >= self.log_start_offset",
        "True",
        breaks="The stable end is told to lie where no batch is left.",
    ),
    one_edit(
        "a marker leaves its transaction open",
        "broker.partitions.partition:_apply_marker",
        "del partition.open_transactions[producer.current_txn_first_offset]",
        "pass",
        breaks="Nobody reads on, for good.",
    ),
    one_edit(
        "the index of aborted transactions forgets those of earlier segments",
        "journal.journal:Journal.append",
        "if aborted is not None:",
        "if aborted is not None and aborted.first_offset >= active.base_offset:",
        breaks="Readers take the records of an aborted transaction that crossed segments for good.",
    ),
    one_edit(
        "the index does not see who else is open",
        "broker.partitions.partition:_apply_marker",
        "oldest_open=oldest_open",
        "oldest_open=None",
        breaks="Whoever looks for aborted transactions stops too early.",
    ),
    one_edit(
        "deleted records take the aborted transactions with them",
        "broker.partitions.fetch:_aborted",
        "aborted_between(plan.fetch_offset, upper=upper)",
        "aborted_between(plan.fetch_offset, upper=upper) if found.first_offset >= log.log_start_offset",
        breaks="What is left of a transaction that was aborted looks committed.",
    ),
    one_edit(
        "a snapshot does not say what is open",
        "broker.partitions.partition:_snapshot_entry",
        "first_offset=producer.current_txn_first_offset",
        "first_offset=-1",
        breaks="After a restart nothing is left open, and everybody reads what is undecided.",
    ),
)

OF_PRODUCERS: Final = (
    one_edit(
        "four batches are remembered",
        "broker.partitions.partition:_apply_data",
        "[-CACHED_BATCHES_MAX:]",
        "[-4:]",
        breaks="The first of five in flight is out of order when it comes again.",
    ),
    one_edit(
        "six batches are remembered",
        "broker.partitions.partition:_apply_data",
        "[-CACHED_BATCHES_MAX:]",
        "[-6:]",
        breaks="A client that Kafka refuses is answered.",
    ),
    one_edit(
        "batches of an older epoch are remembered",
        "broker.partitions.partition:_apply_data",
        "producer.batches if producer.producer_epoch == header.producer_epoch else ()",
        "producer.batches",
        breaks="The first batch of a new epoch is taken for one of the old.",
    ),
    one_edit(
        "a repetition is appended",
        "broker.partitions.checks:_is_duplicate",
        "_duplicate_of(written, producer) is not None",
        "False",
        breaks="What was written and not heard of is refused when it comes again.",
    ),
    one_edit(
        "older epochs may write",
        "broker.partitions.checks:_has_older_epoch",
        "written.producer_epoch < producer.producer_epoch",
        "False",
        breaks="A zombie writes.",
    ),
    one_edit(
        "sequences run into the negative",
        "protocol.terms:sequence_after",
        "% (INT32_MAX + 1)",
        "- (2 * (INT32_MAX + 1) if sequence + count > INT32_MAX else 0)",
        breaks="After 2,147,483,647 a producer cannot go on.",
    ),
    one_edit(
        "any sequence will do",
        "broker.partitions.checks:_is_out_of_order",
        "written.base_sequence != expected",
        "written.base_sequence < expected",
        breaks="A batch overtakes one that was lost.",
    ),
    one_edit(
        "what a coordinator refused is forgotten",
        "broker.partitions.checks:_overtakes",
        "written.base_sequence > entry.lowest_sequence",
        "False",
        breaks="A batch overtakes one that is still being verified.",
    ),
    one_edit(
        "a plain batch enters a transaction",
        "broker.partitions.checks:_is_plain_inside",
        "producer.current_txn_first_offset != NO_OFFSET",
        "False",
        breaks="A producer's records outside its transaction are aborted with it.",
    ),
    one_edit(
        "a restart forgets nothing",
        "broker.partitions.partition:keep_last_batches",
        "len(producer.batches) > 1",
        "False",
        breaks="A leader remembers more than Kafka's does.",
    ),
    one_edit(
        "who has a transaction open expires",
        "broker.partitions.partition:forget_expired",
        "and producer.current_txn_first_offset == NO_OFFSET",
        "",
        breaks="A marker ends nothing, and the stable end stands still.",
    ),
)

OF_COORDINATORS: Final = (
    one_edit(
        "everything is verified",
        "broker.transactions.add_partitions:_verified",
        "NO_ERROR if key in record.partitions else ErrorCode.TRANSACTION_ABORTABLE",
        "NO_ERROR",
        breaks="A batch hangs in a partition that was never added.",
    ),
    one_edit(
        "a marker of an older epoch is written",
        "broker.partitions.checks:_is_stale",
        "marker.producer_epoch < producer.producer_epoch",
        "False",
        breaks="A late marker ends its producer's next transaction.",
    ),
    one_edit(
        "a marker of an older coordinator is written",
        "broker.partitions.checks:_is_of_an_older_coordinator",
        "marker.coordinator_epoch < producer.coordinator_epoch",
        "False",
        breaks="A coordinator that was replaced decides.",
    ),
    one_edit(
        "offsets count before they are decided",
        "broker.groups.state:apply",
        "if header.is_transactional:",
        "if False:",
        breaks="A group goes on from where an aborted transaction was.",
    ),
    one_edit(
        "the older offset wins",
        "broker.groups.state:_settle",
        "known is None or known.written_at < committed.written_at",
        "True",
        breaks="A decision brings back what was overwritten since.",
    ),
    one_edit(
        "an abort commits offsets",
        "broker.groups.state:_decide_pending",
        "if result is TransactionResult.COMMIT:",
        "if True:",
        breaks="A group skips what was never processed.",
    ),
    one_edit(
        "offsets outlive their topic",
        "broker.groups.offsets:forget_topics",
        "if gone:",
        "if False:",
        breaks="A new topic of that name is read from the middle.",
    ),
)

MUTATIONS: Final = OF_READERS + OF_PRODUCERS + OF_COORDINATORS
