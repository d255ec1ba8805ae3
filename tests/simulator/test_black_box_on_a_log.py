"""The black-box judge against a trivially correct log: nothing is wrong with what its clients see.

Whatever is then changed in such a history is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulator.judges.black_box import check
from fencepost.simulator.judges.operations import Action, ClientOperation, OperationOutcome, Poll, Write
from fencepost.simulator.judges.rules import HISTORY_RULES
from tests.simulator.serial_log import KINDS, PARTITIONS, SerialLog, Step

STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1), st.integers(0, 4))
SEEDS = 60
STEPS_PER_SEED = 60


def run(steps: list[Step]) -> list[ClientOperation]:
    log = SerialLog()
    for step in steps:
        log.do(step)
    return log.finish()


def seeded(seed: int) -> list[ClientOperation]:
    dice = Random(seed)
    return run(
        [
            (dice.choice(KINDS), dice.randrange(3), dice.randrange(2), dice.randrange(5))
            for _ in range(STEPS_PER_SEED)
        ]
    )


@given(st.lists(STEPS, max_size=80))
def test_nothing_is_wrong_with_a_correct_log(steps: list[Step]) -> None:
    assert check(run(steps), finally_read=PARTITIONS).anomalies == ()


def test_every_rule_had_something_to_look_at() -> None:
    sometimes = Counter[str]()
    for seed in range(SEEDS):
        verdict = check(seeded(seed), finally_read=PARTITIONS)
        assert verdict.anomalies == (), f"seed {seed}"
        sometimes.update(verdict.exercised)
    others = {"lost-latest", "early-tombstone", "stale-value"}  # of compacted topics
    black_box = {rule.name for rule in HISTORY_RULES if not rule.name.endswith("-output")} - others
    assert {name for name, count in sometimes.items() if count} == black_box | {"holes", "unknown-then-read"}


# What may be changed in a history. Each change returns None where it cannot be made.

Change = Callable[[list[ClientOperation], Random], list[ClientOperation] | None]
Place = tuple[int, int]  # which operation, and which of its actions


def polls(history: list[ClientOperation]) -> Iterator[tuple[Place, Poll]]:
    for at, operation in enumerate(history):
        for number, action in enumerate(operation.actions):
            if isinstance(action, Poll):
                yield (at, number), action


def writes(history: list[ClientOperation]) -> Iterator[tuple[Place, Write]]:
    for at, operation in enumerate(history):
        for number, action in enumerate(operation.actions):
            if isinstance(action, Write):
                yield (at, number), action


def changed(history: list[ClientOperation], place: Place, action: Action) -> list[ClientOperation]:
    """The history with another action in this place, or one more at the end of its operation."""
    at, number = place
    actions = history[at].actions
    operation = history[at]._replace(actions=(*actions[:number], action, *actions[number + 1 :]))
    return [*history[:at], operation, *history[at + 1 :]]


def last_poll(history: list[ClientOperation], dice: Random) -> tuple[Place, Poll]:
    """One of the two last polls, which read everything."""
    return dice.choice(list(polls(history))[-2:])


def read_at_last(
    history: list[ClientOperation], outcome: OperationOutcome | None = None
) -> list[tuple[Place, Write]]:
    """The writes that are in the log, of transactions and others with this outcome."""
    there = {value for _, poll in list(polls(history))[-2:] for _, value in poll.records}
    return [
        (place, write)
        for place, write in writes(history)
        if write.value in there and outcome in (None, history[place[0]].outcome)
    ]


def unread(history: list[ClientOperation], value: bytes) -> list[ClientOperation]:
    """The history in which nobody ever read it."""
    for place, poll in list(polls(history)):
        records = tuple(record for record in poll.records if record[1] != value)
        history = changed(history, place, poll._replace(records=records))
    return history


def chosen(found: list[tuple[Place, Write]], dice: Random) -> tuple[Place, Write] | None:
    return dice.choice(found) if found else None


def exchange(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    place, poll = last_poll(history, dice)
    if len(poll.records) < 2:
        return None
    at = dice.randrange(len(poll.records) - 1)
    first, second = poll.records[at : at + 2]
    records = (*poll.records[:at], second, first, *poll.records[at + 2 :])
    return changed(history, place, poll._replace(records=records))


def skip_within(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    _, poll = last_poll(history, dice)
    if len(poll.records) < 3:
        return None
    at = dice.randrange(1, len(poll.records) - 1)
    late = poll._replace(records=(*poll.records[:at], *poll.records[at + 1 :]))
    return [*history, ClientOperation("late", 0, OperationOutcome.OK, (late,), 0, 0)]


def skip_between(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    _, poll = last_poll(history, dice)
    if len(poll.records) < 3:
        return None
    at = dice.randrange(1, len(poll.records) - 1)
    parts = (poll.records[:at], poll.records[at + 1 :])
    late = [poll._replace(records=part) for part in parts]
    return [*history, *(ClientOperation("late", 0, OperationOutcome.OK, (each,), 0, 0) for each in late)]


def read_again(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    (at, _), poll = last_poll(history, dice)
    return [*history, history[at]] if poll.records else None


def lose(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    found = chosen(read_at_last(history, OperationOutcome.OK), dice)
    return None if found is None else unread(history, found[1].value)


def tear(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    there = read_at_last(history)
    count = Counter(at for (at, _), _ in there if history[at].transactional)
    found = chosen([(place, write) for place, write in there if count[place[0]] > 1], dice)
    return None if found is None else unread(history, found[1].value)


def repeat(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    place, poll = last_poll(history, dice)
    if not poll.records:
        return None
    again = (poll.records[-1][0] + 1, dice.choice(poll.records)[1])
    return changed(history, place, poll._replace(records=(*poll.records, again)))


def invent(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    place, poll = last_poll(history, dice)
    if not poll.records:
        return None
    made_up = (poll.records[-1][0] + 1, b"made up")
    return changed(history, place, poll._replace(records=(*poll.records, made_up)))


def overwrite(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    """Two values change their places for the last reader; somebody else knows better of at least one."""
    found = chosen(
        [each for each in read_at_last(history, OperationOutcome.OK) if each[1].offset is not None], dice
    )
    if found is None:
        return None
    partition, value, offset = found[1]
    place, poll = next(each for each in list(polls(history))[-2:] if each[1].partition == partition)
    others = [record for record in poll.records if record[1] != value]
    if not others:
        return None
    other = dice.choice(others)
    swapped = {offset: other[1], other[0]: value}
    records = tuple((at, swapped.get(at, there)) for at, there in poll.records)
    return changed(history, place, poll._replace(records=records))


def fail(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    found = chosen(read_at_last(history), dice)
    if found is None:
        return None
    at = found[0][0]
    return [*history[:at], history[at]._replace(outcome=OperationOutcome.FAIL), *history[at + 1 :]]


def hurry(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    found = chosen([each for each in read_at_last(history) if history[each[0][0]].transactional], dice)
    if found is None:
        return None
    at, late = found[0][0], history[-1].completed_at + 1
    return [*history[:at], history[at]._replace(commit_asked_at=late), *history[at + 1 :]]


def read_own(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    own = [
        each for each in writes(history) if history[each[0][0]].transactional and each[1].offset is not None
    ]
    found = chosen(own, dice)
    if found is None:
        return None
    (at, _), (partition, value, offset) = found
    assert offset is not None
    return changed(history, (at, len(history[at].actions)), Poll(partition, ((offset, value),)))


def send_back(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    known = [
        each
        for each in writes(history)
        if each[1].offset and history[each[0][0]].outcome is OperationOutcome.OK
    ]
    pairs = [
        (first, second)
        for first, second in combinations(known, 2)
        if first[1].partition == second[1].partition
        and history[first[0][0]].process == history[second[0][0]].process
    ]
    if not pairs:
        return None
    first, second = dice.choice(pairs)
    history = changed(history, first[0], first[1]._replace(offset=second[1].offset))
    return changed(history, second[0], second[1]._replace(offset=first[1].offset))


def read_the_future(history: list[ClientOperation], dice: Random) -> list[ClientOperation] | None:
    """A transaction reads what another one writes that has read it."""
    there = {write.value: (place[0], write) for place, write in read_at_last(history)}
    found: list[tuple[int, Poll]] = []
    for (reader, _), poll in polls(history):
        for _, value in poll.records if history[reader].transactional else ():
            writer, _ = there.get(value, (reader, None))
            later = [write for at, write in there.values() if at == reader and write.offset is not None]
            if later and writer != reader and history[writer].transactional:
                offset = later[0].offset
                assert offset is not None
                found.append((writer, Poll(later[0].partition, ((offset, later[0].value),))))
    if not found:
        return None
    writer, poll = dice.choice(found)
    return changed(history, (writer, len(history[writer].actions)), poll)


CHANGES: list[tuple[Change, str]] = [
    (exchange, "int-nonmonotonic-poll"),
    (skip_within, "int-poll-skip"),
    (skip_between, "poll-skip"),
    (read_again, "nonmonotonic-poll"),
    (lose, "lost-write|unseen"),
    (tear, "torn-transaction"),
    (repeat, "duplicate"),
    (invent, "phantom"),
    (overwrite, "inconsistent-offsets"),
    (fail, "G1a"),
    (hurry, "undecided-read"),
    (read_own, "precommitted-read"),
    (send_back, "nonmonotonic-send|int-nonmonotonic-send"),
    (read_the_future, "G1c"),
]


@pytest.mark.parametrize(("change", "rules"), CHANGES, ids=lambda each: getattr(each, "__name__", each))
def test_what_is_changed_is_noticed(change: Change, rules: str) -> None:
    made = 0
    for seed in range(SEEDS):
        history = change(seeded(seed), Random(seed))
        if history is not None:
            made += 1
            found = {anomaly.rule.name for anomaly in check(history, finally_read=PARTITIONS).anomalies}
            assert found & set(rules.split("|")), f"seed {seed}: {found}"
    assert made >= SEEDS // 4
