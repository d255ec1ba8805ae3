"""What a leader still knows after its process was killed: what the log says, as far as Kafka reads it."""

from __future__ import annotations

import pytest

from fencepost.broker.transactions import handlers
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import InitProducerId, InitProducerIdReply
from fencepost.protocol.transaction_log import TransactionRecord
from tests.broker.requests import COMMIT, NOBODY, ORDERS, OTHERS, Identity, body_of, marker_request
from tests.broker.story import LARGE, Story


def idempotent(story: Story) -> Identity:
    request = InitProducerId(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    granted = body_of(story.ask(request), InitProducerIdReply)
    return Identity(granted.producer_id, granted.producer_epoch)


@pytest.mark.parametrize("stops_in_order", [False, True])
def test_after_a_restart_the_last_batch_of_a_producer_is_still_recognised_and_no_older_one(
    *, stops_in_order: bool
) -> None:
    story = Story()
    me = idempotent(story)
    for sequence in range(4):
        assert story.produce(me, "x", sequence=sequence, name=None).base_offset == sequence
    again = [story.produce(me, "x", sequence=sequence, name=None) for sequence in range(4)]
    assert [part.base_offset for part in again] == [0, 1, 2, 3]
    if stops_in_order:
        story.host.stop()
    story.restart()
    again = [story.produce(me, "x", sequence=sequence, name=None) for sequence in range(4)]
    assert [part.error for part in again] == [*[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 3, ErrorCode.NONE]
    assert again[-1].base_offset == 3
    assert story.produce(me, "x", sequence=4, name=None).base_offset == 4
    assert story.produce(NOBODY, "x", sequence=-1, name=None).base_offset == 5


@pytest.mark.parametrize("stops_in_order", [False, True])
def test_a_snapshot_tells_of_a_producer_what_the_log_does(*, stops_in_order: bool) -> None:
    """Also of one whose marker is newer than its last batch, and leaves the epoch as it is."""
    story = Story()
    me = story.identity()
    story.produce(me, LARGE)
    story.ask(marker_request(me, COMMIT, ORDERS, transaction_version=0))
    before = story.host.node.state_of(ORDERS)
    if stops_in_order:
        story.host.stop()
    story.restart()
    assert story.host.node.state_of(ORDERS) == before
    assert story.check_recovery()


def test_a_batch_that_does_not_say_what_the_node_believes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live and at recovery a batch comes by the same way into the state, and what it says is compared."""
    build = handlers.transaction_batch

    def build_without_partitions(name: str, record: TransactionRecord | None, *, timestamp: int) -> bytearray:
        forgetful = None if record is None else record._replace(partitions=record.partitions[:1])
        return build(name, forgetful, timestamp=timestamp)

    story = Story()
    me = story.identity()
    monkeypatch.setattr(handlers, "transaction_batch", build_without_partitions)
    story.produce(me, "a")
    with pytest.raises(AssertionError, match="is written as"):
        story.produce(me, "b", key=OTHERS)
