"""A mistake in a scenario is refused with its place, what is wrong, and what is possible instead."""

from __future__ import annotations

import re
import tomllib
from typing import Any, cast

import pytest

from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.codec import BadScenario
from fencepost.simulator.scenarios.files import scenario_in, scenario_of
from fencepost.simulator.scenarios.model import Scenario
from fencepost.simulator.scenarios.runner import run

GOOD = """name = "s"

[cluster]
topics = { t = 2 }

[[producer]]
name = "p"
transactional_id = "app"
script = ["init", "begin", "send t-0 a", "commit"]

[[producer]]
name = "q"
starts = "on request"
script = ["send t-1 b"]

[[consumer]]
name = "r"
reads = ["t-0"]

[[fault]]
when = "p sends EndTxn"
do = "hold"
until = "after 20 ms"

[[fault]]
when = "p ends"
do = "start q"

[expect]
reaches = ["q ends"]
"""

# What replaces a piece of the good file, and the pieces of the error: one row per kind of value and per rule.
WRONG: list[tuple[str, str, tuple[str, ...]]] = [
    ('name = "s"', "name = s", ("s.toml is not TOML", "line 1")),
    ('name = "s"', f"name = {'[' * 20_000}", ("s.toml is not TOML", "recursion")),
    ('name = "s"', f"name = {'9' * 5_000}", ("s.toml is not TOML", "4300 digits")),
    ('name = "s"\n', "", ("line 1: name: is missing; it is text",)),
    ('name = "s"\n', 'nmae = "s"\n', ('line 1: nmae: unknown key; did you mean "name"?',)),
    ('when = "p ends"\n', 'wen = "p ends"\n', ("[[fault]] 2 wen: unknown key", "possible: when, ")),
    ('name = "s"', "name = 3", ("line 1: name: is 3, but must be text",)),
    ("[cluster]", "[claster]", ("claster: unknown key", '"cluster"?')),
    ("topics =", "topic =", ('line 4: [cluster] topic: unknown key; did you mean "topics"?',)),
    ("{ t = 2 }", "{ t = 0 }", ("[cluster] topics t: is 0, but must be a whole number above 0",)),
    ("{ t = 2 }", "{ t = 1000 }", ("[cluster] topics t: is 1000, and the maximum is 100",)),
    ("{ t = 2 }", '{ "t t" = 2 }', ('line 4: [cluster] topics: "t t" is not a topic',)),
    (
        "{ t = 2 }",
        "{ t = 2, __transaction_state = 1 }",
        ('line 4: [cluster] topics: "__transaction_state" is internal',),
    ),
    ("{ t = 2 }", "3", ("topics: is 3, but must be a table",)),
    ("topics = {", "nodes = true\ntopics = {", ("nodes: is True, but must be a whole number",)),
    ("topics = {", "segment_bytes = 99999999999\ntopics = {", ("and the maximum is 1000000000",)),
    ("topics = {", "transaction_version = 3\ntopics = {", ("is 3 (possible: 0, 1, 2)",)),
    ("topics = {", "partition_verification = 1\ntopics = {", ("is 1, but must be true or false",)),
    ("topics = {", 'sync = "always"\ntopics = {', ('there is no "always" (possible: none, commit, all)',)),
    ("topics = {", 'broken = ["fensing"]\ntopics = {', ('there is no "fensing"; did you mean "fencing"?',)),
    ("topics = {", 'without_fixes = "fence_once"\ntopics = {', ('did you mean "fences_once"?',)),
    ('name = "s"', 'name = "s"\nchoices = [-1]', ("choices: is [-1], but must be a whole number from 0",)),
    ('["send t-1 b"]', "[1]", ("line 14: [[producer]] 2 script: is [1], but must be text",)),
    ('"commit"]', '"comit"]', ('"comit" is not a line of a script; did you mean "commit"',)),
    ('"commit"]', '"pause soon"]', ('"soon" is not a time (possible: 300 ms',)),
    ('"commit"]', '"pause 99999999999999 min"]', ("is not a time from 0 to 1000000000 ms",)),
    ('"commit"]', '"pause -5 ms"]', ('"-5 ms" is not a time from 0 to 1000000000 ms',)),
    ('"commit"]', '"send_offsets g t-0 -1"]', ('"-1" is not a whole number from 0 to 9223372036854775807',)),
    ("send t-0 a", "send t a", ('script: "t" is not a partition', "(possible: t-0, t-1")),
    ("send t-0 a", "send t-2 a", ('script: there is no "t-2"', "(possible: t-0, t-1")),
    (
        "send t-0 a",
        "send __consumer_offsets-0 a",
        (
            'script: "__consumer_offsets-0" is internal',
            "clients read and write partitions of [cluster] topics only (possible: t-0, t-1)",
        ),
    ),
    (
        'reads = ["t-0"]',
        'reads = ["__consumer_offsets-0"]',
        ('[[consumer]] 1 reads: "__consumer_offsets-0" is internal',),
    ),
    (
        "[[fault]]",
        '[[processor]]\nname = "c"\nreads = ["t-0"]\nwrites = "__consumer_offsets"\n[[fault]]',
        ('[[processor]] 1 writes: "__consumer_offsets-0" is internal',),
    ),
    ("send t-1 b", "begin", ('[[producer]] 2 script: "begin" needs a transactional_id',)),
    ("send t-1 b", "send t-0 a", ('"send t-0 a" repeats a value of p',)),
    ('name = "q"', 'name = "p"', ('line 12: [[producer]] 2 name: two parts have the name "p"',)),
    ('name = "q"', 'name = ""', ("[[producer]] 2 name: is '', but must be text of 1 to 249 characters",)),
    (
        'transactional_id = "app"',
        f'transactional_id = "{"x" * 250}"',
        ("[[producer]] 1 transactional_id: has 250 characters, and the maximum is 249",),
    ),
    ('reads = ["t-0"]', 'reads = ["t-0"]\ngroup = ""', ("[[consumer]] 1 group: is '', but must be",)),
    (
        "send t-0 a",
        f"send_offsets g t-0 {'9' * 19}",
        ('9" is not a whole number from 0 to 9223372036854775807',),
    ),
    ('name = "q"', 'name = "q q"', ('"q q": a name is one word',)),
    ('"on request"', '"later"', ('starts: there is no "later" (possible: at once, on request)',)),
    (
        'do = "start q"',
        'do = "pause p"',
        ('is "on request", but no fault starts it; add one with do = "start q"',),
    ),
    ('starts = "on request"\n', "", ('is "at once", but a fault does "start q"',)),
    ('reads = ["t-0"]', "reads = []", ("[[consumer]] 1 reads: is empty",)),
    ('when = "p ends"\n', "", ("[[fault]] 2 when: is missing; it is a protocol point, or a list of them",)),
    ('"p ends"', "[]", ("when: is empty",)),
    ('"p ends"', '"p snds EndTxn"', ("line 26: [[fault]] 2 when: ", 'did you mean "p sends EndTxn"?')),
    ("sends EndTxn", "sends EndTxm", ('"EndTxm" is not a REQUEST; did you mean "EndTxn"?', "Produce")),
    ('"p ends"', f'"p ends #{"9" * 5000}"', ('9" is not a whole number from 1 to 1000000000',)),
    ('"p ends"', '"commit of p is good"', ('"good" is not an OUTCOME (possible: ok, aborted',)),
    ('"p ends"', '"before p ends"', ('"before p ends" is not a protocol point',)),
    ('"p ends"', '"s ends"', ('there is no "s" (possible: p, q, r, node 1, broker, final reader, *)',)),
    ('"p ends"', '"app sends EndTxn"', ('"app" is a transactional id, which is not', "(possible: p, q, r")),
    ('"p ends"', '"coordinator of q appends EMPTY"', ('"q" is a client, which is not', "(possible: app)")),
    ('"p ends"', '"node 2 crashes"', ('there is no "node 2"', "node 1")),
    ('"p ends"', '"coordinator of ape appends ONGOING"', ('there is no "ape"', "(possible: app)")),
    ('"p ends"', '"leader of u-0 sends Fetch"', ('there is no "u-0"', "t-0, t-1")),
    ('"p ends"', '"t-0 appends data for ape"', ('there is no "ape"',)),
    ('"p ends"', '"after 20 ms"', ('write "at ..."',)),
    ('"after 20 ms"', '"500 ms"', ('until: "500 ms" is not a protocol point; did you mean "at 500 ms" (',)),
    ('"after 20 ms"', '"500 ms"', ('or "after 500 ms" (a time since the fault', ": at TIME, after TIME)")),
    ('"p ends"', '"3 s"', ('[[fault]] 2 when: "3 s" is not a protocol point; did you mean "at 3 s" (',)),
    ('"start q"', '"PRODUCER_FENCED"', ('did you mean "answer PRODUCER_FENCED" (', ": answer ERROR)")),
    ('"start q"', '"20 ms"', ('did you mean "delay 20 ms" (', "(possible: delay TIME)")),
    ('"start q"', '"strat q"', ("is not an action of a fault", 'did you mean "start q"?')),
    ('"start q"', '"crash p"', ('do: "p" is a client, which is not possible here (possible: node 1',)),
    ('"start q"', '"kill node 1"', ('do: there is no "node 1"',)),
    ('"start q"', '"move t-0 to node 4"', ('do: there is no "node 4"',)),
    ('"start q"', '"fail syncs of u-0"', ('do: there is no "u-0"',)),
    ('"start q"', '"partition p from p"', ('do: "partition p from p" names one side twice',)),
    ('"p sends EndTxn"', '"p starts"', ('1 when: "hold" needs a message that is being sent',)),
    ('"p sends EndTxn"', '"p receives EndTxn reply"', ('"hold" needs a message that is being sent',)),
    ('sends EndTxn"\ndo = "hold"', 'receives EndTxn"\ndo = "delay"', ('"delay" needs a request that is',)),
    ('"after 20 ms"', '"at 20 ms"', ('until: is a time of the run; write "after 20 ms"',)),
    ('do = "start q"', 'do = "start q"\nuntil = "q ends"', ('"start q" ends by itself; leave out `until`',)),
    ('["q ends"]', '["at 3 ms"]', ('reaches: "at 3 ms" is a time, which every run reaches; name an event',)),
    (
        '"p ends"',
        str([f"at {number} ms" for number in range(1_001)]),
        ("[[fault]] 2 when: makes 1,001 runs, one per combination of points", "the maximum is 1,000"),
    ),
    (
        '[[consumer]]\nname = "r"',
        '[[processor]]\nname = "r"\nwrites = "t"',
        ('[[processor]] 1 writes: "t": it would read its own output',),
    ),
    ("[expect]", '[expect]\nholds = ["exactly-twice"]', ('did you mean "exactly-once"?', "G1a")),
    ("[expect]", '[expect]\nholds = "exactly-once"\nviolates = "lost-write"', ('"lost-write" is also',)),
    (
        "[expect]",
        '[expect]\nvisible = { "t-9" = [] }',
        ('[expect] visible: there is no "t-9" (possible: t-0, t-1)',),
    ),
    (
        '[expect]\nreaches = ["q ends"]',
        "[expect]",
        ("expect: expects nothing", "possible: holds, violates, reaches, visible, logs"),
    ),
    (
        'reaches = ["q ends"]',
        "holds = []\nreaches = []\nlogs = {}\nalso_with = []",
        ("line 29: expect: expects nothing", 'write what must hold, as holds = ["exactly-once"], or leave'),
    ),
    (
        "[expect]",
        '[expect]\nlogs = { "__consumer_offsets-0" = [] }',
        (
            'line 30: [expect] logs: "__consumer_offsets-0" is internal',
            'as reaches = ["__consumer_offsets-0 appends COMMIT marker"] (possible: t-0, t-1)',
        ),
    ),
    (
        'reaches = ["q ends"]',
        'visible = { "__transaction_state-0" = ["a"] }',
        ('line 30: [expect] visible: "__transaction_state-0" is internal',),
    ),
    (
        'reaches = ["q ends"]',
        'also_with = [{ logs = { "__consumer_offsets-0" = [] } }]',
        ('logs: "__consumer_offsets-0" is internal',),
    ),
    ("[expect]", "[expect]\nalso_with = [3]", ("also_with: contains 3, but must contain tables",)),
    ("[expect]", "[expect]\nalso_with = [{ node = 2 }]", ("30: [expect] also_with 1 node: unknown key",)),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG, ids=[row[2][-1] for row in WRONG])
