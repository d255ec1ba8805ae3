"""Members of a group on real sockets: an error that brings an id, and answers that wait for somebody else."""

from __future__ import annotations

import pytest
import trio

from fencepost.broker.connections import kafka_host
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import JoinGroupReply, SyncGroupReply
from tests.broker.group_story import join_request, sync_request
from tests.broker.requests import body_of
from tests.broker.wire import Wire, serving

pytestmark = pytest.mark.trio


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("127.0.0.1", "/127.0.0.1"),
        ("::1", "/0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.7", "/10.0.0.7"),
        ("fe80::a:1%eth0", "/fe80:0:0:0:0:0:a:1%eth0"),
    ],
)
async def test_an_address_is_shown_as_kafka_shows_it(address: str, shown: str) -> None:
    assert kafka_host(address) == shown


async def new_id(wire: Wire) -> str:
    reply = await wire.ask(join_request())
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(reply.body, JoinGroupReply)
    return reply.body.member_id


async def test_two_members_of_a_group_wait_for_each_other() -> None:
    async with serving() as (_, wires):
        first, second = await wires.open(), await wires.open()
        await first.prepare()
        one, two = await new_id(first), await new_id(second)
        alone = body_of(await first.ask(join_request(one)), JoinGroupReply)
        (waiting,) = await second.send(join_request(two))
        # The answer waits for the other member, on whichever connection that asks.
        while (again := body_of(await first.ask(join_request(one)), JoinGroupReply)) == alone:
            await trio.lowlevel.checkpoint()
        joined = body_of(await second.answer(waiting), JoinGroupReply)
        assert again.generation_id == joined.generation_id == 2
        (syncing,) = await second.send(sync_request(2, two))
        mine = body_of(await first.ask(sync_request(2, one, {one: "a", two: "b"})), SyncGroupReply)
        yours = body_of(await second.answer(syncing), SyncGroupReply)
        assert (mine.assignment, yours.assignment) == (b"a", b"b")


async def test_a_member_that_went_while_it_waited_holds_up_nobody_for_longer_than_it_said() -> None:
    async with serving() as (server, wires):
        first, second = await wires.open(), await wires.open()
        await first.prepare()
        one, two = await new_id(first), await new_id(second)
        body_of(await first.ask(join_request(one)), JoinGroupReply)
        await second.send(join_request(two))
        await second.stream.aclose()
        while len(server.connections.opened) > 1:
            await trio.lowlevel.checkpoint()
        joined = body_of(await first.ask(join_request(one)), JoinGroupReply)
        assert one in {member.member_id for member in joined.members}
