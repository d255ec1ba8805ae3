"""Records as text: lines, JSON, CSV, and the user's own format string.

Rule: what `fencepost consume` writes as JSON or CSV, `fencepost produce` reads as the same records. What a
format cannot hold is an error, never another record. Lines are for values without line breaks.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, cast

import attrs

from fencepost.check.findings import counted
from fencepost.cli.errors import WrongUsage
from fencepost.cli.output import Json, as_json_line, text_of
from fencepost.cli.table import moment
from fencepost.client.consumer_records import Record
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, NO_TIMESTAMP, escaped

FIELDS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""The names in JSON and CSV. produce takes no topic and no offset from its input."""
NULL: Final = r"\N"  # as in PostgreSQL's COPY
Headers = list[tuple[str, bytes | None]]
InputFormat = Literal["text", "jsonl", "csv", "raw"]


class BadRecord(ValueError):
    """Text that is not a record, or a record that the format cannot hold."""


class Outgoing(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    timestamp_ms: int | None = None
    partition: int | None = None


@attrs.frozen(kw_only=True)
class TextDialect:
    """How lines and CSV are written."""

    separator: str
    null: str = NULL
    base64: bool = False
    key_column: str | None = None
    value_column: str | None = None
    escapes_controls: bool = False
    """On a terminal a record must not change the title, clear the screen, or print more lines than one."""

    def encoded(self, data: bytes | None) -> bytes:
        """Bytes or null as they stand in a line."""
        if data is None:
            return self.null.encode()
        if self.base64:
            return b64encode(data)
        return escaped(data.decode(errors="replace")).encode() if self.escapes_controls else data

    def decoded(self, cell: bytes) -> bytes | None:
        """The bytes or the null of a line."""
        if cell == self.null.encode():
            return None
        return _from_base64(cell) if self.base64 else cell

    def cell(self, data: bytes | None, name: str) -> str:
        """The same for a cell of CSV, which is text."""
        try:
            text = self.encoded(data).decode()
        except UnicodeDecodeError as problem:
            raise BadRecord(f"the {name} is not UTF-8: --base64 shows its bytes") from problem
        if data is not None and text == self.null:
            raise BadRecord(f"the {name} is {text}, which stands for null: choose another --null")
        return text


def _from_base64(text: bytes | str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as problem:
        raise BadRecord(f"a key or value is not base64: {problem}") from problem


# --- out ----------------------------------------------------------------------------------------------------


def facts(record: Record, *, base64: bool) -> dict[str, Json]:
    """One record as JSON. Names of headers can repeat, so they are a list of pairs."""

    def shown(data: bytes | None) -> Json:
        return {"base64": b64encode(data).decode()} if base64 and data is not None else text_of(data)

    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": None if record.timestamp == NO_TIMESTAMP else record.timestamp,
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [[name, shown(value)] for name, value in record.headers or ()],
    }


def as_line(record: Record, dialect: TextDialect) -> bytes:
    """`value` or `key<separator>value`. If the key is null and the value contains the separator, the null key
    is written.
    """
    separator, value = dialect.separator.encode(), dialect.encoded(record.value)
    if record.key is None and not (separator and separator in value):
        return value
    return dialect.encoded(record.key) + separator + value


def check_csv_separator(separator: str) -> None:
    """CommandFailed if no CSV can be read and written with it."""
    if len(separator) != 1 or separator in '"\r\n':
        raise WrongUsage(
            "with --format csv, --separator must be one character, and neither a quote nor a line break",
            then="for example --separator ';'",
        )


def as_csv(row: Iterable[object], dialect: TextDialect) -> str:
    """One row of CSV without its line break."""
    line = io.StringIO()
    csv.writer(line, delimiter=dialect.separator, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n")  # cells are quoted if they hold a character of the terminator


def csv_row(record: Record, dialect: TextDialect) -> list[object]:
    fields = facts(record, base64=False)
    return [
        *(dialect.null if fields[name] is None else fields[name] for name in FIELDS[:4]),
        dialect.cell(record.key, "key"),
        dialect.cell(record.value, "value"),
        as_json_line(fields["headers"]) if record.headers else "",
    ]


PLACEHOLDERS: Final[dict[str, Callable[[Record, TextDialect], bytes]]] = {
    "t": lambda record, _: record.topic.encode(),
    "p": lambda record, _: str(record.partition).encode(),
    "o": lambda record, _: str(record.offset).encode(),
    "k": lambda record, dialect: dialect.encoded(record.key),
    "s": lambda record, dialect: dialect.encoded(record.value),
    "v": lambda record, dialect: dialect.encoded(record.value),
    "h": lambda record, _: as_json_line(facts(record, base64=False)["headers"]).encode(),
    "T": lambda record, _: str(record.timestamp).encode(),
    "d": lambda record, _: moment(record.timestamp).encode(),
    "%": lambda _record, _dialect: b"%",
}
"""What stands for a percent sign and a letter in a format string, as in kcat and rpk."""
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
TOKEN: Final = re.compile(r"%(?P<place>.?)|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL)


def compile_format(format_: str) -> Callable[[Record, TextDialect], bytes]:
    """The writer of a format string; BadRecord if it has an unknown place or escape."""
    parts: list[Callable[[Record, TextDialect], bytes] | bytes] = []
    for token in TOKEN.finditer(format_):
        if (text := token["text"]) is not None:
            parts.append(text.encode())
        elif (letter := token["place"]) is not None:
            if letter not in PLACEHOLDERS:
                raise BadRecord(f"%{letter} is not one of {', '.join(f'%{place}' for place in PLACEHOLDERS)}")
            parts.append(PLACEHOLDERS[letter])
        elif token["escape"] not in ESCAPES:
            possible = ", ".join(f"\\{letter}" for letter in ESCAPES)
            raise BadRecord(f"\\{token['escape']} is not one of {possible}")
        else:
            parts.append(ESCAPES[token["escape"]].encode())
    return lambda record, dialect: b"".join(
        part if isinstance(part, bytes) else part(record, dialect) for part in parts
    )


# --- in -----------------------------------------------------------------------------------------------------


def read_lines(lines: Iterable[bytes], dialect: TextDialect) -> Iterator[Outgoing]:
    """`value` or `key<separator>value` of each line."""
    separator = dialect.separator.encode()
    for line in lines:
        key, found, value = line.rstrip(b"\r\n").partition(separator) if separator else (b"", b"", line)
        if found:
            yield Outgoing(dialect.decoded(key), dialect.decoded(value))
        else:
            yield Outgoing(None, dialect.decoded(line.rstrip(b"\r\n")))


def read_jsonl(lines: Iterable[bytes], dialect: TextDialect) -> Iterator[Outgoing]:
    """One JSON object per line: a record, or with --key-column or --value-column a document."""
    is_document = dialect.key_column is not None or dialect.value_column is not None
    for line in _decoded(lines):  # from bytes, Python would also accept UTF-16 and UTF-32
        text = line.removeprefix("\ufeff")
        try:
            found = json.loads(text, object_pairs_hook=_object)
        except BadRecord:
            raise
        except (ValueError, RecursionError) as problem:
            raise BadRecord(f"not JSON: {_why_not_json(problem)}") from problem
        if not isinstance(found, dict):
            raise BadRecord("not a JSON object")
        fields = cast("dict[str, Any]", found)
        yield _document(fields, dialect, text.strip().encode()) if is_document else _record(fields)


def _why_not_json(problem: ValueError | RecursionError) -> str:
    """The cause, and the character in the line or cell; the error names the line itself."""
    if isinstance(problem, json.JSONDecodeError):
        return f"{problem.msg} at character {problem.pos + 1}"
    # Python's own text about the nesting names its stack, and differs between versions.
    return "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of several members with one name, Python would keep the last and lose the others."""
    found = dict(members)
    if len(found) < len(members):
        raise BadRecord(f"{_first_repeated(name for name, _ in members)} is repeated in one JSON object")
    return found


def _first_repeated(names: Iterable[str]) -> str:
    """The first name that is repeated."""
    seen: set[str] = set()
    return next(repr(name) for name in names if name in seen or seen.add(name))


def read_csv(lines: Iterable[bytes], dialect: TextDialect) -> Iterator[Outgoing]:
    """Rows of CSV under a row of column names: records, or with --key-column or --value-column documents."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader(_decoded(lines), delimiter=dialect.separator, strict=True)
    try:
        names = [name.removeprefix("\ufeff") for name in next(rows, list[str]())]  # as Excel begins a file
        if len({*names}) < len(names):
            raise BadRecord(f"{_first_repeated(names)} is repeated among the column names")
        is_document = _check_columns(names, dialect)
        for row in rows:
            if len(row) != len(names):
                raise BadRecord(f"the row has {counted(len(row), 'cell')}, not {len(names)}")
            cells = dict(zip(names, row, strict=True))
            yield _csv_document(cells, dialect) if is_document else _csv_record(cells, dialect)
    except csv.Error as problem:
        raise BadRecord(f"not CSV: {problem}") from problem


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise BadRecord(f"not UTF-8: {problem.reason}") from problem


def _check_columns(names: list[str], dialect: TextDialect) -> bool:
    """Whether the rows are documents; BadRecord if columns are missing or unknown."""
    if not names:
        raise BadRecord("there is no first line with the names of the columns")
    given = [name for name in (dialect.key_column, dialect.value_column) if name is not None]
    for name in given:
        if name not in names:
            raise BadRecord(f"there is no column {name!r}; the columns are {', '.join(names)}")
    if not given and "value" not in names:
        what = f"there is no column 'value'; the columns are {', '.join(names)}"
        raise BadRecord(
            f"{what}. If each row is itself a value, say which column is its key: --key-column NAME"
        )
    if not given:
        _check_fields(names)
    return bool(given)


def _csv_document(cells: dict[str, str], dialect: TextDialect) -> Outgoing:
    fields = {name: None if cell == dialect.null else cell for name, cell in cells.items()}
    return _document(fields, dialect, json.dumps(fields, ensure_ascii=False).encode())


def _csv_record(cells: dict[str, str], dialect: TextDialect) -> Outgoing:
    def number(name: str) -> Json:
        cell = cells.get(name, dialect.null)
        if cell in ("", dialect.null):
            return None
        return int(cell) if re.fullmatch(r"-?\d{1,19}", cell) else cell  # `_number` refuses it

    try:
        headers = json.loads(cells.get("headers") or "[]")
    except (ValueError, RecursionError) as problem:
        raise BadRecord(f"headers are not JSON: {_why_not_json(problem)}") from problem
    return Outgoing(
        dialect.decoded(cells.get("key", dialect.null).encode()),
        dialect.decoded(cells["value"].encode()),
        _headers(headers),
        _number("timestamp_ms", number("timestamp_ms"), INT64_MAX),
        _number("partition", number("partition"), INT32_MAX),
    )


def _document(fields: dict[str, Any], dialect: TextDialect, whole: bytes) -> Outgoing:
    """The key is one field; the value is another one, or the whole document."""

    def field(name: str) -> bytes | None:
        if name not in fields:
            raise BadRecord(f"there is no field {name!r}; the fields are {', '.join(fields)}")
        content = fields[name]
        if content is None or isinstance(content, str):
            return None if content is None else _encoded(name, content)
        return as_json_line(content).encode()

    key = None if dialect.key_column is None else field(dialect.key_column)
    return Outgoing(key, whole if dialect.value_column is None else field(dialect.value_column))


def _record(fields: dict[str, Any]) -> Outgoing:
    _check_fields(fields)
    if "value" not in fields:
        raise BadRecord("the object has no field 'value'; for a tombstone, give it as null")
    return Outgoing(
        _bytes("key", fields.get("key")),
        _bytes("value", fields["value"]),
        _headers(fields.get("headers")),
        _number("timestamp_ms", fields.get("timestamp_ms"), INT64_MAX),
        _number("partition", fields.get("partition"), INT32_MAX),
    )


def _check_fields(names: Iterable[str]) -> None:
    if unknown := [name for name in names if name not in FIELDS]:
        raise BadRecord(
            f"unknown field {unknown[0]}: a record has {', '.join(FIELDS)}. "
            "If each object is itself a value, say which field is its key: --key-column NAME"
        )


def _bytes(name: str, content: Any) -> bytes | None:
    match content:
        case None:
            return None
        case str():
            return _encoded(name, content)
        case {"base64": str(text)} if len(content) == 1:
            return _from_base64(text)
        case _:
            raise BadRecord(f'the {name} must be a string, null, or {{"base64": "..."}}')


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:  # JSON can hold half of a surrogate pair
        raise BadRecord(f"the {name} is not text: {problem.reason}") from problem


def _headers(content: Any) -> Headers | None:
    found: Headers = []
    for pair in (
        cast("list[Any]", content) if isinstance(content, list) else [] if content is None else [None]
    ):
        match pair:
            case [str(name), value]:
                found.append((name, _bytes(f"header {name}", value)))
            case _:
                raise BadRecord("headers must be a list of [name, value] pairs")
    return found or None


def _number(name: str, content: Any, most: int) -> int | None:
    if content is not None and (type(content) is not int or not 0 <= content <= most):
        raise BadRecord(f"the {name} must be a number from 0 to {most}, or null")
    return content