def test_a_mistake_is_refused(old: str, new: str, words: tuple[str, ...]) -> None:
    assert [part.name for part in scenario_of(GOOD).parts] == ["p", "q", "r"]
    assert GOOD.count(old) >= 1
    spoiled = GOOD.replace(old, new, 1)
    with pytest.raises(BadScenario) as found:
        scenario_of(spoiled, "s.toml")
    said = str(found.value)
    assert said.startswith("s.toml")
    for word in words:
        assert word in said, said
    if "is not TOML" not in said:  # what the builder says is the same, but for the line
        with pytest.raises(BadScenario) as built:
            scenario_in(tomllib.loads(spoiled), "s.toml")
        assert str(built.value) == re.sub(r", line \d+", "", said, count=1)


FOUND = """name = "f"

[seeded]
idempotent_writes = 1

[seeded.faults]
kinds = ["hold"]
strikes = 1

[[seeded.txn_writer]]
name = "p"

[seeded.choices]
3 = 1
"""

WRONG_FOUND: list[tuple[str, str, str]] = [
    ("idempotent_writes = 1", "nodes = 10", "line 4: [seeded] nodes: is 10, and the maximum is 9"),
    (
        "idempotent_writes = 1",
        "latency_us = 1000000000",
        "[seeded] latency_us: is 1000000000, and the maximum is 50000",
    ),
    ("strikes = 1", "strikes = 99999", "[seeded.faults] strikes: is 99999, and the maximum is 10000"),
    ('"hold"', '"hole"', '[seeded.faults] kinds: there is no "hole"; did you mean "hold"?'),
    ('name = "p"', 'name = "p"\nrecords = 3', "[[seeded.txn_writer]] 1 records: unknown key"),
    (
        "idempotent_writes = 1",
        "clock_drifts_ppm = [-1000000]",
        "clock_drifts_ppm: is [-1000000], but must be a whole number from -500000",
    ),
    (
        "[seeded.choices]",
        '[[seeded.member]]\nname = "m"\nstalls = 1001\n[seeded.choices]',
        "stalls: is 1001, and the maximum is 1000",
    ),
    (
        "[seeded.choices]",
        '[[seeded.member]]\nname = "m"\nsession_timeout_ms = 250\n[seeded.choices]',
        "[[seeded.member]] 1 heartbeat_interval_ms: is 250, but must be below session_timeout_ms (250)",
    ),
    ("3 = 1", "1000000 = 3", "is not the index of a choice: the maximum is 999999"),
    (
        "[seeded]",
        '[[fault]]\nwhen = "q ends"\ndo = "drop"\n\n[seeded]',
        '[[fault]] 1 when: there is no "q" (possible: p, feeder, reader, node 1, broker, final, *)',
    ),
    (
        "[seeded]",
        '[[fault]]\nwhen = "p ends"\ndo = "start p"\n\n[seeded]',
        '"start p": every process of a [seeded] run starts at once',
    ),
    ("3 = 1", "3 = 99999999999", "is 99999999999, but must be a whole number from 0 to 1000000000"),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG_FOUND, ids=[row[1] for row in WRONG_FOUND])
