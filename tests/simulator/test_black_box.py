"""Each rule of the black-box judge has a history that breaks it alone, and a neighbour that breaks none."""

from __future__ import annotations

import pytest

from fencepost.simulator.judging.anomalies import RULES
from fencepost.simulator.judging.black_box import check
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
    assert {name for each in CASES for name in each.wrong} | told_elsewhere == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_what_kafka_allows_is_told_and_no_violation() -> None:
    history = [transaction("p", write("a", 0), write("c", 2)), transaction("q", write("b", 1), write("d", 3))]
    verdict = check(history)
    assert [anomaly.rule.name for anomaly in verdict.anomalies] == ["G0"]
    assert verdict.violations == ()


def test_an_anomaly_tells_who_saw_what_where() -> None:
    verdict = check([ABC, READS_ABC, plain("c", poll((0, "a")), poll((2, "c")))])
    assert [str(anomaly) for anomaly in verdict.violations] == [
        "int-poll-skip: c#0 went from a-0 offset 0 to 2 and left out 1"
    ]
    assert [(each.partition, each.records) for each in verdict.violations] == [
        (A, ((0, b"a"), (1, b"b"), (2, b"c")))
    ]
    assert [operation.process for operation in verdict.violations[0].operations] == ["c"]


def test_the_same_value_twice_is_no_history() -> None:
    with pytest.raises(ValueError, match="need unique values"):
        check([plain("p", write("a", 0)), plain("p", write("a", 1))])


def test_an_empty_history_is_clean_and_the_judge_was_idle() -> None:
    verdict = check([], finally_read=(A,))
    assert verdict.anomalies == ()
    assert not any(verdict.sometimes.values())


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
    assert {name: count for name, count in verdict.sometimes.items() if count} == {
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
        "G0": 2,
    }
