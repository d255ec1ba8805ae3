"""Bytes of requests and responses, in every served version."""

from __future__ import annotations

import struct
import subprocess
import sys
from random import Random
from typing import Final

import pytest
from kio.index import load_request_schema

from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.tagged_fields import tolerant_reader
from fencepost.kafka_bridge.wire import decode_request, read_header
from fencepost.protocol.errors import ProtocolViolation
from tests.kafka_bridge.samples import sample, with_unknown_tags, without_tags

VERSIONS: Final = [
    (api.key, version) for api in SERVED.values() for version in range(api.first, api.last + 1)
]
TRIES: Final = 2
METADATA: Final = 3


def frame(key: int, version: int, body: bytes, *, header_tags: bytes = b"\0") -> memoryview:
    start = struct.pack(">hhih", key, version, 7, 1) + b"c"
    is_flexible = load_request_schema(key, version).__flexible__
    return memoryview(start + (header_tags if is_flexible else b"") + body)


def decoded(data: memoryview) -> object:
    return decode_request(data, read_header(data))


def test_unknown_tagged_fields_change_no_request() -> None:
    skipped = 0
    for key, version in VERSIONS:
        schema = load_request_schema(key, version)
        for seed in range(TRIES):
            random = Random(f"{key} {version} {seed}")
            request = sample(schema, random)
            plain, tagged = without_tags(request), with_unknown_tags(request, random)
            assert decoded(frame(key, version, plain)) == request, (key, version, seed)
            read = decoded(frame(key, version, tagged, header_tags=b"\2\5\3abc\x64\0"))
            assert read == request, (key, version, seed)
            assert tolerant_reader(schema)(memoryview(plain), 0) == (request, len(plain))
            skipped += plain != tagged
    assert skipped > len(VERSIONS) // 2


def test_bytes_after_a_request_are_ignored() -> None:
    """librdkafka asks for all topics with a tag of its own and a stray byte."""
    all_topics = b"\0\1\0\0"
    plain = decoded(frame(METADATA, 9, all_topics + b"\0"))
    assert decoded(frame(METADATA, 9, all_topics + b"\1\0\0\0")) == plain


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f", id="a count without its fields"),
        pytest.param(b"\1\5\x7f", id="a field that is longer than the frame"),
        pytest.param(b"\1\xff\xff\xff\xff\xff\xff", id="a tag without an end"),
        pytest.param(b"\1\5", id="a field without a size"),
    ],
)
def test_damaged_tagged_fields_are_refused(tags: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decoded(frame(METADATA, 9, b"\0\1\0\0" + tags))


def test_a_broker_does_not_load_hypothesis() -> None:
    code = (
        "import fencepost.kafka_bridge.connection, kio.schema.errors, sys; print('hypothesis' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")
