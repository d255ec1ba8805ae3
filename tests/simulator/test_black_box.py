"""Each rule of the black-box judge has a history that breaks it alone, and a neighbour that breaks none."""

from __future__ import annotations

import re

import pytest

from fencepost.simulator.judges.black_box import check
from fencepost.simulator.judges.operations import PositionSet
from fencepost.simulator.judges.rules import HISTORY_RULES
from tests.simulator.client_stories import (
    ABC,
    FAIL,
    INFO,
    READS_ABC,
    A,
    B,
    Case,
    plain,
    poll,
    transaction,
    write,
)
from tests.simulator.stories_of_order import CYCLES, ORDER
from tests.simulator.stories_of_records import MISSING, RECORDS

CASES = RECORDS + MISSING + ORDER + CYCLES


@pytest.mark.parametrize(
    "each", CASES, ids=lambda each: f"{(each.wrong and ' '.join(each.wrong)) or 'clean'}: {each.title}"
)
def test_the_judge_finds_what_is_wrong_and_nothing_else(each: Case) -> None:
    verdict = check(each.history, finally_read=each.finally_read)
    assert sorted(anomaly.rule.name for anomaly in verdict.anomalies) == sorted(each.wrong), [
        *map(str, verdict.anomalies)
    ]


def test_every_rule_has_its_case() -> None:
    told_elsewhere = {"missing-output", "doubled-output", "foreign-output"}
    told_elsewhere |= {"lost-latest", "early-tombstone", "stale-value"}  # test_compaction.py
    assert {name for each in CASES for name in each.wrong} | told_elsewhere == {
        rule.name for rule in HISTORY_RULES
    }
    assert len({rule.name for rule in HISTORY_RULES}) == len(HISTORY_RULES)


def test_an_anomaly_tells_who_saw_what_where() -> None:
    verdict = check([ABC, READS_ABC, plain("c", poll((0, "a")), poll((2, "c")))])
    assert [str(anomaly) for anomaly in verdict.anomalies] == [
        "int-poll-skip: c#0 went from a-0 offset 0 to 2 and left out 1"
    ]
    assert [(each.partition, each.records) for each in verdict.anomalies] == [
        (A, ((0, b"a"), (1, b"b"), (2, b"c")))
    ]
    assert [operation.process for operation in verdict.anomalies[0].operations] == ["c"]


def test_a_record_that_may_not_be_read_is_told_with_its_writer() -> None:
    verdict = check(
        [
            transaction("p", write("a", 0), outcome=FAIL),
            transaction("q", write("b", 2), poll((2, "b"))),
            plain("c", poll((0, "a"), (1, "?"))),
            plain("c", PositionSet(A), poll((2, "b"), (3, "b"))),
        ]
    )
    assert list(map(str, verdict.anomalies)) == [
        'precommitted-read: q#0 read its own "b" at a-0 offset 2',
        'G1a: c#0 read "a" of p#0 at a-0 offset 0, whose write had failed',
        'phantom: c#0 read "?" at a-0 offset 1, which no client wrote there',
        'duplicate: "b" is at a-0 offsets 2 and 3',
    ]
    assert [len(anomaly.operations) for anomaly in verdict.anomalies] == [1, 2, 1, 1]


