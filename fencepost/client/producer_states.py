"""The states of a producer as tables: what each call and each event does in each state (TransactionManager).

Rule: a cell is the next state or the error that refuses a call; an absent cell cannot happen. Nothing else
moves a producer.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import IdentityEnum


class ProducerState(IdentityEnum):
    """Kafka's states, and two more: commit outcome unknown, and closed."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING_TRANSACTION = "committing"
    ABORTING_TRANSACTION = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"
    COMMIT_OUTCOME_UNKNOWN = "commit outcome unknown"
    CLOSED = "closed"


class ProducerInput(IdentityEnum):
    """Calls of the user, then events."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    CLOSE = "close"
    INITIALIZED = "identity granted"
    ENDED = "transaction ended"
    FAILED = "abortable failure"
    RENEW = "sequence missing"
    FATAL = "fatal failure"
    COMMIT_UNKNOWN = "commit outcome unknown"


Cell = ProducerState | ErrorCode
ProducerTable = dict[ProducerState, dict[ProducerInput, Cell]]

_S, _I = ProducerState, ProducerInput
_WRONG = ErrorCode.INVALID_TXN_STATE
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_SPOILED = ErrorCode.TRANSACTION_ABORTABLE

_CALLS: Final = (_I.INIT, _I.BEGIN, _I.SEND, _I.SEND_OFFSETS, _I.COMMIT, _I.ABORT)
_EVENTS: Final = (_I.INITIALIZED, _I.ENDED, _I.FAILED, _I.RENEW, _I.FATAL, _I.COMMIT_UNKNOWN)


def _calls(error: ErrorCode, **but: Cell) -> dict[ProducerInput, Cell]:
    """Every call is refused with `error`, except those named; close() always works."""
    return {call: but.get(call.name, error) for call in _CALLS} | {_I.CLOSE: _S.CLOSED}


def _stays(state: ProducerState) -> dict[ProducerInput, Cell]:
    """A state that only close() leaves: late events change nothing."""
    return _calls(_WRONG) | dict.fromkeys(_EVENTS, state)


_LAST_STATES: Final[ProducerTable] = {
    _S.FATAL_ERROR: _stays(_S.FATAL_ERROR),
    _S.COMMIT_OUTCOME_UNKNOWN: _stays(_S.COMMIT_OUTCOME_UNKNOWN),
    _S.CLOSED: _stays(_S.CLOSED),
}

LAST_STATES: Final = frozenset(_LAST_STATES)
"""States that only close() leaves."""

TRANSACTIONAL: Final[ProducerTable] = {
    _S.UNINITIALIZED: {**_calls(_WRONG, INIT=_S.INITIALIZING)},
    _S.INITIALIZING: {
        **_calls(_BUSY, INIT=_S.INITIALIZING),  # after a timeout the same call continues to wait
        _I.INITIALIZED: _S.READY,
        _I.FAILED: _S.UNINITIALIZED,
        _I.FATAL: _S.FATAL_ERROR,
    },
    _S.READY: {**_calls(_WRONG, BEGIN=_S.IN_TRANSACTION), _I.FATAL: _S.FATAL_ERROR},
    _S.IN_TRANSACTION: {
        **_calls(
            _WRONG,
            SEND=_S.IN_TRANSACTION,
            SEND_OFFSETS=_S.IN_TRANSACTION,
            COMMIT=_S.COMMITTING_TRANSACTION,
            ABORT=_S.ABORTING_TRANSACTION,
        ),
        _I.FAILED: _S.ABORTABLE_ERROR,
        _I.FATAL: _S.FATAL_ERROR,
    },
    _S.COMMITTING_TRANSACTION: {
        **_calls(_BUSY),
        _I.ENDED: _S.READY,
        _I.FAILED: _S.ABORTABLE_ERROR,
        _I.FATAL: _S.FATAL_ERROR,
        _I.COMMIT_UNKNOWN: _S.COMMIT_OUTCOME_UNKNOWN,
    },
    _S.ABORTING_TRANSACTION: {
        **_calls(_BUSY, ABORT=_S.ABORTING_TRANSACTION),
        _I.ENDED: _S.READY,
        _I.INITIALIZED: _S.READY,  # an older client that lost a batch asks for a new epoch (KIP-360)
        _I.FAILED: _S.ABORTING_TRANSACTION,  # the abort is already in progress (KAFKA-14831)
        _I.FATAL: _S.FATAL_ERROR,
    },
    _S.ABORTABLE_ERROR: {
        **_calls(_SPOILED, ABORT=_S.ABORTING_TRANSACTION),
        _I.FAILED: _S.ABORTABLE_ERROR,
        _I.FATAL: _S.FATAL_ERROR,
    },
    **_LAST_STATES,
}
"""A producer with a transactional id."""

IDEMPOTENT: Final[ProducerTable] = {
    _S.UNINITIALIZED: {**_calls(_WRONG, SEND=_S.INITIALIZING), _I.FATAL: _S.FATAL_ERROR},
    _S.INITIALIZING: {
        **_calls(_WRONG, SEND=_S.INITIALIZING),
        _I.INITIALIZED: _S.READY,
        _I.RENEW: _S.INITIALIZING,
        _I.FATAL: _S.FATAL_ERROR,
    },
    _S.READY: {
        **_calls(_WRONG, SEND=_S.READY),
        _I.RENEW: _S.INITIALIZING,  # a new producer id: sequences restart where one is missing (KIP-360)
        _I.FATAL: _S.FATAL_ERROR,
    },
    **_LAST_STATES,
}
"""A producer without one: the first record requests a producer id."""

SENDING: Final = frozenset({_S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION, _S.READY, _S.INITIALIZING})
"""States in which batches are sent, once there is a producer id."""

_NOTES: Final = {
    _S.UNINITIALIZED: "call init_transactions() first",
    _S.INITIALIZING: "init_transactions() has not finished; call it again to keep waiting",
    _S.READY: "no transaction is open; begin_transaction() begins one",
    _S.IN_TRANSACTION: "a transaction is open; commit or abort it first",
    _S.COMMITTING_TRANSACTION: "the commit has not finished",
    _S.ABORTING_TRANSACTION: "the abort has not finished; call abort_transaction() again to keep waiting",
}
"""The next step for a caller whose call the state refuses."""


def refusal(call: ProducerInput, state: ProducerState) -> str:
    """The message for a call that a transactional producer refuses in this state."""
    note = _NOTES[state]
    if call is _I.INIT and state in (_S.READY, _S.IN_TRANSACTION):
        note = "it has been called already, and a producer needs it once"
    return f"{call.value}() is not allowed in state {state.value!r}: {note}"
