"""Values to TOML and back, derived from the annotations of attrs classes: no table has code of its own.

Theory of operation
-------------------

A table of a file is an attrs class: a key is a field, its annotation says what may stand there, its default
is what holds when the key is left out. Where Python's type says too little, a *mark* in `Annotated` adds the
rest:

    nodes: Annotated[int, Between(1, NODES_MAX)] = 1          nodes = 3
    is_called: Annotated[bool, Key("starts"), STARTS] = False   starts = "on request"
    when: tuple[Point, ...]                                   when = ["p sends EndTxn", "p ends"]

    annotation --> codec --+--> read: TOML value -> value, or BadScenario with line, key and what is possible
                           +--> write: value -> TOML text, left out when it equals the default

Codecs nest as types do: a tuple has the codec of its elements, a class is a table, a phrase
(`faults/grammar.py`) is text. Every key must be known; an unknown one is refused with the nearest known key.
The builder fills the same dictionaries as a TOML file and passes through the same reader, so it gives the
same errors.
"""

from __future__ import annotations

import json
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs

from fencepost.faults.grammar import NUMBER_MAX, BadPhrase, Grammar, quoted, suggestion
from fencepost.faults.phrases import ACTIONS, POINTS, Action, NoPartition, Point, partition_named
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.scenarios.scripts import LINES, ScriptLine

TOP: Final = "top"
LINE: Final = 110
_DELETE: Final = "\x7f"  # the one control character that JSON leaves as it is and TOML refuses

ValueT = TypeVar("ValueT")


class BadScenario(FencepostError):
    """A file that is not a scenario; the message names the place, the key and what is possible."""


# --- marks: what an annotation adds to a type ---------------------------------------------------------------


class Key(NamedTuple):
    """The key in the file, where it is not the name of the field."""

    name: str


class Between(NamedTuple):
    """The smallest and the largest number."""

    least: int
    most: int


class OneOf(NamedTuple):
    """The values that are possible, or, for a tuple, the elements."""

    values: tuple[object, ...]


class Spelled(NamedTuple):
    """The text for each value."""

    texts: Mapping[Any, str]


class Prose(NamedTuple):
    """Text of several lines; its line breaks do not count."""


# --- tables -------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class SourceText:
    """Where tables come from: the name of the file, its lines (none for a builder), and, once the cluster was
    read, the partitions that there are.
    """

    name: str
    lines: Sequence[str] = ()
    partitions: tuple[TopicPartition, ...] = ()


@attrs.define(eq=False)
class Table:
    """A table of the file, with its name as people write it: "[cluster]", "[[fault]] 2"."""

    name: str
    values: dict[str, Any]
    source: SourceText
    known: dict[str, None] = attrs.Factory(dict[str, None])

    def wrong(self, key: str, because: str, possible: Sequence[object] = ()) -> BadScenario:
        """The error for what stands under a key."""
        line = f", line {self._line(key)}" if self.source.lines else ""
        place = f"{self.source.name}{line}: {self.name} {key}".replace(f": {TOP} ", ": ")
        listed = f" (possible: {', '.join(map(str, possible))})" if possible else ""
        return BadScenario(f"{place}: {because}{listed}")

    def _line(self, key: str) -> int:
        """The line of the key below the header of its table, or that of the header (a best guess for people).
        A table inside a table, as `[expect] also_with 1`, has the line of its own key.
        """
        header, _, place = self.name.partition("] ")
        number = int(place) if place.isdecimal() else 1
        lines, start = self.source.lines, 0
        if self.name != TOP:
            wanted = header.rstrip("]") + "]"
            headers = [at for at, line in enumerate(lines) if line.strip().startswith(wanted)]
            start = headers[min(number, len(headers)) - 1] if headers else 0
        if place and not place.isdecimal():
            key = place.split()[0]
        for at in range(start, len(lines)):
            if lines[at].split("=")[0].strip().strip('"') == key:
                return at + 1
            if at > start and lines[at].startswith("["):
                break
        return start + 1

    def mistyped(self, key: str, kind: str) -> BadScenario:
        """The error for a value of another kind."""
        return self.wrong(key, f"is {self.values[key]!r}, but must be {kind}")

    def inner(self, key: str, name: str = "") -> Table:
        """The table under a key; an empty one when there is none."""
        self.known[key] = None
        found = self.values.get(key, {})
        if not isinstance(found, dict):
            raise self.mistyped(key, "a table")
        return Table(name or f"[{key}]", cast("dict[str, Any]", found), self.source)

    def each(self, key: str, name: str = "") -> Iterator[Table]:
        """Every table of a list of tables."""
        self.known[key] = None
        found = self.values.get(key, [])
        if not isinstance(found, list):
            raise self.mistyped(key, "a list")
        for number, values in enumerate(cast("list[object]", found)):
            if not isinstance(values, dict):
                raise self.wrong(key, f"contains {values!r}, but must contain tables")
            yield Table(f"{name or f'[[{key}]]'} {number + 1}", cast("dict[str, Any]", values), self.source)

    def finish(self) -> None:
        """BadScenario for the first key that nothing has read."""
        for key in self.values:
            if key not in self.known:
                raise self.wrong(
                    key, f"is not a key here{suggestion(key, list(self.known))}", list(self.known)
                )


