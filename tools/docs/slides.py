"""The tables of docs/slides.md: the checks of EndTxn, InitProducerId and Produce in the order in which the
broker runs them.

Rule: a slide holds one table from the code; no content of a table is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fencepost.broker.checks import Check
from fencepost.broker.partitions.checks import (
    BEFORE_ASKING,
    CHECKS,
    FORM_CHECKS,
    MARKER_CHECKS,
    OFFSET_CHECKS,
    REQUEST_CHECKS,
)
from fencepost.broker.partitions.produce import ADD_ERRORS, VERIFY_ERRORS
from fencepost.broker.transactions.init_producer_id import GRANTS, IDENTITY_CHECKS, Expectation
from fencepost.broker.transactions.tables import MOVES, CoordinatorInput
from fencepost.protocol import tables
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.tables import Table


def _coded(error: ErrorCode) -> str:
    return f"`{error.name}`"


def _identity_rules() -> str:
    rows = [(str(number), rule.name, _coded(rule.error)) for number, rule in enumerate(IDENTITY_CHECKS, 1)]
    return tables.markdown_table(("", "the request", "answer"), rows)


def _grants() -> str:
    """Includes the states in which markers are being written: there, every InitProducerId must retry."""
    busy: Table = {
        state: dict.fromkeys(Expectation, cell)
        for state, row in MOVES.items()
        if isinstance(cell := row[CoordinatorInput.INIT], ErrorCode)
    }
    return tables.markdown({**GRANTS, **busy}, corner="expects")


def _produce_rules() -> str:
    early = [("a transactional batch", check.name, check.error) for check in BEFORE_ASKING]
    found = [("the request", check.name, check.error) for check in REQUEST_CHECKS] + early
    rows = [(str(number), who, name, _coded(error)) for number, (who, name, error) in enumerate(found, 1)]
    return tables.markdown_table(("", "applies to", "condition", "answer"), rows)


def _add_errors() -> str:
    rows = [
        (_coded(error), _meaning(ADD_ERRORS, error), _meaning(VERIFY_ERRORS, error))
        for error in VERIFY_ERRORS
    ]
    return tables.markdown_table(
        ("the coordinator's error", "answer to Produce 12", "answer to older versions"), rows
    )


def _meaning(meanings: Mapping[ErrorCode, ErrorCode], error: ErrorCode) -> str:
    return _coded(meanings.get(error, error))


def _form_rules() -> str:
    rows = [
        (str(number), check.name, _coded(check.error), check.source)
        for number, check in enumerate(FORM_CHECKS, 1)
    ]
    return tables.markdown_table(("", "a batch that", "answer", "source"), rows)


def _batch_checks() -> str:
    rows = [
        (
            str(number),
            check.name,
            _coded(check.error) if check.error else "its old offset",
            check.protection or "",
            "yes" if check in OFFSET_CHECKS else "",
            _from(check),
        )
        for number, check in enumerate(CHECKS, 1)
    ]
    return tables.markdown_table(("", "a batch that", "answer", "part of", "offsets too", "source"), rows)


def _marker_checks() -> str:
    rows = [
        (str(number), check.name, _coded(check.error), _from(check))
        for number, check in enumerate(MARKER_CHECKS, 1)
    ]
    return tables.markdown_table(("", "a marker that", "answer", "source"), rows)


def _from(check: Check[*tuple[Any, ...]]) -> str:
    since = f", with `{check.since}`" if check.since else ""
    return check.source + since + (f", until `{check.until}`" if check.until else "")


SLIDES: Final[dict[str, Callable[[], str]]] = {
    "identity-rules": _identity_rules,
    "grants-table": _grants,
    "produce-rules": _produce_rules,
    "add-errors": _add_errors,
    "form-rules": _form_rules,
    "batch-checks": _batch_checks,
    "marker-checks": _marker_checks,
}
"""By name of the generated section."""
