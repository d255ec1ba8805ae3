"""`fencepost consume`: prints records, up to the current end of the topic or forever.

Rule: it prints the requested records, and never others in their place. What it prints as JSON or
CSV, `fencepost produce` writes again. A partition that cannot be read is reported on stderr and retried,
without --follow only until no record has arrived for `ANSWER_MS`. If one is refused when the command starts,
the others are printed before the command fails; with --group, it fails at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, Final, Literal

import attrs
from cyclopts import Parameter, validators

from fencepost.cli.errors import ADVICE, CommandFailed, WrongUsage, complain
from fencepost.cli.options import (
    ANSWER_MS,
    LOCAL,
    NOT_EMPTY,
    AsJson,
    ClientId,
    ClusterOptions,
    InPartitions,
    InTopic,
    check_id,
    partitions_to_use,
)
from fencepost.cli.output import print_json
from fencepost.cli.positions import (
    STOP_ADVICE,
    Kind,
    Offsets,
    Position,
    end_offsets_of,
    hidden_offsets,
    parse_position,
    range_of,
    start_offsets,
    starts_of_last,
    unreadable,
)
from fencepost.cli.record_formats import (
    FIELDS,
    NULL,
    BadRecord,
    TextDialect,
    as_csv,
    as_line,
    check_csv_separator,
    compile_format,
    csv_row,
    facts,
)
from fencepost.cli.table import is_terminal
from fencepost.client.consumer_records import ConsumedBatch, Record
from fencepost.client.shells.sync import Admin, Consumer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition

POLL_MS: Final = 500
POLLS_MAX: Final = ANSWER_MS // POLL_MS
Write = Callable[[Record], None]
TAKES: Final = {"text": ("separator", "null", "places"), "csv": ("separator", "null"), "jsonl": ()}
"""The options that each format takes; a format string takes --null, and all formats take --base64."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class OutputOptions:
    """How records are printed."""

    format: Annotated[
        str,
        Parameter(
            ("--format", "-f"),
            help="text: each line is a value, or a key and a value separated by a tab. jsonl: a JSON object "
            "per line, as with --json. csv: a row of column names, then a record per row. Or a format "
            "string: "
            r"%t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp in ms, %d date, "
            r"\n, \t.",
        ),
    ] = "text"
    separator: Annotated[
        str | None,
        Parameter(
            ("--separator", "-K"),
            help="Separator of key and value, or of the cells of CSV. [default: a tab; in CSV a comma]",
        ),
    ] = None
    null: Annotated[
        str | None, Parameter(help=f"Text for null in --format text and csv. [default: {NULL}]")
    ] = None
    base64: Annotated[bool, Parameter(negative="", help="Print keys and values in base64.")] = False
    places: Annotated[
        bool, Parameter(negative="", help="Print partition and offset before each line of text.")
    ] = False

    def as_json(self) -> OutputOptions:
        """These options with --json."""
        if self.format not in ("text", "jsonl"):
            what = f"--json and --format {self.format} ask for different formats"
            raise WrongUsage(what, then="leave out one of them")
        return attrs.evolve(self, format="jsonl")

    def check(self) -> None:
        """CommandFailed if an option would do nothing in this format."""
        takes = TAKES.get(self.format, ("null",))
        for name in ("separator", "null", "places"):
            if getattr(self, name) not in (None, False) and name not in takes:
                what = f"--{name} does not apply to --format {self.format}"
                raise WrongUsage(what, then="leave out one of them")
        if self.format == "csv" and self.separator is not None:
            check_csv_separator(self.separator)

    def writer(self) -> Write:
        """Prints one record; CommandFailed if the format string is wrong or the format cannot hold it."""
        if self.format == "jsonl":
            return lambda record: print_json(facts(record, base64=self.base64))
        dialect = TextDialect(
            separator=("," if self.format == "csv" else "\t") if self.separator is None else self.separator,
            null=NULL if self.null is None else self.null,
            base64=self.base64,
            escapes_controls=is_terminal(),
        )
        to_bytes = self._to_bytes(dialect)

        def write(record: Record) -> None:
            try:
                data = to_bytes(record)
            except BadRecord as problem:
                where = f"{record.topic}-{record.partition} offset {record.offset}"
                then = "--format jsonl can print this record"
                raise CommandFailed(f"{where}: {problem}", then=then) from problem
            sys.stdout.flush()
            sys.stdout.buffer.write(data)

        return write

    def _to_bytes(self, dialect: TextDialect) -> Callable[[Record], bytes]:
        if self.format == "text":
            return lambda record: (
                (f"{record.partition}:{record.offset}\t".encode() if self.places else b"")
                + as_line(record, dialect)
                + b"\n"
            )
        if self.format == "csv":
            print(as_csv(FIELDS, dialect))
            return lambda record: as_csv(csv_row(record, dialect), dialect).encode() + b"\n"
        if "%" not in self.format:
            raise WrongUsage(
                f"--format {self.format or repr(self.format)} is not text, jsonl, csv or a format string",
                then=r"a format string has placeholders, for example '%k %s\n'",
            )
        try:
            fill = compile_format(self.format)
        except BadRecord as problem:
            raise WrongUsage(f"--format: {problem}") from problem
        return lambda record: fill(record, dialect)


