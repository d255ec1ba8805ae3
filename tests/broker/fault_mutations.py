"""Faults that say they struck and do nothing: one planted bug or more for each action of a real broker.

Rule: a planted bug leaves the count of strikes alone, and lets the message, the append or the sync go on as
without a fault. So only a test that looks at what clients or the log see can find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from fencepost.faults.phrases import ActionKind
from tests.broker import test_fault_plan, test_faults
from tests.simulator.planting import Edit, Mutation

INJECTOR: Final = "broker.fault_injector:BrokerFaultInjector"


@attrs.frozen
class IdleFault:
    """A planted bug of an action, and the test of this action that finds it; `proof` takes an empty
    directory.
    """

    kind: ActionKind
    mutation: Mutation
    proof: Callable[[Path], None]

    @property
    def name(self) -> str:
        """What pytest calls it."""
        return f"{self.kind.name.lower()}: {self.mutation.name}"


def _idle(
    kind: ActionKind,
    where: str,
    texts: Mapping[str, str],
    proof: Callable[..., None],
    what: str = "does nothing",
) -> IdleFault:
    """`proof` is a test of test_faults.py or test_fault_plan.py; it may take `tmp_path`."""
    edit = Edit(f"{INJECTOR}.{where}", texts)
    mutation = Mutation(what, breaks="A test passes that has tested nothing.", edits=(edit,))
    needs_directory = "tmp_path" in proof.__code__.co_varnames[: proof.__code__.co_argcount]
    return IdleFault(kind, mutation, partial(_with_directory if needs_directory else _alone, proof))


def _with_directory(proof: Callable[..., None], directory: Path) -> None:
    proof(tmp_path=directory)


def _alone(proof: Callable[[], None], _directory: Path) -> None:
    proof()


def _crash_in_memory(tmp_path: Path) -> None:
    test_fault_plan.test_a_broker_crashes_at_a_decision_and_starts_again(in_memory=True, tmp_path=tmp_path)


_LOST_OR_DONE: Final = test_faults.test_a_lost_request_has_not_happened_and_a_lost_reply_has
_TOO_LATE: Final = test_faults.test_a_delayed_request_of_a_replaced_producer_arrives_too_late
_POWER: Final = test_fault_plan.test_a_power_cut_loses_what_was_not_synced
_AT_ONCE: Final = "return self._let_on(carried)"

IDLE_FAULTS: Final = (
    _idle(
        ActionKind.HOLD,
        "_hold",
        {"place = self.lines.place(carried)": _AT_ONCE},
        test_faults.test_a_held_request_waits_for_its_end_and_so_do_those_after_it,
    ),
    _idle(
        ActionKind.LATE,
        "_hold",
        {"place = self.lines.place(carried)": _AT_ONCE},
        test_faults.test_a_late_message_is_overtaken_by_those_of_other_connections,
    ),
    _idle(
        ActionKind.DELAY,
        "_delay",
        {"self._hold(planned, carried)": "self._let_on(carried)", "carried.connection.close()": "pass"},
        _LOST_OR_DONE,
    ),
    _idle(
        ActionKind.DELAY,
        "_delay",
        {"carried.connection.close()": "pass"},
        _LOST_OR_DONE,
        "its sender waits for it",
    ),
    _idle(
        ActionKind.DELAY,
        "_delay",
        {"self._hold(planned, carried)": "self._let_on(carried)"},
        _TOO_LATE,
        "it arrives in time",
    ),
    _idle(ActionKind.DROP, "_drop", {"carried.connection.close()": "self._let_on(carried)"}, _LOST_OR_DONE),
    _idle(ActionKind.CLOSE, "_close", {"carried.connection.close()": "pass"}, _LOST_OR_DONE),
    _idle(
        ActionKind.TWICE,
        "_twice",
        {"self._let_on(Carried(carried.connection, attrs.evolve(again, to=NOBODY)))": "pass"},
        _LOST_OR_DONE,
    ),
    _idle(
        ActionKind.ANSWER,
        "_answer",
        {"error = ErrorCode[planned.line.do.what]": _AT_ONCE},
        test_faults.test_an_error_is_answered_and_the_request_is_not_carried_out,
    ),
    _idle(ActionKind.CRASH, "_crash", {"if self._site is not None:": "if False:"}, _crash_in_memory),
    _idle(ActionKind.CUT_POWER, "_crash", {"if self._site is not None:": "if False:"}, _POWER),
    _idle(
        ActionKind.CUT_POWER,
        "_crash",
        {"loses_power=do.kind is ActionKind.CUT_POWER": "loses_power=False"},
        _POWER,
        "what was not synced survives",
    ),
    _idle(
        ActionKind.PAUSE,
        "_pause",
        {"site.is_held = True": "pass"},
        test_faults.test_what_a_paused_broker_was_asked_waits,
    ),
    _idle(
        ActionKind.CLOCK,
        "_jump",
        {"self.clock_ms += do.amount": "pass"},
        test_faults.test_a_clock_that_jumps_times_a_transaction_out,
    ),
    _idle(
        ActionKind.SLOW_DISK,
        "slower_syncs",
        {"in self.slow_syncs.items()": "in ()"},
        test_faults.test_a_slow_disk_makes_syncs_take_longer,
    ),
    _idle(
        ActionKind.FAIL_APPENDS,
        "allows",
        {
            "site.host.to_do.popleft()": "pass",
            "site.host.lose(append.partition, problem)\n        return False": "return True",
        },
        test_faults.test_a_disk_refuses_to_append_until_the_fault_ends,
    ),
    _idle(
        ActionKind.FAIL_SYNCS,
        "check_sync",
        {'raise StorageError("the disk refused to sync, by an injected fault")': "pass"},
        test_faults.test_a_disk_refuses_to_sync_until_the_fault_ends,
    ),
)
