"""Keys go to the partitions that Java's client chooses, and to others only if a program asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker.embedded import Broker
from fencepost.client import partitioners
from fencepost.client.partitioners import KeyPartitions, consistent, murmur2, partitioner_named
from fencepost.client.shells.sync import Admin, Producer

KAFKA_PYTHON: Any = import_module("kafka.partitioner.default")  # it has no types

# UtilsTest.testMurmur2 of Apache Kafka.
RECORDED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), RECORDED.items())
@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_partition_is_that_of_java_s_client(key: bytes, hashed: int, count: int) -> None:
    assert murmur2(key, count) == (hashed & 0x7FFFFFFF) % count


@given(st.binary(max_size=70), st.integers(1, 2**31 - 1))
def test_every_key_is_where_another_client_looks_for_it(key: bytes, count: int) -> None:
    assert murmur2(key, count) == (KAFKA_PYTHON.murmur2(key) & 0x7FFFFFFF) % count


def test_consistent_is_crc_32_as_in_librdkafka() -> None:
    assert consistent(b"123456789", 2**32) == 0xCBF43926  # the check value of CRC-32


def test_the_first_keys_are_remembered_and_every_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "KEYS_REMEMBERED", 2)
    partition_of = KeyPartitions(murmur2, 5)
    keys = [b"1", b"2", b"3", b"4"] * 2
    assert [partition_of[key] for key in keys] == [murmur2(key, 5) for key in keys]
    assert list(partition_of) == [b"1", b"2"]


@pytest.mark.parametrize("found", [5, -1, "0", None, True])
def test_a_function_that_returns_no_partition_is_named(found: Any) -> None:
    function = partitioner_named(lambda key, count: found)
    with pytest.raises(ValueError, match=f"the partitioner returned {found!r} for key b'k'.*0 to 4"):
        KeyPartitions(function, 5)[b"k"]


def test_records_go_where_the_partitioner_says() -> None:
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic("t", 2)
        keys = [b"%d" % number for number in range(20)]
        with Producer(broker.address) as java:
            sent = [java.send("t", b"", key) for key in keys]
            columns = java.send_many("t", [b""] * 20, keys)
            assert [each.result().partition for each in sent] == [murmur2(key, 2) for key in keys]
            assert [each.partition for each in columns.result()] == [murmur2(key, 2) for key in keys]
        admin.create_partitions("t", 7)
        with Producer(broker.address, partitioner="consistent") as librdkafka:
            sent = [librdkafka.send("t", b"", key) for key in keys]
            assert [each.result().partition for each in sent] == [consistent(key, 7) for key in keys]
        with Producer(broker.address, partitioner=lambda key, count: int(key) % count) as own:
            sent = [own.send("t", b"", key) for key in keys]
            assert [each.result().partition for each in sent] == [int(key) % 7 for key in keys]


def test_a_name_that_is_none_is_refused_when_the_producer_is_made() -> None:
    with pytest.raises(ValueError, match=r"partitioner must be murmur2 or consistent, or a function"):
        Producer("localhost:1", partitioner="murmur3")
