"""`fencepost produce`: writes lines, JSON, CSV or files as records, optionally in transactions.

Rule: records that it reports as written are acknowledged, and committed if they are in a transaction. It
reports them however it ends: at the end of its input, at an error in line 1,000, or by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
from cyclopts import Parameter

from fencepost.check.findings import counted
from fencepost.cli.delays import reporting_delays
from fencepost.cli.errors import CommandFailed, WrongUsage, code_of
from fencepost.cli.interruptions import Ended
from fencepost.cli.options import (
    ANSWER_MS,
    LOCAL,
    AsJson,
    AtLeastOne,
    ClientId,
    ClusterOptions,
    InPartition,
    InTopic,
    check_id,
    pair_in,
    partitions_to_use,
)
from fencepost.cli.output import Json, print_json
from fencepost.cli.record_formats import (
    NULL,
    BadRecord,
    InputFormat,
    Outgoing,
    TextDialect,
    check_csv_separator,
    read_csv,
    read_jsonl,
    read_lines,
)
from fencepost.client.batch import RecordMetadata
from fencepost.client.errors import ClientError, CommitOutcomeUnknown, DeliveryFailed, UnknownTopic
from fencepost.client.settings import newest_producer_version
from fencepost.client.shells.signals import noting_interruptions
from fencepost.client.shells.sync import Producer, SendFuture
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.terms import INTERNAL_TOPICS

PENDING_MAX: Final = 10_000  # sends in flight before it waits for the oldest
READERS: Final[dict[str, Callable[[Iterable[bytes], TextDialect], Iterator[Outgoing]]]] = {
    "text": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
}
TAKES: Final = {
    "text": ("separator", "null", "base64"),
    "jsonl": ("key-column", "value-column"),
    "csv": ("separator", "null", "base64", "key-column", "value-column"),
    "raw": (),
}
"""The format options that apply to each format; the others would do nothing."""
TYPED: Final = {
    "text": "one record per line",
    "jsonl": "one JSON object per line",
    "csv": "a line of column names, then one record per line",
    "raw": "one record in all",
}
"""What to type at a terminal."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class InputOptions:
    """How the input becomes records."""

    format: Annotated[
        InputFormat,
        Parameter(
            ("--format", "-f"),
            help="text: each line is a value, or a key and a value separated by a tab. jsonl: each line is a "
            "JSON object, as consume --json prints it. csv: a row of column names, then a record per row. "
            "raw: each file is one value.",
        ),
    ] = "text"
    separator: Annotated[
        str | None,
        Parameter(
            ("--separator", "-K"),
            help="Separator of key and value, or of the cells of CSV. Empty if lines have no keys. "
            "[default: a tab; in CSV a comma]",
        ),
    ] = None
    key_column: Annotated[
        str | None,
        Parameter(
            help="The column of CSV, or the field of JSON, that is the key. The whole row is the value."
        ),
    ] = None
    value_column: Annotated[
        str | None, Parameter(help="The column or field that is the value, instead of the whole row.")
    ] = None
    null: Annotated[
        str | None,
        Parameter(help=rf"The text that stands for null. A null value is a tombstone. [default: {NULL}]"),
    ] = None
    base64: Annotated[
        bool | None, Parameter(negative="", help="Decode keys and values of lines and CSV from base64.")
    ] = None

    def dialect(self) -> TextDialect:
        """The options for the readers; CommandFailed if the format does not take one of them."""
        given = attrs.asdict(self, filter=lambda field, value: field.name != "format" and value is not None)
        for name in given:
            if (option := name.replace("_", "-")) not in TAKES[self.format]:
                takes = ", ".join(f"--{each}" for each in TAKES[self.format]) or "none of these options"
                what = f"--{option} does not apply to --format {self.format}"
                raise WrongUsage(what, then=f"this format takes {takes}")
        separator = "," if self.format == "csv" else "\t"
        if self.format == "csv":
            check_csv_separator(given.get("separator", separator))
        chosen: dict[str, Any] = {"separator": separator, **given}
        return TextDialect(**chosen)


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class RecordOptions:
    """The options that apply to every record."""

    partition: Annotated[
        InPartition | None,
        Parameter(help="Write to this partition. By default the input names it, or the key decides."),
    ] = None
    repartition: Annotated[
        bool, Parameter(negative="", help="Ignore the partitions in JSON and CSV, so that the keys decide.")
    ] = False
    key: Annotated[str | None, Parameter(("--key", "-k"), help="The key for records that have none.")] = None
    header: Annotated[
        tuple[str, ...],
        Parameter(
            ("--header", "-H"),
            help="Add the header name=value to each record, after those that the record has. Repeatable.",
        ),
    ] = ()

    def applied(self, records: Iterator[Outgoing]) -> Iterator[Outgoing]:
        if self == RecordOptions():
            return records
        pairs = [pair_in("--header", text, example="source=till-1") for text in self.header]
        headers = [(name, value.encode()) for name, value in pairs]
        return (self._applied(record, headers) for record in records)

    def _applied(self, record: Outgoing, headers: list[tuple[str, bytes]]) -> Outgoing:
        partition = None if self.repartition else record.partition
        return record._replace(
            key=self.key.encode() if record.key is None and self.key is not None else record.key,
            partition=partition if self.partition is None else self.partition,
            headers=[*(record.headers or ()), *headers] or None,
        )