# --- codecs of values ---------------------------------------------------------------------------------------


class Codec(NamedTuple):
    """How one kind of value is read and written; `kind` completes "must be ..."."""

    kind: str
    read: Callable[[Table, str, Any], Any]
    write: Callable[[Any], str]


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")


def _prose_text(value: str) -> str:
    """Between three quotes; a single quote may stand there as it is."""
    escaped = _text(value)[1:-1]
    if '""' not in value and not value.endswith('"'):
        escaped = escaped.replace('\\"', '"')
    wrapped = textwrap.fill(escaped, width=LINE, break_long_words=False, break_on_hyphens=False)
    return f'"""\n{wrapped}\n"""'


def _number(between: Between) -> Codec:
    kind = f"a whole number {'above 0' if between.least == 1 else f'from {between.least}'}"

    def read(table: Table, key: str, raw: Any) -> int:
        if type(raw) is not int or raw < between.least:
            raise table.mistyped(key, kind)
        if raw > between.most:
            raise table.wrong(key, f"is {raw}, and the maximum is {between.most}")
        return raw

    return Codec(kind, read, str)


def _read_text(table: Table, key: str, raw: Any) -> str:
    if not isinstance(raw, str):
        raise table.mistyped(key, "text")
    return raw


def _read_prose(table: Table, key: str, raw: Any) -> str:
    return " ".join(_read_text(table, key, raw).split())


