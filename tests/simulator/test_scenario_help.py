"""What a newcomer gets wrong is told so that he can go on: what he meant, what is there, what to call."""

from __future__ import annotations

from typing import Any, Literal, cast

import pytest

from fencepost.client.errors import WrongState
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.model import Scenario
from fencepost.simulator.scenarios.runner import run
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
    (struck("crash nod 2"), "crash NODE"),
    (struck("kill paye"), 'there is no "paye"; did you mean "payer"? (possible: payer)'),
    (struck("fail syncs of orders-7"), 'there is no "orders-7" (possible: orders-0, orders-1, __consumer'),
    (struck("fail syncs of order-1"), 'there is no "order-1"; did you mean "orders-1"?'),
    (struck("crush node 2"), '; did you mean "crash node 2"?'),
    (struck("crush node 2 now"), '"crush node 2 now" is not something that a fault can do (possible: hold'),
    (scenario("s").expect(holds=["lost write"]), 'there is no "lost write"; did you mean "lost-write"?'),
    (scenario("s").expect(holds=["sequence once"]), '; did you mean "I3 sequence once"?'),
    (scenario("s").expect(holds=["I2 sequence once"]), 'there is no "I2 sequence once" (possible: '),
]


@pytest.mark.parametrize(("builder", "words"), NAMES, ids=[row[1] for row in NAMES])
def test_a_suggestion_is_one_of_what_is_possible(builder: Builder, words: str) -> None:
    assert words in told(builder)


def asked(*script: str) -> Builder:
    """A producer with transactions and this script."""
    return scenario("s").producer("p", *script, transactional_id="app")


# What the client refuses even when everything goes well, and what it says.
REFUSED = [
    (["init", "send t-0 a", "commit"], '"send t-0 a": send() while ready: call begin_transaction() first'),
    (["begin"], '"begin": begin_transaction() while uninitialized: call init_transactions() first'),
    (["init", "commit"], '"commit": commit_transaction() while ready: call begin_transaction() first'),
    (["init", "begin", "begin"], '"begin": begin_transaction() while in transaction: a transaction is open'),
    (["init", "begin", "abort", "send_offsets g t-0 1"], "send_offsets_to_transaction() while ready: call"),
    (["init", "begin", "init", "abort"], '"abort": abort_transaction() while ready: call begin_transaction'),
]


@pytest.mark.parametrize(("script", "words"), REFUSED, ids=[row[1] for row in REFUSED])
def test_a_script_that_the_client_refuses_is_told_in_its_words(script: list[str], words: str) -> None:
    found = told(asked(*script))
    assert found.startswith("scenario 's': [[producer]] 1 script: ")
    assert words in found


def test_the_client_itself_says_the_same() -> None:
    _, told_of_scripts = REFUSED[1]
    with pytest.raises(WrongState) as found:
        ProducerMachine("node:1", ProducerSettings(transactional_id="app")).begin()
    assert told_of_scripts == f'"begin": {found.value}'


def test_what_may_follow_a_failure_is_no_mistake() -> None:
    """Another producer takes the id over, in the middle of a transaction, too."""
    script = [
        "init",
        "begin",
        "send t-0 a",
        "init",
        "begin",
        "send t-0 b",
        "abort",
        "begin",
        "commit",
        "flush",
    ]
    assert asked(*script).scenario()


def powerless(sync: Literal["none", "commit", "all"]) -> Builder:
    """The power of the only node is cut after a commit."""
    return (
        asked("init", "begin", "send t-0 a", "commit")
        .cluster(sync=sync)
        .when("commit of p is ok")
        .do("cut power of node 1")
    )


def test_a_loss_of_power_without_syncs_says_what_to_set() -> None:
    """Brokers do not wait for the disk by default, as Kafka's: what that breaks is no bug of theirs."""
    (report,) = run(powerless("none").scenario())
    assert len(report.problems) > 1
    assert report.problems[-1] == (
        'the power of a node was cut, and sync = "none", the default, promises nothing about that: '
        'with sync = "commit" in [cluster] transactions outlast it, with "all" every record'
    )


