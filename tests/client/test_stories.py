"""Each story of `stories.py` on the blocking clients, and on the async ones with trio and with asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost import Broker
from tests.client.stories import KINDS, STORIES, Story, tell
from tests.topics import create_topic


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(override={"group.initial.rebalance.delay.ms": 0}) as running:
        create_topic(running.address, "t", 2)
        yield running


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_story(broker: Broker, kind: str, story: Story) -> None:
    tell(story, broker, kind)


def test_the_body_has_twenty_stories() -> None:
    assert len({story.__name__ for story in STORIES}) == len(STORIES) >= 20
