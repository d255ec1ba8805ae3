"""Each story of `stories.py` on the blocking clients, and on the async ones with trio and with asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from fencepost import Admin, Broker
from tests.client.stories import STORIES, Clients, Story, tell_blocking

PATIENCE_S = 120.0  # longer than anything takes on a busy machine; only a failing test waits so long


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(override={"group.initial.rebalance.delay.ms": 0}) as running:
        with Admin(running.address) as admin:
            admin.create_topic("t", 2)
        yield running


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("clients", ["blocking", "trio", "asyncio"])
def test_a_story(broker: Broker, clients: str, story: Story) -> None:
    if clients == "blocking":
        tell_blocking(story(Clients(broker, are_blocking=True)))
    else:
        anyio.run(limited, broker, story, backend=clients)


async def limited(broker: Broker, story: Story) -> None:
    with anyio.fail_after(PATIENCE_S):
        await story(Clients(broker, are_blocking=False))


def test_the_body_has_twenty_stories() -> None:
    assert len({story.__name__ for story in STORIES}) == len(STORIES) >= 20