def test_a_mistake_in_a_seeded_file_is_refused(old: str, new: str, words: str) -> None:
    assert scenario_of(FOUND).choices == (0, 0, 0, 1)
    with pytest.raises(BadScenario) as found:
        scenario_of(FOUND.replace(old, new, 1), "f.toml")
    assert words in str(found.value)


def refusal(builder: Builder) -> str:
    """The error of a scenario."""
    with pytest.raises(BadScenario) as found:
        builder.scenario()
    return str(found.value)


def struck(what: str) -> Builder:
    """A fault in a cluster of two nodes."""
    return (
        scenario("s")
        .cluster(nodes=2, topics={"orders": 2})
        .producer("buyer", "init", transactional_id="app")
        .when("buyer ends")
        .do(what)
    )


# A suggestion is one of what is possible, and numbers are not misspellings of each other.
SUGGESTED = [
    (struck("crash node 3"), 'there is no "node 3" (possible: node 1, node 2)'),
    (struck("kill buye"), 'there is no "buye"; did you mean "buyer"? (possible: buyer)'),
    (struck("fail syncs of orders-7"), 'there is no "orders-7" (possible: orders-0, orders-1, __consumer'),
    (struck("fail syncs of order-1"), 'there is no "order-1"; did you mean "orders-1"?'),
    (struck("crush node 2"), '; did you mean "crash node 2"?'),
    (struck("crush node 2 now"), '"crush node 2 now" is not an action of a fault (possible: hold'),
    (scenario("s").expect(holds=["lost write"]), 'there is no "lost write"; did you mean "lost-write"?'),
    (scenario("s").expect(holds=["I2 sequence once"]), 'there is no "I2 sequence once" (possible: '),
]


