"""The requests that add, list and remove faults while a broker runs.

Rule: the server answers them itself, past the node and past all faults, so that a paused broker can be
resumed. With ACLs they need rights on the cluster; without, the client must be on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.faults import NoSuchFault
from fencepost.faults.grammar import BadPhrase
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import ReplyBody

NO_FAULT: Final = -1


def _add(injector: BrokerFaultInjector, request: m.AddFaults) -> m.AddFaultsReply:
    results: list[m.FaultResult] = []
    for text in request.faults:
        try:
            planned = injector.add(text)
        except BadPhrase as problem:
            results.append(_refused(NO_FAULT, " ".join([str(problem), *getattr(problem, "__notes__", ())])))
        else:
            results.append(m.FaultResult(fault_id=planned.number, error=NO_ERROR, because=""))
    return m.AddFaultsReply(faults=tuple(results))


def _list(injector: BrokerFaultInjector, request: m.ListFaults) -> m.ListFaultsReply:
    return m.ListFaultsReply(faults=tuple(injector.describe()))


def _remove(injector: BrokerFaultInjector, request: m.RemoveFaults) -> m.RemoveFaultsReply:
    results: list[m.FaultResult] = []
    for fault_id in request.fault_ids:
        try:
            (injector.end if request.keeps else injector.remove)(fault_id)
        except NoSuchFault as problem:
            results.append(_refused(fault_id, str(problem)))
        else:
            results.append(m.FaultResult(fault_id=fault_id, error=NO_ERROR, because=""))
    return m.RemoveFaultsReply(faults=tuple(results))


def _refused(fault_id: int, because: str) -> m.FaultResult:
    return m.FaultResult(fault_id=fault_id, error=ErrorCode.INVALID_REQUEST, because=because)


FAULT_REQUESTS: Final[dict[type[Any], Callable[[BrokerFaultInjector, Any], ReplyBody]]] = {
    m.AddFaults: _add,
    m.ListFaults: _list,
    m.RemoveFaults: _remove,
}
