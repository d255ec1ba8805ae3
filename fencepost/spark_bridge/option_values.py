"""The values of options: each is text, and is parsed, or refused with an error that shows the right form.

Rule: nothing is guessed. Text that is not understood raises UnusableOption, which names the option.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NoReturn, cast
from urllib.parse import unquote, urlsplit

from fencepost.protocol.errors import FencepostError
from fencepost.protocol.suggestions import question
from fencepost.protocol.terms import INT64_MAX, IsolationLevel, TopicPartition
from fencepost.spark_bridge.filesystems import REMOTE_SCHEMES, is_remote

_BY_PARTITION: Final = '{"topic":{"0":23}}'
_ASSIGNED: Final = '{"topic":[0,1]}'
_HERE: Final = frozenset({"", "localhost"})


class UnusableOption(FencepostError):
    """An option or a column of the reader is unknown, missing, contradictory or malformed."""


def parse_paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """The directories of options `path` (one) and `paths` (JSON, what `load` with a list sets)."""
    several = options.get("paths")
    given: Any = [options.get("path", "")]
    if several is not None:
        given = _json("paths", several, '["/data/1","/data/2"]')
    if not isinstance(given, list) or not all(isinstance(path, str) for path in cast("list[Any]", given)):
        _malformed("paths", several or "", '["/data/1","/data/2"]')
    paths = tuple(_place(path) for path in cast("list[str]", given))
    if not all(paths) or not paths:
        raise UnusableOption(
            'set option path to the data directory of a broker: .option("path", "/data/broker")'
        )
    return paths


def _place(path: str) -> str:
    """A plain path and the URI of a remote file system as they are; of a `file:` URI the path, with its
    percent-encoding undone.
    """
    scheme, colon, _ = path.partition(":")
    if is_remote(path) or not colon or not scheme.isalnum() or len(scheme) == 1:
        return path
    if scheme.lower() != "file" or urlsplit(path).netloc not in _HERE:
        raise UnusableOption(
            f"{path} is neither a directory of this machine nor a URI of a file system that can be read: "
            f"{', '.join(f'{known}://' for known in sorted(REMOTE_SCHEMES))}"
        )
    return unquote(urlsplit(path).path)


def parse_topics(value: str | None) -> tuple[str, ...] | None:
    """The names in a list with commas, sorted."""
    if value is None:
        return None
    topics = tuple(sorted({name.strip() for name in value.split(",") if name.strip()}))
    if not topics:
        raise UnusableOption("option subscribe names no topic; set one, or several separated by commas")
    return topics


def parse_assignment(value: str | None) -> tuple[TopicPartition, ...] | None:
    """Partitions in JSON like `{"topic":[0,1]}`, sorted."""
    if value is None:
        return None
    partitions: set[TopicPartition] = set()
    for topic, numbers in _json_object("assign", value, _ASSIGNED).items():
        if not isinstance(numbers, list):
            _malformed("assign", value, _ASSIGNED)
        for number in cast("list[Any]", numbers):
            if type(number) is not int or number < 0:
                _malformed("assign", value, _ASSIGNED)
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise UnusableOption("option assign names no partition")
    return tuple(sorted(partitions))


def parse_by_partition(name: str, value: str, *, lowest: int) -> dict[TopicPartition, int]:
    """Numbers in JSON like `{"topic":{"0":23}}`, none below `lowest`."""
    numbers: dict[TopicPartition, int] = {}
    for topic, by_partition in _json_object(name, value, _BY_PARTITION).items():
        if not isinstance(by_partition, dict):
            _malformed(name, value, _BY_PARTITION)
        for partition, number in cast("dict[str, Any]", by_partition).items():
            whole = type(number) is int and lowest <= number <= INT64_MAX
            if not partition.isascii() or not partition.isdigit() or not whole:
                _malformed(name, value, _BY_PARTITION)
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _json_object(name: str, value: str, form: str) -> dict[str, Any]:
    parsed = _json(name, value, form)
    if not isinstance(parsed, dict):
        _malformed(name, value, form)
    return cast("dict[str, Any]", parsed)


def _json(name: str, value: str, form: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        _malformed(name, value, form)


def _malformed(name: str, value: str, form: str) -> NoReturn:
    raise UnusableOption(f"option {name} must be JSON like {form}, not {value}")


def parse_isolation_level(options: Mapping[str, str]) -> IsolationLevel:
    """The level of `isolation.level` or its Kafka name; read_committed without both."""
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
        raise _not_one_of("isolation.level", value, sorted(known))
    return known[value]


def parse_choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices, the first without the option."""
    value = options.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise _not_one_of(name, value, choices)
    return value


def _not_one_of(name: str, value: str, choices: Collection[str]) -> UnusableOption:
    meant = question(value, choices)
    hint = f"; {meant}" if meant else ""
    return UnusableOption(f"option {name} must be {' or '.join(choices)}, not {value}{hint}")


def parse_flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false."""
    value = options.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise UnusableOption(f"option {name} must be true or false, not {value}")
    return value == "true"


def parse_number(options: Mapping[str, str], name: str, *, lowest: int) -> int | None:
    """A whole number, None without the option."""
    value = options.get(name.lower())
    if value is None:
        return None
    if not value.strip().isdecimal() or not lowest <= int(value) <= INT64_MAX:
        raise UnusableOption(f"option {name} must be a whole number from {lowest} on, not {value}")
    return int(value)