@pytest.mark.parametrize(("builder", "words"), SUGGESTED, ids=[row[1] for row in SUGGESTED])
def test_a_suggestion_is_one_of_what_is_possible(builder: Builder, words: str) -> None:
    assert words in refusal(builder)


# What does not exist yet, and what would make it.
ABSENT = [
    (
        scenario("s").cluster(topics={}).consumer("r", "shop-0"),
        "and there are no topics; add one with [cluster] topics = { t = 2 }",
    ),
    (
        scenario("s").when("coordinator of shop appends ONGOING").do("crash node 1"),
        'there is no "shop"; add a [[producer]] with transactional_id = "shop"',
    ),
    (
        scenario("s").when("at 3 ms").do("kill shop"),
        'there is no "shop"; add a [[producer]] with name = "shop"',
    ),
    (
        scenario("s").producer("p", transactional_id=""),
        "[[producer]] 1 transactional_id: is '', but must be text of 1 to 249 characters",
    ),
]


@pytest.mark.parametrize(("builder", "words"), ABSENT, ids=[row[1] for row in ABSENT])
def test_an_error_says_what_would_make_the_missing_thing(builder: Builder, words: str) -> None:
    assert refusal(builder).endswith(words)


def asked(*script: str) -> Builder:
    """A producer with transactions and this script."""
    return scenario("s").producer("p", *script, transactional_id="app")


