"""The faults of a broker in another process: the registries of `fencepost fault` and `BrokerProcess.faults`.

Rule: each call is one request on a connection of its own, since the broker may be killed between two calls.
"""

# A process that is killed forgets its faults. So its owner keeps them: `arguments` gives those that may still
# strike to the next process, which numbers them from 1 again. A process prints a line when a fault strikes,
# and a process that crashes prints nothing after it; `on_strike` applies this line.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from fencepost.broker.faults import Abilities, NoSuchFault, playable
from fencepost.client.errors import RequestFailed, RequestTimeout
from fencepost.client.shells.sync import Admin
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import Point
from fencepost.protocol.errors import ErrorCode, FencepostError
from fencepost.protocol.messages import DescribedFault

POLL_S: Final = 0.02
ANSWER_TIMEOUT_MS: Final = 2_000  # how long to wait for a broker that may just have been killed
NOT_WATCHED: Final = "the points of a broker process cannot be watched; use a fencepost.Broker"


@attrs.frozen
class RemoteFaultRegistry:
    """The faults of a running broker, over the network. `admin` makes a client for one call."""

    admin: Callable[[], Admin]

    poll_s = POLL_S

    def add(self, text: str) -> int:
        with self.admin() as admin:
            try:
                return admin.add_fault(text)
            except RequestFailed as problem:
                if problem.error is not ErrorCode.INVALID_REQUEST:
                    raise
                raise BadPhrase(_because(problem)) from None

    def describe(self) -> list[DescribedFault]:
        with self.admin() as admin:
            return admin.list_faults()

    def end(self, fault_id: int) -> None:
        with self.admin() as admin:
            _checked(admin.end_fault, fault_id)

    def remove(self, fault_id: int) -> None:
        with self.admin() as admin:
            _checked(admin.remove_fault, fault_id)

    def watch(self, callback: Callable[[Point], None]) -> Callable[[], None]:
        raise FencepostError(NOT_WATCHED)


@attrs.define
class _Kept:
    """A fault of a broker process, and what is known of it."""

    state: DescribedFault
    """As the last reply described it."""
    repeats: bool
    child_id: int | None = None
    """Its number in the process that runs."""
    struck_before: int = 0
    """How many times it struck in earlier processes."""
    printed: int = 0
    """How many times it has struck, by the last line about it. Another thread than that of the replies sets
    this: a reply from before the strike, which is processed after the line, must not undo it.
    """

    @property
    def struck(self) -> int:
        return max(self.state.struck, self.printed)

    @property
    def may_strike(self) -> bool:
        return self.repeats or not self.struck

    def described(self) -> DescribedFault:
        missing = "" if self.struck else self.state.missing
        return attrs.evolve(self.state, struck=self.struck, missing=missing)


class ProcessFaultRegistry:
    """The faults of a broker process, through all its kills and starts. `address` gives where it listens, or
    None while it is down.
    """

    poll_s = POLL_S

    def __init__(self, address: Callable[[], str | None], texts: Iterable[str], abilities: Abilities) -> None:
        self._address = address
        self._abilities = abilities
        self._kept: dict[int, _Kept] = {}
        self._added = 0
        for text in texts:
            self._keep(text)

    # --- for the owner of the process

    def arguments(self) -> list[str]:
        """The options of `fencepost serve` for the next process."""
        arguments: list[str] = []
        for kept in self._kept.values():
            kept.struck_before, kept.child_id = kept.struck, None
            if kept.may_strike:
                arguments += ["--fault", kept.state.fault]
                kept.child_id = len(arguments) // 2
        return arguments

    def on_strike(self, struck: Mapping[str, Any]) -> None:
        """Applies the line that a process has printed about a strike."""
        for kept in list(self._kept.values()):
            if kept.child_id == struck["fault_id"]:
                kept.printed = kept.struck_before + int(struck["struck"])

    # --- for its faults

    def add(self, text: str) -> int:
        number = self._keep(text)
        try:
            if (registry := self._registry()) is not None:
                self._kept[number].child_id = registry.add(text)
        except Exception:
            del self._kept[number]
            raise
        return number

    def describe(self) -> list[DescribedFault]:
        registry = self._registry() if any(kept.may_strike for kept in self._kept.values()) else None
        try:
            found = {} if registry is None else {state.fault_id: state for state in registry.describe()}
        except RequestTimeout:
            found = {}  # it was killed at this moment
        for kept in self._kept.values():
            state = None if kept.child_id is None else found.get(kept.child_id)
            if state is not None:
                struck = kept.struck_before + state.struck
                kept.state = attrs.evolve(state, fault_id=kept.state.fault_id, struck=struck)
        return [kept.described() for kept in self._kept.values()]

    def end(self, fault_id: int) -> None:
        self._do(fault_id, RemoteFaultRegistry.end)

    def remove(self, fault_id: int) -> None:
        self._do(fault_id, RemoteFaultRegistry.remove)
        del self._kept[fault_id]

    def watch(self, callback: Callable[[Point], None]) -> Callable[[], None]:
        raise FencepostError(NOT_WATCHED)

    def _keep(self, text: str) -> int:
        fault = playable(text, self._abilities)
        self._added += 1
        missing = f'the fault "{fault}" never struck: no process was started with it'
        state = DescribedFault(
            fault_id=self._added, fault=str(fault), struck=0, reached=0, is_lasting=False, missing=missing
        )
        self._kept[self._added] = _Kept(state, bool(fault.every))
        return self._added

    def _registry(self) -> RemoteFaultRegistry | None:
        address = self._address()
        if address is None:
            return None
        return RemoteFaultRegistry(lambda: Admin(address, default_api_timeout_ms=ANSWER_TIMEOUT_MS))

    def _do(self, fault_id: int, do: Callable[[RemoteFaultRegistry, int], None]) -> None:
        if fault_id not in self._kept:
            raise NoSuchFault(f"there is no fault {fault_id}; it may have been removed")
        registry, child_id = self._registry(), self._kept[fault_id].child_id
        if registry is not None and child_id is not None:
            do(registry, child_id)


def _checked(do: Callable[[int], None], fault_id: int) -> None:
    try:
        do(fault_id)
    except RequestFailed as problem:
        if problem.error is not ErrorCode.INVALID_REQUEST:
            raise
        raise NoSuchFault(_because(problem)) from None


def _because(problem: RequestFailed) -> str:
    """The sentence of the broker, without the name of the request before it and of the error after it."""
    return problem.because.partition(": ")[2].removesuffix(f" ({problem.error.name})")
