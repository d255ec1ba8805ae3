"""`broker.faults`: ask a broker for faults, wait until they strike, and end them.

Rule: the same objects serve a broker of this process and a broker process; only the registry that
they call differs. Every method may be called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol

import attrs

from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.faults import BROKER_ACTIONS, BROKER_POINTS, FaultNeverStruck, NoSuchFault
from fencepost.broker.loop_calls import LoopCalls
from fencepost.broker.user_calls import UserCalls
from fencepost.faults.grammar import BadPhrase, quoted
from fencepost.faults.phrases import FAULTS_HELP, FaultLine, Point
from fencepost.protocol.messages import DescribedFault


@contextmanager
def naming_help() -> Generator[None]:
    """Add to a BadPhrase the page that describes the phrases: a traceback shows it after the message."""
    try:
        yield
    except BadPhrase as problem:
        problem.add_note(FAULTS_HELP)
        raise


_EXAMPLES: Final = {"point": "broker sends EndTxn reply to *", "action": "hold", "until": "after 300 ms"}


_GIVEN_APART: Final = {"every": "every= of when()", "at most": "times= of when()", "until": "until= of do()"}
"""What a fault in one line has after its action, and what replaces it in calls."""


def _check_alone(action: str) -> None:
    for words, parameter in _GIVEN_APART.items():
        if f" {words} " in action:
            raise BadPhrase(f"{quoted(action)} is not an action: instead of `{words}`, give {parameter}")


def _check_phrase(name: str, given: object) -> None:
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a phrase such as {_EXAMPLES[name]!r}, not {given!r}")


def _check_number(name: str, given: object) -> None:
    if given is None:
        return
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} must be a number, not {given!r}")
    if given < 1:
        raise ValueError(f"{name} must be at least 1, not {given}")


class FaultRegistry(Protocol):
    """Where the faults of a broker are kept. `poll_s`: a pause (s) between polls that does no harm."""

    @property
    def poll_s(self) -> float: ...

    def add(self, text: str) -> int: ...

    def describe(self) -> list[DescribedFault]: ...

    def remove(self, fault_id: int) -> None: ...

    def end(self, fault_id: int) -> None: ...

    def watch(self, callback: Callable[[Point], None]) -> Callable[[], None]: ...


@attrs.frozen(repr=False)
class FaultHandle:
    """One fault of a broker. `fault_id`: its number at the broker. `text`: the line that added it."""

    fault_id: int
    text: str
    _registry: FaultRegistry

    def __repr__(self) -> str:
        return f"FaultHandle({self.text!r})"

    @property
    def struck(self) -> int:
        """How many times it has struck; 0: not yet."""
        return self._state().struck

    @property
    def reached(self) -> int:
        """How many times its point was reached while it could still strike."""
        return self._state().reached

    @property
    def is_lasting(self) -> bool:
        """Whether something that it did has not ended, such as a pause or a broken disk."""
        return self._state().is_lasting

    def wait_until_struck(self, timeout: float = 10.0) -> None:
        """Return when it has struck. Raises FaultNeverStruck after `timeout` seconds."""
        if missing := self.missing_after(timeout):
            raise FaultNeverStruck(missing)

    def missing_after(self, timeout: float) -> str:
        """Wait for the strike, at most `timeout` seconds; return why it has not struck, or ""."""
        ends = time.monotonic() + timeout
        while (state := self._state()).struck == 0 and time.monotonic() < ends:
            time.sleep(self._registry.poll_s)
        return state.missing

    def end(self) -> None:
        """Undo now what it did: release what it holds, resume what it has paused, repair the disk."""
        self._registry.end(self.fault_id)

    def remove(self) -> None:
        """End it and forget it: it strikes no more, and it is not an error if it has never struck."""
        self._registry.remove(self.fault_id)

    def _state(self) -> DescribedFault:
        for state in self._registry.describe():
            if state.fault_id == self.fault_id:
                return state
        raise NoSuchFault(f"the fault {self.text!r} was removed")


@attrs.frozen(eq=False)
class FaultPoint:
    """The point of a fault that is not complete yet: `do` says what happens there."""

    _when: Point
    _every: int
    _times: int
    _faults: Faults

    def __str__(self) -> str:
        return str(self._when)

    def do(self, action: str, until: str | None = None) -> FaultHandle:
        """Add the fault. `action`: what it does, a phrase such as "hold". `until`: when it ends, a phrase
        such as "after 300 ms"; by default the action's own end. ValueError if a broker cannot play it,
        TypeError if one of them is not text.
        """
        _check_phrase("action", action)
        if until is not None:
            _check_phrase("until", until)
        self._faults.incomplete.pop(self, None)
        with naming_help():
            _check_alone(action)
            end = None if until is None else BROKER_POINTS.read(until)
            do = BROKER_ACTIONS.read(action)
            line = FaultLine(when=self._when, do=do, until=end, every=self._every, times=self._times)
        return self._faults.add(str(line))


@attrs.frozen(repr=False)
class Faults:
    """The faults of a broker, in the phrases of scenarios (scenarios/README.md)."""

    _registry: FaultRegistry
    incomplete: dict[FaultPoint, None] = attrs.field(factory=dict, init=False, eq=False)
    """The points of `when` without a `do` yet, in their order."""

    def when(
        self, point: str, *, nth: int | None = None, every: int | None = None, times: int | None = None
    ) -> FaultPoint:
        """The point at which a fault strikes; `do` then says what it does. ValueError if the phrase or a
        number is wrong, TypeError if `point` is not text or a number is not an int.

        `point`: a phrase such as "broker sends EndTxn reply to *"; it may end in `#3` instead of `nth`.
        `nth`: strike only the `nth` time that the point is reached, counted from 1; by default the first.
        `every`: strike every `every`-th time instead. `times`: the most times that `every` strikes; by
        default there is no limit.
        """
        _check_phrase("point", point)
        for name, number in (("nth", nth), ("every", every), ("times", times)):
            _check_number(name, number)
        with naming_help():
            when = BROKER_POINTS.read(point)
        if nth is not None:
            if when.number != 1:
                raise ValueError(f"nth={nth} for {point!r}: give the occurrence once, as nth or as #N")
            when = attrs.evolve(when, number=nth)
        if every is not None and when.number != 1:
            raise ValueError(f"every={every} for {point!r}: give `every` or one occurrence (#N), not both")
        if times is not None and every is None:
            raise ValueError(
                f"times={times} for {point!r}: it limits the strikes of `every`, so it needs `every`"
            )
        found = FaultPoint(when, every or 0, times or 0, self)
        self.incomplete[found] = None
        return found

    def add(self, text: str) -> FaultHandle:
        """Add a fault in one line, `text`, as `fencepost serve --fault` takes it: "when POINT do ACTION".
        ValueError if a broker cannot play it.
        """
        with naming_help():
            return FaultHandle(self._registry.add(text), text, self._registry)

    def list(self) -> list[FaultHandle]:
        """The faults that were added and not removed, oldest first."""
        return [
            FaultHandle(state.fault_id, state.fault, self._registry) for state in self._registry.describe()
        ]

    def clear(self) -> None:
        """Remove all faults."""
        self.incomplete.clear()
        for fault in self.list():
            fault.remove()

    def require_all_struck(self) -> None:
        """Raise FaultNeverStruck if a fault has not struck, or if a `when` has no `do`."""
        missing = [state.missing for state in self._registry.describe() if state.missing]
        missing += [f'when("{each}") has no do(...), so nothing happens there' for each in self.incomplete]
        if missing:
            raise FaultNeverStruck("\n".join(missing))

    def watch(self, callback: Callable[[Point], None]) -> Callable[[], None]:
        """Call `callback` with each point that the broker reaches, in the broker's thread. Returns a function
        that ends this. An error of `callback` ends it, too; the broker's stop() then raises ObserverFailed.
        """
        return self._registry.watch(callback)


@attrs.frozen
class ThreadFaultRegistry:
    """The faults of a broker that runs in a thread of this process; `loop` is the loop in that thread."""

    injector: BrokerFaultInjector
    loop: LoopCalls
    users: UserCalls

    poll_s = 0.002

    def add(self, text: str) -> int:
        return self.loop.call(lambda: self.injector.add(text).number)

    def describe(self) -> list[DescribedFault]:
        return self.loop.call(self.injector.describe)

    def remove(self, fault_id: int) -> None:
        self.loop.call(lambda: self.injector.remove(fault_id))

    def end(self, fault_id: int) -> None:
        self.loop.call(lambda: self.injector.end(fault_id))

    def watch(self, callback: Callable[[Point], None]) -> Callable[[], None]:
        guarded = self.users.guarded("the function that watches the broker's points", callback)
        self.loop.call(lambda: self.injector.watch(guarded))
        return lambda: self.loop.call(lambda: self.injector.unwatch(guarded))