# What the client refuses even when everything goes well, and what to write.
REFUSED = [
    (["init", "send t-0 a", "commit"], '"send t-0 a" needs an open transaction; write "begin" before it'),
    (["begin"], '"begin" needs an initialized producer; write "init" before it'),
    (["init", "commit"], '"commit" needs an open transaction; write "begin" before it'),
    (
        ["init", "begin", "begin"],
        '"begin" is not possible while a transaction is open; write "commit" or "abort" before it',
    ),
    (
        ["init", "begin", "abort", "send_offsets g t-0 1"],
        '"send_offsets g t-0 1" needs an open transaction; write "begin" before it',
    ),
    (["init", "begin", "init", "abort"], '"abort" needs an open transaction; write "begin" before it'),
]


@pytest.mark.parametrize(("script", "words"), REFUSED, ids=[row[1] for row in REFUSED])
def test_a_script_that_the_client_refuses_is_told_in_words_of_scenarios(
    script: list[str], words: str
) -> None:
    assert refusal(asked(*script)) == f"scenario 's': [[producer]] 1 script: {words}"


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


def test_a_builder_that_is_run_says_how_it_becomes_a_scenario() -> None:
    with pytest.raises(TypeError, match=r"a Builder is not a scenario: call its \.scenario\(\) first"):
        run(cast("Scenario", asked("init")))


def test_a_fault_that_does_nothing_says_what_to_call() -> None:
    """As a statement of its own it would be forgotten without a word."""
    builder = asked("init")
    fault = builder.when("p ends", "p dies")
    assert refusal(builder) == (
        """scenario 's': .when("p ends", "p dies") is not a complete fault; .do(...) must say what it does"""
    )
    with pytest.raises(
        AttributeError, match=r"""\.when\("p ends", "p dies"\) is not .* \.do\(\.\.\.\) must say"""
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
