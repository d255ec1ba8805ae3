"""Coverage: which cells of the coordinator's tables a run reached, and with which faults (state x input x
fault).

Rule: a cell counts by what reached a coordinator and what its log said at that time, not by what its code
looked up. For each cell that cannot be reached, the reason is here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from fencepost.broker.contract import Received
from fencepost.broker.host import Host
from fencepost.broker.transactions.tables import (
    TRANSACTION_VERSIONS,
    CoordinatorInput,
    EndInput,
    TransactionVersion,
    client_version_of,
)
from fencepost.protocol.messages import AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.judges.rare_states import CAME_BACK, EXPIRED, ROTATED_AT_END, ROTATED_AT_INIT
from fencepost.simulator.judges.transaction_rules import TransactionBook

COUNTED: Final = frozenset({EndTxn, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn})
"""The requests that have a column in the coordinator's tables."""

Cell = tuple[int, TransactionState, EndInput | CoordinatorInput]
"""The transaction version whose table it is, the state before, and the input."""

_ADD: Final = CoordinatorInput.ADD
_MARKERS_WRITTEN: Final = CoordinatorInput.MARKERS_WRITTEN
_ENDS: Final = {
    (TransactionResult.COMMIT, False): EndInput.COMMIT,
    (TransactionResult.COMMIT, True): EndInput.COMMIT_RETRY,
    (TransactionResult.ABORT, False): EndInput.ABORT,
    (TransactionResult.ABORT, True): EndInput.ABORT_RETRY,
}


def cells_of(transaction_version: int) -> tuple[Cell, ...]:
    """Every non-empty cell of the tables of a transaction version. The cells of a table that it shares with
    an older version are those of the older version.
    """
    generation = TRANSACTION_VERSIONS[transaction_version]
    # The first generation that had this table of ends: its requests are served by that one.
    brought_by = min(number for number, other in TRANSACTION_VERSIONS.items() if other.end is generation.end)
    tables = ((brought_by, generation.end), (transaction_version, generation.moves))
    return tuple(
        (version, state, given) for version, table in tables for state, row in table.items() for given in row
    )


_NO_TURNING_BACK: Final = "a producer that asked to commit never asks to abort the same transaction"

UNREACHABLE: Final[Mapping[Cell, str]] = {
    **dict.fromkeys(
        [(2, state, EndInput.COMMIT) for state in TransactionState if state is not TransactionState.ONGOING],
        "a producer commits only after a batch was acknowledged under this epoch, so the transaction is open",
    ),
    (2, TransactionState.EMPTY, EndInput.COMMIT_RETRY): (
        "the previous owner's transaction was aborted, which raised the epoch, and InitProducerId raised it "
        "again"
    ),
    (2, TransactionState.PREPARE_COMMIT, EndInput.ABORT_RETRY): _NO_TURNING_BACK,
    (2, TransactionState.COMPLETE_COMMIT, EndInput.ABORT_RETRY): _NO_TURNING_BACK,
    (0, TransactionState.EMPTY, EndInput.COMMIT): "a new owner has written nothing that it could commit",
}
"""Cells that none of our clients can reach, and why."""


