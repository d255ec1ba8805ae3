"""Our bytes of a response are kio's, in every served version."""

from __future__ import annotations

import struct
from dataclasses import MISSING, Field, fields
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, cast
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.response_bytes import ResponseBytes, writer
from tests.kafka_bridge.samples import EPOCH, bytes_of, sample, without_tags

TRIES: Final = 5
FETCH: Final = 1
RECORDS: Final = [b"first", b"", b"second"]
NO_RECORDS: Final = {"error_code": 0, "high_watermark": 5, "aborted_transactions": None}


def plain(value: Any, random: Random) -> Any:
    """A value of kio as our writer takes it. Fields with their default are sometimes left out."""
    if hasattr(value, "__dataclass_fields__"):
        return {
            field.name: plain(getattr(value, field.name), random)
            for field in fields(value)
            if not _is_left_out(field, getattr(value, field.name), random)
        }
    if isinstance(value, tuple):
        return [plain(each, random) for each in cast("tuple[Any, ...]", value)]
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return value // timedelta(milliseconds=1) if isinstance(value, timedelta) else value


def _is_left_out(field: Field[Any], value: Any, random: Random) -> bool:
    is_no_time = value is None and field.metadata.get("kafka_type") == "datetime_i64"
    return is_no_time or (value == field.default and random.random() < 0.5)


@pytest.mark.parametrize("key", SERVED, ids=str)
def test_a_response_has_the_bytes_of_kio(key: int) -> None:
    api = SERVED[key]
    for version in range(api.first, api.last + 1):
        schema = load_response_schema(key, version)
        for seed in range(TRIES):
            random = Random(f"{key} {version} {seed}")
            response = sample(schema, random)
            assert bytes_of(schema, plain(response, random)) == without_tags(response), (version, seed)


@pytest.mark.parametrize("key", SERVED, ids=str)
def test_a_field_without_a_default_must_be_given(key: int) -> None:
    schema = load_response_schema(key, SERVED[key].last)
    values = plain(sample(schema, Random(key)), Random(key))
    for field in fields(schema):
        if field.default is MISSING:
            lacking = {name: value for name, value in values.items() if name != field.name}
            with pytest.raises((KeyError, struct.error)):
                bytes_of(schema, lacking)


def test_records_are_not_copied() -> None:
    schema = load_response_schema(FETCH, SERVED[FETCH].last)
    parts = [
        {**NO_RECORDS, "partition_index": number, "records": records}
        for number, records in enumerate(RECORDS)
    ]
    topic = {"topic_id": UUID(int=7), "partitions": parts}
    out = ResponseBytes()
    writer(schema)(out, {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": [topic]})
    pieces = out.pieces()
    assert [piece for piece in pieces if any(piece is records for records in RECORDS)] == RECORDS
    response: Any = entity_reader(schema)(b"".join(pieces), 0)[0]
    assert [part.records for part in response.responses[0].partitions] == RECORDS
