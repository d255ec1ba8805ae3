"""What a run came to, against what its scenario expected.

Rule: every judge looks at every run. What is expected must be seen, what is not expected must not, and what
was to be put to the test must have been.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.faults.phrases import ActionKind
from fencepost.protocol.batches import read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition, TransactionState
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.actors.workloads import transform, without_mark
from fencepost.simulator.judges.black_box import check, exactly_once
from fencepost.simulator.scenarios.model import ConsumerPart, ProcessorPart, ScenarioExpectation
from fencepost.simulator.scenarios.playing import Play
from fencepost.simulator.scenarios.rule_names import CONVERGES, EXACTLY_ONCE, HANGING_TRANSACTION, spelled_out

# Without these, nobody exercised at exactly-once; the rest of it depends on what went wrong.
_TWICE_OR_NEVER: Final = ("duplicate", "unseen")
_OF_COPIES: Final = ("missing-output", "doubled-output")
_NO_SYNC: Final = (
    'the power of a node was cut, and sync = "none", the default, promises nothing about that: '
    'with sync = "commit" in [cluster] transactions outlast it, with "all" every record'
)


@attrs.define(eq=False)
class Findings:
    """What the judges of a run say: breaches by rule, and how often each rule had something to look at."""

    breaches: list[tuple[str, str]] = attrs.Factory(list[tuple[str, str]])
    exercised: Counter[str] = attrs.Factory(Counter[str])

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the rules that were broken, once each."""
        return tuple(dict.fromkeys(name for name, _ in self.breaches))

    def evidence(self, name: str) -> str:
        """The first breach of a rule."""
        return next(text for found, text in self.breaches if found == name)


def judge(play: Play) -> Findings:
    """Asks every judge."""
    findings = Findings()
    visible = visible_values(play)
    verdict = check(play.operations, finally_read=_read_to_their_end(play))
    findings.breaches += [(anomaly.rule.name, anomaly.text) for anomaly in verdict.violations]
    findings.exercised.update(verdict.exercised)
    for part in play.case.scenario.parts:
        if isinstance(part, ProcessorPart):
            _judge_copies(part, visible, findings)
    hanging = _hanging(play)
    findings.breaches += [(HANGING_TRANSACTION, text) for text in hanging]
    if play.stuck and not hanging:
        findings.breaches.append((CONVERGES, play.stuck[0]))
    breach = play.step_judge.breach
    if breach is not None:
        findings.breaches.append((breach.rule, breach.evidence))
    findings.exercised.update(play.step_judge.inner.exercised)
    _count_what_there_was(play, findings.exercised)
    return findings


def _count_what_there_was(play: Play, exercised: Counter[str]) -> None:
    """For the rules about whole runs: who had to come to his end, which transactions could have hung, and
    how many records could have been there twice or not at all.
    """
    exercised[CONVERGES] = sum(not isinstance(part, ConsumerPart) for part, _, _ in play.cast)
    exercised[HANGING_TRANSACTION] = _transactions_in_logs(play)
    copies = any(isinstance(part, ProcessorPart) for part in play.case.scenario.parts)
    exercised[EXACTLY_ONCE] = min(
        exercised[name] for name in (*_TWICE_OR_NEVER, *(_OF_COPIES if copies else ()))
    )


def _transactions_in_logs(play: Play) -> int:
    """How many batches are of transactions, and how often a coordinator decided on one."""
    journals, found = play.world.journals, 0
    for where in sorted(journals.disks):
        for header, batch in journals.journal(where).batches(0):
            if where.topic == TRANSACTION_STATE_TOPIC:
                known = [record for _, record in read_transactions(batch, header) if record is not None]
                found += sum(record.state is not TransactionState.EMPTY for record in known)
            else:
                found += header.is_transactional
    return found


def visible_values(play: Play) -> dict[TopicPartition, list[str]]:
    """What read_committed saw at the end; of a copy only what an application would have written."""
    assert play.final is not None, "a run is judged when it is over"
    return {
        where: [without_mark(value.encode()).decode() for value in values]
        for where, values in play.final.values.items()
    }


def _read_to_their_end(play: Play) -> list[TopicPartition]:
    assert play.final is not None, "a run is judged when it is over"
    positions = play.final.positions()
    return [
        where
        for where in play.case.cluster.partitions
        if positions.get(where, 0) >= play.world.journals.journal(where).log_end_offset
    ]


