"""What consume writes, produce reads: JSON and CSV lose nothing, and what is no record is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.output import as_json_line
from fencepost.cli.record_formats import (
    FIELDS,
    NULL,
    BadRecord,
    Outgoing,
    TextDialect,
    as_csv,
    as_line,
    compile_format,
    csv_row,
    facts,
    read_csv,
    read_jsonl,
    read_lines,
)
from fencepost.client.consumer_records import Record
from fencepost.protocol.terms import INT32_MAX, INT64_MAX

TSV, CSV = TextDialect(separator="\t"), TextDialect(separator=",")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode)
some_bytes = (
    st.binary(max_size=12) | texts | st.sampled_from([b"", b",", b'"', b"a\nb", b"\r", b"\0", b"NULL"])
)
headers = st.none() | st.lists(
    st.tuples(st.sampled_from(["h", "h", "", "ü"]), st.none() | some_bytes), min_size=1, max_size=3
)


def records(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        topic=st.just("orders"),
        partition=st.integers(0, INT32_MAX),
        offset=st.integers(0, INT64_MAX),
        timestamp=st.integers(-1, INT64_MAX),
        key=st.none() | data,
        value=st.none() | data,
        headers=headers,
    )


def outgoing(record: Record) -> Outgoing:
    """The record as it should be produced again."""
    timestamp_ms = None if record.timestamp == -1 else record.timestamp
    return Outgoing(record.key, record.value, record.headers, timestamp_ms, record.partition)


def a_record(key: bytes | None = b"k", value: bytes | None = b"v") -> Record:
    return Record("orders", 1, 7, 1_700_000_000_000, key, value, [("h", b"1"), ("h", None)])


@given(st.lists(records(some_bytes), max_size=4), st.booleans())
def test_json_comes_back(written: list[Record], base64: bool) -> None:
    lines = [as_json_line(facts(record, base64=base64)).encode() + b"\n" for record in written]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert list(read_jsonl(lines, TSV)) == [outgoing(record) for record in written]


@given(st.lists(records(some_bytes), max_size=4))
def test_csv_in_base64_comes_back(written: list[Record]) -> None:
    dialect = TextDialect(separator=",", base64=True)
    assert csv_again(written, dialect) == [outgoing(record) for record in written]


@given(st.lists(records(texts | st.sampled_from([b"", b"a\nb", b"\r", b'"', b"\0"])), max_size=4))
def test_csv_of_texts_comes_back(written: list[Record]) -> None:
    if any(NULL.encode() in (record.key, record.value) for record in written):
        with pytest.raises(BadRecord, match="stands for null"):
            csv_again(written, CSV)
    else:
        assert csv_again(written, CSV) == [outgoing(record) for record in written]


def csv_again(written: list[Record], dialect: TextDialect) -> list[Outgoing]:
    rows = [as_csv(FIELDS, dialect), *(as_csv(csv_row(record, dialect), dialect) for record in written)]
    text = "".join(f"{row}\n" for row in rows).encode()
    return list(read_csv(text.splitlines(keepends=True), dialect))


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=4),
    st.booleans(),
)
def test_lines_come_back_in_base64(pairs: list[tuple[bytes | None, bytes | None]], base64: bool) -> None:
    dialect = TextDialect(separator="\t", base64=base64)
    unsafe = b"\t\n\r" if not base64 else b""
    if not any(set(unsafe) & set((key or b"") + (value or b"")) for key, value in pairs) and not any(
        data == NULL.encode() for pair in pairs for data in pair
    ):
        lines = [as_line(a_record(key, value), dialect) + b"\n" for key, value in pairs]
        assert [(key, value) for key, value, *_ in read_lines(lines, dialect)] == pairs


def test_a_value_with_the_separator_and_without_a_key_stays_a_value() -> None:
    line = as_line(a_record(None, b"a\tb"), TSV)
    assert line == b"\\N\ta\tb"
    assert list(read_lines([line], TSV)) == [Outgoing(None, b"a\tb")]


def test_a_format_string() -> None:
    fill = compile_format(r"%t/%p@%o\t%k=%s %h %T %d %% \\ %v\n")
    assert fill(a_record(), TSV) == (
        b'orders/1@7\tk=v [["h", "1"], ["h", null]] 1700000000000 2023-11-14 22:13:20.000Z % \\ v\n'
    )
    assert compile_format("%k")(a_record(None), TextDialect(separator="", null="NULL")) == b"NULL"


@pytest.mark.parametrize(
    ("format_", "said"), [("%x", "%x is not one of"), ("%", "% is not"), ("\\q", "\\q is")]
)
def test_a_wrong_format_string(format_: str, said: str) -> None:
    with pytest.raises(BadRecord) as refused:
        compile_format(format_)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "not JSON: Expecting value at character 1"),
        ('{"a"\n', "not JSON: Expecting ':' delimiter at character 6"),
        ("[" * 100_000, "not JSON: it is nested too deeply"),
        ("[1]", "not a JSON object"),
        ('{"key": "k"}', "the object has no field 'value'"),
        ('{"value": 5}', "the value must be a string"),
        ('{"value": {"base64": "?"}}', "not base64"),
        ('{"value": "\\ud800"}', "the value is not text"),
        ('{"value": "v", "id": 5}', "unknown field id"),
        ('{"value": "v", "headers": {"a": "b"}}', "pairs"),
        ('{"value": "v", "headers": [["a"]]}', "pairs"),
        ('{"value": "v", "timestamp_ms": "now"}', "timestamp_ms must be a number"),
        ('{"value": "v", "timestamp_ms": true}', "timestamp_ms must be a number"),
        ('{"value": "v", "partition": -1}', "partition must be a number"),
        ('{"value": "v", "partition": 2147483648}', "partition must be a number"),
    ],
)
def test_json_that_is_no_record(line: str, said: str) -> None:
    with pytest.raises(BadRecord) as refused:
        list(read_jsonl([line.encode()], TSV))
    assert said in str(refused.value)


@pytest.mark.parametrize("line", [b'{"value": "\xff"}\n', b"\xff\xfe\n", '{"value": "v"}'.encode("utf-16")])
def test_json_that_is_not_utf_8(line: bytes) -> None:
    with pytest.raises(BadRecord, match="not UTF-8"):
        list(read_jsonl([line], TSV))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no first line with the names of the columns"),
        ("id,amount\n1,2\n", "no column 'value'; the columns are id, amount"),
        ("value,id\nv,1\n", "unknown field id"),
        ("key,value\nk\n", "the row has 1 cell, not 2"),
        ('value\n"a"b\n', "not CSV"),
        ('value\n"a\n', "not CSV"),
        ("value,headers\nv,[1]\n", "pairs"),
        ("value,headers\nv,{\n", "headers are not JSON"),
        (f"value,headers\nv,{'[' * 100_000}\n", "headers are not JSON: it is nested too deeply"),
        (f"value,partition\nv,{'9' * 5_000}\n", "partition must be a number"),
        ("value,timestamp_ms\nv,now\n", "timestamp_ms must be a number"),
        ("value\n\udcff\n", "not UTF-8"),
    ],
)
def test_csv_that_is_no_record(text: str, said: str) -> None:
    with pytest.raises(BadRecord) as refused:
        list(read_csv(text.encode(errors="surrogateescape").splitlines(keepends=True), CSV))
    assert said in str(refused.value)


def test_documents_have_their_key_in_a_column() -> None:
    rows = [b"\xef\xbb\xbfid,amount\r\n", b'7,"1,5"\r\n', b"8,\\N\r\n"]
    by_id = TextDialect(separator=",", key_column="id")
    assert list(read_csv(rows, by_id)) == [
        Outgoing(b"7", b'{"id": "7", "amount": "1,5"}'),
        Outgoing(b"8", b'{"id": "8", "amount": null}'),
    ]
    amounts = TextDialect(separator=",", key_column="id", value_column="amount")
    assert list(read_csv(rows, amounts)) == [Outgoing(b"7", b"1,5"), Outgoing(b"8", None)]
    document = b'{"id": 7, "amount": {"eur": 5}}'
    assert list(read_jsonl([document + b"\n"], by_id)) == [Outgoing(b"7", document)]
    assert list(read_jsonl([document], amounts)) == [Outgoing(b"7", b'{"eur": 5}')]
    with pytest.raises(BadRecord, match="there is no field 'id'; the fields are name"):
        list(read_jsonl([b'{"name": 1}'], by_id))
    with pytest.raises(BadRecord, match="there is no column 'id'; the columns are name"):
        list(read_csv([b"name\n", b"1\n"], by_id))


def test_a_value_that_csv_cannot_hold_is_an_error() -> None:
    with pytest.raises(BadRecord, match="the value is not UTF-8: --base64"):
        csv_row(a_record(b"k", b"\xff"), CSV)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"value": "a", "value": "b"}', "'value' is repeated in one JSON object"),
        (b'{"value": {"a": 1, "a": 2}}', "'a' is repeated in one JSON object"),
    ],
)
def test_a_name_that_comes_twice_is_refused(line: bytes, says: str) -> None:
    """Python's own reader would take the last one, and lose the others."""
    with pytest.raises(BadRecord, match=says):
        list(read_jsonl([line], TSV))
    with pytest.raises(BadRecord, match="'value' is repeated among the column names"):
        list(read_csv([b"value,value\n", b"a,b\n"], CSV))