def _read_flag(table: Table, key: str, raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise table.mistyped(key, "true or false")
    return raw


def _flag_text(value: bool) -> str:
    return "true" if value else "false"


def _shown(value: object) -> str:
    return _text(str(value))


def _phrase(kind: str, parse: Callable[[str], Any]) -> Codec:
    def read(table: Table, key: str, raw: Any) -> Any:
        try:
            return parse(_read_text(table, key, raw))
        except NoPartition as problem:
            raise table.wrong(key, str(problem), table.source.partitions or problem.possible) from None
        except BadPhrase as problem:
            raise table.wrong(key, str(problem), problem.possible) from None

    return Codec(kind, read, _shown)


def _spelled(texts: Mapping[Any, str]) -> Codec:
    by_text = {text: value for value, text in texts.items()}

    def read(table: Table, key: str, raw: Any) -> Any:
        if not isinstance(raw, str) or raw not in by_text:
            raise table.wrong(key, f"is {raw!r}", list(by_text))
        return by_text[raw]

    def write(value: Any) -> str:
        return _text(texts[value])

    return Codec("text", read, write)


def _one_of(values: Sequence[object], inner: Codec) -> Codec:
    def read(table: Table, key: str, raw: Any) -> Any:
        if raw not in values or isinstance(raw, bool):
            if isinstance(raw, str):
                raise table.wrong(key, f"there is no {quoted(raw)}{suggestion(raw, _texts(values))}", values)
            raise table.wrong(key, f"is {raw!r}", values)
        return raw

    return inner._replace(read=read)


def _texts(values: Sequence[object]) -> list[str]:
    return [str(value) for value in values]


def _list(inner: Codec) -> Codec:
    """A list; an element of text alone may stand without its brackets."""
    kind = f"{inner.kind}, or a list of them"

    def read(table: Table, key: str, raw: Any) -> tuple[Any, ...]:
        found: list[Any] = [raw] if isinstance(raw, str) else raw
        if not isinstance(raw, str | list):
            raise table.mistyped(key, kind)
        return tuple(inner.read(table, key, each) for each in found)

    def write(value: tuple[Any, ...]) -> str:
        texts = [inner.write(each) for each in value]
        line = f"[{', '.join(texts)}]"
        return line if len(line) <= LINE - 20 else "[\n" + "".join(f"  {text},\n" for text in texts) + "]"

    return Codec(kind, read, write)


def _dictionary(keys: Codec, values: Codec) -> Codec:
    """A table whose keys are names: the topics of a cluster, the values of partitions."""

    def read(table: Table, key: str, _: Any) -> tuple[tuple[Any, Any], ...]:
        inner = table.inner(key, f"{table.name} {key}")
        return tuple(
            (keys.read(table, key, name), values.read(inner, name, raw)) for name, raw in inner.values.items()
        )

    def write(value: tuple[tuple[Any, Any], ...]) -> str:
        inside = ", ".join(f"{keys.write(name)} = {values.write(each)}" for name, each in value)
        return f"{{ {inside} }}" if inside else "{}"

    return Codec("a table", read, write)


def _grammar(grammar: Grammar[Any]) -> Codec:
    return _phrase(grammar.name, grammar.read)


_PLAIN: Final[dict[Any, Codec]] = {
    str: Codec("text", _read_text, _text),
    bool: Codec("true or false", _read_flag, _flag_text),
    int: _number(Between(1, NUMBER_MAX)),
    Point: _grammar(POINTS),
    Action: _grammar(ACTIONS),
    ScriptLine: _grammar(LINES),
    TopicPartition: _phrase("a partition", partition_named),
}


def _codec(kind: Any, marks: tuple[object, ...] = ()) -> Codec:
    """The codec of an annotation."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _codec(inner, (*more, *marks))
    if get_origin(kind) in (Union, types.UnionType):
        return _codec(next(each for each in get_args(kind) if each is not types.NoneType), marks)
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if get_origin(element) is tuple:
            name, value = get_args(element)
            return _dictionary(_codec(name), _codec(value))
        return _list(_codec(element, marks))
    codec = _spelled(_texts_of(kind)) if kind not in _PLAIN and issubclass(kind, Enum) else _PLAIN[kind]
    for mark in marks:
        match mark:
            case Between():
                codec = _number(mark)
            case OneOf(values):
                codec = _one_of(values, codec)
            case Spelled(texts):
                codec = _spelled(texts)
            case Prose():
                codec = Codec("text", _read_prose, _prose_text)
            case _:
                pass
    return codec


def _texts_of(kind: type[Enum]) -> dict[Enum, str]:
    return {each: each.value if isinstance(each.value, str) else each.name.lower() for each in kind}


# --- codecs of tables ---------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A field as a key of its table."""

    field: str
    key: str
    codec: Codec
    is_required: bool


@cache
def entries(kind: type) -> tuple[Entry, ...]:
    """The keys of a table, in the order of the class; a field that is a table itself is none of them."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        Entry(field.name, key, _codec(hints[field.name]), field.default is attrs.NOTHING)
        for field in attrs.fields(kind)
        if (key := _key_of(field.name, hints[field.name]))
    )


def _key_of(field: str, hint: Any) -> str:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark.name for mark in marks if isinstance(mark, Key)), field)


def read_table(kind: type[ValueT], table: Table, usual: ValueT | None = None) -> ValueT:
    """The value of a table; what it does not say is as in `usual`, or as by default."""
    values: dict[str, Any] = {}
    for entry in entries(kind):
        table.known[entry.key] = None
        if entry.key in table.values:
            values[entry.field] = entry.codec.read(table, entry.key, table.values[entry.key])
        elif usual is not None:
            values[entry.field] = getattr(usual, entry.field)
        elif entry.is_required:
            raise table.wrong(entry.key, f"is missing; it is {entry.codec.kind}")
    return kind(**values)


def written(value: object, usual: object | None = None) -> Iterator[str]:
    """The lines of a table: every key whose value is not as in `usual`, or not as by default."""
    kind = type(value)
    if usual is None:
        required = {each.field: getattr(value, each.field) for each in entries(kind) if each.is_required}
        usual = kind(**required)
        yield from (
            f"{each.key} = {each.codec.write(required[each.field])}"
            for each in entries(kind)
            if each.is_required
        )
    for entry in entries(kind):
        found = getattr(value, entry.field)
        if found != getattr(usual, entry.field):
            yield f"{entry.key} = {entry.codec.write(found)}"
