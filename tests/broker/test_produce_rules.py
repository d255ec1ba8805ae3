"""What a Produce may look like: that the quick look at a batch and the table of rules say the same, for every
kind of batch, and that what holds first counts.
"""

from __future__ import annotations

from itertools import product

import attrs
import pytest

from fencepost.broker.contract import Refused
from fencepost.broker.partitions.request_checks import FORM_RULES, form_problem, header_of
from fencepost.protocol.batches import BatchHeader, build_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionResult
from tests.broker.requests import NOON


def batch_of(*, producer_id: int, sequence: int, transactional: bool, control: bool) -> bytearray:
    if control:
        return build_marker(
            TransactionResult.COMMIT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOON,
        )
    return build_data_batch(
        [b"x"],
        base_timestamp=NOON,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_a_sound_batch_breaks_no_rule_and_any_other_the_first_that_holds(*, torn: bool, large: bool) -> None:
    kinds = list(product((-1, 7), (-1, 0, 3), (False, True), (False, True)))
    for producer_id, sequence, transactional, control in kinds:
        batch = batch_of(
            producer_id=producer_id, sequence=sequence, transactional=transactional, control=control
        )
        header = header_of(batch)
        assert isinstance(header, BatchHeader)
        if torn:
            batch[-1] ^= 1
        limit = header.size - large
        for record_count in (1, 0, 2):
            counted = attrs.evolve(header, record_count=record_count)
            broken = [rule.error for rule in FORM_RULES if rule.holds(counted, batch, limit)]
            found = form_problem(counted, batch, limit=limit)
            assert (found.error if found else None) == (broken[0] if broken else None)


@pytest.mark.parametrize("left", [0, 60])
def test_bytes_that_are_no_batch(left: int) -> None:
    batch = batch_of(producer_id=-1, sequence=-1, transactional=False, control=False)
    found = header_of(batch[:left])
    assert isinstance(found, Refused)
    assert found.error is ErrorCode.INVALID_RECORD


def test_two_batches_are_not_one() -> None:
    batch = batch_of(producer_id=-1, sequence=-1, transactional=False, control=False)
    assert isinstance(header_of(batch + batch), Refused)