LINES: Final = InputOptions()
AS_THEY_ARE: Final = RecordOptions()


class Written:
    """Counts the acknowledged records of each partition; those of a transaction once it has committed."""

    def __init__(self, interruptions: list[BaseException]) -> None:
        self._interruptions = interruptions
        """Exceptions of signals, raised between two records, so that the counts agree with what was sent."""
        self.last_transaction: Literal["aborted", "unknown", "committed"] | None = None
        """The outcome if the command ended now: unknown while a commit waits for its reply."""
        self.transactions = 0
        self.records = 0
        self.unknown = 0
        """Records that were sent, and may be written or not: the command ended before the broker answered."""
        self.spans: dict[int, tuple[int, int]] = {}
        """The first and the last offset in each partition."""
        self._undecided = 0
        """Acknowledged records of a transaction that is not committed yet."""
        self._undecided_spans: dict[int, tuple[int, int]] = {}
        self.pending: deque[SendFuture] = deque()
        """The sends in flight."""

    def wait(self) -> None:
        """Waits for the oldest send in flight when there are too many."""
        if self._interruptions:
            raise self._interruptions.pop(0)
        if len(self.pending) > PENDING_MAX:
            self._settle()

    def finish(self) -> None:
        """Waits for all sends in flight."""
        while self.pending:
            self._settle()
        self.wait()

    def _settle(self) -> None:
        self._acknowledge(self.pending[0].result())
        self.pending.popleft()

    def _acknowledge(self, place: RecordMetadata) -> None:
        _, partition, offset = place
        self._undecided += 1
        first, _ = self._undecided_spans.get(partition, (offset, offset))
        self._undecided_spans[partition] = (first, offset)

    def count(self) -> None:
        """Count the acknowledged records as written for good."""
        self.records += self._undecided
        for partition, (first, last) in self._undecided_spans.items():
            self.spans[partition] = (self.spans.get(partition, (first, last))[0], last)
        self._undecided = 0
        self._undecided_spans.clear()

    def count_done(self) -> None:
        """After an interruption or an error: count what was acknowledged, and what is unknown."""
        for sent in self.pending:
            batch = sent.batch
            if batch.base_offset >= 0:
                self._acknowledge(sent.outcome())
            elif batch.was_sent and not (batch.failure and batch.failure.kind is DeliveryFailed):
                self.unknown += 1
        self.count()


def produce(
    topic: InTopic,
    *files: Path,
    reading: InputOptions = LINES,
    every: RecordOptions = AS_THEY_ARE,
    transactional_id: str | None = None,
    records_per_transaction: AtLeastOne | None = None,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], Parameter(("--compression", "-z"))
    ] = "none",
    client_id: ClientId = "fencepost-produce",
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> int | None:
    """Write lines of text as records.

    Parameters
    ----------
    topic
        The topic to write to.
    files
        Files to read, one after the other. [default: standard input]
    transactional_id
        Write in transactions under this id. A running producer with the same id is fenced.
    records_per_transaction
        Commit after this number of records. By default all records are one transaction.
    compression
        Compression of the batches.
    """
    _check_topic(topic)
    _check_transactions(transactional_id, records_per_transaction)
    records = every.applied(read(files, reading))
    with cluster.connect(client_id) as admin:
        partitions_to_use(admin, topic, [] if every.partition is None else [every.partition])
        version = newest_producer_version(admin.transaction_version())
    producer = Producer(
        cluster.bootstrap,
        client_id=client_id,
        transactional_id=transactional_id,
        compression_type=compression,
        max_block_ms=ANSWER_MS,
        transaction_version=version,
        **cluster.security(),
    )
    interruptions: list[BaseException] = []
    written = Written(interruptions)
    try:
        with noting_interruptions(interruptions), producer, reporting_delays(producer, written.pending):
            write(
                producer,
                topic,
                records,
                written,
                per_transaction=records_per_transaction,
                id_=transactional_id,
            )
    except BaseException as problem:
        if transactional_id is None:
            written.count_done()
        report(topic, written, as_json=as_json, because=problem)
        if not isinstance(problem, Ended):
            raise
        return code_of(problem)
    report(topic, written, as_json=as_json)
    return None