def _judge_copies(part: ProcessorPart, visible: dict[TopicPartition, list[str]], findings: Findings) -> None:
    inputs = {where: [value.encode() for value in visible.get(where, ())] for where in part.reads}
    outputs = {
        target: [value.encode() for value in visible.get(target, ())]
        for target in (TopicPartition(part.writes, where.partition) for where in part.reads)
    }
    verdict = exactly_once(
        inputs,
        outputs,
        lambda where, value: [(TopicPartition(part.writes, where.partition), transform(value))],
    )
    findings.breaches += [(anomaly.rule.name, anomaly.text) for anomaly in verdict.violations]
    findings.exercised.update(verdict.exercised)


def _hanging(play: Play) -> list[str]:
    """Transactions that are open at a partition though nobody will ever end them: the coordinator knows
    nothing of it.
    """
    found: list[str] = []
    known = play.open_at_coordinators()
    for where in play.case.cluster.partitions:
        log = play.led(where)
        if log is not None:
            found += [
                f"{where} waits from offset {offset} on for the end of a transaction of producer "
                f"{producer_id}, which its coordinator does not know of"
                for offset, producer_id in log.partition.open_transactions.items()
                if (producer_id, where) not in known
            ]
    return found


def log_words(play: Play, where: TopicPartition) -> list[str]:
    """What stands in a partition's log: values, and the names of markers."""
    words: list[str] = []
    for header, batch in play.world.journals.journal(where).batches(0):
        if header.is_control:
            words.append(read_marker(batch).result.name)
        else:
            values = read_columns(batch, header).values
            words += [without_mark(bytes(value or b"")).decode() for value in values]
    return words


def problems(play: Play, findings: Findings) -> list[str]:
    """Everything in which a run was not as expected; empty for one that passed."""
    expect = play.case.expect
    return [
        *_unexpected(expect, findings),
        *_of_faults(play),
        *(f"was never reached: {heard.point}" for heard in play.reached if not heard.is_over),
        *_of_values(play),
    ]


def hints(play: Play) -> list[str]:
    """What to look at first, for whoever did not get what he expected."""
    power_was_cut = any(
        strike.struck and strike.fault.do.kind is ActionKind.CUT_POWER for strike in play.injector.strikes
    )
    return [_NO_SYNC] if power_was_cut and play.case.cluster.sync is SyncPolicy.NONE else []


def _unexpected(expect: ScenarioExpectation, findings: Findings) -> list[str]:
    allowed, kept = spelled_out(expect.violates), spelled_out(expect.holds)
    found = [
        f"{'was expected to keep' if name in kept else 'breaks'} {name}: {findings.evidence(name)}"
        for name in findings.broken
        if name in kept or name not in allowed
    ]
    found += [
        f"was expected to break {name}, and keeps it"
        for name in expect.violates
        if not set(spelled_out([name])).intersection(findings.broken)
    ]
    found += [
        f"says nothing about {name}: there was nothing to look at"
        for name in expect.holds
        if not findings.exercised[name]
    ]
    return found


def _of_faults(play: Play) -> list[str]:
    found: list[str] = []
    for strike in play.injector.strikes:
        (when,) = strike.fault.when
        named = f"{strike.fault.do} ({when})"
        if strike.struck < strike.fault.times:
            found.append(f"fault never struck: {named}, {strike.struck} times of {strike.fault.times}")
        elif strike.never_ended:
            found.append(f"fault never ended: {named} until {strike.fault.until}")
    return found


def _of_values(play: Play) -> list[str]:
    visible = visible_values(play)
    expect = play.case.expect
    found = [
        f"{where} shows {_list(visible.get(where, []))} to read_committed, not {_list(wanted)}"
        for where, wanted in expect.visible
        if tuple(visible.get(where, ())) != wanted
    ]
    for where, wanted in expect.logs:
        words = log_words(play, where)
        if tuple(words) != wanted:
            found.append(f"the log of {where} holds {_list(words)}, not {_list(wanted)}")
    return found


def _list(words: list[str] | tuple[str, ...]) -> str:
    return f"[{', '.join(words)}]"
