"""What a newcomer gets wrong is told so that he can go on: what he meant, what is there, what to call."""

from __future__ import annotations

import pytest

from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.tables import BadScenario


def told(builder: Builder) -> str:
    """What is wrong with a scenario."""
    with pytest.raises(BadScenario) as found:
        builder.scenario()
    return str(found.value)


def struck(what: str) -> Builder:
    """A fault in a cluster of two nodes, in which orders are paid."""
    return (
        scenario("s")
        .cluster(nodes=2, topics={"orders": 2})
        .producer("payer", "init", transactional_id="app")
        .when("payer ends")
        .do(what)
    )


# What somebody wrote, and whether it is nearly something: a suggestion is one of what is possible.
NAMES = [
    (struck("crash node 3"), 'there is no "node 3" (possible: node 1, node 2)'),
    (struck("crash nod 2"), "crash WHO"),
    (struck("kill paye"), 'there is no "paye"; did you mean "payer"? (possible: payer)'),
    (struck("fail syncs of orders-7"), 'there is no "orders-7" (possible: orders-0, orders-1, __consumer'),
    (struck("fail syncs of order-1"), 'there is no "order-1"; did you mean "orders-1"?'),
    (struck("crush node 2"), '; did you mean "crash node 2"?'),
    (struck("crush node 2 now"), '"crush node 2 now" is nothing that a fault can do (possible: hold'),
    (scenario("s").expect(holds=["lost write"]), 'there is no "lost write"; did you mean "lost-write"?'),
    (scenario("s").expect(holds=["sequence once"]), '; did you mean "I3 sequence once"?'),
    (scenario("s").expect(holds=["I2 sequence once"]), 'there is no "I2 sequence once" (possible: '),
]


@pytest.mark.parametrize(("builder", "words"), NAMES, ids=[row[1] for row in NAMES])
def test_a_suggestion_is_one_of_what_is_possible(builder: Builder, words: str) -> None:
    assert words in told(builder)
