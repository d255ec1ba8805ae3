"""The options of `format("fencepost")`: those of Spark's Kafka source, and the path of the log.

Rule: an unknown option is an error with a hint, never ignored: a typo must not change what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

import attrs

from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import INT64_MAX, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


LATEST_OFFSET: Final = -1  # in the JSON of Spark's Kafka source
EARLIEST_OFFSET: Final = -2

Offsets = Literal["earliest", "latest"] | Mapping[TopicPartition, int]

_TOPIC_CHOICES: Final = ("subscribe", "assign", "subscribePattern")
_KNOWN: Final = (
    "path", *_TOPIC_CHOICES, "startingOffsets", "endingOffsets", "isolation.level", "kafka.isolation.level",
    "includeHeaders", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
)  # fmt: skip

# Options of Spark's Kafka source that do not apply to reading files in a batch.
_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "the log is read from its files, not from a broker: remove it and set path",
    "startingtimestamp": "only offsets are supported: use startingOffsets",
    "endingtimestamp": "only offsets are supported: use endingOffsets",
    "startingoffsetsbytimestamp": "only offsets are supported: use startingOffsets",
    "endingoffsetsbytimestamp": "only offsets are supported: use endingOffsets",
    "maxoffsetspertrigger": "it applies only to streams: a batch reads its whole range",
}


class UnusableOption(FencepostError):
    """An option or a column of the reader is unknown, missing, contradictory or malformed."""


@attrs.frozen(kw_only=True)
class ReadOptions:
    """The validated options of a read.

    Exactly one of `subscribe`, `assign` and `subscribe_pattern` is set.
    """

    path: str
    subscribe: tuple[str, ...] | None = None
    assign: tuple[TopicPartition, ...] | None = None
    subscribe_pattern: str | None = None
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parses the options of a read; names are case-insensitive, as in Spark.

    Raises UnusableOption for the first invalid option.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    chosen = [name for name in _TOPIC_CHOICES if name.lower() in options]
    if len(chosen) != 1:
        raise UnusableOption(
            f"set exactly one of {', '.join(_TOPIC_CHOICES)}; got {', '.join(chosen) or 'none'}"
        )
    return ReadOptions(
        path=_path(options),
        subscribe=_topics(options.get("subscribe")),
        assign=_assignment(options.get("assign")),
        subscribe_pattern=options.get("subscribepattern"),
        starting_offsets=_offsets(options, "startingOffsets", usual="earliest", forbidden=LATEST_OFFSET),
        ending_offsets=_offsets(options, "endingOffsets", usual="latest", forbidden=EARLIEST_OFFSET),
        isolation_level=_isolation_level(options),
        include_headers=_flag(options, "includeHeaders", usual=False),
        fail_on_data_loss=_flag(options, "failOnDataLoss", usual=True),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN}
    for name in options:
        if name in known:
            continue
        if name in _ELSEWHERE:
            raise UnusableOption(f"option {name}: {_ELSEWHERE[name]}")
        if name.startswith("kafka"):
            raise UnusableOption(
                f"option {name} is for a Kafka client; the log is read from its files: remove it"
            )
        raise UnusableOption(f"option {name} is unknown; the options are {', '.join(_KNOWN)}")


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path", "").removeprefix("file://")
    if not path:
        raise UnusableOption(
            'set option path to the data directory of a broker: .option("path", "/data/broker")'
        )
    return path


def _topics(value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    topics = tuple(sorted({name.strip() for name in value.split(",") if name.strip()}))
    if not topics:
        raise UnusableOption("option subscribe names no topic; set one, or several separated by commas")
    return topics


def _assignment(value: str | None) -> tuple[TopicPartition, ...] | None:
    if value is None:
        return None
    partitions: set[TopicPartition] = set()
    for topic, numbers in _json_object("assign", value, '{"topic":[0,1]}').items():
        if not isinstance(numbers, list):
            _malformed("assign", value, '{"topic":[0,1]}')
        for number in cast("list[Any]", numbers):
            if type(number) is not int or number < 0:
                _malformed("assign", value, '{"topic":[0,1]}')
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise UnusableOption("option assign names no partition")
    return tuple(sorted(partitions))


def _offsets(
    options: Mapping[str, str], name: str, *, usual: Literal["earliest", "latest"], forbidden: int
) -> Offsets:
    value = options.get(name.lower(), usual).strip()
    if value.lower() == usual:
        return usual
    form = '{"topic":{"0":23}}'
    if value.lower() in ("earliest", "latest"):
        raise UnusableOption(f"in a batch, {name} must be {usual} or offsets like {form}, not {value}")
    offsets: dict[TopicPartition, int] = {}
    for topic, by_partition in _json_object(name, value, form).items():
        if not isinstance(by_partition, dict):
            _malformed(name, value, form)
        for partition, offset in cast("dict[str, Any]", by_partition).items():
            whole = type(offset) is int and EARLIEST_OFFSET <= offset <= INT64_MAX
            if not partition.isascii() or not partition.isdigit() or not whole:
                _malformed(name, value, form)
            if offset == forbidden:
                raise UnusableOption(f"offset {offset} in {name} would leave a batch nothing to read")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _json_object(name: str, value: str, form: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        _malformed(name, value, form)
    if not isinstance(parsed, dict):
        _malformed(name, value, form)
    return cast("dict[str, Any]", parsed)


def _malformed(name: str, value: str, form: str) -> NoReturn:
    raise UnusableOption(f"option {name} must be JSON like {form}, not {value}")


def _isolation_level(options: Mapping[str, str]) -> IsolationLevel:
    given = {
        options[name].strip().lower()
        for name in ("isolation.level", "kafka.isolation.level")
        if name in options
    }
    known = {level.name.lower(): level for level in IsolationLevel}
    if not given:
        return IsolationLevel.READ_COMMITTED
    if len(given) > 1:
        raise UnusableOption("isolation.level and kafka.isolation.level differ; set only one of them")
    value = given.pop()
    if value not in known:
        raise UnusableOption(
            f"option isolation.level must be read_committed or read_uncommitted, not {value}"
        )
    return known[value]


def _flag(options: Mapping[str, str], name: str, *, usual: bool) -> bool:
    value = options.get(name.lower(), str(usual)).strip().lower()
    if value not in ("true", "false"):
        raise UnusableOption(f"option {name} must be true or false, not {value}")
    return value == "true"


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not value.strip().isdecimal() or not int(value) > 0:
        raise UnusableOption(f"option {name} must be a whole number above 0, not {value}")
    return int(value)


COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

_INSIDE_RECORDS: Final = frozenset({"key", "value", "timestamp", "headers"})


def default_schema(*, include_headers: bool) -> str:
    """The schema, as Spark DDL, for a read without a schema of its own."""
    return ", ".join(
        f"{name} {kind}" for name, kind in COLUMNS.items() if include_headers or name != "headers"
    )


def decoded_columns(names: Iterable[str]) -> frozenset[str]:
    """The columns that need decoded records; the others are computed from batch headers."""
    return _INSIDE_RECORDS.intersection(names)


def checked_names(schema: StructType) -> tuple[str, ...]:
    """Returns the column names of a schema, in order.

    Raises UnusableOption for an unknown column or a wrong type.
    """
    names: list[str] = []
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise UnusableOption(f"column {field.name} is unknown; the columns are {', '.join(COLUMNS)}")
        kind = field.dataType.simpleString()
        if kind != COLUMNS[field.name]:
            raise UnusableOption(
                f"column {field.name} is {COLUMNS[field.name]}, not {kind}: cast it after reading"
            )
        names.append(field.name)
    return tuple(names)
