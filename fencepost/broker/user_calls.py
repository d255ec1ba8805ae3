"""Functions of a user that a broker calls in its thread: an observer, and what watches its points.

Rule: an error in one of them is the user's, and not a failure of the broker, which continues without this
function. Stopping the broker raises the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from fencepost.broker.observer import Observer, ToldObserver
from fencepost.protocol.errors import FencepostError

Heard = TypeVar("Heard")


class ObserverFailed(FencepostError):
    """An observer of a broker, or a function that watches its points, raised an error, which is the cause of
    this one. It was not called again.
    """


def _no_report(what: str, problem: BaseException) -> None:
    """The default: the error is raised when the broker stops."""


@attrs.define(eq=False)
class UserCalls:
    """The functions of one user, and the first error of each. `report` is called with an error at once."""

    report: Callable[[str, BaseException], None] = _no_report
    failures: list[tuple[str, BaseException]] = attrs.Factory(list[tuple[str, BaseException]])

    def guarded(self, what: str, call: Callable[[Heard], None]) -> Callable[[Heard], None]:
        """A function that calls this one until it raises an error. `what`: its name in the report."""
        is_over = False

        def guard(heard: Heard) -> None:
            nonlocal is_over
            if not is_over:
                try:
                    call(heard)
                except BaseException as problem:  # noqa: BLE001 - pytest.fail() raises no Exception
                    is_over = True
                    self.failures.append((what, problem))
                    self.report(what, problem)

        return guard

    def observing(self, observer: Observer) -> Observer:
        """An observer that hands everything to this one until it raises an error."""

        def tell(hear: Callable[[Observer], None]) -> None:
            hear(observer)

        return ToldObserver(self.guarded("the observer", tell))

    def take_failure(self) -> ObserverFailed | None:
        """The first error since the last call, ready to be raised."""
        if not self.failures:
            return None
        (what, problem), *_ = self.failures
        self.failures.clear()
        failed = ObserverFailed(f"{what} raised {type(problem).__name__}: {problem}")
        failed.__cause__ = problem
        return failed
