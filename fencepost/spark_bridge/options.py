"""The options of `format("fencepost")`: those of Spark's Kafka source, and the path of the log.

Rule: an unknown option is an error with a hint, never ignored: a typo must not change what is read. Options
of Spark's Kafka source that say how to reach a broker are accepted, with a notice that they do nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from fencepost.protocol.suggestions import question
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge.losses import Report, leave_out, warn
from fencepost.spark_bridge.option_values import (
    UnusableOption,
    parse_assignment,
    parse_by_partition,
    parse_choice,
    parse_flag,
    parse_isolation_level,
    parse_number,
    parse_paths,
    parse_topics,
)
from fencepost.spark_bridge.task_sizes import TaskSizes

LATEST_OFFSET: Final = -1  # in the JSON of Spark's Kafka source
EARLIEST_OFFSET: Final = -2

Edge = Literal["earliest", "latest"]


@attrs.frozen
class Timestamps:
    """Where to begin or to end, in milliseconds: at the first record of each partition that is at least as
    new.
    """

    by_partition: Mapping[TopicPartition, int] | None = None
    everywhere: int | None = attrs.field(default=None, kw_only=True)


Position = Edge | Mapping[TopicPartition, int] | Timestamps
"""Where a read begins or ends: an end of the log, offsets, or times."""

_TOPIC_CHOICES: Final = ("subscribe", "assign", "subscribePattern")
_KNOWN: Final = (
    "path", "paths", *_TOPIC_CHOICES, "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestampStrategy", "isolation.level", "kafka.isolation.level", "includeHeaders",
    "includeTransactions", "failOnDataLoss", "warnOnDataLoss", "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "table", "verifyChecksums",
)  # fmt: skip

# Of Spark's Kafka source (KafkaSourceProvider): how a broker is reached, and how long a trigger waits.
_IGNORED: Final = frozenset(
    {
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "minoffsetspertrigger",
        "maxtriggerdelay",
    }
)
_CLIENT_PREFIX: Final = "kafka."

RECORDS: Final = "records"
TABLE_NAMES: Final = (RECORDS, "batches", "transactions", "partitions", "coordinator", "losses")


@attrs.frozen(kw_only=True)
class ReadOptions:
    """The validated options of a read.

    Exactly one of `subscribe`, `assign` and `subscribe_pattern` is set; for a table other than records there
    may be none, for all topics but internal ones.
    """

    paths: tuple[str, ...]
    table: str = RECORDS
    verify_checksums: bool = False
    subscribe: tuple[str, ...] | None = None
    assign: tuple[TopicPartition, ...] | None = None
    subscribe_pattern: str | None = None
    starting: Position | None = None
    """None: where a batch or a stream usually begins."""
    ending: Position = "latest"
    latest_if_unmatched: bool = False
    """Whether a read begins at the end of a partition that has no record as new as the starting time."""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    include_headers: bool = False
    include_transactions: bool = False
    fail_on_data_loss: bool = True
    warn_on_data_loss: bool = True
    sizes: TaskSizes = attrs.field(factory=TaskSizes)
    max_offsets_per_trigger: int | None = None
    ignored: tuple[str, ...] = ()
    """Options that were given and have no effect here."""

    @property
    def follows_transactions(self) -> bool:
        """Whether a read needs to know how transactions ended."""
        return self.include_transactions or self.isolation_level is IsolationLevel.READ_COMMITTED

    @property
    def report(self) -> Report | None:
        """Where losses are reported; None if a loss is an error."""
        if self.fail_on_data_loss:
            return None
        return warn if self.warn_on_data_loss else leave_out


def parse_options(given: Mapping[str, str], *, parallelism: int = 1) -> ReadOptions:
    """Parses the options of a read; names are case-insensitive, as in Spark.

    `parallelism` is how many tasks run at the same time. Raises UnusableOption for the first invalid option.
    """
    options = {name.lower(): value for name, value in given.items()}
    ignored = _ignored(given)
    chosen = [name for name in _TOPIC_CHOICES if name.lower() in options]
    table = parse_choice(options, "table", TABLE_NAMES)
    if len(chosen) > 1 or (not chosen and table == RECORDS):
        raise UnusableOption(
            f"set exactly one of {', '.join(_TOPIC_CHOICES)}; got {', '.join(chosen) or 'none'}"
        )
    return ReadOptions(
        paths=parse_paths(options),
        table=table,
        verify_checksums=parse_flag(options, "verifyChecksums", default=False),
        subscribe=parse_topics(options.get("subscribe")),
        assign=parse_assignment(options.get("assign")),
        subscribe_pattern=options.get("subscribepattern"),
        starting=_position(options, "starting"),
        ending=_position(options, "ending") or "latest",
        latest_if_unmatched=parse_choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        isolation_level=parse_isolation_level(options),
        include_headers=parse_flag(options, "includeHeaders", default=False),
        include_transactions=parse_flag(options, "includeTransactions", default=False),
        fail_on_data_loss=parse_flag(options, "failOnDataLoss", default=True),
        warn_on_data_loss=parse_flag(options, "warnOnDataLoss", default=True),
        sizes=TaskSizes(
            parallelism=parallelism,
            min_partitions=parse_number(options, "minPartitions", lowest=1),
            max_records=parse_number(options, "maxRecordsPerPartition", lowest=1),
        ),
        max_offsets_per_trigger=parse_number(options, "maxOffsetsPerTrigger", lowest=1),
        ignored=ignored,
    )


def check_batch(options: ReadOptions) -> None:
    """Raises UnusableOption for a position that would leave a batch nothing to read."""
    for name, position, wrong, number in (
        ("startingOffsets", options.starting, "latest", LATEST_OFFSET),
        ("endingOffsets", options.ending, "earliest", EARLIEST_OFFSET),
    ):
        if position == wrong:
            raise UnusableOption(f"in a batch, {name} cannot be {wrong}: nothing would be left to read")
        if isinstance(position, Mapping) and number in position.values():
            raise UnusableOption(f"offset {number} in {name} would leave a batch nothing to read")


def check_stream(options: ReadOptions) -> None:
    """Raises UnusableOption for an option that only a batch can follow."""
    if options.table != RECORDS:
        raise UnusableOption(f"a stream reads records: read table {options.table} with spark.read")
    if options.ending != "latest":
        raise UnusableOption("a stream has no end: remove the ending offsets or timestamps")


def _ignored(given: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the options that have no effect here; UnusableOption for unknown ones."""
    known = {name.lower(): name for name in _KNOWN}
    everything = f"the options are {', '.join(_KNOWN)}"
    ignored: list[str] = []
    for name in given:
        if name.lower() in known:
            continue
        meant = question(name, known.values())
        of_client = name.lower().startswith(_CLIENT_PREFIX) and not meant
        if of_client or name.lower() in _IGNORED:
            ignored.append(name)
            continue
        raise UnusableOption(f"option {name} is unknown; {meant or everything}")
    return tuple(ignored)


def _position(options: Mapping[str, str], edge: Literal["starting", "ending"]) -> Position | None:
    """The position of an edge: one time wins over times by partition, which win over offsets, as in Spark."""
    everywhere = parse_number(options, f"{edge}Timestamp", lowest=0)
    if everywhere is not None:
        return Timestamps(everywhere=everywhere)
    name = f"{edge}OffsetsByTimestamp"
    if name.lower() in options:
        return Timestamps(parse_by_partition(name, options[name.lower()], lowest=0))
    name = f"{edge}Offsets"
    value = options.get(name.lower(), "").strip()
    if not value:
        return None
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    return parse_by_partition(name, value, lowest=EARLIEST_OFFSET)
