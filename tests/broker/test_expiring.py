"""What nobody used for long is forgotten: transactional ids by a tombstone, producers in each partition."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.contract import Tick
from fencepost.broker.expiration import expired, partitions_with_late_transactions
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DescribeProducers,
    DescribeProducersReply,
    DescribeTransactions,
    DescribeTransactionsReply,
    Produce,
)
from fencepost.protocol.terms import LATE_TRANSACTION_BUFFER_MS, TopicPartition, TransactionState
from fencepost.protocol.transaction_log import read_transactions
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    Identity,
    add_request,
    batch,
    body_of,
    identity_of,
    init_request,
    produce_batches,
)
from tests.broker.story import RETRY_MS, SETTINGS, Story, transaction_log_of

EXPIRATION_MS = 2_000
ID_SCAN_MS, PRODUCER_SCAN_MS = 300, 250

HURRIED = attrs.evolve(
    SETTINGS,
    transactional_id_expiration_ms=EXPIRATION_MS,
    producer_id_expiration_ms=EXPIRATION_MS,
    transaction_remove_expired_transaction_cleanup_interval_ms=ID_SCAN_MS,
    producer_id_expiration_check_interval_ms=PRODUCER_SCAN_MS,
)


def producers(story: Story, key: TopicPartition = ORDERS) -> list[int]:
    request = DescribeProducers(partitions=(key,))
    (part,) = body_of(story.ask(request), DescribeProducersReply).partitions
    return [producer.producer_id for producer in part.producers]


def is_known(story: Story, name: str = "pay") -> bool:
    request = DescribeTransactions(transactional_ids=(name,))
    (found,) = body_of(story.ask(request), DescribeTransactionsReply).transactions
    assert found.error in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return found.error is ErrorCode.NONE


def paid(story: Story) -> Identity:
    me = story.identity()
    story.produce(me, "a")
    return story.ended(me, COMMIT)


def test_the_defaults_are_kafkas() -> None:
    settings = NodeSettings()
    assert settings.transactional_id_expiration_ms == 7 * 24 * 3_600_000
    assert settings.transaction_remove_expired_transaction_cleanup_interval_ms == 3_600_000
    assert settings.producer_id_expiration_ms == 24 * 3_600_000
    assert settings.producer_id_expiration_check_interval_ms == 600_000


# --- transactional ids -----------------------------------------------------------------------------------


def test_an_unused_id_is_forgotten_at_the_first_scan_after_its_time() -> None:
    story = Story(settings=HURRIED)
    paid(story)
    due = story.records()[-1].update_ms + EXPIRATION_MS
    scan = -(-due // ID_SCAN_MS) * ID_SCAN_MS  # the first at or after it
    story.wait(scan - 4 * RETRY_MS - story.now)
    for now, count in ((scan - 1, 0), (scan, 1)):
        story.now = now
        story.run()
        assert tombstones(story) == count
    assert not is_known(story)
    story.restart()
    assert not is_known(story)


def tombstones(story: Story) -> int:
    entries = story.log(transaction_log_of("pay"))
    return [found for entry in entries for found in read_transactions(entry.batch, entry.header)].count(
        ("pay", None)
    )


def test_whoever_comes_back_after_that_is_a_stranger() -> None:
    story = Story(settings=HURRIED)
    me = paid(story)
    story.wait(2 * EXPIRATION_MS)
    assert story.end(me, COMMIT).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert story.ask(add_request(me, ORDERS)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert story.produce(me, "b").error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    heir = identity_of(story.init(expected=me))  # a newly made id does not look at what its caller expects
    assert heir.producer_id != me.producer_id
    assert heir.producer_epoch == 0


def test_an_open_transaction_keeps_its_id_and_its_producer() -> None:
    story = Story(settings=HURRIED)
    me = story.identity()
    story.produce(me, "a")
    story.wait(3 * EXPIRATION_MS)
    assert is_known(story)
    assert producers(story) == [me.producer_id]
    assert story.ended(me, COMMIT).producer_epoch == 1
    story.wait(EXPIRATION_MS // 2)
    assert is_known(story)


def test_an_id_in_use_is_kept() -> None:
    story = Story(settings=HURRIED)
    for _ in range(5):
        paid(story)
        story.wait(EXPIRATION_MS * 3 // 4)
    assert tombstones(story) == 0


def test_an_id_whose_tombstone_is_not_durable_is_busy() -> None:
    story = Story(settings=HURRIED, policy=SyncPolicy.ALL)
    paid(story)
    story.now += 2 * EXPIRATION_MS
    story.host.offer(Tick())
    story.run()
    to = story.offer(init_request())
    story.run()
    assert to not in story.replies
    story.settle()
    assert story.replies.pop(to).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert identity_of(story.init()).producer_epoch == 0


# --- producers -------------------------------------------------------------------------------------------


def test_a_producer_is_forgotten_partition_by_partition() -> None:
    story = Story(settings=HURRIED)
    me = paid(story)
    story.wait(EXPIRATION_MS // 2)
    story.produce(me, "b", key=OTHERS)
    story.ended(me, ABORT)
    story.wait(EXPIRATION_MS * 3 // 4)
    assert producers(story) == []
    assert producers(story, OTHERS) == [me.producer_id]
    story.wait(EXPIRATION_MS)
    assert producers(story, OTHERS) == []


def test_a_start_does_not_bring_expired_producers_back() -> None:
    story = Story(settings=HURRIED)
    paid(story)
    story.wait(2 * EXPIRATION_MS)
    story.restart()
    assert producers(story) == []


def test_a_producer_whose_batches_are_of_old_is_forgotten_at_the_next_scan() -> None:
    """What counts is the time in its batches, not when they came (ProducerStateEntry.lastTimestamp)."""
    story = Story(settings=HURRIED)
    me = Identity(7, 0)
    old = batch(me, "a", transactional=False, timestamp=100)
    story.ask(produce_batches({ORDERS: old}, name=None))
    assert producers(story) == [7]
    story.wait(PRODUCER_SCAN_MS)
    assert producers(story) == []
    assert story.produce(me, "b", sequence=5, name=None).error is ErrorCode.NONE  # unknown: starts anywhere


# --- late transactions -----------------------------------------------------------------------------------


def test_a_transaction_that_nobody_will_end_is_late() -> None:
    """It hangs: its batch came without its coordinator knowing, as before KIP-890."""
    settings = attrs.evolve(HURRIED, partition_verification=False, transaction_max_timeout_ms=60_000)
    story = Story(settings=settings, versions={Produce: 11})
    story.produce(Identity(7, 0), "a")
    limit = settings.transaction_max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    story.wait(limit - 10)
    assert partitions_with_late_transactions(story.host.node, story.now) == []
    story.host.troubles.clear()
    story.wait(PRODUCER_SCAN_MS + 10)
    assert partitions_with_late_transactions(story.host.node, story.now) == [ORDERS]
    assert (
        "PartitionsWithLateTransactionsCount is 1: the oldest transaction in orders-0"
        in story.host.troubles[0].text
    )


@pytest.mark.parametrize("state", TransactionState)
def test_only_what_is_settled_expires(state: TransactionState) -> None:
    story = Story()
    paid(story)
    settled = story.coordinator()
    settled.records["pay"] = settled.records["pay"]._replace(state=state)
    update_ms = settled.records["pay"].update_ms
    assert expired(settled, before_ms=update_ms - 1) == []
    assert expired(settled, before_ms=update_ms) == (["pay"] if not state.is_open else [])
    settled.pending["pay"] = 1
    assert expired(settled, before_ms=update_ms) == []
