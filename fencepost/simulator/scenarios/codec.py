"""Values to TOML and back, derived from the annotations of attrs classes: no table has code of its own.

Theory of operation
-------------------

A table of a file is an attrs class: a key is a field, its annotation says what may stand there, its default
is what holds when the key is left out. Where Python's type says too little, a *mark* in `Annotated` adds the
rest:

    nodes: Annotated[int, Between(1, NODES_MAX)] = 1          nodes = 3
    is_called: Annotated[bool, Key("starts"), STARTS] = False   starts = "on request"
    when: tuple[Point, ...]                                   when = ["p sends EndTxn", "p ends"]
    cluster: ClusterShape = ClusterShape()                    [cluster]
    members: Annotated[tuple[MemberPlan, ...], Lists(member=MemberPlan)]    [[member]], as often as needed

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

from fencepost.faults.grammar import NUMBER_MAX, BadPhrase, quoted
from fencepost.faults.phrases import (
    ACTIONS,
    LINES,
    POINTS,
    Action,
    NoPartition,
    Point,
    ScriptLine,
    partition_named,
)
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.suggestions import suggestion
from fencepost.protocol.terms import TopicPartition

TOP: Final = "top"
LINE: Final = 110
_DELETE: Final = "\x7f"  # the one control character that JSON leaves as it is and TOML refuses

ValueT = TypeVar("ValueT")


class BadScenario(FencepostError):
    """A file that is not a scenario; the message names the place, the key and what is possible."""


# --- marks: what an annotation adds to a type ---------------------------------------------------------------


class Key(NamedTuple):
    """The key in the file, where it is not the name of the field; `within` is a table inside that of the
    class. A field without a key ("") is read and written by other code.
    """

    name: str
    within: str = ""


class Between(NamedTuple):
    """The smallest and the largest number."""

    least: int
    most: int


class OneOf(NamedTuple):
    """The values that are possible, or, for a tuple, the elements."""

    values: tuple[object, ...]


class Length(NamedTuple):
    """The maximum length of a text, in characters; the minimum is 1."""

    most: int


class Spelled(NamedTuple):
    """The text for each value."""

    texts: Mapping[Any, str]


class Prose(NamedTuple):
    """Text of several lines; its line breaks do not count."""


class Lists:
    """The lists of tables whose values a tuple holds, one list after the other, by their keys."""

    def __init__(self, **kinds: type) -> None:
        self.kinds: Mapping[str, type] = kinds


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
    """A table of the file, with its name as people write it: "[cluster]", "[[fault]] 2". `known` are the keys
    that were asked for, `inside` the tables that were read under them.
    """

    name: str
    values: dict[str, Any]
    source: SourceText
    known: dict[str, None] = attrs.Factory(dict[str, None])
    inside: dict[str, list[Table]] = attrs.Factory(dict[str, list["Table"]])

    def wrong(self, key: str, because: str, possible: Sequence[object] = ()) -> BadScenario:
        """The error for what stands under a key."""
        line = f", line {self._line(key)}" if self.source.lines else ""
        place = f"{self.source.name}{line}: {self.name} {key}".replace(f": {TOP} ", ": ")
        listed = f" (possible: {', '.join(dict.fromkeys(map(str, possible)))})" if possible else ""
        return BadScenario(f"{place}: {because}{listed}")

    def _line(self, key: str) -> int:
        """The line of the key below the header of its table, or that of the header (a best guess for people).
        A table inside a table, as `[expect] also_with 1`, has the line of its own key.
        """
        header, _, place = self.name.partition("] ")
        number = int(place) if place.isdecimal() else 1
        lines, start = self.source.lines, 0
        if self.name == TOP and (found := _header_line(lines, key)) is not None:
            return found
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

    def inner(self, key: str) -> Table:
        """The table under a key; an empty one when there is none."""
        self.known[key] = None
        if key not in self.inside:
            found = self.values.get(key, {})
            if not isinstance(found, dict):
                raise self.mistyped(key, "a table")
            name = f"[{inside(self.name, key)}]"
            self.inside[key] = [Table(name, cast("dict[str, Any]", found), self.source)]
        return self.inside[key][0]

    def each(self, key: str, name: str = "") -> list[Table]:
        self.known[key] = None
        found, name = self.values.get(key, []), name or f"[[{inside(self.name, key)}]]"
        if not isinstance(found, list):
            is_table = isinstance(self.values[key], dict)
            raise self.mistyped(key, f"a list: write [[{key}]]" if is_table else "a list")
        for values in cast("list[object]", found):
            if not isinstance(values, dict):
                raise self.wrong(key, f"contains {values!r}, but must contain tables")
        self.inside[key] = [
            Table(f"{name} {number + 1}", values, self.source)
            for number, values in enumerate(cast("list[dict[str, Any]]", found))
        ]
        return self.inside[key]

    def refuse_others(self, possible: Sequence[str]) -> None:
        """BadScenario for the first key that is not one of these."""
        for key in self.values:
            if key not in possible:
                raise self.wrong(key, f"unknown key{suggestion(key, possible)}", possible)

    def finish(self) -> None:
        """BadScenario for the first key that nothing has read, here or in a table inside."""
        self.refuse_others(list(self.known))
        for tables in self.inside.values():
            for table in tables:
                table.finish()


def _header_line(lines: Sequence[str], key: str) -> int | None:
    """The line of the first header of a table with this name; None if the key has no table."""
    headers = (f"[{key}]", f"[[{key}]]")
    return next((at for at, line in enumerate(lines, start=1) if line.strip().startswith(headers)), None)


def inside(name: str, key: str) -> str:
    """The name in a header for the table under a key: "cluster", "seeded.faults"."""
    return key if name == TOP else f"{name.strip('[]')}.{key}"


# --- codecs of values ---------------------------------------------------------------------------------------


class Codec(NamedTuple):
    """How one kind of value is read and written; `kind` completes "must be ...". `possible` are the values as
    they are written, where they can be listed.
    """

    kind: str
    read: Callable[[Table, str, Any], Any]
    write: Callable[[Any], str]
    possible: tuple[str, ...] = ()


def _text(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False).replace(_DELETE, "\\u007f")


def _read_prose(table: Table, key: str, raw: Any) -> str:
    return " ".join(_TEXT.read(table, key, raw).split())


def _prose_text(value: str) -> str:
    """Between three quotes; a single quote may stand there as it is."""
    escaped = _text(value)[1:-1]
    if '""' not in value and not value.endswith('"'):
        escaped = escaped.replace('\\"', '"')
    wrapped = textwrap.fill(escaped, width=LINE, break_long_words=False, break_on_hyphens=False)
    return f'"""\n{wrapped}\n"""'


def _typed(kind: str, of: type, write: Callable[[Any], str]) -> Codec:
    def read(table: Table, key: str, raw: Any) -> Any:
        if type(raw) is not of:
            raise table.mistyped(key, kind)
        return raw

    return Codec(kind, read, write)


_TEXT: Final = _typed("text", str, _text)
_FLAG: Final = _typed("true or false", bool, lambda value: "true" if value else "false")._replace(
    possible=("true", "false")
)


def _number(between: Between) -> Codec:
    kind = f"a whole number {'above 0' if between.least == 1 else f'from {between.least}'}"

    def read(table: Table, key: str, raw: Any) -> int:
        # Not isinstance: for Python, true is a number, too.
        if type(raw) is not int or raw < between.least:
            raise table.mistyped(key, kind)
        if raw > between.most:
            raise table.wrong(key, f"is {raw}, and the maximum is {between.most}")
        return raw

    return Codec(kind, read, str)


def _short_text(length: Length) -> Codec:
    kind = f"text of 1 to {length.most} characters"

    def read(table: Table, key: str, raw: Any) -> str:
        if type(raw) is not str or not raw:
            raise table.mistyped(key, kind)
        if len(raw) > length.most:
            raise table.wrong(key, f"has {len(raw)} characters, and the maximum is {length.most}")
        return raw

    return Codec(kind, read, _text)


def _phrase(kind: str, parse: Callable[[str], Any]) -> Codec:
    def read(table: Table, key: str, raw: Any) -> Any:
        try:
            return parse(_TEXT.read(table, key, raw))
        except NoPartition as problem:
            raise table.wrong(key, str(problem), table.source.partitions or problem.possible) from None
        except BadPhrase as problem:
            raise table.wrong(key, str(problem), problem.possible) from None

    return Codec(kind, read, _text)


def _choice(values: Mapping[Any, Any], write: Callable[[Any], str]) -> Codec:
    """One of these values, by what stands for each in a file."""

    def read(table: Table, key: str, raw: Any) -> Any:
        if isinstance(raw, str) and raw not in values:
            near = suggestion(raw, [str(each) for each in values])
            raise table.wrong(key, f"there is no {quoted(raw)}{near}", list(values))
        if not isinstance(raw, str | int) or isinstance(raw, bool) or raw not in values:
            raise table.wrong(key, f"is {raw!r}", list(values))
        return values[raw]

    return Codec("text", read, write, tuple(write(value) for value in values.values()))


def _spelled(texts: Mapping[Any, str]) -> Codec:
    return _choice({text: value for value, text in texts.items()}, lambda value: _text(texts[value]))


def _list(inner: Codec) -> Codec:
    """A list; a single text may stand without brackets."""
    kind = f"{inner.kind}, or a list of them"

    def read(table: Table, key: str, raw: Any) -> tuple[Any, ...]:
        found: list[Any] = [raw] if isinstance(raw, str) else raw
        if not isinstance(raw, str | list):
            raise table.mistyped(key, kind)
        return tuple(inner.read(table, key, each) for each in found)

    def write(value: tuple[Any, ...]) -> str:
        texts = [inner.write(each) for each in value]
        line = f"[{', '.join(texts)}]"
        # The key and its equals sign stand before it.
        return line if len(line) <= LINE - 20 else "[\n" + "".join(f"  {text},\n" for text in texts) + "]"

    return Codec(kind, read, write, inner.possible)


def _dictionary(keys: Codec, values: Codec) -> Codec:
    """A table whose keys are names: the topics of a cluster, the values of partitions."""

    def read(table: Table, key: str, raw: Any) -> tuple[tuple[Any, Any], ...]:
        if not isinstance(raw, dict):
            raise table.mistyped(key, "a table")
        # Its keys are names and not fields, so nothing of it goes into `known`.
        inner = Table(f"{table.name} {key}", cast("dict[str, Any]", raw), table.source)
        return tuple(
            (keys.read(table, key, name), values.read(inner, name, each))
            for name, each in inner.values.items()
        )

    def write(value: tuple[tuple[Any, Any], ...]) -> str:
        inside = ", ".join(f"{keys.write(name)} = {values.write(each)}" for name, each in value)
        return f"{{ {inside} }}" if inside else "{}"

    return Codec("a table", read, write)


_PLAIN: Final[dict[Any, Codec]] = {
    str: _TEXT,
    bool: _FLAG,
    int: _number(Between(1, NUMBER_MAX)),
    Point: _phrase(POINTS.name, POINTS.read),
    Action: _phrase(ACTIONS.name, ACTIONS.read),
    ScriptLine: _phrase(LINES.name, LINES.read),
    TopicPartition: _phrase("a partition", partition_named),
}


def _codec(kind: Any, marks: tuple[object, ...] = ()) -> Codec:
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        # The marks of an inner type come first, so that those of an outer one override them.
        return _codec(inner, (*more, *marks))
    if get_origin(kind) in (Union, types.UnionType):
        return _codec(_without_none(kind), marks)
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if get_origin(element) is tuple:
            name, value = get_args(element)
            return _dictionary(_codec(name), _codec(value))
        # A mark of a list is about its elements.
        return _list(_codec(element, marks))
    codec = _spelled(_texts_of(kind)) if kind not in _PLAIN and issubclass(kind, Enum) else _PLAIN[kind]
    for mark in marks:
        match mark:
            case Between():
                codec = _number(mark)
            case Length():
                codec = _short_text(mark)
            case OneOf(values):
                codec = _choice({each: each for each in values}, codec.write)
            case Spelled(texts):
                codec = _spelled(texts)
            case Prose():
                codec = Codec("text", _read_prose, _prose_text)
            case _:
                pass
    return codec


def _without_none(kind: Any) -> Any:
    """The type that an optional one has besides None."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(each for each in get_args(kind) if each is not types.NoneType)
    return kind


