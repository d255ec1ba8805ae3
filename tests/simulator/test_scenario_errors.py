"""Whatever is wrong in a scenario's file is told with its place, and with what is possible instead."""

from __future__ import annotations

import pytest

from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.reading import scenario_of
from fencepost.simulator.scenarios.tables import BadScenario

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

# What is replaced in the good file, by what, and what the error says, in this order.
WRONG: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("not TOML", 'name = "s"', "name = s", ("s.toml is not TOML", "line 1")),
    ("no name", 'name = "s"\n', "", ("line 1: name: is missing",)),
    ("a name of another kind", 'name = "s"', "name = 3", ("line 1: name: is 3, but must be text",)),
    ("an unknown table", "[cluster]", "[claster]", ("claster: is no key of it", '"cluster"?')),
    (
        "an unknown key",
        "topics =",
        "topic =",
        ('line 4: [cluster] topic: is no key of it; did you mean "topics"?',),
    ),
    (
        "no partitions",
        "{ t = 2 }",
        "{ t = 0 }",
        ("[cluster] topics t: is 0, but must be a whole number above 0",),
    ),
    ("no topic's name", "{ t = 2 }", '{ "t t" = 2 }', ('line 4: [cluster] topics: "t t" is no topic',)),
    ("topics of another kind", "{ t = 2 }", "3", ("topics: is 3, but must be a table",)),
    ("too many nodes", "topics = {", "nodes = 12\ntopics = {", ("nodes: is 12, and 9 is the most",)),
    (
        "too many partitions",
        "{ t = 2 }",
        "{ t = 100000000000 }",
        ("[cluster] topics t: is 100000000000, and 100 is the most",),
    ),
    (
        "too many coordinators",
        "topics = {",
        "coordinators = 999\ntopics = {",
        ("[cluster] coordinators: is 999, and 100 is the most",),
    ),
    (
        "a transaction that may last too long",
        'transactional_id = "app"',
        'transactional_id = "app"\ntransaction_timeout_ms = 99999999999999999999',
        ("transaction_timeout_ms: is 99999999999999999999, and 900000 is the most",),
    ),
    (
        "a number without room in the protocol",
        "topics = {",
        "segment_bytes = 99999999999\ntopics = {",
        ("segment_bytes: is 99999999999, and 1000000000 is the most",),
    ),
    ("too long a time", '"commit"]', '"pause 99999999999999 min"]', ("is too long: the maximum is",)),
    (
        "an unknown version",
        "topics = {",
        "transaction_version = 3\ntopics = {",
        ("is 3 (possible: 0, 1, 2)",),
    ),
    (
        "a flag of another kind",
        "topics = {",
        "partition_verification = 1\ntopics = {",
        ("is 1, but must be true or false",),
    ),
    (
        "an unknown policy",
        "topics = {",
        'sync = "always"\ntopics = {',
        ("is 'always' (possible: none, commit, all)",),
    ),
    (
        "an unknown protection",
        "topics = {",
        'broken = ["fensing"]\ntopics = {',
        ('there is no "fensing"; did you mean "fencing"?', "(possible: dedup, fencing)"),
    ),
    (
        "an unknown correction",
        "topics = {",
        'without_fixes = ["fence_once"]\ntopics = {',
        ('there is no "fence_once"; did you mean "fences_once"?', "(possible: group_fencing, require_stable"),
    ),
    (
        "a script of another kind",
        '["send t-1 b"]',
        "[1]",
        ("line 14: [[producer]] 2 script: is [1], but must be text, or a list of texts",),
    ),
    (
        "an unknown verb",
        '"commit"]',
        '"comit"]',
        (
            'line 9: [[producer]] 1 script: "comit" is not something that a producer can do',
            '; did you mean "commit"?',
            "send TOPIC-N TEXT",
        ),
    ),
    ("no partition's name", "send t-0 a", "send t a", ('script: "t" is not a partition',)),
    (
        "an unknown partition",
        "send t-0 a",
        "send t-2 a",
        ('script: there is no partition "t-2"', "(possible: t-0, t-1)"),
    ),
    ("no time", '"commit"]', '"pause soon"]', ('"soon" is not a time (possible: 300 ms',)),
    (
        "no transactional id",
        "send t-1 b",
        "begin",
        ('[[producer]] 2 script: "begin" needs a transactional_id',),
    ),
    ("the same value twice", "send t-1 b", "send t-0 a", ('"send t-0 a" writes what p writes, too',)),
    (
        "two of one name",
        'name = "q"',
        'name = "p"',
        ('line 12: [[producer]] 2 name: there are two who are called "p"',),
    ),
    ("no name for people", 'name = "q"', 'name = "q q"', ("a name is one word",)),
    ("an unknown start", '"on request"', '"later"', ("starts: is 'later' (possible: at once, on request)",)),
    ("called by nobody", 'do = "start q"', 'do = "pause p"', ('on request, but no fault does "start q"',)),
    ("called though he is there", 'starts = "on request"\n', "", ('at once, and a fault does "start q"',)),
    ("nothing to read", 'reads = ["t-0"]', "reads = []", ("[[consumer]] 1 reads: is empty",)),
    (
        "an unknown isolation",
        'reads = ["t-0"]',
        'reads = ["t-0"]\nisolation = "dirty"',
        ("is 'dirty' (possible: read_uncommitted, read_committed)",),
    ),
    ("a fault without a point", 'when = "p ends"\n', "", ("[[fault]] 2 when: is missing",)),
    (
        "no point",
        '"p ends"',
        '"p snds EndTxn"',
        (
            'line 26: [[fault]] 2 when: "p snds EndTxn" is not a protocol point; did you mean "p sends',
            "WHO sends REQUEST [to WHO]",
        ),
    ),
    ("no points", '"p ends"', "[]", ("when: is empty",)),
    (
        "an unknown request",
        "sends EndTxn",
        "sends EndTxm",
        ('"EndTxm" is not a REQUEST; did you mean "EndTxn"?', "Produce"),
    ),
    ("an unknown error", '"p ends"', '"p gets FENCED"', ('"FENCED" is not an ERROR', "PRODUCER_FENCED")),
    (
        "an unknown outcome",
        '"p ends"',
        '"commit of p is good"',
        ('"good" is not an OUTCOME', "(possible: ok, aborted, fenced, failed, unknown)"),
    ),
    ("before what is no append", '"p ends"', '"before p ends"', ('"before p ends" is not a protocol point',)),
    (
        "somebody unknown",
        '"p ends"',
        '"s ends"',
        ('there is no "s" (possible: p, q, r, node 1, final reader)',),
    ),
    ("an unknown node", '"p ends"', '"node 2 crashes"', ('there is no "node 2"', "node 1")),
    (
        "an unknown coordinator",
        '"p ends"',
        '"coordinator of ape appends ONGOING"',
        ('there is no "ape"', "(possible: app)"),
    ),
    ("a leader of nothing", '"p ends"', '"leader of u-0 sends Fetch"', ('there is no "u-0"', "t-0, t-1")),
    ("an unknown owner", '"p ends"', '"t-0 appends data for ape"', ('there is no "ape"',)),
    ("a duration to begin at", '"p ends"', '"after 20 ms"', ('write "at ..."',)),
    (
        "no action",
        '"start q"',
        '"strat q"',
        (
            'line 27: [[fault]] 2 do: "strat q" is not something that a fault can do; did you mean',
            "crash NODE",
        ),
    ),
    ("a process that crashes", '"start q"', '"crash p"', ('do: there is no "p" (possible: node 1)',)),
    ("a node that is killed", '"start q"', '"kill node 1"', ('do: there is no "node 1"',)),
    ("a move to nowhere", '"start q"', '"move t-0 to node 4"', ('do: there is no "node 4"',)),
    ("a disk of nothing", '"start q"', '"fail syncs of u-0"', ('do: there is no "u-0"',)),
    ("a partition from nobody", '"start q"', '"partition p from s"', ('do: there is no "s"',)),
    (
        "a partition from oneself",
        '"start q"',
        '"partition node 1 from node 1"',
        ('[[fault]] 2 do: "partition node 1 from node 1": nothing comes between anybody and himself',),
    ),
    (
        "a hold without a message",
        '"p sends EndTxn"',
        '"p starts"',
        ('line 21: [[fault]] 1 when: "hold" is done to a message',),
    ),
    (
        "a delay of an answer",
        '"p sends EndTxn"\ndo = "hold"',
        '"node 1 sends EndTxn reply"\ndo = "delay"',
        ('line 21: [[fault]] 1 when: "delay" is done to a request when it is sent',),
    ),
    ("a hold of what is there", '"p sends EndTxn"', '"p receives EndTxn reply"', ("when it is sent",)),
    (
        "an end at a time",
        '"after 20 ms"',
        '"at 20 ms"',
        ('until: a fault lasts until a point, or for a time: "after 300 ms"',),
    ),
    (
        "an end of what is over",
        'do = "start q"',
        'do = "start q"\nuntil = "q ends"',
        ('until: "start q" is over at once; leave `until` out',),
    ),
    (
        "no times",
        'do = "start q"',
        'do = "start q"\ntimes = 0',
        ("times: is 0, but must be a whole number above 0",),
    ),
    ("a time that is reached", '["q ends"]', '["at 3 ms"]', ('reaches: "at 3 ms" is a time',)),
    (
        "an unknown rule",
        "[expect]",
        '[expect]\nholds = ["exactly-twice"]',
        ('[expect] holds: there is no "exactly-twice"; did you mean "exactly-once"?', "G1a"),
    ),
    (
        "a rule that is kept and broken",
        "[expect]",
        '[expect]\nholds = ["G1a"]\nviolates = ["G1a"]',
        ('[expect] holds: "G1a" cannot be kept and be broken, too',),
    ),
    (
        "a rule that is broken and kept as a part of another",
        "[expect]",
        '[expect]\nholds = ["exactly-once"]\nviolates = ["lost-write"]',
        ('[expect] holds: "lost-write" cannot be kept and be broken, too',),
    ),
    (
        "values of an unknown partition",
        "[expect]",
        '[expect]\nvisible = { "t-9" = [] }',
        ('[expect] visible: there is no partition "t-9"',),
    ),
    (
        "rows that are no tables",
        "[expect]",
        "[expect]\nalso_with = [3]",
        ("also_with: holds 3, but must hold tables",),
    ),
    (
        "an unknown key in a row",
        "[expect]",
        "[expect]\nalso_with = [{ node = 2 }]",
        ('line 30: [expect] also_with 1 node: is no key of it; did you mean "nodes"?',),
    ),
    (
        "choices below zero",
        'name = "s"',
        'name = "s"\nchoices = [-1]',
        ("choices: is [-1], but must be a list of whole numbers from 0 on",),
    ),
]


