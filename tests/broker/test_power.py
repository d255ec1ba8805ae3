"""The loss of power: what was acknowledged under a policy that syncs is there afterwards, whole."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.simulated import SimulatedStorage
from tests.broker.disks import SYNCING
from tests.broker.requests import (
    COMMIT,
    ORDERS,
    OTHERS,
    end_request,
    identity_of,
    offset_request,
    produce_request,
)
from tests.broker.story import SCAN_MS, Story


def acknowledged(story: Story, random_: random.Random) -> list[str]:
    """Transactions until the lights go out somewhere; the words that were acknowledged as committed."""
    committed: list[str] = []
    me = story.identity()
    for number in range(8):
        word = f"w{number}"
        for request in (
            produce_request(me, {ORDERS: word, OTHERS: word}),
            offset_request(me, "readers", {ORDERS: number}),
            end_request(me, COMMIT),
        ):
            to = story.offer(request)
            while to not in story.replies:
                if random_.random() < 0.01:
                    return committed
                if not story.work():
                    story.sync()
        me = identity_of(story.replies[to])
        committed.append(word)
        story.settle()
    return committed


def check_nothing_lost(story: Story, committed: list[str]) -> int:
    """After a restart: all that was acknowledged is there, whole and in order. How many more were decided."""
    story.start()
    story.wait(60_000 + 10 * SCAN_MS)
    seen = story.visible().split()
    assert seen[: len(committed)] == committed
    assert story.visible(OTHERS).split() == seen
    # The transaction under way may have been decided without its client having heard of it.
    assert len(seen) <= len(committed) + 1
    assert story.offset("readers").offset == len(seen) - 1
    for key in (ORDERS, OTHERS):
        assert story.partition(key).last_stable_offset == story.partition(key).log_end_offset
    story.check_recovery()
    return len(seen) - len(committed)


@pytest.mark.parametrize("policy", SYNCING)
def test_no_committed_transaction_is_lost_with_the_power(policy: SyncPolicy) -> None:
    lengths: Counter[int] = Counter()
    unheard = torn = 0
    for seed in range(100):
        random_ = random.Random(seed)
        storage = SimulatedStorage(lambda limit: random_.randint(0, limit))  # noqa: B023 read before it changes
        story = Story(policy=policy, storage=storage)
        committed = acknowledged(story, random_)
        storage.lose_power()
        unheard += check_nothing_lost(story, committed)
        lengths[len(committed)] += 1
        torn += sum(trouble.text.count(": dropped") for trouble in story.host.troubles)
        assert not [trouble for trouble in story.host.troubles if trouble.text.count("-0: ") > 1], (
            "named twice"
        )
    assert len(lengths) > 5, "the lights went out at too few places"
    assert unheard, "no transaction was decided without its client having heard of it"
    assert torn, "no log was ever torn"
