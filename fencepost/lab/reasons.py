"""Why: for each decision of a node, the rule that made it, in one sentence.

A refusal names the row of the table that the code ran: `Outcome.rulings` has it. What was accepted shows in
the appends of the step. Each is explained from what the partition or the coordinator knew before, by the same
tables: the row that a batch passed, the cell of the coordinator's table that led from one state to the next.

Rule: it looks at one step of one node, and at what the node was before (node_state.py); it changes nothing.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.contract import Input, Outcome, Received, ReplyTo, Ruling, Send
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER
from fencepost.broker.transactions.tables import Cell, CoordinatorInput, EndInput, client_version_of
from fencepost.lab.append_reasons import LOGS, AppendReasons
from fencepost.lab.rules import Reason
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader, read_header
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.judges.coverage import end_input


@attrs.define
class Reasons:
    """Why a step did what it did. `appends` by the identity of each Append; `replies` leave now or later;
    `sends` by token; `arrival` explains an input that wrote nothing.
    """

    appends: dict[int, Reason] = attrs.Factory(dict[int, Reason])
    replies: dict[ReplyTo, Reason] = attrs.Factory(dict[ReplyTo, Reason])
    sends: dict[int, Reason] = attrs.Factory(dict[int, Reason])
    arrival: Reason | None = None


def explain(name: str, node: Node, arrived: Input, outcome: Outcome, before: LOGS) -> Reasons:
    """The reasons of one step of the node with this name; `before` are its logs before the step."""
    found = Reasons()
    for ruling in outcome.rulings:
        found.replies.setdefault(ruling.to, refusal(name, arrived, ruling, before))
    written = AppendReasons(name, node, arrived, before)
    for append in outcome.appends:
        reason = written.explain(append)
        if reason is not None:
            found.appends[id(append)] = reason
    found.replies.update(written.replies)
    for effect in outcome.effects:
        if isinstance(effect, Send) and (reason := request_reason(name, effect, node)) is not None:
            found.sends[effect.token] = reason
    if isinstance(arrived, Received):
        found.arrival = found.replies.get(arrived.to)
        if found.arrival is None and not outcome.appends:
            found.arrival = _nothing_written(name, arrived, outcome, before)
    return found


# --- refusals -----------------------------------------------------------------------------------------------

_ABOUT_IT: Final = frozenset({"is", "has", "holds", "was", "waited", "does", "overtakes", "expects"})
"""The first words of a row that continues "because it ..."."""
_RETRY: Final = " retry -> "
"""In the cell of a request with the epoch before the last end: EndInput.COMMIT_RETRY or ABORT_RETRY."""


def refusal(name: str, arrived: Input, ruling: Ruling, before: LOGS) -> Reason:
    """Why a request, or its part for one partition, is refused."""
    refused, where = ruling.refused, ruling.partition
    if refused.error is NO_ERROR:
        return _duplicate(name, arrived, ruling, before)
    because = refused.because or refused.error.meaning
    if because.split(" ")[0] in _ABOUT_IT:
        because = f"it {because}"
    what = type(arrived.request).__name__ if isinstance(arrived, Received) else "the waiting request"
    place = "" if where is None else f" for {where}"
    cell = _cell(arrived, ruling, before)
    more = _epoch_of(arrived, cell, because)
    return Reason(
        text=f"{name} refuses {what}{place} with {refused.error.name}, because {because}{more}.",
        rule=cell or because.removeprefix("it "),
        table=ruling.table,
        error=refused.error.name,
        source=refused.source or f"KafkaApis.handle{what}Request",
    )


def _epoch_of(arrived: Input, cell: str, because: str) -> str:
    """What the epoch of a refused EndTxn is, if that is why."""
    match arrived:
        case Received(request=m.EndTxn()) if _RETRY in cell:
            return ", and the request has the epoch of the transaction before"
        case Received(request=m.EndTxn(producer_epoch=epoch)) if because.startswith("the owner's epoch"):
            return f", and that of the request is {epoch}"
        case _:
            return ""


def _cell(arrived: Input, ruling: Ruling, before: LOGS) -> str:
    """The cell of the coordinator's table that refused, if it was one."""
    if not isinstance(arrived, Received) or not ruling.table.startswith(("MOVES", "END_")):
        return ""
    record = _record_of(arrived.request, before)
    if record is None:
        return ""
    given: EndInput | CoordinatorInput = CoordinatorInput.ADD
    if isinstance(arrived.request, m.InitProducerId):
        given = CoordinatorInput.INIT
    elif isinstance(arrived.request, m.EndTxn):
        request = arrived.request
        generation = client_version_of(m.EndTxn, arrived.version).transaction_version
        given = end_input(record, request, generation) or EndInput[request.result.name]
    return f"{record.state.title} x {given.value} -> {ruling.refused.error.name}"