@attrs.define(eq=False)
class CellCounter:
    """The cells and the rare states of one run. A request counts only if it reaches the coordinator while the
    last record of its transactional id is durable. `expired` are the ids that no longer have a record.
    """

    generation: TransactionVersion
    transactions: TransactionBook
    rare_states: Counter[str]
    expired: set[str] = attrs.Factory(set[str])
    cells: defaultdict[Cell, int] = attrs.Factory(lambda: defaultdict[Cell, int](int))

    def received(self, host: Host, arrived: Received) -> None:
        """One of the counted requests reached a node."""
        request: Any = arrived.request
        book = self.transactions
        home = book.homes.get(request.transactional_id)
        if home is None or book.partitions[home].host is not host:
            return
        record = book.latest.get(request.transactional_id)
        # While a record is not durable, no table is asked: the id is busy (TransactionMetadata.pendingState).
        if record is None or book.durable_records.get(request.transactional_id) is not record:
            return
        generation = self.generation
        given: EndInput | CoordinatorInput | None = _ADD
        if isinstance(request, EndTxn):
            generation = client_version_of(EndTxn, arrived.version).transaction_version
            given = end_input(record, request, generation)
        elif isinstance(request, InitProducerId):
            given = CoordinatorInput.INIT
        elif isinstance(request, AddPartitionsToTxn) and request.verify_only:
            given = None
        if given is not None:
            self.cells[generation.number, record.state, given] += 1

    def decided(self, name: str, record: TransactionRecord | None, *, is_tick: bool) -> None:
        """A coordinator decided; called before its record is entered. None: the id expired."""
        before = self.transactions.latest.get(name)
        if record is None:
            self.rare_states[EXPIRED] += 1
            self.expired.add(name)
            return
        if before is None:
            if name in self.expired:
                self.rare_states[CAME_BACK] += 1
                self.expired.remove(name)
            return
        if record.producer_id != before.producer_id:
            self.rare_states[ROTATED_AT_END if record.state.is_complete else ROTATED_AT_INIT] += 1
        if record.state.is_complete:
            given = _MARKERS_WRITTEN
        elif is_tick and record.state.is_prepared:
            given = CoordinatorInput.TIMEOUT
        else:
            return
        self.cells[self.generation.number, before.state, given] += 1


def end_input(record: TransactionRecord, request: EndTxn, generation: TransactionVersion) -> EndInput | None:
    """The column of the table for this EndTxn; None if its producer is neither the owner nor the owner's last
    identity.
    """
    asker = (request.producer_id, request.producer_epoch)
    if asker == (record.producer_id, record.producer_epoch):
        return _ENDS[request.result, False]
    before = (record.producer_id, record.producer_epoch - 1)
    rotated = (record.previous_producer_id, LAST_GRANTED_EPOCH)
    is_retry = asker == before or (record.producer_epoch == 0 and asker == rotated)
    return _ENDS[request.result, True] if generation.renews_identity and is_retry else None


@attrs.frozen(kw_only=True)
class Row:
    """A cell as it is printed: how often it was reached, in all and with each fault, or why it cannot be."""

    state: str
    given: str
    count: int
    faults: Mapping[str, int]
    unreachable: str


@attrs.define
class Coverage:
    """How often each cell was reached, in all and in runs with each kind of fault, and each rare state."""

    cells: Counter[Cell] = attrs.Factory(Counter[Cell])
    rare_states: Counter[str] = attrs.Factory(Counter[str])
    with_faults: Counter[tuple[Cell, str]] = attrs.Factory(Counter[tuple[Cell, str]])

    def add(self, cells: Mapping[Cell, int], faults: Iterable[str], rare_states: Mapping[str, int]) -> None:
        """One run: its cells, the kinds of fault that struck in it, and its rare states."""
        self.cells.update(cells)
        self.rare_states.update(rare_states)
        for fault in faults:
            self.with_faults.update({(cell, fault): count for cell, count in cells.items()})

    def merge(self, other: Coverage) -> None:
        """Add the coverage of other runs."""
        self.cells.update(other.cells)
        self.rare_states.update(other.rare_states)
        self.with_faults.update(other.with_faults)

    def missed(self, transaction_version: int) -> list[Cell]:
        """Cells that could have been reached, and were not."""
        return [
            cell for cell in cells_of(transaction_version) if not self.cells[cell] and cell not in UNREACHABLE
        ]

    def rows(self, transaction_version: int) -> list[Row]:
        with_faults = sorted(self.with_faults.items(), key=lambda each: each[0][1])
        return [
            Row(
                state=cell[1].title,
                given=cell[2].value,
                count=self.cells[cell],
                faults={fault: count for (struck, fault), count in with_faults if struck == cell},
                unreachable=UNREACHABLE.get(cell, ""),
            )
            for cell in cells_of(transaction_version)
        ]
