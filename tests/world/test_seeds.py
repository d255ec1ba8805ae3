"""A thousand seeds: two producers with one transactional id and a consumer-producer, a node that is stopped
anywhere.

Each seed ends with exactly-once output, nothing undecided, and at each stop `recover(log) ==
forget_notes(live)`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.broker.settings import PROTECTIONS
from fencepost.protocol.messages import Produce, ProducePartition
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition, TransactionState
from tests.world import judge
from tests.world.loop import World, open_states, partitions_of, recover
from tests.world.stories import INPUTS, PARTITIONS, Outcome, Payment, start_copier, start_payer

SEEDS_PER_TEST, TESTS = 50, 20
RUNS_WITH_FAULTS = 2
NOTHING: frozenset[str] = frozenset()
NO_COUNTS: set[int] = set()
DONE = {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


def inputs(world: World) -> dict[TopicPartition, list[bytes]]:
    """Fill `in` and say what it holds."""
    values = {
        where: [f"{where}:{n}".encode() for n in range(INPUTS)] for where in partitions_of("in", PARTITIONS)
    }
    for where, records in values.items():
        for at in range(0, INPUTS, 4):
            batch = build_data_batch(records[at : at + 4], base_timestamp=world.now)
            part = ProducePartition(topic=where.topic, partition=where.partition, records=batch)
            world.ask(Produce(transactional_id=None, acks=-1, timeout_ms=1, partitions=(part,)))
    return values


def run(seed: int, marks: Counter[str], broken: frozenset[str] = NOTHING) -> None:
    world = World(seed, faults=6, broken=broken)
    world.create_topics(**{"in": PARTITIONS, "out": PARTITIONS, "payments": PARTITIONS})
    values = inputs(world)
    ends = dict.fromkeys(values, INPUTS)
    payments: list[Payment] = []
    for attempt in range(RUNS_WITH_FAULTS):
        start_copier(world, ends)
        start_payer(world, payments, f"left-{attempt}", 3)
        start_payer(world, payments, f"right-{attempt}", 3)
        world.run()
    world.faults_left = 0  # all is well from here on, so everything must come to its end
    start_copier(world, ends)
    start_payer(world, payments, "last", 1)
    world.run()
    world.live_host.directory.abandon()
    check(world, values, payments)
    marks.update(world.marks)


def check(world: World, values: dict[TopicPartition, list[bytes]], payments: list[Payment]) -> None:
    for where, records in values.items():
        out = judge.read_log(world.storage, TopicPartition("out", where.partition))
        assert judge.committed(out) == [value.upper() for value in records], (
            f"{where} was not copied exactly once"
        )
        assert judge.undecided(out) == []
    logs = [judge.read_log(world.storage, where) for where in partitions_of("payments", PARTITIONS)]
    paid = Counter(value for log in logs for value in judge.committed(log))
    assert [judge.undecided(log) for log in logs] == [[], []]
    for payment in payments:
        counts = {paid.pop(value, 0) for value in payment.values}
        match payment.outcome:
            case Outcome.COMMITTED:
                assert counts <= {1}, f"{payment} was committed"
            case Outcome.NOT_COMMITTED:
                assert counts <= {0}, f"{payment} was not committed"
            case Outcome.UNKNOWN:
                assert counts in ({0}, {1}, NO_COUNTS), f"{payment} is torn"
    assert not paid, "records that nobody wrote"
    assert payments[-1].outcome is not Outcome.UNKNOWN, "the last payment, without faults, has an outcome"
    assert set(open_states(recover(world.storage))) <= DONE


def run_many(seeds: range, marks: Counter[str], broken: frozenset[str] = NOTHING) -> None:
    """One seed after the other; the first that fails says which it was."""
    for seed in seeds:
        try:
            run(seed, marks, broken)
        except Exception as problem:
            problem.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("part", range(TESTS))
def test_a_thousand_seeds(part: int) -> None:
    marks: Counter[str] = Counter()
    run_many(range(part * SEEDS_PER_TEST, (part + 1) * SEEDS_PER_TEST), marks)
    for reached in (
        "node stopped in ONGOING",
        "node stopped before an append was written",
        "states compared",
        "fenced",
        "aborted",
        "client killed",
        "connection dropped",
    ):
        assert marks[reached] > 0, f"{reached}: never in {SEEDS_PER_TEST} seeds"


@pytest.mark.parametrize("protection", sorted(PROTECTIONS))
def test_without_a_protection_some_seed_fails(protection: str) -> None:
    """The judges can fail: a broker without fencing, or without deduplication, is found out."""
    with pytest.raises(AssertionError):
        run_many(range(200), Counter(), frozenset({protection}))


def test_a_stop_between_prepare_and_complete_is_among_them() -> None:
    marks: Counter[str] = Counter()
    run_many(range(2_000, 2_100), marks)
    assert marks["node stopped in PREPARE_COMMIT"] > 0
    assert marks["node stopped in PREPARE_ABORT"] > 0
