"""One table of a TOML file: typed access to its keys, and errors that say where, what and what else is
possible.

Rule: every key is read once; a key that nobody reads is a mistake of whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

import attrs

from fencepost.faults.grammar import NUMBER_MAX, BadPhrase, quoted, suggestion
from fencepost.protocol.errors import FencepostError

Thing = TypeVar("Thing")
Read = Callable[[str], Thing]


class BadScenario(FencepostError):
    """A file that is no scenario; the message names the place, the key and what is possible."""


@attrs.define(eq=False)
class Table:
    """A table with its name as people write it ("[cluster]", "[[fault]] 2"), in a file of that name; without
    `lines` it is in no file.
    """

    name: str
    values: dict[str, Any]
    source: str
    lines: Sequence[str]
    read: dict[str, None] = attrs.Factory(dict[str, None])

    def wrong(self, key: str, because: str, possible: Sequence[str] = ()) -> BadScenario:
        """The error for what is under a key."""
        line = f", line {self._line(key)}" if self.lines else ""
        place = f"{self.source}{line}: {self.name} {key}".replace(": top ", ": ")
        return BadScenario(f"{place}: {because}{_list(possible)}")

    def _line(self, key: str) -> int:
        """Where the key stands: under the table's header, or where that is (a best guess for people). A table
        that is a value itself, as `[expect] also_with 1`, stands where its own key does.
        """
        header, _, place = self.name.partition("] ")
        number = int(place) if place.isdecimal() else 1
        start = 0
        if self.name != TOP:
            wanted = header.rstrip("]") + "]"
            headers = [at for at, line in enumerate(self.lines) if line.strip().startswith(wanted)]
            start = headers[min(number, len(headers)) - 1] if headers else 0
        if place and not place.isdecimal():
            key = place.split()[0]
        for at in range(start, len(self.lines)):
            if self.lines[at].split("=")[0].strip().strip('"') == key:
                return at + 1
            if at > start and self.lines[at].startswith("["):
                break
        return start + 1

    # --- keys -----------------------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether anything stands under a key."""
        self.read[key] = None
        return key in self.values

    def _value(self, key: str, kind: str, default: object) -> Any:
        """What stands under a key; the default when nothing does, an error when there is no default."""
        if self.has(key):
            return self.values[key]
        if default is None:
            raise self.wrong(key, f"is missing; it is {kind}")
        return default

    def _mistyped(self, key: str, kind: str) -> BadScenario:
        return self.wrong(key, f"is {self.values[key]!r}, but must be {kind}")

    def text(self, key: str, default: str | None = None) -> str:
        found = self._value(key, "text", default)
        if not isinstance(found, str):
            raise self._mistyped(key, "text")
        return found

    def flag(self, key: str, default: bool) -> bool:
        found = self._value(key, "true or false", default)
        if not isinstance(found, bool):
            raise self._mistyped(key, "true or false")
        return found

    def positive(self, key: str, default: int, *, most: int = NUMBER_MAX) -> int:
        """A number above 0, and not above `most`."""
        found = self._value(key, "a number", default)
        if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
            raise self._mistyped(key, "a whole number above 0")
        if found > most:
            raise self.wrong(key, f"is {found}, and {most} is the most")
        return found

    def count(self, key: str, *, most: int = NUMBER_MAX) -> int:
        """A number from 0 to `most`; 0 by default."""
        return self.positive(key, 0, most=most) if self.has(key) and self.values[key] != 0 else 0

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of numbers from 0 on; none by default."""
        found = self._list_of(key)
        if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in found):
            raise self._mistyped(key, "a list of whole numbers from 0 on")
        return tuple(found)

    def _list_of(self, key: str) -> list[Any]:
        found = self._value(key, "a list", [])
        if not isinstance(found, list):
            raise self._mistyped(key, "a list")
        return cast("list[Any]", found)

    def _table_of(self, key: str) -> dict[str, Any]:
        found = self._value(key, "a table", {})
        if not isinstance(found, dict):
            raise self._mistyped(key, "a table")
        return cast("dict[str, Any]", found)

    def one_of(self, key: str, possible: Sequence[Thing], default: Thing) -> Thing:
        """One of a few values."""
        self.read[key] = None
        found = self.values.get(key, default)
        if found not in possible or isinstance(found, bool) is not isinstance(default, bool):
            raise self.wrong(key, f"is {found!r}", [str(each) for each in possible])
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or one text alone; none by default."""
        if isinstance(self.values.get(key), str):
            return (self.text(key),)
        found = self._list_of(key)
        if not all(isinstance(each, str) for each in found):
            raise self._mistyped(key, "text, or a list of texts")
        return tuple(found)

    def words(self, key: str, read: Read[Thing]) -> tuple[Thing, ...]:
        """A list of phrases, each understood by `read`."""
        return tuple(self.understood(key, text, read) for text in self.texts(key))

    def phrase(self, key: str, read: Read[Thing]) -> Thing:
        """One phrase."""
        return self.understood(key, self.text(key), read)

    def understood(self, key: str, text: str, read: Read[Thing]) -> Thing:
        """A phrase in the words of `read`, or the error that says what is possible."""
        try:
            return read(text)
        except BadPhrase as problem:
            raise self.wrong(key, str(problem), problem.possible) from None

    def named(self, key: str, names: Sequence[str], possible: Sequence[str]) -> None:
        """Every one of these names must be possible under this key."""
        for name in names:
            if name not in possible:
                raise self.wrong(key, f"there is no {quoted(name)}{suggestion(name, possible)}", possible)

    # --- tables in it ---------------------------------------------------------------------------------------

    def table(self, key: str, name: str = "") -> Table:
        """The table under a key; an empty one by default."""
        return self._inner(name or f"[{key}]", self._table_of(key))

    def tables(self, key: str, name: str = "") -> Iterator[Table]:
        """Every table of a list of tables."""
        for number, values in enumerate(self._list_of(key)):
            if not isinstance(values, dict):
                raise self.wrong(key, f"holds {values!r}, but must hold tables")
            inner = cast("dict[str, Any]", values)
            yield self._inner(f"{name or f'[[{key}]]'} {number + 1}", inner)

    def _inner(self, name: str, values: dict[str, Any]) -> Table:
        return Table(name, values, self.source, self.lines)

    def finish(self) -> None:
        """Nothing is left that nobody reads."""
        for key in self.values:
            if key not in self.read:
                possible = list(self.read)
                raise self.wrong(key, f"is no key of it{suggestion(key, possible)}", possible)


TOP: Final = "top"


def _list(possible: Sequence[str]) -> str:
    return f" (possible: {', '.join(possible)})" if possible else ""
