"""Faults of a real server, in the phrases of scenarios: "when node 1 sends Produce reply do drop every 50
times".

Rule: a fault counts the occurrences of its point and strikes at the chosen ones. A server supports the kinds
in `SUPPORTED` and refuses all others when it starts; without faults it runs none of this code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from fencepost.broker.contract import Append
from fencepost.faults.grammar import BadPhrase, quoted
from fencepost.faults.phrases import FAULTS, ActionKind, FaultLine, PointKind
from fencepost.protocol.messages import APIS, Request
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TransactionState
from fencepost.protocol.transaction_log import read_transactions

API_NAMES: Final = {api.request: api.name for api in APIS}


@attrs.define
class DropReply:
    """Drop the reply to a request, and its connection; the request itself has taken effect."""

    fault: FaultLine
    seen: int = 0
    struck: int = 0

    def strikes(self, request: Request) -> bool:
        """Whether this request's reply is to be lost."""
        if API_NAMES[type(request)] != self.fault.when.what:
            return False
        self.seen += 1
        strikes = self.fault.strikes_at(self.seen)
        self.struck += strikes
        return strikes


@attrs.define
class PauseAfterAppend:
    """Stop the node after a record of its transaction log, before any effect of it, until it is killed."""

    fault: FaultLine
    seen: int = 0

    def strikes(self, append: Append) -> TransactionState | None:
        """The state that was written, when this append is the one to stop after."""
        if append.partition.topic != TRANSACTION_STATE_TOPIC:
            return None
        when = self.fault.when
        for name, record in read_transactions(append.batch, append.header):
            if record is None or when.who != f"coordinator of {name}" or not when.means(record.state.name):
                continue
            self.seen += 1
            if self.fault.strikes_at(self.seen):
                return record.state
        return None


ServerFault = DropReply | PauseAfterAppend
SUPPORTED: Final[dict[tuple[PointKind, ActionKind], type[ServerFault]]] = {
    (PointKind.SENDS_REPLY, ActionKind.DROP): DropReply,
    (PointKind.DECIDES, ActionKind.PAUSE): PauseAfterAppend,
}
"""The supported pairs of point and action."""


def server_faults(texts: Iterable[str], *, node_id: int) -> list[ServerFault]:
    """The faults of these texts, for this node. Raises BadPhrase if a server does not support one of them."""
    return [_server_fault(FAULTS.read(text), f"node {node_id}") for text in texts]


def _server_fault(fault: FaultLine, node: str) -> ServerFault:
    when, do = fault.when, fault.do
    made = SUPPORTED.get((when.kind, do.kind))
    if made is None:
        possible = [f"when {point.value.shown} do {action.value.shown}" for point, action in SUPPORTED]
        raise BadPhrase(f"a server cannot do {quoted(str(do))} when {quoted(str(when))}", possible=possible)
    if when.kind is PointKind.SENDS_REPLY and (when.who != node or when.whom):
        because = "a server sees only its own replies and does not know its clients' names"
        raise BadPhrase(f"{quoted(str(when))}: {because}", possible=[f"{node} sends {when.what} reply"])
    if do.who not in ("", node, when.who):
        raise BadPhrase(f"{quoted(str(do))}: a server can only pause itself", possible=[f"pause {node}"])
    if when.is_before or fault.until is not None:
        raise BadPhrase(f"{quoted(str(fault))}: a server supports neither `before` nor `until`")
    return made(fault)
