"""The white-box judge: every rule catches the fault that it is there for, and says nothing of a sound run.

The faults are planted in the real cores, one function each; what no single function would break is played on
the judge's own records (test_invariant_records.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import attrs
import pytest

from fencepost.broker.contract import Decision, Durable
from fencepost.broker.dispatch import INPUTS
from fencepost.broker.groups import state as groups
from fencepost.broker.leader_log import LeaderLog, TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import checks as batch_checks
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions import end_txn, handlers, markers
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.state import TransactionDecision
from fencepost.journal.indexes import AbortedRange
from fencepost.journal.log_segments import LogSegments
from fencepost.journal.simulated import SimulatedFile
from fencepost.protocol.messages import InitProducerIdReply
from fencepost.protocol.terms import IsolationLevel
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import FuzzPlan, draw, draw_groups, draw_identities, draw_topics
from fencepost.simulator.fuzz.worlds import Planner, spec_of, try_seed
from fencepost.simulator.judges.rules import (
    BOUNDS,
    CONVERGENCE,
    DURABLE_DECISION,
    DURABLE_REPLIES,
    HANGING,
    OFFSETS_WITH_MARKER,
    READ_COMMITTED,
    RECOVERY,
    STEP_RULES,
    TIMEOUT,
    UNIQUE_IDENTITY,
    UNIQUE_SEQUENCE,
    Violation,
)
from fencepost.simulator.run import run_of
from fencepost.simulator.world.choices import Choices

Plant = Callable[[pytest.MonkeyPatch], None]


# --- sound runs ---------------------------------------------------------------------------------------------


def test_sound_runs_break_no_rule_and_every_rule_has_something_to_look_at() -> None:
    exercised: Counter[str] = Counter()
    for seed in range(1, 31):
        trial = try_seed(seed)
        assert trial.violation is None, f"seed {seed}: {trial.violation}"
        exercised.update(trial.marks)
    exercised.update(try_seed(3, draw_groups).marks)
    exercised.update(try_seed(0, draw_identities).marks)
    exercised.update(try_seed(18, draw_topics).marks)
    assert [rule.name for rule in STEP_RULES if not exercised[f"exercised: {rule.name}"]] == []


def test_a_run_that_is_not_over_is_not_settled() -> None:
    """I8: a coordinator has decided, and its markers are still on their way."""
    choices = Choices(seed=1)
    plan = attrs.evolve(draw(choices), kinds=(), strikes=0)
    run = run_of(spec_of(plan), choices)
    world, invariants = run.world, run.invariants
    problems: list[Violation] = []

    def look(_: object) -> None:
        try:
            invariants.judge_end()
        except Violation as violation:
            problems.append(violation)

    for microseconds in range(0, 400_000, 200):
        world.at(microseconds * 1_000, look)
    run.play()
    texts = [problem.evidence for problem in problems if problem.rule == CONVERGENCE.name]
    assert any("PrepareCommit" in text for text in texts)
    assert {problem.rule for problem in problems} <= {CONVERGENCE.name, TIMEOUT.name}


# --- planted faults -----------------------------------------------------------------------------------------


def _stormy(choices: Choices, *, kind: FaultKind, policy: SyncPolicy) -> FuzzPlan:
    """Many faults of one kind, over short segments."""
    plan = draw(choices)
    return attrs.evolve(plan, sync=policy, segment_bytes=600, kinds=(kind,), strikes=16, pause_ms=10)


def _hasty(choices: Choices) -> FuzzPlan:
    """Transactions that take longer than they may."""
    plan = draw(choices)
    txn_writers = tuple(attrs.evolve(each, transaction_timeout_ms=20) for each in plan.txn_writers)
    return attrs.evolve(plan, txn_writers=txn_writers)


def _lso_is_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "last_stable_offset", property(lambda state: state.high_watermark))


def _no_check_of(*names: str) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        left = tuple(check for check in batch_checks.CHECKS if check.predicate.__name__ not in names)
        assert len(left) == len(batch_checks.CHECKS) - len(names)
        monkeypatch.setattr(batch_checks, "CHECKS", left)

    return plant


def _effects_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "after", Node.release)


def _markers_do_not_wait_for_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    write = handlers.write_record

    def hasty(node: Node, log: TransactionLog, name: str, record: TransactionRecord | None, now: int) -> None:
        write(node, log, name, record, now)
        if record is not None and record.state.is_prepared:
            node.markers_due[log.partition.key, name] = now

    monkeypatch.setattr(handlers, "write_record", hasty)


def _owners_are_given_the_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Node.became_durable

    def durable(node: Node, arrived: Durable, now: int) -> None:
        reply(node, arrived, now)
        for number, effect in enumerate(node.outcome.effects):
            body = getattr(effect, "body", None)
            if isinstance(body, InitProducerIdReply) and body.producer_epoch:
                older = attrs.evolve(body, producer_epoch=body.producer_epoch - 1)
                node.outcome.effects[number] = attrs.evolve(effect, body=older)

    monkeypatch.setitem(INPUTS, Durable, durable)


def _prepare_keeps_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = end_txn.prepare

    def stale(name: str, record: Any, *arguments: Any, **more: Any) -> TransactionDecision:
        decision = prepare(name, record, *arguments, **more)
        assert isinstance(decision, Decision)
        ((_, prepared),) = decision.entries
        assert prepared is not None
        kept = prepared._replace(producer_epoch=record.producer_epoch)
        return attrs.evolve(decision, entries=((name, kept),))

    monkeypatch.setattr(end_txn, "prepare", stale)


def _aborted_offsets_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(state: groups.Groups, producer_id: int, result: object) -> None:
        for key, committed in state.pending.pop(producer_id).items():
            groups._settle(state, key, committed)  # pyright: ignore[reportPrivateUsage] the real one, misused

    monkeypatch.setattr(groups, "_decide_pending", settle)


def _no_index_of_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(segments: LogSegments, fetch_offset: int, *, upper: int) -> list[AbortedRange]:
        return []

    monkeypatch.setattr(LogSegments, "aborted_between", nothing)


def _readers_go_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_for(state: Partition, isolation_level: IsolationLevel) -> int:
        return state.high_watermark

    monkeypatch.setattr(Partition, "end_for", end_for)


def _nothing_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(state: object, *, now: int) -> list[str]:
        return []

    monkeypatch.setattr(transactions, "timed_out", never)


def _complete_does_not_wait_for_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    send = markers._send_markers  # pyright: ignore[reportPrivateUsage] the real one, and more

    def send_and_forget(
        node: Node, log: TransactionLog, name: str, now: int, in_flight: Collection[markers.MarkerKey]
    ) -> None:
        send(node, log, name, now, in_flight)
        state = log.coordinator
        if state.pending_markers.get(name):
            state.pending_markers[name].clear()
            markers._finish(node, log, name, now)  # pyright: ignore[reportPrivateUsage] the same

    monkeypatch.setattr(markers, "_send_markers", send_and_forget)


def _syncs_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(file: SimulatedFile) -> None:
        """It says that it did."""

    monkeypatch.setattr(SimulatedFile, "sync", nothing)


def _leaders_forget_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    rebuild = Node.rebuild

    def forgetful(node: Node, order: Any) -> LeaderLog:
        log = rebuild(node, order)
        log.partition.producers.clear()
        return log

    monkeypatch.setattr(Node, "rebuild", forgetful)


CRASHES: Planner = partial(_stormy, kind=FaultKind.CRASH, policy=SyncPolicy.NONE)
POWER_LOSSES: Planner = partial(_stormy, kind=FaultKind.POWER_LOSS, policy=SyncPolicy.ALL)

PLANTED: list[tuple[str, Plant, Planner]] = [
    (BOUNDS.name, _lso_is_the_high_watermark, draw),
    (
        UNIQUE_SEQUENCE.name,
        _no_check_of("_is_duplicate", "_begins_late", "_overtakes", "_is_out_of_order"),
        CRASHES,
    ),
    (HANGING.name, _no_check_of("_has_older_epoch", "_lost_its_guard"), _hasty),
    (DURABLE_DECISION.name, _markers_do_not_wait_for_the_decision, draw),
    (DURABLE_DECISION.name, _complete_does_not_wait_for_markers, draw),
    (UNIQUE_IDENTITY.name, _prepare_keeps_the_epoch, draw),
    (DURABLE_REPLIES.name, _owners_are_given_the_epoch_before, draw),
    (OFFSETS_WITH_MARKER.name, _aborted_offsets_count, draw),
    (READ_COMMITTED.name, _no_index_of_aborted, draw),
    (READ_COMMITTED.name, _readers_go_to_the_end, draw),
    (RECOVERY.name, _leaders_forget_open_transactions, CRASHES),
    (RECOVERY.name, _syncs_do_nothing, POWER_LOSSES),
    (TIMEOUT.name, _nothing_times_out, _hasty),
    (DURABLE_REPLIES.name, _effects_do_not_wait, draw),
]


@pytest.mark.parametrize(("rule", "plant", "planner"), PLANTED)
def test_a_planted_fault_is_caught_by_its_rule(
    rule: str, plant: Plant, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    others: list[str] = []
    for seed in range(1, 61):
        violation = try_seed(seed, planner).violation
        if violation is not None and violation.rule == rule:
            assert "\n" not in violation.evidence
            return
        if violation is not None:  # one fault may break several rules, whichever is met first
            others.append(f"seed {seed}: {violation}")
    pytest.fail(f"60 seeds with this fault broke {others or 'no rule'}")


@pytest.mark.parametrize("planner", [CRASHES, POWER_LOSSES, _hasty])
def test_without_it_the_same_worlds_break_no_rule(planner: Planner) -> None:
    for seed in range(1, 11):
        violation = try_seed(seed, planner).violation
        assert violation is None, f"seed {seed}: {violation}"
