"""What a batch must look like before a partition compares it with what it knows of the producer."""

from __future__ import annotations

from itertools import product

import attrs
import pytest

from fencepost.broker.contract import Refused
from fencepost.broker.partitions.batch_form import FormRules, header_of, refused_form
from fencepost.protocol.batches import BatchHeader, build_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionResult
from tests.broker.requests import NOON, ORDERS


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
def test_the_first_check_that_a_batch_fails_refuses_it(*, torn: bool, large: bool) -> None:
    """In the order of Kafka's log validator, for every kind of batch."""
    kinds = list(product((-1, 7), (-1, 0, 3), (False, True), (False, True)))
    for producer_id, sequence, transactional, control in kinds:
        batch = batch_of(
            producer_id=producer_id, sequence=sequence, transactional=transactional, control=control
        )
        header = header_of(batch, knows_zstd=True)
        assert isinstance(header, BatchHeader)
        if torn:
            batch[-1] ^= 1
        rules = FormRules(size_max=header.size - large, earliest=0, latest=NOON)
        for record_count in (1, 0, 2):
            counted = attrs.evolve(header, record_count=record_count)
            wrong = {
                ErrorCode.MESSAGE_TOO_LARGE: large,
                ErrorCode.CORRUPT_MESSAGE: torn,
                ErrorCode.INVALID_RECORD: record_count != 1
                or header.is_control
                or (header.producer_id != -1 and header.base_sequence < 0),
            }
            found = refused_form(counted, batch, key=ORDERS, acks=1, rules=rules)
            expected = next((error for error, is_so in wrong.items() if is_so), None)
            assert (found.error if found else None) is expected


@pytest.mark.parametrize("left", [0, 60])
def test_bytes_that_are_no_batch(left: int) -> None:
    batch = batch_of(producer_id=-1, sequence=-1, transactional=False, control=False)
    found = header_of(batch[:left], knows_zstd=True)
    assert isinstance(found, Refused)
    assert found.error is ErrorCode.INVALID_RECORD


def test_two_batches_are_not_one() -> None:
    batch = batch_of(producer_id=-1, sequence=-1, transactional=False, control=False)
    assert isinstance(header_of(batch + batch, knows_zstd=True), Refused)