def _duplicate(name: str, arrived: Input, ruling: Ruling, before: LOGS) -> Reason:
    where, cached = ruling.partition, ""
    header = None if where is None else _header_in(arrived, where)
    if header is not None and where is not None and where in before:
        entry = before[where].producers.get(header.producer_id, (UNKNOWN_PRODUCER, None))[0]
        for batch in entry.batches:
            if batch.last_sequence == header.last_sequence:
                cached = (
                    f": sequences {batch.first_sequence} to {batch.last_sequence} are at offset "
                    f"{batch.first_offset} already"
                )
    return Reason(
        text=f"{name} appends nothing to {where}, because the batch {ruling.refused.because}{cached}; the "
        "retry gets the offset of the first attempt.",
        rule=ruling.refused.because,
        table=ruling.table,
        source=ruling.refused.source,
    )


def _header_in(arrived: Input, where: TopicPartition) -> BatchHeader | None:
    if isinstance(arrived, Received) and isinstance(arrived.request, m.Produce):
        for part in arrived.request.partitions:
            if (part.topic, part.partition) == where:
                return read_header(part.records)
    return None


# --- requests that write nothing ----------------------------------------------------------------------------


def _nothing_written(name: str, arrived: Received, outcome: Outcome, before: LOGS) -> Reason | None:
    """Why a request changed nothing, and is not refused."""
    request = arrived.request
    record = _record_of(request, before)
    if isinstance(request, m.EndTxn) and record is not None:
        generation = client_version_of(m.EndTxn, arrived.version).transaction_version
        given = end_input(record, request, generation)
        cell: Cell | None = None if given is None else generation.end[record.state].get(given)
        if given is not None and cell is record.state:
            return Reason(
                text=f"{name} answers EndTxn as before and writes nothing, because the transaction has ended "
                "this way already.",
                rule=f"{record.state.title} x {given.value} -> {record.state.title}",
                table=generation.end.name,
                source=generation.end.source,
            )
    if isinstance(request, m.AddPartitionsToTxn) and record is not None:
        return _nothing_added(name, request)
    if isinstance(request, m.Produce | m.TxnOffsetCommit) and any(
        isinstance(effect, Send) and isinstance(effect.request, m.AddPartitionsToTxn)
        for effect in outcome.effects
    ):
        return Reason(
            text=f"{name} keeps the write waiting and asks the transaction coordinator first, because the "
            "transaction is not open in this partition yet.",
            rule="the transaction is not open here: verification guard",
            source="KIP-890, ReplicaManager.maybeSendPartitionsToTransactionCoordinator",
        )
    return None


def _nothing_added(name: str, request: m.AddPartitionsToTxn) -> Reason:
    places = ", ".join(map(str, request.partitions))
    does, rule = f"adds nothing, because the transaction has {places} already", "already in the transaction"
    if request.verify_only:
        does, rule = f"checks whether the transaction has {places}, and writes nothing", "verification"
    return Reason(
        text=f"{name} {does}.",
        rule=rule,
        source="KIP-890, TransactionCoordinator.handleAddPartitionsToTransaction",
    )


def _record_of(request: m.Request, before: LOGS) -> TransactionRecord | None:
    name: object = getattr(request, "transactional_id", None)
    for where, led in before.items():
        if where.topic == TRANSACTION_STATE_TOPIC and name in led.transactions:
            return led.transactions[str(name)][0]
    return None


def request_reason(name: str, send: Send, node: Node) -> Reason | None:
    """Why a node sends a request to another one, or to itself."""
    match send.request:
        case m.WriteTxnMarkers(markers=(marker, *_)):
            return Reason(
                text=f"{name} sends the {marker.result.name} markers, because the decision is durable and no "
                f"reply has come from {', '.join(map(str, marker.partitions))} yet.",
                rule=f"decided: {marker.result.name}",
                source="KIP-98, TransactionMarkerChannelManager.addTxnMarkersToSend",
            )
        case m.AddPartitionsToTxn(verify_only=verifies):
            does = "verifies" if verifies else "adds"
            return Reason(
                text=f"{name} {does} its partition at the coordinator, because the first write of a "
                "transaction is only appended into one that the coordinator knows to be open.",
                rule="the transaction is not open here: verification guard",
                source="KIP-890, ReplicaManager.maybeSendPartitionsToTransactionCoordinator",
            )
        case _:
            return None
