"""The pools that connections share: their arithmetic, who waits, and who goes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker.connections import ConnectionTable
from fencepost.broker.memory import (
    FETCH_OWN_BYTES,
    MEBIBYTE,
    TLS_BYTES,
    MemoryBound,
    MemoryPool,
    PoolShare,
    fetch_share,
    request_bytes,
)
from fencepost.broker.node import Node
from fencepost.broker.settings import QUEUED_BYTES_MIN, ConnectionSettings, NodeSettings
from fencepost.protocol.frames import FRAME_SIZE_MAX, REQUEST_HEADER_MAX

OWN = 100
LIMIT = 1_000


class Clients:
    """Shares of one pool, and the order in which those that waited got what they asked for."""

    def __init__(self, count: int) -> None:
        self.times_pressed = 0
        self.pool = MemoryPool(LIMIT, pressed=self.press)
        self.shares = [PoolShare(self.pool, number, OWN) for number in range(count)]
        self.granted: list[int] = []

    def press(self) -> None:
        self.times_pressed += 1

    def ask(self, number: int, size: int) -> bool:
        return self.shares[number].ask(size, lambda: self.granted.append(number))


actions = st.lists(
    st.tuples(
        st.sampled_from(["ask", "give", "take", "close"]), st.integers(0, 3), st.integers(0, LIMIT + OWN)
    ),
    max_size=40,
)


@given(actions=actions)
def test_the_pool_counts_what_exceeds_each_connections_own_bytes(actions: list[tuple[str, int, int]]) -> None:
    clients = Clients(4)
    forced = 0
    for action, number, size in actions:
        share = clients.shares[number]
        match action:
            case "ask" if not share.asked:
                clients.ask(number, size)
            case "take":
                share.take(size)
                forced += size
            case "give":
                share.give(min(size, share.held))
            case "close":
                share.close()
            case _:
                pass
        assert clients.pool.taken == sum(max(0, each.held - OWN) for each in clients.shares)
        assert clients.pool.taken <= LIMIT + forced, "only what does not ask exceeds the limit"
        assert clients.pool.is_wanted == any(each.asked for each in clients.shares)
    for share in clients.shares:
        share.close()
    assert (clients.pool.taken, clients.pool.is_wanted) == (0, False)


def test_whatever_fits_into_a_connections_own_bytes_never_waits() -> None:
    clients = Clients(2)
    clients.shares[0].take(10 * LIMIT)
    assert clients.pool.free < 0
    assert clients.ask(1, OWN)
    assert not clients.ask(1, 1)
    assert clients.times_pressed == 1


def test_the_smallest_request_goes_first() -> None:
    clients = Clients(5)
    assert clients.ask(0, OWN + LIMIT)
    for number, size in enumerate((900, 300, 200, 300), start=1):
        assert not clients.ask(number, size)
    clients.shares[0].close()
    assert clients.granted == [3, 2, 4]
    assert [share.asked for share in clients.shares] == [0, 900, 0, 0, 0]
    clients.shares[1].close()
    assert not clients.pool.is_wanted


def test_a_fetch_gets_a_quarter_of_what_is_free_and_a_little_when_nothing_is() -> None:
    pool = MemoryPool(256 * MEBIBYTE, pressed=lambda: None)
    assert fetch_share(pool) == 64 * MEBIBYTE
    pool.take(200 * MEBIBYTE)
    assert fetch_share(pool) == 14 * MEBIBYTE
    pool.take(100 * MEBIBYTE)
    assert fetch_share(pool) == FETCH_OWN_BYTES


def test_the_largest_request_fits_into_an_empty_pool() -> None:
    assert request_bytes(FRAME_SIZE_MAX, REQUEST_HEADER_MAX) <= QUEUED_BYTES_MIN
    for settings in ({"queued_max_request_bytes": 1}, {"queued_max_response_bytes": QUEUED_BYTES_MIN - 1}):
        with pytest.raises(ValueError, match=f"at least {QUEUED_BYTES_MIN}"):
            ConnectionSettings(**settings)


def test_the_bound_is_the_sum_of_its_parts() -> None:
    few = MemoryBound.of(ConnectionSettings(), connections=10)
    many = MemoryBound.of(ConnectionSettings(queued_max_request_bytes=1 << 30), connections=1_010)
    assert few.total == sum(size for _, size in few.shares())
    assert many.total - few.total == (1 << 30) - (256 << 20) + 100 * few.connections
    secure = MemoryBound.of(ConnectionSettings(), connections=10, has_tls=True)
    assert secure.total - few.total == 10 * TLS_BYTES + FRAME_SIZE_MAX


def test_a_broker_takes_no_more_connections_than_descriptors_allow() -> None:
    def limit(count: int) -> int:
        settings, node = ConnectionSettings(max_connections=count), Node(NodeSettings())
        return ConnectionTable(settings, node, report=print, pressed=lambda: None).limit

    assert limit(7) == 7 < limit(1 << 40) < 1 << 40