def _texts_of(kind: type[Enum]) -> dict[Enum, str]:
    return {each: each.value if isinstance(each.value, str) else each.name.lower() for each in kind}


# --- codecs of tables ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Entry:
    """A field of a class in its table: a key with a `codec`, which may be that of a `table` inside, or keys
    of `lists` of tables, without a codec.
    """

    field: str
    key: str
    within: str
    is_required: bool
    codec: Codec | None
    table: type | None
    lists: Mapping[str, type]


@cache
def entries(kind: type) -> tuple[Entry, ...]:
    """The fields of a class that stand in its table, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    found = (_entry(field, hints[field.name]) for field in attrs.fields(kind))
    return tuple(entry for entry in found if entry.key)


def _entry(field: attrs.Attribute[Any], hint: Any) -> Entry:
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    key = next((mark for mark in marks if isinstance(mark, Key)), Key(field.name))
    lists = next((mark for mark in marks if isinstance(mark, Lists)), Lists())
    inner = _without_none(plain)
    table = inner if inner not in _PLAIN and attrs.has(inner) else None
    return Entry(
        field=field.name,
        key=key.name,
        within=key.within,
        is_required=field.default is attrs.NOTHING,
        codec=_table(table) if table else None if lists.kinds or not key.name else _codec(hint),
        table=table,
        lists=lists.kinds,
    )


def _table(kind: type) -> Codec:
    """A table inside another one; `blocks` writes it."""

    def read(table: Table, key: str, _: object) -> Any:
        return cast("object", read_table(kind, table.inner(key)))

    return Codec("a table", read, str)


def read_table(kind: type[ValueT], table: Table, usual: ValueT | None = None) -> ValueT:
    """The value of a table and of the tables inside it; what it does not say is as in `usual`, or as by
    default. The caller ends with `finish`, which refuses keys that nothing has read.
    """
    values: dict[str, Any] = {}
    for entry in entries(kind):
        home = table.inner(entry.within) if entry.within else table
        if entry.codec is None:
            lists = [(inner, home.each(key)) for key, inner in entry.lists.items()]
            values[entry.field] = tuple(
                cast("object", read_table(inner, each)) for inner, found in lists for each in found
            )
            continue
        # Present or not: an unknown key is refused with the list of those that are possible.
        home.known[entry.key] = None
        if entry.key in home.values:
            values[entry.field] = entry.codec.read(home, entry.key, home.values[entry.key])
        elif usual is not None:
            values[entry.field] = getattr(usual, entry.field)
        elif entry.is_required:
            table.refuse_others([*table.known, *_keys(kind)])  # perhaps it is there, misspelt
            raise table.wrong(entry.key, f"is missing; it is {entry.codec.kind}")
    return kind(**values)


def _keys(kind: type) -> list[str]:
    """Every key that may stand in the table of a class."""
    return [key for entry in entries(kind) for key in (entry.lists or (entry.within or entry.key,))]


def written(value: object, usual: object | None = None, *, within: str = "") -> Iterator[str]:
    """The lines of a table: every key whose value is not as in `usual`, or not as by default."""
    kind = type(value)
    required = [each.field for each in entries(kind) if each.is_required and usual is None]
    if usual is None:
        # Keys without a default are always written; given their values, the defaults of the others are known.
        usual = kind(**{field: getattr(value, field) for field in required})
    for entry in entries(kind):
        if entry.codec is not None and entry.table is None and entry.within == within:
            found = getattr(value, entry.field)
            if entry.field in required or found != getattr(usual, entry.field):
                yield f"{entry.key} = {entry.codec.write(found)}"


def blocks(value: object, header: str = TOP) -> Iterator[list[str]]:
    """The lines of a table and of each table inside it, with their headers; those that say nothing are left
    out.
    """
    if lines := list(written(value)):
        yield lines if header == TOP else [header, *lines]
    for entry in entries(type(value)):
        found = getattr(value, entry.field)
        if entry.table is not None and found is not None:
            yield from blocks(found, f"[{inside(header, entry.key)}]")
        if entry.lists:
            keys = {kind: key for key, kind in entry.lists.items()}
            for each in getattr(value, entry.field):
                yield from blocks(each, f"[[{inside(header, keys[type(each)])}]]")
    for within in dict.fromkeys(entry.within for entry in entries(type(value)) if entry.within):
        if lines := list(written(value, within=within)):
            yield [f"[{inside(header, within)}]", *lines]
