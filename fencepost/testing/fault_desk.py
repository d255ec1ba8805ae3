"""The faults of a broker in another process, by requests: the desk behind `BrokerProcess.faults` and
`fencepost fault`.

Rule: each call is one request on a connection of its own, since the broker may be killed between two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from fencepost.broker.faults import NoSuchFault
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import Point
from fencepost.protocol.errors import ErrorCode, FencepostError
from fencepost.protocol.messages import DescribedFault

POLL_S: Final = 0.02


@attrs.frozen
class WireDesk:
    """The faults of a broker that this admin reaches."""

    admin: Callable[[], Admin]

    poll_s = POLL_S

    def add(self, text: str) -> int:
        with self.admin() as admin:
            try:
                return admin.add_fault(text)
            except RequestFailed as problem:
                if problem.error is not ErrorCode.INVALID_REQUEST:
                    raise
                raise BadPhrase(_because(problem)) from problem

    def describe(self) -> list[DescribedFault]:
        with self.admin() as admin:
            return admin.list_faults()

    def end(self, fault_id: int) -> None:
        with self.admin() as admin:
            _known(admin.end_fault, fault_id)

    def remove(self, fault_id: int) -> None:
        with self.admin() as admin:
            _known(admin.remove_fault, fault_id)

    def watch(self, hear: Callable[[Point], None]) -> Callable[[], None]:
        raise FencepostError("the points of a broker process cannot be watched; use a fencepost.Broker")


def _known(do: Callable[[int], None], fault_id: int) -> None:
    try:
        do(fault_id)
    except RequestFailed as problem:
        if problem.error is not ErrorCode.INVALID_REQUEST:
            raise
        raise NoSuchFault(_because(problem)) from problem


def _because(problem: RequestFailed) -> str:
    """The sentence of the broker, without the name of the request before it and of the error after it."""
    return problem.because.partition(": ")[2].removesuffix(f" ({problem.error.name})")
