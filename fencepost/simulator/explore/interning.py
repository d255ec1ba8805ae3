"""Values by small numbers, so that a world is a tuple of integers and two worlds are compared as such.

Rule: equal keys get the same number, and the first value that came with a key stands for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from fencepost.protocol.states import fingerprint, fork

ValueT = TypeVar("ValueT")
StateT = TypeVar("StateT")


class Interned(Generic[ValueT]):
    """Numbers from 0 on, in the order in which their keys first came."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[ValueT] = []

    def number(self, key: Hashable, value: ValueT) -> int:
        """The number of `key`; `value` is kept when nothing was kept for it before."""
        found = self._numbers.setdefault(key, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def __getitem__(self, number: int) -> ValueT:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)


class States(Interned[StateT]):
    """States of an actor by number, each there to go on from. The first of a number is what others read; a
    step may begin with a later one, since equal keys act alike.
    """

    __slots__ = ("_doubles",)

    def __init__(self) -> None:
        super().__init__()
        self._doubles: dict[int, StateT] = {}

    def keep(self, state: StateT) -> int:
        """The number of a state. Most steps lead to a known one: whoever comes there second saves a copy."""
        number = self.number(fingerprint(state), state)
        if self.values[number] is not state:
            self._doubles[number] = state
        return number

    def taken(self, number: int) -> StateT:
        """What acts like that state, for the caller to change."""
        double = self._doubles.pop(number, None)
        return fork(self.values[number]) if double is None else double
