"""What is due next: names, each with one deadline, in the order of their deadlines.

Rule: whoever asks what is due looks at nothing that is not. The clock asks for every fetch that waits, and a
coordinator may have thousands of groups.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs
from sortedcontainers import SortedSet

NameT = TypeVar("NameT", str, tuple[str, str])


@attrs.define(eq=False)
class Deadlines(Generic[NameT]):
    """Names by their deadlines."""

    _due_ms: dict[NameT, int] = attrs.Factory(dict[NameT, int])
    _order: SortedSet[tuple[int, NameT]] = attrs.Factory(SortedSet[tuple[int, NameT]])

    def next_ms(self, now: int) -> int | None:
        """The first deadline after now. One that has come and stays has failed: it waits for another."""
        return next((due_ms for due_ms, _ in self._order if due_ms > now), None)

    def put(self, name: NameT, due_ms: int | None) -> None:
        """Give a name another deadline, or none."""
        known_ms = self._due_ms.pop(name, None)
        if known_ms is not None:
            self._order.remove((known_ms, name))
        if due_ms is not None:
            self._due_ms[name] = due_ms
            self._order.add((due_ms, name))

    def due(self, now: int) -> list[NameT]:
        """The names whose deadlines have come, the earliest first."""
        late: list[NameT] = []
        for due_ms, name in self._order:
            if due_ms > now:
                break
            late.append(name)
        return late
