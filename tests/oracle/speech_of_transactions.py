"""Questions about producers and transactions, and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    TransactionResult,
)
from tests.oracle.conversation import Fields
from tests.oracle.phrasing import Asking, Telling, Told, body_of, errors_of, names_of, tell_error
from tests.oracle.symbols import Symbols


def ask_init(asking: Asking) -> m.Request:
    args = asking.args
    return m.InitProducerId(
        transactional_id=args.get("transactional_id"),
        transaction_timeout_ms=args["timeout_ms"],
        producer_id=asking.symbols.producer_id(args.get("producer")),
        producer_epoch=args.get("epoch", NO_PRODUCER_EPOCH),
    )


def tell_identity(reply: Reply, telling: Telling) -> Told:
    body = reply.body
    if not isinstance(body, m.InitProducerIdReply | m.EndTxnReply):
        return {"error": reply.error.name, "producer": None, "epoch": NO_PRODUCER_EPOCH}
    producer = telling.symbols.producer(body.producer_id)
    return {"error": reply.error.name, "producer": producer, "epoch": body.producer_epoch}


def ask_add(asking: Asking) -> m.Request:
    args = asking.args
    return m.AddPartitionsToTxn(
        transactional_id=args["transactional_id"],
        producer_id=asking.symbols.producer_id(args.get("producer")),
        producer_epoch=args["epoch"],
        verify_only=args.get("verify_only", False),
        partitions=names_of(args["partitions"]),
    )


ADD_BATCHED_FROM: Final = 4  # AddPartitionsToTxnRequest: since then it has an error of its own as well


def tell_added(reply: Reply, telling: Telling) -> Told:
    batched = telling.question.version >= ADD_BATCHED_FROM
    if batched and reply.error is ErrorCode.UNSUPPORTED_VERSION:
        return {"error": reply.error.name}
    body = body_of(reply, m.AddPartitionsToTxnReply)
    refused = dict.fromkeys(telling.args["partitions"], reply.error.name)
    parts = refused if body is None else errors_of(body.partitions)
    return {"error": ErrorCode.NONE.name, **parts} if batched else parts


def ask_add_offsets(asking: Asking) -> m.Request:
    args = asking.args
    return m.AddOffsetsToTxn(
        transactional_id=args["transactional_id"],
        producer_id=asking.symbols.producer_id(args.get("producer")),
        producer_epoch=args["epoch"],
        group_id=args["group"],
    )


def ask_end(asking: Asking) -> m.Request:
    args = asking.args
    return m.EndTxn(
        transactional_id=args["transactional_id"],
        producer_id=asking.symbols.producer_id(args.get("producer")),
        producer_epoch=args["epoch"],
        result=TransactionResult(args["commit"]),
    )


END_RENEWS_FROM: Final = 5  # EndTxnResponse: since then it says who the producer is from now on


def tell_ended(reply: Reply, telling: Telling) -> Told:
    renews = telling.question.version >= END_RENEWS_FROM
    return tell_identity(reply, telling) if renews else tell_error(reply, telling)


def ask_markers(asking: Asking) -> m.Request:
    """One marker, or several in `markers`."""
    markers = asking.args.get("markers", [asking.args])
    return m.WriteTxnMarkers(markers=tuple(_marker(asking.symbols, marker) for marker in markers))


def _marker(symbols: Symbols, args: Fields) -> m.TransactionMarker:
    symbols.coordinator(args["coordinator_epoch"])
    return m.TransactionMarker(
        producer_id=symbols.producer_id(args.get("producer")),
        producer_epoch=args["epoch"],
        result=TransactionResult(args["commit"]),
        coordinator_epoch=args["coordinator_epoch"],
        transaction_version=args.get("transaction_version", 0),
        partitions=names_of(args["partitions"]),
    )


def tell_markers(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.WriteTxnMarkersReply)
    if body is None:
        return tell_error(reply, telling)
    if "markers" not in telling.args:
        return errors_of(part for marker in body.markers for part in marker.partitions)
    told: dict[str | None, Told] = {}
    for marker in body.markers:
        told.setdefault(telling.symbols.producer(marker.producer_id), {}).update(errors_of(marker.partitions))
    return told


def ask_describe(asking: Asking) -> m.Request:
    return m.DescribeTransactions(transactional_ids=tuple(asking.args["transactional_ids"]))


def tell_transactions(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.DescribeTransactionsReply)
    if body is None:
        return tell_error(reply, telling)
    return [_transaction(found, telling.symbols) for found in body.transactions]


def _transaction(found: m.TransactionDescription, symbols: Symbols) -> Told:
    if found.error is not ErrorCode.NONE:
        return {"error": found.error.name}
    names = ("offsets" if p.topic == CONSUMER_OFFSETS_TOPIC else str(p) for p in found.partitions)
    return {
        "error": found.error.name,
        "state": found.state.title,
        "timeout_ms": found.timeout_ms,
        "producer": symbols.producer(found.producer_id),
        "epoch": found.producer_epoch,
        "started": found.start_ms > 0,
        "partitions": sorted(names),
    }


def ask_list(asking: Asking) -> m.Request:
    args = asking.args
    return m.ListTransactions(
        states=tuple(args.get("states", ())),
        producer_ids=tuple(asking.symbols.producer_id(symbol) for symbol in args.get("producers", ())),
        duration_ms=args.get("duration_ms", NO_TIMESTAMP),
    )


def tell_list(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ListTransactionsReply)
    if body is None:
        return tell_error(reply, telling)
    found = [
        [listed.transactional_id, telling.symbols.producer(listed.producer_id), listed.state.title]
        for listed in sorted(body.transactions, key=lambda listed: listed.transactional_id)
    ]
    return {"error": reply.error.name, "unknown_states": list(body.unknown_states), "transactions": found}
