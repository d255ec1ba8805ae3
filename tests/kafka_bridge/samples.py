"""Values of kio's classes for tests, and their bytes with tagged fields that no schema has.

Rule: everything follows from a `Random`, so a failing seed can be repeated.
"""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from random import Random
from types import NoneType
from typing import Any, Final, cast, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._serialize import get_field_writer

from fencepost.kafka_bridge.response_bytes import ResponseBytes, writer
from fencepost.protocol.messages import DescribedConfig
from fencepost.protocol.primitives import put_unsigned_varint


class NoTopics:
    """What a node knows of topics that has none."""

    creates_named_topics = True

    def topic_configs(self, own: Mapping[str, str]) -> Sequence[DescribedConfig]:
        return ()

    def topic_name(self, topic_id: bytes) -> str | None:
        return None

    def topic_id(self, topic: str) -> bytes | None:
        return None


UNKNOWN_TAGS: Final = range(1_000, 2_000_000)
NO_BYTES: Final = b""
_BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16}
ITEMS_MAX: Final = 3
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def sample(schema: Any, random: Random) -> Any:
    """An instance of a class of kio."""
    return schema(**{field.name: _value(field.type, field, random) for field in fields(schema)})


def _value(kind: Any, field: Any, random: Random) -> Any:
    arguments = get_args(kind)
    if NoneType in arguments:
        if random.random() < 0.2:
            return None
        (kind,) = (each for each in arguments if each is not NoneType)
        return _value(kind, field, random)
    if get_origin(kind) is tuple:
        return tuple(_value(arguments[0], field, random) for _ in range(random.randrange(ITEMS_MAX)))
    if hasattr(kind, "__dataclass_fields__"):
        return sample(kind, random)
    return _plain(field, random)


def _plain(field: Any, random: Random) -> Any:
    kind = field.metadata["kafka_type"]
    if field.name == "isolation_level":
        return random.randrange(2)
    if field.name.startswith("client_software"):
        return random.choice(("librdkafka", "2.11.0"))
    match kind:
        case "string":
            return random.choice(("", "orders", "größe", "x" * 200))
        case "bool":
            return random.random() < 0.5
        case "bytes":
            return random.randbytes(random.randrange(20))
        case "records":
            return NO_BYTES
        case "uuid":
            return uuid.UUID(bytes=random.randbytes(16))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=random.randrange(2**31))
        case "datetime_i64":
            return EPOCH + timedelta(milliseconds=random.randrange(2**41))
        case "error_code":
            return random.choice(list(ErrorCode))
        case "float64":
            return random.random()
        case _:
            return random.getrandbits(_BITS[kind])


def filled(schema: Any, values: Any) -> Any:
    """An instance of a class of kio from plain values; those of nested classes are mappings."""
    return entity_reader(schema)(bytes_of(schema, values), 0)[0]


def bytes_of(schema: Any, values: Any) -> bytes:
    """The bytes of plain values."""
    out = ResponseBytes()
    writer(schema)(out, values)
    return b"".join(out.pieces())


def schema_of(value: object) -> Any:
    """The class of kio that a value belongs to."""
    return type(value)


def without_tags(request: Any) -> bytes:
    """The bytes of an instance."""
    out = io.BytesIO()
    entity_writer(schema_of(request))(out, request)
    return out.getvalue()


def with_unknown_tags(value: Any, random: Random) -> bytes:
    """The bytes of an instance; each of its flexible structs may have some unknown tagged fields."""
    out, schema = io.BytesIO(), schema_of(value)
    tagged: dict[int, bytes] = {}
    for field in fields(value):
        here, tag = getattr(value, field.name), field.metadata.get("tag")
        if tag is None:
            out.write(_bytes(field, here, value, random))
        elif here != field.default:
            tagged[tag] = _bytes(field, here, value, random)
    if schema.__flexible__:
        tagged |= {
            random.choice(UNKNOWN_TAGS): random.randbytes(random.randrange(9))
            for _ in range(random.randrange(3))
        }
        _put_varint(out, len(tagged))
        for tag in sorted(tagged):
            _put_varint(out, tag)
            _put_varint(out, len(tagged[tag]))
            out.write(tagged[tag])
    return out.getvalue()


def _bytes(field: Any, value: Any, owner: Any, random: Random) -> bytes:
    out = io.BytesIO()
    flexible, is_tag = schema_of(owner).__flexible__, "tag" in field.metadata
    if hasattr(value, "__dataclass_fields__"):
        is_nullable = NoneType in get_args(field.type)
        return (b"\1" if is_nullable else b"") + with_unknown_tags(value, random)
    items = cast("Sequence[Any]", value if isinstance(value, tuple) else ())
    if items and hasattr(items[0], "__dataclass_fields__"):
        if flexible:
            _put_varint(out, len(items) + 1)
        else:
            out.write(struct.pack(">i", len(items)))
        return out.getvalue() + b"".join(with_unknown_tags(item, random) for item in items)
    get_field_writer(field, flexible=flexible, is_request_header=False, is_tag=is_tag)(out, value)
    return out.getvalue()


def _put_varint(out: io.BytesIO, number: int) -> None:
    data = bytearray()
    put_unsigned_varint(data, number)
    out.write(data)