def test_order_is_told_with_both_ends() -> None:
    verdict = check(
        [
            plain("p", write("c", 2), write("a", 0)),
            plain("p", write("b", 1), write("d", 3)),
            plain("all", poll((0, "a"), (1, "b"), (2, "c"), (3, "d"))),
            plain("c", poll((0, "a"))),
            plain("c", poll((3, "d"))),
            plain("c", poll((1, "b"))),
        ]
    )
    assert [(str(anomaly), anomaly.records) for anomaly in verdict.anomalies] == [
        (
            "poll-skip: c#0 went from a-0 offset 0 to 3 and left out 1 and 1 more",
            ((0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")),
        ),
        ("nonmonotonic-poll: c#0 went back from a-0 offset 3 to 1", ((3, b"d"), (1, b"b"))),
        (
            'int-nonmonotonic-send: p#0 wrote "a" at a-0 offset 0, after "c" of p#0 at 2',
            ((2, b"c"), (0, b"a")),
        ),
    ]


def test_a_missing_record_is_told_with_where_it_should_be() -> None:
    torn = check(
        [
            transaction("p", write("a", 0), write("b", 0, to=B), write("c", to=B), outcome=INFO),
            plain("q", write("d", 2, to=B)),
            plain("c", poll((0, "a")), poll((2, "d"), of=B)),
        ],
        finally_read=(B,),
    )
    assert [(str(anomaly), anomaly.records) for anomaly in torn.anomalies] == [
        ('torn-transaction: 1 of 3 writes of p#0 were read, but not "b" of b-0, "c" of b-0', ((0, b"b"),))
    ]
    lost = check([ABC, plain("c", poll((1, "b"), (2, "c")))])
    assert list(map(str, lost.anomalies)) == [
        'lost-write: "a" of p#0 at a-0 offset 0 was never read, though readers passed it'
    ]
    unseen = check([plain("p", write("a"))], finally_read=(A,))
    assert list(map(str, unseen.anomalies)) == [
        'unseen: "a" of p#0 at a-0 was never read, though the partition was read to its end'
    ]


def test_a_cycle_is_told_step_by_step_and_a_long_one_in_part() -> None:
    ring = [
        transaction(
            f"p{number}", write(f"r{number}", number), poll(((number + 1) % 10, f"r{(number + 1) % 10}"))
        )
        for number in range(10)
    ]
    short = check(
        [
            transaction("p", write("a", 0), poll((0, "b"), of=B)),
            transaction("q", poll((0, "a")), write("b", 0, to=B)),
        ]
    )
    assert [str(anomaly) for anomaly in short.anomalies] == [
        'G1c: q#0 -> ("b" of b-0) -> p#0 -> ("a" of a-0) -> q#0'
    ]
    (long,) = check(ring).anomalies
    assert re.search(r" -> 2 more -> p\d#0$", long.text)
    assert len(long.operations) == len(long.records) == 10


def test_the_same_value_twice_is_no_history() -> None:
    with pytest.raises(ValueError, match="need unique values"):
        check([plain("p", write("a", 0)), plain("p", write("a", 1))])


def test_where_nothing_was_read_all_is_clean_and_the_judge_was_idle() -> None:
    idle = check([transaction("p", write("a", 0), outcome=FAIL), plain("c", poll())], finally_read=(A,))
    for verdict in (check([], finally_read=(A,)), idle):
        assert verdict.anomalies == ()
        assert not any(verdict.exercised.values())


def test_what_the_judge_looked_at_is_counted() -> None:
    verdict = check(
        [
            transaction("p", write("a", 0), outcome=FAIL),
            transaction("p", write("b", 2), write("c", 0, to=B), outcome=INFO),
            transaction("q", write("d", 4), poll((2, "b")), asked=0),
            transaction("r", write("e", 2, to=B), poll((4, "d")), asked=0),
            plain("c", poll((2, "b"), (4, "d"))),
            plain("c", poll((0, "c"), of=B)),
            plain("c", poll((2, "e"), of=B)),
        ],
        finally_read=(A, B),
    )
    assert verdict.anomalies == ()
    assert {name: count for name, count in verdict.exercised.items() if count} == {
        "unknown-then-read": 1,
        "holes": 2,
        "inconsistent-offsets": 4,
        "duplicate": 4,
        "phantom": 4,
        "undecided-read": 2,
        "int-poll-skip": 1,
        "int-nonmonotonic-poll": 1,
        "poll-skip": 1,
        "nonmonotonic-poll": 1,
        "G1a": 1,
        "lost-write": 4,
        "unseen": 4,
        "torn-transaction": 1,
        "precommitted-read": 1,
        "G1c": 1,
    }


def test_what_could_not_have_gone_wrong_is_not_counted() -> None:
    verdict = check(
        [
            transaction("p", write("a", 0), outcome=FAIL),
            transaction("p", write("b", 1), outcome=INFO),  # nobody reads it, nobody knows
            transaction("q", write("c", 4)),  # there is nothing to tear
            plain("s", write("d", 5), write("e", 6)),
            transaction("p", write("f", 7), outcome=FAIL),  # nobody has come there
            transaction("p", write("g"), outcome=FAIL),
            transaction("q", write("h", 9), write("i", 10), outcome=INFO),
            transaction("q", write("j", 12), write("k", 13)),  # nobody has come there
            plain("c", poll((4, "c")), poll((5, "d"), (6, "e"))),
            transaction("r", write("l", 0, to=B), poll((4, "c"))),  # it writes elsewhere than it reads
        ]
    )
    assert verdict.anomalies == ()
    names = ("G1a", "torn-transaction", "lost-write", "unseen", "holes", "int-poll-skip", "poll-skip")
    assert [verdict.exercised[name] for name in names] == [1, 0, 3, 0, 0, 2, 0]
    names = ("nonmonotonic-send", "int-nonmonotonic-send", "precommitted-read", "G1c")
    assert [verdict.exercised[name] for name in names] == [1, 2, 0, 0]
