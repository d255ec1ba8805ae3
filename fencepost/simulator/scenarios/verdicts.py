"""The verdict on a run: in what it differs from what its scenario expects.

Rule: every judge looks at every run. What is expected must be seen, what is not expected must not be seen,
and a rule that is expected to hold must have been exercised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.faults.phrases import ActionKind
from fencepost.protocol.batches import read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition, TransactionState
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.judges.clients import judge_clients
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.run import CORE_FAILED, NOT_LIVE, Run
from fencepost.simulator.run_spec import Task
from fencepost.simulator.scenarios.model import (
    CONVERGES,
    EXACTLY_ONCE,
    HANGING_TRANSACTION,
    Case,
    ScenarioExpectation,
    spelled_out,
)

# Without these, the run did not exercise exactly-once; the other rules depend on what went wrong.
_TWICE_OR_NEVER: Final = ("duplicate", "unseen")
_OF_COPIES: Final = ("missing-output", "doubled-output")
_A_SYNC: Final = 'a sync, and sync = "none" (the default) never syncs: set sync = "commit" or "all"'
# What a fault needs at its point, or while it lasts, to have an effect.
_NEEDS: Final = {
    ActionKind.SLOW_DISK: _A_SYNC,
    ActionKind.FAIL_SYNCS: _A_SYNC,
    ActionKind.FAIL_APPENDS: "an append to this partition while it lasts",
    ActionKind.MOVE: "a partition that another node leads",
    ActionKind.PARTITION: "a message between the two while it lasts",
    ActionKind.BLOCK: "a message in this direction while it lasts",
    ActionKind.ISOLATE: "a message to or from it while it lasts",
    ActionKind.HOLD: "a connection that is not held or lost already",
    ActionKind.DROP: "a connection that is not lost already",
    ActionKind.CRASH: "a node that runs",
    ActionKind.CUT_POWER: "a node that runs",
    ActionKind.KILL: "a process that runs",
    ActionKind.PAUSE: "somebody who is not paused, stopped or finished already",
    ActionKind.SLOW: "a message from it while it lasts, and no other slowness of it",
    ActionKind.CLOCK: "a jump other than 0",
}
_NO_SYNC: Final = (
    'the power of a node was cut, and sync = "none" (the default) may lose unsynced writes: '
    'in [cluster], sync = "commit" protects transactions, and sync = "all" every acknowledged record'
)


def judge(run: Run) -> None:
    """Let every judge look at the run. Its `breaches` are then those of clients first, of steps last."""
    of_steps, hanging = list(run.breaches), _hanging(run)
    run.breaches[:] = [Violation(anomaly.rule.name, anomaly.text) for anomaly in judge_clients(run)]
    run.breaches += [Violation(HANGING_TRANSACTION, text) for text in hanging]
    # A hanging transaction keeps everything after it from ending: it is the cause, and has its own rule.
    if run.stuck and not hanging:
        run.breaches.append(Violation(CONVERGES, run.stuck[0]))
    run.breaches += of_steps
    # The rules about whole runs: how many roles had to end, how many transactions could have hung, and how
    # many records could have been there twice or not at all.
    exercised = run.exercised
    exercised.update(run.invariants.exercised)
    exercised[CONVERGES] = sum(each.role.task is not Task.READ for each in run.cast)
    exercised[HANGING_TRANSACTION] = _transactions_in_logs(run)
    has_copies = any(role.task is Task.COPY for role in run.spec.roles)
    needed = (*_TWICE_OR_NEVER, *_OF_COPIES) if has_copies else _TWICE_OR_NEVER
    exercised[EXACTLY_ONCE] = min(exercised[name] for name in needed)


def _transactions_in_logs(run: Run) -> int:
    """The number of batches in transactions, and of the states that coordinators logged."""
    journals, found = run.world.journals, 0
    for where in sorted(journals.disks):
        if where in journals.damaged:
            continue
        for header, batch in journals.journal(where).segments.batches(0):
            if where.topic == TRANSACTION_STATE_TOPIC:
                known = [record for _, record in read_transactions(batch, header) if record is not None]
                found += sum(record.state is not TransactionState.EMPTY for record in known)
            else:
                found += header.is_transactional
    return found


def _hanging(run: Run) -> list[str]:
    """Transactions that are open in a partition and unknown to their coordinator, so they never end."""
    found: list[str] = []
    known = run.open_at_coordinators()
    for where in run.spec.partitions:
        log = run.led(where)
        if log is not None:
            found += [
                f"{where} has an open transaction of producer {producer_id} from offset {offset} on, "
                "which its coordinator does not know"
                for offset, producer_id in log.partition.open_transactions.items()
                if (producer_id, where) not in known
            ]
    return found


def log_words(run: Run, where: TopicPartition) -> list[str]:
    """The contents of a partition's log: values, and the names of markers."""
    words: list[str] = []
    for header, batch in run.world.journals.journal(where).segments.batches(0):
        if header.is_control:
            words.append(read_marker(batch).result.name)
        else:
            values = read_columns(batch, header).values
            words += [run.copies.plain(where, bytes(value or b"")).decode() for value in values]
    return words