TEXT: Final = OutputOptions()


def consume(
    topic: InTopic,
    *,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    from_: Annotated[str | None, NOT_EMPTY, Parameter(("--from", "-o"), allow_leading_hyphen=True)] = None,
    until: Annotated[str | None, NOT_EMPTY, Parameter(allow_leading_hyphen=True)] = None,
    partition: InPartitions = (),
    group: Annotated[str | None, Parameter(alias="-g")] = None,
    max_: Annotated[int | None, Parameter(("--max", "-n"), validator=validators.Number(gte=1))] = None,
    follow: Annotated[bool, Parameter(alias="-F", negative="")] = False,
    printing: OutputOptions = TEXT,
    client_id: ClientId = "fencepost-consume",
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Print records as lines of text.

    Parameters
    ----------
    topic
        The topic to read.
    isolation
        read_committed skips aborted records and stops before the first undecided one; read_uncommitted shows
        all records.
    from_
        Where to start: earliest, latest, an offset, -10 for the last ten records of each partition, a time
        such as 2026-11-22T13:00 (UTC) or @1795352400000, or -15m for 15 minutes ago. [default: earliest;
        with --group, the committed offsets of the group]
    until
        Where to stop: before this offset, or before the first record with this timestamp or a later one.
    partition
        Only this partition. Repeatable.
    group
        Read as a member of this consumer group, and commit the offsets of printed records.
    max_
        Stop after this number of records.
    follow
        At the end, wait for new records instead of stopping.
    """
    plan = _Plan(
        topic=topic,
        isolation=isolation,
        start=parse_position("--from", from_ or "earliest"),
        until=parse_position("--until", until or "end", then=STOP_ADVICE),
        partitions=partition,
        group=group,
        records_max=max_,
        follow=follow,
    )
    plan.check(is_from_given=from_ is not None, is_until_given=until is not None)
    printing = printing.as_json() if as_json else printing
    printing.check()
    with ExitStack() as stack:
        admin = stack.enter_context(cluster.connect(client_id))
        parts = partitions_to_use(admin, topic, partition)
        write = printing.writer()
        settings: dict[str, Any] = {"client_id": client_id, **cluster.security(), **plan.settings}
        consumer = stack.enter_context(
            Consumer(cluster.bootstrap, default_api_timeout_ms=ANSWER_MS, **settings)
        )
        plan.run(admin, consumer, parts, write)


@attrs.frozen(kw_only=True)
class _Plan:
    """Which records to print."""

    topic: str
    isolation: str
    start: Position
    until: Position
    partitions: tuple[int, ...]
    group: str | None
    records_max: int | None
    follow: bool

    def check(self, *, is_from_given: bool, is_until_given: bool) -> None:
        """CommandFailed if options contradict each other."""
        if self.follow and is_until_given:
            raise WrongUsage("--follow never stops, so --until has no effect", then="leave out one of them")
        check_id("--group", self.group)
        if self.group is None:
            return
        if self.partitions:
            raise WrongUsage(
                "--group decides which partitions this member reads, so --partition has no effect",
                then="leave out one of them",
            )
        if is_from_given and self.start.kind not in (Kind.EARLIEST, Kind.LATEST):
            raise WrongUsage(
                f"--from {self.start.text} has no effect with --group, which starts at committed offsets",
                then="give earliest or latest: it applies to partitions for which the group has no offset",
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the consumer. Without a group, no offset is ever replaced by another one."""
        reset = "error" if self.group is None else self.start.kind.name.lower()
        return {"isolation_level": self.isolation, "group_id": self.group, "auto_offset_reset": reset}

    def run(self, admin: Admin, consumer: Consumer, parts: list[TopicPartition], write: Write) -> None:
        """Prints the records."""
        has, refusals = range_of(admin, parts, self.isolation)
        if refusals and (self.group is not None or not has.starts):
            raise unreadable(refusals)
        if refusals:
            complain(str(unreadable(refusals)), then="reading the other partitions")
        ends = None if self.follow else end_offsets_of(admin, self.until, has)
        reader = _PollingReader(
            consumer, admin, None if self.follow else POLLS_MAX, commits=self.group is not None
        )
        if self.group is None:
            starts = start_offsets(admin, self.start, has)
            if self.start.kind is Kind.LAST:
                read = _PollingReader(consumer, admin, POLLS_MAX).read  # looks back, even with --follow
                starts = starts_of_last(self.start.number, has, ends or has.stable_ends, read)
            polls = reader.assigned(starts, ends)
        else:
            consumer.subscribe([self.topic])
            polls = reader.of_group(self.group, ends)
        is_whole = reader.show(polls, write, self.records_max)
        if is_whole and (hidden := hidden_offsets(has)) and self.until.kind is Kind.LATEST:
            complain(
                f"an open transaction hides {hidden} from read_committed",
                then="--isolation read_uncommitted shows what is hidden; "
                "`fencepost transactions describe-producers` shows the transaction",
            )
        if refusals:
            raise unreadable(refusals)


@attrs.define
class _PollingReader:
    """Polls a consumer up to given ends."""

    consumer: Consumer
    admin: Admin
    polls_max: int | None
    commits: bool = False

    def read(self, starts: Offsets, ends: Offsets) -> Iterator[Record]:
        """The records between these offsets."""
        for batches in self.assigned(starts, ends):
            yield from batches

    def assigned(self, starts: Offsets, ends: Offsets | None) -> Iterator[list[Record]]:
        self.consumer.assign(starts)
        for part, offset in starts.items():
            self.consumer.seek(part, offset)
        retries = Retries(self.polls_max)
        while ends is None or any(self.consumer.position(part) < ends[part] for part in starts):
            yield self._poll(retries, ends)

    def of_group(self, group: str, ends: Offsets | None) -> Iterator[list[Record]]:
        """The same for the partitions that a group assigns."""
        retries, polls = Retries(self.polls_max), 0
        while True:
            yield self._poll(retries, ends)
            parts = self.consumer.assignment()
            if ends is not None and parts and all(self.consumer.position(p) >= ends[p] for p in parts):
                # Commit past the markers at the end, too; but the group may already have been further.
                had = self.consumer.committed(parts)
                self.consumer.commit({p: max(had[p] or 0, ends[p]) for p in parts})
                return
            polls = 0 if parts else polls + 1
            if polls == self.polls_max:
                raise CommandFailed(
                    f"this member of group {group} got no partition within {ANSWER_MS // 1000} s",
                    then=f"`fencepost group describe {group}` shows the members; each partition goes to only "
                    "one member",
                )

    def _poll(self, retries: Retries, ends: Offsets | None) -> list[Record]:
        batches = self.consumer.poll(POLL_MS)
        retries.note(batches, self.consumer.fetch_errors())
        if ends is not None and not batches:
            self._check_ends(ends)
        records = (record for batch in batches for record in batch)
        if ends is None:
            return list(records)
        return [
            record
            for record in records
            if record.offset < ends[TopicPartition(record.topic, record.partition)]
        ]

    def _check_ends(self, ends: Offsets) -> None:
        """CommandFailed if a log has no more records and is shorter than it was: its old end is never
        reached.
        """
        ends_now = self.admin.end_offsets(self.consumer.assignment(), isolation_level="read_uncommitted")
        for part, now in ends_now.items():
            if now < ends[part] and self.consumer.position(part) >= now:
                raise CommandFailed(
                    f"{part} ended at offset {ends[part]} when this command began, and ends at {now} now: "
                    "the broker lost unsynced records, or the topic was deleted and created again",
                    then="the records printed are all that is left; `fencepost help trust` describes --sync",
                )

    def show(self, polls: Iterator[list[Record]], write: Write, most: int | None) -> bool:
        """Prints up to `most` records; returns False if there are more. Commits what it has printed."""
        for records in polls:
            shown = records if most is None else records[:most]
            self._print(shown, write)
            if most is not None:
                most -= len(shown)
                if most == 0:
                    return False
        return True

    def _print(self, records: list[Record], write: Write) -> None:
        """Prints records and commits their offsets; after Ctrl-C those of the records that were printed."""
        count = 0
        try:
            for record in records:
                write(record)
                count += 1
        finally:
            sys.stdout.flush()
            if self.commits and count:
                printed = records[:count]
                self.consumer.commit(
                    {TopicPartition(each.topic, each.partition): each.offset + 1 for each in printed}
                )


@attrs.define
class Retries:
    """Reports partitions that cannot be read, once per error."""

    polls_max: int | None
    """The command fails after this many consecutive polls with an error and no record; None: never."""
    _reported: set[ErrorCode] = attrs.Factory(set[ErrorCode])
    _polls: int = 0

    def note(self, batches: Collection[ConsumedBatch], errors: Mapping[TopicPartition, ErrorCode]) -> None:
        """Takes the result of a poll into account."""
        self._polls = self._polls + 1 if errors and not batches else 0
        for partition, error in errors.items():
            what = f"cannot read {partition}: {error.meaning} ({error.name})"
            if self._polls == self.polls_max:
                raise CommandFailed(what, then=ADVICE.get(error, "check the broker"))
            if error not in self._reported:
                is_gone = error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
                ends = "; it also ends if the topic was deleted" if is_gone else ""
                complain(what, then=f"retrying; Ctrl-C ends this command{ends}")
                self._reported.add(error)
        if self._reported and not errors:
            complain("all partitions can be read again")
            self._reported.clear()
