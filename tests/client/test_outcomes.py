"""What an outcome says once it is done, to whichever thread looks."""

from __future__ import annotations

import pytest

from fencepost.client.accumulator import Accumulator
from fencepost.client.batch import ProducerBatch
from fencepost.client.delivery import Delivery
from fencepost.client.errors import DeliveryTimeout, Failure
from fencepost.client.metadata import ClusterMetadata
from fencepost.client.retries import PendingCalls
from fencepost.client.send_future import RecordMetadata, delivered
from fencepost.client.settings import ProducerSettings
from fencepost.protocol.terms import NO_OFFSET, TopicPartition

LOST = Failure(DeliveryTimeout, because="it took too long")


class LookedAt(ProducerBatch):
    """A batch that another thread looks at in the very moment in which it is done."""

    seen: tuple[int, Failure | None] | None = None

    @property
    def is_done(self) -> bool:
        return self.seen is not None

    @is_done.setter
    def is_done(  # pyright: ignore[reportIncompatibleVariableOverride] to see the moment
        self, is_done: bool
    ) -> None:
        if is_done:
            self.seen = (self.base_offset, self.failure)


def _batch_on_its_way() -> tuple[Delivery, LookedAt]:
    settings = ProducerSettings()
    accumulator = Accumulator(settings)
    batch = LookedAt(1, TopicPartition("t", 0), limit=100, opened_at=0, base_timestamp=0)
    accumulator.batches[1] = batch
    accumulator.route("t", 1).open[0] = batch
    return Delivery(settings, accumulator, PendingCalls(ClusterMetadata((("h", 1),)))), batch


@pytest.mark.parametrize(("failure", "base_offset"), [(None, 7), (LOST, NO_OFFSET)])
def test_a_batch_is_done_only_when_all_else_is_known(failure: Failure | None, base_offset: int) -> None:
    delivery, batch = _batch_on_its_way()
    delivery.finish(batch, failure, base_offset)
    assert batch.seen == (base_offset, failure)


def test_the_outcome_of_each_record_of_a_batch() -> None:
    delivery, batch = _batch_on_its_way()
    delivery.finish(batch, None, 7)
    assert [delivered(batch, index) for index in (0, 1)] == [
        RecordMetadata("t", 0, 7),
        RecordMetadata("t", 0, 8),
    ]


def test_a_duplicate_whose_place_is_forgotten() -> None:
    delivery, batch = _batch_on_its_way()
    delivery.finish(batch, None, NO_OFFSET)
    assert delivered(batch, 1) == RecordMetadata("t", 0, NO_OFFSET)


def test_a_lost_record_raises_what_became_of_it() -> None:
    delivery, batch = _batch_on_its_way()
    delivery.finish(batch, LOST)
    with pytest.raises(DeliveryTimeout, match="took too long"):
        delivered(batch, 0)