def test_with_syncs_a_loss_of_power_breaks_nothing() -> None:
    (report,) = run(powerless("commit").scenario())
    assert report.problems == ()


def test_who_expects_a_loss_of_power_to_break_rules_is_told_nothing() -> None:
    (broken,) = run(powerless("none").scenario())
    (report,) = run(powerless("none").expect(violates=broken.broken).scenario())
    assert report.problems == ()


def test_a_builder_that_is_run_says_how_it_becomes_a_scenario() -> None:
    with pytest.raises(TypeError, match=r"a Builder is no scenario; a builder becomes one by \.scenario\(\)"):
        run(cast("Scenario", asked("init")))


def test_a_fault_that_does_nothing_says_what_to_call() -> None:
    """As a statement of its own it would be forgotten without a word."""
    builder = asked("init")
    fault = builder.when("p ends", "p dies")
    assert told(builder) == (
        """scenario 's': .when("p ends", "p dies") is no fault yet: .do(...) says what it does"""
    )
    with pytest.raises(
        AttributeError, match=r"""\.when\("p ends", "p dies"\) is no .* \.do\(\.\.\.\) says"""
    ):
        cast("Any", fault).scenario()
    assert fault.do("crash node 1").scenario().faults


def test_a_deed_without_a_time_says_what_to_call() -> None:
    with pytest.raises(
        AttributeError, match=r"a fault begins with \.when\(\.\.\.\), and \.do\(\.\.\.\) follows"
    ):
        cast("Any", asked("init")).do("crash node 1")
    with pytest.raises(AttributeError, match="a Builder has no consume"):
        cast("Any", asked("init")).consume("r")


def in_shop() -> Builder:
    """A cluster with two partitions in which nobody does anything."""
    return scenario("s").cluster(topics={"shop": 2})


# What is asked for though there is none of it yet, or is only half a name.
ABSENT = [
    (
        in_shop().consumer("r", "shop"),
        '[[consumer]] 1 reads: "shop" is not a partition',
        "(possible: shop-0, shop-1)",
    ),
    (in_shop().processor("c", "shop", writes="out"), "[[processor]] 1 reads: ", "(possible: shop-0, shop-1)"),
    (in_shop().producer("p", "send shop a"), "[[producer]] 1 script: ", "(possible: shop-0, shop-1)"),
    (in_shop().expect(visible={"shop": ["a"]}), "[expect] visible: ", "(possible: shop-0, shop-1)"),
    (
        scenario("s").cluster(topics={}).consumer("r", "shop-0"),
        'reads: there is no partition "shop-0"',
        "and none at all so far: [cluster] topics = { t = 2 } makes some",
    ),
    (
        in_shop().when("coordinator of shop appends ONGOING").do("crash node 1"),
        'when: there is no "shop", and no transactional id at all so far',
        'a [[producer]] with transactional_id = "shop" makes it',
    ),
    (
        in_shop().when("at 3 ms").do("kill shop"),
        'do: there is no "shop", and nobody at all so far',
        'a [[producer]] with name = "shop" makes it',
    ),
    (
        in_shop().producer("p", transactional_id=""),
        '[[producer]] 1 transactional_id: is ""',
        "write a name, or leave it out",
    ),
    (
        in_shop().processor("c", "shop-0", writes="shop", transactional_id=""),
        "[[processor]] 1 transactional_id: ",
        "",
    ),
]


@pytest.mark.parametrize(("builder", "what", "instead"), ABSENT, ids=[row[1] for row in ABSENT])
def test_what_is_not_there_yet_is_told_with_what_makes_it(builder: Builder, what: str, instead: str) -> None:
    found = told(builder)
    assert what in found
    assert found.endswith(instead)
