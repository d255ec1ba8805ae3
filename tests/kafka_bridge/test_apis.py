"""What ApiVersions advertises, beside what a broker of Apache Kafka 4.3.1 answers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from kio.schema.index import api_key_map

import fencepost
from fencepost.kafka_bridge.apis import LISTED_FROM, SERVED
from tests.kafka_bridge.kafka_socket import connected

KAFKA = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9),
    12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7),
    20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2),
    28: (0, 5), 29: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 42: (0, 2),
    43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 60: (0, 2), 61: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 75: (0, 0),
}  # fmt: skip
API_VERSIONS = 18
RIGHTS = Path(__file__).parent.parent.parent / "docs" / "access.md"


def test_the_versions_are_those_of_kafka() -> None:
    with fencepost.Broker() as broker, closing(connected(broker.address)) as wire:
        response = wire.ask(API_VERSIONS, 0)
    assert {each.api_key: (each.min_version, each.max_version) for each in response.api_keys} == KAFKA


@pytest.mark.parametrize(("key", "version"), [(key, first) for key, first in LISTED_FROM.items()])
def test_a_version_that_is_only_listed_closes_the_connection(key: int, version: int) -> None:
    assert version < SERVED[key].first
    # The header of a request: key, version, correlation id and client id.
    request = key.to_bytes(2) + version.to_bytes(2) + (9).to_bytes(4) + (1).to_bytes(2) + b"x"
    with fencepost.Broker() as broker, closing(connected(broker.address)) as wire, pytest.raises(EOFError):
        wire.exchange(request)


def test_the_page_about_rights_names_each_api() -> None:
    page = RIGHTS.read_text(encoding="utf-8")
    names = {api_key_map[key].title().replace("_", "") for key in SERVED}
    assert {name for name in names if name not in page} == set()