def test_the_file_that_is_spoiled_below_is_good() -> None:
    assert [part.name for part in scenario_of(GOOD).parts] == ["p", "q", "r"]


@pytest.mark.parametrize(("old", "new", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_mistake_is_told(old: str, new: str, words: tuple[str, ...]) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(BadScenario) as found:
        scenario_of(GOOD.replace(old, new, 1), "s.toml")
    told = str(found.value)
    assert told.startswith("s.toml")
    for word in words:
        assert word in told, told


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
    ("idempotent_writes = 1", "nodes = 10", "[seeded] nodes: is 10, and 9 is the most"),
    (
        "idempotent_writes = 1",
        "idempotent_writes = 10001",
        "[seeded] idempotent_writes: is 10001, and 10000 is the most",
    ),
    ("strikes = 1", "strikes = 99999", "[seeded.faults] strikes: is 99999, and 10000 is the most"),
    ('name = "p"', 'name = "p"\ntransaction_timeout_ms = 900001', "and 900000 is the most"),
    ("3 = 1", "99999999999 = 3", "is no place in the list of choices: 1000000 are the most"),
    ("3 = 1", "1000000 = 3", "is no place in the list of choices: 1000000 are the most"),
    ("3 = 1", "3 = 99999999999", "is 99999999999, and 1000000000 is the most"),
]


@pytest.mark.parametrize(("old", "new", "told"), WRONG_FOUND, ids=[row[1] for row in WRONG_FOUND])
def test_too_much_for_a_seeded_run_is_told(old: str, new: str, told: str) -> None:
    assert scenario_of(FOUND).choices == (0, 0, 0, 1)
    with pytest.raises(BadScenario) as found:
        scenario_of(FOUND.replace(old, new, 1), "f.toml")
    assert told in str(found.value)


WRONG_BUILT: list[tuple[Builder, str]] = [
    (scenario("s").producer("p", "send t-7 a"), '[[producer]] 1 script: there is no partition "t-7"'),
    (scenario("s").producer("p", "fly"), "[[producer]] 1 script: "),
    (
        scenario("s").producer("p", "init", transactional_id="a").when("p flies").do("drop"),
        "[[fault]] 1 when: ",
    ),
    (scenario("s").producer("p").producer("p"), "[[producer]] 2 name: "),
    (scenario("s").cluster(nodes=0), "[cluster] nodes: is 0, but must be a whole number above 0"),
    (scenario("s").cluster(nodes=99), "[cluster] nodes: is 99, and 9 is the most"),
    (scenario("s").cluster(topics={"t": 101}), "[cluster] topics t: is 101, and 100 is the most"),
    (scenario("s").cluster(broken=["fence"]), '[cluster] broken: there is no "fence"'),
    (
        scenario("s").producer("p", transaction_timeout_ms=900_001),
        "[[producer]] 1 transaction_timeout_ms: is 900001, and 900000 is the most",
    ),
    (scenario("s").producer("p", max_in_flight=6), "[[producer]] 1 max_in_flight: is 6 (possible: 1, 2, 3"),
    (
        scenario("s").producer("p", "flush").when("p starts", times=0).do("pause p"),
        "[[fault]] 1 times: is 0, but must be a whole number above 0",
    ),
    (scenario("s").expect(holds=["exactly-none"]), '[expect] holds: there is no "exactly-none"'),
    (scenario("s").also_with(nodes=10**10), "[expect] also_with 1 nodes: is 10000000000, and 9 is the most"),
]


@pytest.mark.parametrize(("builder", "told"), WRONG_BUILT, ids=[row[1] for row in WRONG_BUILT])
def test_the_builder_says_what_is_wrong_as_a_file_does(builder: Builder, told: str) -> None:
    with pytest.raises(BadScenario) as found:
        builder.scenario()
    assert str(found.value).startswith(f"scenario 's': {told}")
