"""What a broker reports to its operator: lines for `logging`, at most one per cause and interval.

Rule: cores never log. A line is made here, from a step that the node took, from a reply that leaves, or
from trouble that the host reports. A level that is switched off costs nothing.
"""

#     logger                    lines
#     fencepost.broker          start, recovery and stop; logs, disks and late transactions; bugs
#     fencepost.connections     connections that were refused or closed; rights that were denied
#     fencepost.transactions    producers that were fenced; transactions that were aborted or timed out
#
# The other fields of a line (peer, transactional_id, ...) are attributes of its LogRecord, for use by a
# formatter. The NullHandlers keep an embedded broker silent until its program configures logging. Warnings of
# clients in the same program are printed all the same.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from fencepost.broker.contract import BecomeLeader, Input, Outcome, Tick
from fencepost.broker.node import Node
from fencepost.broker.troubles import Trouble, TroubleKind
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TransactionResult,
    TransactionState,
    escaped,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions

BROKER: Final = logging.getLogger("fencepost.broker")
CONNECTIONS: Final = logging.getLogger("fencepost.connections")
TRANSACTIONS: Final = logging.getLogger("fencepost.transactions")
LOGGERS: Final = (BROKER, CONNECTIONS, TRANSACTIONS)
for _logger in LOGGERS:
    _logger.addHandler(logging.NullHandler())

NOTICE_INTERVAL_MS: Final = 10_000
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class Notices:
    """Lines for `logging`, at most one per cause and interval: a client that misbehaves must not fill the
    disk. The next line of a cause says how many were left out.
    """

    CAUSES_MAX = 1_000  # remembered; beyond this the oldest is forgotten

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` gives milliseconds that never go back."""
        self._clock = clock
        self._logged: dict[str, tuple[int, int]] = {}  # cause: (when last logged, lines left out since)

    def log(
        self,
        cause: str,
        line: str,
        *,
        level: int = logging.WARNING,
        logger: logging.Logger = CONNECTIONS,
        **fields: object,
    ) -> None:
        """Log the line, unless one of the same cause was logged within the interval."""
        if not logger.isEnabledFor(level):
            return
        now = self._clock()
        logged_ms, left_out = self._logged.pop(cause, (now - NOTICE_INTERVAL_MS, 0))
        if now - logged_ms < NOTICE_INTERVAL_MS:
            self._logged[cause] = (logged_ms, left_out + 1)
            return
        more = f" ({left_out} similar since the last one)" if left_out else ""
        logger.log(level, "%s", "\n".join(map(escaped, f"{line}{more}".splitlines())), extra=fields)
        self._logged[cause] = (now, 0)
        if len(self._logged) > self.CAUSES_MAX:
            del self._logged[next(iter(self._logged))]

    def trouble(self, trouble: Trouble) -> None:
        """Log trouble that the host reports."""
        level = logging.WARNING if trouble.kind is TroubleKind.NOTE else logging.ERROR
        self.log(trouble.cause, trouble.text, level=level, logger=BROKER)

    def step(self, kind: type[Any], arrived: Input, outcome: Outcome, node: Node) -> None:
        """Log what a step of the node means for transactions. `kind`, one of REPORTED, is the type of the
        input or of its request.
        """
        if TRANSACTIONS.isEnabledFor(logging.INFO):
            for line in REPORTED[kind](arrived, outcome, node):
                self.log(line.cause, line.text, level=line.level, logger=TRANSACTIONS, **line.fields)

    def refusal(self, kind: type[m.Request], transactional_id: str, error: ErrorCode, peer: str) -> None:
        what = f"{kind.__name__} of {transactional_id!r} from {peer}"
        self.log(
            f"fenced {transactional_id} {peer}",
            f"refused {what}: the producer is fenced ({error.name}); a newer one has its transactional id, "
            "or its transaction timed out",
            logger=TRANSACTIONS,
            peer=peer,
            transactional_id=transactional_id,
        )


class Line(NamedTuple):
    """A line about transactions, and its fields."""

    cause: str
    text: str
    level: int
    fields: dict[str, Any]


def _records(outcome: Outcome) -> Iterator[tuple[str, TransactionRecord]]:
    """The decisions of a step about transactions: records of __transaction_state."""
    for append in outcome.appends:
        if append.partition.topic == TRANSACTION_STATE_TOPIC:
            for name, record in read_transactions(append.batch, append.header):
                if record is not None and record.state.is_prepared:
                    yield name, record


def _about(name: str, record: TransactionRecord, text: str, level: int, **more: object) -> Line:
    fields = {"transactional_id": name, "producer_id": record.producer_id, **more}
    who = f"(producer {record.producer_id}, epoch {record.producer_epoch})"
    return Line(f"{text} {name}", f"transaction of {name!r} {who} {text}", level, fields)


def _timed_out(arrived: Any, outcome: Outcome, node: Node) -> Iterator[Line]:
    for name, record in _records(outcome):
        text = f"timed out after {record.timeout_ms} ms: the coordinator aborts it and fences its producer"
        yield _about(name, record, text, logging.WARNING)


def _replaced(arrived: Any, outcome: Outcome, node: Node) -> Iterator[Line]:
    request: m.InitProducerId = arrived.request
    is_same = request.producer_id != NO_PRODUCER_ID  # it recovers from an error (KIP-360)
    why = (
        "its producer was initialised again"
        if is_same
        else "a new producer has its transactional id and fences it"
    )
    for name, record in _records(outcome):
        text = f"is aborted: {why}"
        yield _about(name, record, text, logging.INFO, client_id=arrived.client_id)


def _ended(arrived: Any, outcome: Outcome, node: Node) -> Iterator[Line]:
    request: m.EndTxn = arrived.request
    is_detailed = TRANSACTIONS.isEnabledFor(logging.DEBUG)
    if is_detailed or request.result is TransactionResult.ABORT:
        for name, record in _records(outcome):
            is_commit = record.state is TransactionState.PREPARE_COMMIT
            text = f"is {'committed' if is_commit else 'aborted'} by its producer"
            level = logging.DEBUG if is_commit else logging.INFO
            yield _about(name, record, text, level, client_id=arrived.client_id)


def _marked(arrived: Any, outcome: Outcome, node: Node) -> Iterator[Line]:
    request: m.WriteTxnMarkers = arrived.request
    if arrived.from_node is None:
        for marker in request.markers:
            where = ", ".join(map(str, marker.partitions))
            text = f"an administrator ends the transaction of producer {marker.producer_id} in {where}"
            yield Line(text, text, logging.WARNING, {"producer_id": marker.producer_id})


def _resumed(arrived: Any, outcome: Outcome, node: Node) -> Iterator[Line]:
    count = sum(key == arrived.partition for key, _ in node.markers_due)
    if count:
        what = "1 transaction that was" if count == 1 else f"{count} transactions that were"
        text = f"{arrived.partition}: the coordinator finishes {what} decided before the restart"
        yield Line(text, text, logging.INFO, {"partition": str(arrived.partition)})


REPORTED: Final[dict[type[Any], Callable[[Any, Outcome, Node], Iterator[Line]]]] = {
    Tick: _timed_out,
    BecomeLeader: _resumed,
    m.InitProducerId: _replaced,
    m.EndTxn: _ended,
    m.WriteTxnMarkers: _marked,
}
"""What a step reports, by its input."""