def problems(case: Case, run: Run) -> list[str]:
    """Every difference between a run and what its scenario expects; empty for one that passed."""
    return [
        *_unexpected(case.expect, run),
        *_of_faults(run),
        *(f"was never reached: {listener.point}" for listener in run.reached if not listener.is_over),
        *_of_values(case.expect, run),
    ]


def problems_of_seed(case: Case, run: Run) -> list[str]:
    """The same for a world that a search found."""
    expect, breach = case.expect, run.breaches[0] if run.breaches else None
    broken = None if breach is None else breach.rule
    found = [
        f"was expected to violate {name}, but {name} holds" for name in expect.violates if name != broken
    ]
    found += [f"never exercises {name}" for name in expect.holds if not _puts_to_test(run, name)]
    if breach is None:
        struck = {each.kind for each in run.random_faults.struck}
        # In a run that was changed by faults of its own, others may no longer strike.
        kinds = () if case.faults else run.spec.random_faults.kinds
        found += [f"fault never struck: {kind.value}" for kind in kinds if kind not in struck]
        found += _of_faults(run)
    elif broken not in expect.violates:
        found.append(f"violates {breach}")
    return found


def _puts_to_test(run: Run, rule: str) -> bool:
    if rule in (NOT_LIVE, CORE_FAILED):
        # A role that works asks something of the cores, and must end.
        return any(each.role.task is not Task.READ for each in run.cast)
    return bool(run.exercised[rule] or run.invariants.exercised[rule])


def hints(case: Case, run: Run) -> list[str]:
    """What to look at first when a run differs from what was expected."""
    power_was_cut = any(
        strike.struck and strike.fault.do.kind is ActionKind.CUT_POWER for strike in run.injector.strikes
    )
    is_without_sync = power_was_cut and case.cluster.sync is SyncPolicy.NONE
    return [*([_NO_SYNC] if is_without_sync else []), *_why_faults_did_not_strike(run)]


def _why_faults_did_not_strike(run: Run) -> Iterator[str]:
    """For each fault that did not strike as often as it should: how often its point was reached, or what it
    needs to have an effect.
    """
    seen = {listener.point: listener.seen for listener in run.injector.waiting}
    for strike in run.injector.strikes:
        (when,), fault = strike.fault.when, strike.fault
        if strike.struck >= fault.times:
            continue
        if strike.fired == fault.times:
            why = _NEEDS.get(fault.do.kind, "something to change: it changed nothing")
            yield f"{fault.do}: its point was reached, but it needs {why}"
        elif not seen.get(when):
            yield f"{fault.do}: its point was never reached: {when}"
        else:
            wanted = when.number + fault.times - 1
            yield f"{fault.do}: its point was reached {seen[when]} of {wanted} times: {when}"


def _unexpected(expect: ScenarioExpectation, run: Run) -> list[str]:
    allowed, kept = spelled_out(expect.violates), spelled_out(expect.holds)
    first = {breach.rule: breach.evidence for breach in reversed(run.breaches)}
    broken = list(dict.fromkeys(breach.rule for breach in run.breaches))
    found = [
        f"violates {name}{', which should hold' if name in kept else ''}: {first[name]}"
        for name in broken
        if name in kept or name not in allowed
    ]
    found += [
        f"was expected to violate {name}, but {name} holds"
        for name in expect.violates
        if not set(spelled_out([name])).intersection(broken)
    ]
    found += [f"never exercises {name}" for name in expect.holds if not run.exercised[name]]
    return found


def _of_faults(run: Run) -> list[str]:
    found: list[str] = []
    for strike in run.injector.strikes:
        (when,) = strike.fault.when
        named = f"{strike.fault.do} ({when})"
        # A fault that never strikes proves nothing, and a scenario would rot in silence.
        if strike.struck < strike.fault.times:
            found.append(f"fault struck {strike.struck} of {strike.fault.times} times: {named}")
        elif strike.never_ended:
            found.append(f"fault never ended: {named} until {strike.fault.until}")
    return found


def _of_values(expect: ScenarioExpectation, run: Run) -> list[str]:
    visible = {where: [value.decode() for value in values] for where, values in run.visible().items()}
    found = [
        f"{where} shows {_list(visible.get(where, []))} to read_committed, not {_list(wanted)}"
        for where, wanted in expect.visible
        if tuple(visible.get(where, ())) != wanted
    ]
    for where, wanted in expect.logs:
        words = log_words(run, where)
        if tuple(words) != wanted:
            found.append(f"the log of {where} holds {_list(words)}, not {_list(wanted)}")
    return found


def _list(words: list[str] | tuple[str, ...]) -> str:
    return f"[{', '.join(words)}]"
