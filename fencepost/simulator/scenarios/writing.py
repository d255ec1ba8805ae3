"""Scenarios as TOML, as a person would have written them.

Rule: what is as usual is left out; reading what was written gives the same scenario.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.faults.phrases import Fault
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.scenarios.model import (
    ClusterShape,
    ConsumerPart,
    Expectation,
    Part,
    ProcessorPart,
    ProducerPart,
    Scenario,
    Variant,
)
from fencepost.simulator.scenarios.reading import ON_REQUEST

LINE: Final = 110
_DELETE: Final = "\x7f"  # the one control character that JSON leaves as it is and TOML does not take

Value = bool | int | str | tuple[str, ...]
Pair = tuple[str, str]


def text_of(scenario: Scenario) -> str:
    """The TOML text of a scenario."""
    blocks = ["\n".join(_head(scenario))]
    cluster = [f"{key} = {value}" for key, value in _cluster(scenario.cluster, ClusterShape())]
    if cluster:
        blocks.append("\n".join(("[cluster]", *cluster)))
    blocks += ["\n".join(_part(part)) for part in scenario.parts]
    blocks += ["\n".join(_fault(fault)) for fault in scenario.faults]
    expect = list(_expect(scenario))
    if expect:
        blocks.append("\n".join(("[expect]", *expect)))
    return "\n\n".join(blocks) + "\n"


def _head(scenario: Scenario) -> Iterator[str]:
    yield f"name = {_quoted(scenario.name)}"
    if scenario.lesson:
        yield '"""'.join(("lesson = ", "\n" + _wrapped(scenario.lesson) + "\n", ""))
    if scenario.choices:
        yield f"choices = [{', '.join(map(str, scenario.choices))}]"


def _wrapped(lesson: str) -> str:
    """Within three quotes; a quote by itself may stand in it as it is."""
    escaped = _quoted(lesson)[1:-1]
    if '""' not in lesson and not lesson.endswith('"'):
        escaped = escaped.replace('\\"', '"')
    return textwrap.fill(escaped, width=LINE, break_long_words=False, break_on_hyphens=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(_DELETE, "\\u007f")


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return _quoted(value) if isinstance(value, str) else _list(value)


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in values)}]"


def _alone(values: tuple[str, ...]) -> str:
    """One by itself, several as a list; a list of many has a line for each."""
    if len(values) == 1:
        return _quoted(values[0])
    line = _list(values)
    return line if len(line) <= LINE - 20 else "[\n" + "".join(f"  {_quoted(v)},\n" for v in values) + "]"


def _differing(made: Part | ClusterShape, usual: Part | ClusterShape, *keys: str) -> Iterator[Pair]:
    """The fields of plain values that are not as usual."""
    for key in keys:
        value = getattr(made, key)
        if value != getattr(usual, key):
            yield key, _value(value)


# --- the cluster ----------------------------------------------------------------------------------------


def _cluster(cluster: ClusterShape, usual: ClusterShape) -> Iterator[Pair]:
    """What is not as usual, in the order of the model."""
    for field in attrs.fields(ClusterShape):
        value = getattr(cluster, field.name)
        if value != getattr(usual, field.name):
            match value:
                case SyncPolicy():
                    yield field.name, _quoted(value.value)
                case tuple() if field.name == "topics":
                    yield field.name, _topics(cluster.topics)
                case _:
                    yield field.name, _value(value)


def _topics(topics: tuple[tuple[str, int], ...]) -> str:
    return "{ " + ", ".join(f"{_quoted(name)} = {count}" for name, count in topics) + " }"


# --- people and faults ----------------------------------------------------------------------------------


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, ProducerPart):
        yield "[[producer]]"
        pairs = _producer(part)
    elif isinstance(part, ConsumerPart):
        yield "[[consumer]]"
        pairs = _consumer(part)
    else:
        yield "[[processor]]"
        pairs = _processor(part)
    yield f"name = {_quoted(part.name)}"
    yield from (f"{key} = {value}" for key, value in pairs)
    if part.is_called:
        yield f"starts = {_quoted(ON_REQUEST)}"


_TIMES: Final = ("transaction_timeout_ms", "request_timeout_ms", "delivery_timeout_ms", "max_in_flight")


def _producer(part: ProducerPart) -> Iterator[Pair]:
    yield from _differing(part, ProducerPart(name=part.name), "transactional_id", *_TIMES)
    lines = tuple(str(line) for line in part.script)
    yield "script", _list(lines) if len(lines) < 2 else _alone(lines)


def _consumer(part: ConsumerPart) -> Iterator[Pair]:
    yield from _differing(part, ConsumerPart(name=part.name), "group")
    if part.isolation_level is not IsolationLevel.READ_COMMITTED:
        yield "isolation", _quoted(part.isolation_level.name.lower())
    yield "reads", _list(map(str, part.reads))


def _processor(part: ProcessorPart) -> Iterator[Pair]:
    yield "transactional_id", _quoted(part.transactional_id)
    yield "group", _quoted(part.group)
    yield "reads", _list(map(str, part.reads))
    yield "writes", _quoted(part.writes)


def _fault(fault: Fault) -> Iterator[str]:
    yield "[[fault]]"
    yield f"when = {_alone(tuple(map(str, fault.when)))}"
    yield f"do = {_quoted(str(fault.do))}"
    if fault.until is not None:
        yield f"until = {_quoted(str(fault.until))}"
    if fault.times != 1:
        yield f"times = {fault.times}"


# --- what is expected -----------------------------------------------------------------------------------


def _expect(scenario: Scenario) -> Iterator[str]:
    yield from (f"{key} = {value}" for key, value in _expectation(scenario.expect, Expectation()))
    if scenario.also_with:
        rows = "".join(f"  {_row(variant, scenario)},\n" for variant in scenario.also_with)
        yield f"also_with = [\n{rows}]"


def _row(variant: Variant, scenario: Scenario) -> str:
    pairs = [*_cluster(variant.cluster, scenario.cluster), *_expectation(variant.expect, scenario.expect)]
    return "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"


def _expectation(expect: Expectation, usual: Expectation) -> Iterator[Pair]:
    """What is not as usual; who says what holds says what is violated, too."""
    if (expect.holds, expect.violates) != (usual.holds, usual.violates):
        if expect.holds or not expect.violates:
            yield "holds", _list(expect.holds)
        if expect.violates:
            yield "violates", _list(expect.violates)
    if expect.reaches != usual.reaches:
        yield "reaches", _list(map(str, expect.reaches))
    if expect.visible != usual.visible:
        yield "visible", _values(expect.visible)
    if expect.logs != usual.logs:
        yield "logs", _values(expect.logs)


def _values(values: tuple[tuple[TopicPartition, tuple[str, ...]], ...]) -> str:
    inside = ", ".join(f"{_quoted(str(where))} = {_list(found)}" for where, found in values)
    return f"{{ {inside} }}" if inside else "{}"
