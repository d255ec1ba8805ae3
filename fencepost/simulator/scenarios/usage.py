"""Whether a script calls its producer in an order that the client takes.

Rule: the client's own table says so. A script is judged as if every call of it succeeded: what the client
refuses even then is a mistake of whoever wrote it, and what it refuses after a failure is left out (players).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.client.producer_states import TRANSACTIONAL, ProducerInput, ProducerState, refusal
from fencepost.simulator.scenarios.scripts import ScriptLine, Verb

_CALLS: Final = {
    Verb.BEGIN: ProducerInput.BEGIN,
    Verb.SEND: ProducerInput.SEND,
    Verb.SEND_OFFSETS: ProducerInput.SEND_OFFSETS,
    Verb.COMMIT: ProducerInput.COMMIT,
    Verb.ABORT: ProducerInput.ABORT,
}
_ENDED: Final = {
    ProducerState.COMMITTING_TRANSACTION: ProducerState.READY,
    ProducerState.ABORTING_TRANSACTION: ProducerState.READY,
}
TRANSACTIONAL_VERBS: Final = frozenset({Verb.INIT, *_CALLS}) - {Verb.SEND}
"""What only a producer with a transactional id can do."""


def refused_call(script: Iterable[ScriptLine]) -> tuple[ScriptLine, str] | None:
    """The first line that a transactional producer refuses, and what it says to that."""
    state = ProducerState.UNINITIALIZED
    for line in script:
        if line.verb is Verb.INIT:  # of another producer each time, whatever became of the last one
            state = ProducerState.READY
        elif line.verb in _CALLS:
            call = _CALLS[line.verb]
            cell = TRANSACTIONAL[state][call]
            if not isinstance(cell, ProducerState):
                return line, refusal(call, state)
            state = _ENDED.get(cell, cell)
    return None