def _check_topic(topic: str) -> None:
    if topic in INTERNAL_TOPICS:
        raise WrongUsage(
            f"{topic} is an internal topic: only the broker writes to it",
            then="`fencepost topic list` shows the topics",
        )


def _check_transactions(transactional_id: str | None, count: int | None) -> None:
    check_id("--transactional-id", transactional_id)
    if count is not None and transactional_id is None:
        raise WrongUsage(
            "--records-per-transaction needs --transactional-id",
            then="choose an id for this producer: --transactional-id NAME",
        )


def read(files: tuple[Path, ...], options: InputOptions) -> Iterator[Outgoing]:
    """The records of the files or of standard input; a mistake names its file and line."""
    dialect = options.dialect()
    for file in files:
        file.open("rb").close()  # a name that does not exist is an error before anything is written
    return _read(files, options, dialect)


def _read(files: tuple[Path, ...], options: InputOptions, dialect: TextDialect) -> Iterator[Outgoing]:
    if not files and sys.stdin.isatty():
        what = TYPED[options.format]
        print(f"Reading from the terminal: {what}. Ctrl-D ends the input.", file=sys.stderr)
    if options.format == "raw":
        yield from (Outgoing(None, file.read_bytes()) for file in files)
        if not files:
            yield Outgoing(None, sys.stdin.buffer.read())
        return
    for file in files or (None,):
        with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as source:
            numbers = count(1)
            lines = map(itemgetter(1), zip(numbers, source, strict=False))
            try:
                yield from READERS[options.format](lines, dialect)
            except BadRecord as problem:
                where = f"{file or 'standard input'} line {next(numbers) - 1}"
                then = f"`fencepost produce --help` describes --format {options.format}"
                raise CommandFailed(f"{where}: {problem}", then=then) from problem


def write(
    producer: Producer,
    topic: str,
    records: Iterator[Outgoing],
    written: Written,
    *,
    per_transaction: int | None,
    id_: str | None,
) -> None:
    """Sends all records, `per_transaction` in each transaction if there is a transactional id."""
    if id_ is None:
        _send(producer, topic, records, written)
        written.count()
        return
    producer.init_transactions()
    while first := list(islice(records, 1)):
        rest = records if per_transaction is None else islice(records, per_transaction - 1)
        written.last_transaction = "aborted"
        with producer.transaction():
            _send(producer, topic, iter(first), written)
            _send(producer, topic, rest, written)
            written.last_transaction = "unknown"
        written.last_transaction = "committed"
        written.transactions += 1
        written.count()


def _send(producer: Producer, topic: str, records: Iterator[Outgoing], written: Written) -> None:
    for key, value, headers, timestamp_ms, partition in records:
        try:
            written.pending.append(
                producer.send(
                    topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
            )
            written.wait()
        except UnknownTopic as problem:
            if partition is None or problem.error is not NO_ERROR:
                raise
            then = "with --repartition the keys decide, not the partitions that the input names"
            raise CommandFailed(problem.because, then=then) from problem
    producer.flush()
    written.finish()


def report(topic: str, written: Written, *, as_json: bool, because: BaseException | None = None) -> None:
    """Prints how many records were written, and their offsets, and why the command ended early, if it did."""
    ended = "complete" if because is None else "interrupted" if isinstance(because, Ended) else "failed"
    last = _outcome(written, because)
    if as_json:
        spans: dict[str, Json] = {
            str(partition): {"first_offset": first, "last_offset": last_offset}
            for partition, (first, last_offset) in sorted(written.spans.items())
        }
        counts = {
            "records": written.records,
            "unknown_records": written.unknown,
            "transactions": written.transactions,
        }
        print_json({"topic": topic, **counts, "last_transaction": last, "ended": ended, "partitions": spans})
        return
    how = f" in {counted(written.transactions, 'transaction')}" if written.transactions else ""
    records = counted(written.records, "record")
    what = f"{records} written" if because is None else f"{ended.capitalize()} after writing {records}"
    outcome = "" if last in (None, "committed") else f"; outcome of the open transaction: {last}"
    print(f"{what} to {topic}{how}{outcome}")
    for partition, (first, last_offset) in sorted(written.spans.items()):
        print(f"  partition {partition}: offsets {first} to {last_offset}")
    if written.unknown:
        print(
            f"  outcome unknown: {counted(written.unknown, 'record')} that the broker has not acknowledged; "
            f"`fencepost consume {topic}` shows what was written"
        )


def _outcome(written: Written, because: BaseException | None) -> str | None:
    """How the last transaction ended, as far as the client knows."""
    if written.last_transaction == "unknown" and isinstance(because, ClientError):
        return "unknown" if isinstance(because, CommitOutcomeUnknown) else "aborted"
    return written.last_transaction
