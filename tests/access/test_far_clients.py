"""Without ACLs, what only a client on the broker's own machine may ask for."""

from __future__ import annotations

import pytest

from fencepost.broker.server import NEEDS_TRUST
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.access.samples import SAMPLES
from tests.broker import requests
from tests.broker.requests import NOBODY, ORDERS, marker_request
from tests.broker.wire import Wire, serving

ABORT = marker_request(NOBODY, requests.ABORT, ORDERS)
COMMIT = marker_request(NOBODY, requests.COMMIT, ORDERS)
BOTH = m.WriteTxnMarkers(markers=(*ABORT.markers, *COMMIT.markers))


async def errors(wire: Wire, *requests: m.Request) -> list[ErrorCode]:
    """What the broker answers to each."""
    return [(await wire.ask(request)).error for request in requests]


@pytest.mark.trio
async def test_what_needs_trust_is_refused_from_another_machine() -> None:
    asked = (
        COMMIT,
        BOTH,
        *(sample() for kind in NEEDS_TRUST - {m.WriteTxnMarkers} for sample in SAMPLES[kind]),
    )
    assert {type(request) for request in asked} == NEEDS_TRUST
    async with serving() as (server, wires):
        near, far = await wires.open(), await wires.open()
        assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED not in await errors(near, *asked)
        await far.ask(m.Metadata(topics=()))
        server.connections.opened[2].client_host = "/192.168.7.7"
        refused = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(asked)
        assert await errors(far, *asked) == refused
        # An operator anywhere may end a hanging transaction.
        assert await errors(far, ABORT) == [ErrorCode.NONE]
