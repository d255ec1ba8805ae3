"""Scenarios in Python, table by table as in a file.

Rule: every key and every value is that of the file, and the same reader understands them: what could not
stand in a file cannot be built either, and is told in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypedDict, Unpack, cast

import attrs

from fencepost.faults.grammar import quoted
from fencepost.simulator.scenarios.model import Scenario
from fencepost.simulator.scenarios.reading import scenario_in
from fencepost.simulator.scenarios.tables import BadScenario

Starts = Literal["at once", "on request"]


class ClusterKeys(TypedDict, total=False):
    """The keys of a [cluster]."""

    nodes: int
    topics: Mapping[str, int]
    transaction_version: int
    partition_verification: bool
    coordinators: int
    timeout_scan_ms: int
    sync: Literal["none", "commit", "all"]
    segment_bytes: int
    broken: Sequence[str]
    without_fixes: Sequence[str]


class ExpectKeys(TypedDict, total=False):
    """The keys of an [expect], without its rows."""

    holds: Sequence[str]
    violates: Sequence[str]
    reaches: Sequence[str]
    visible: Mapping[str, Sequence[str]]
    logs: Mapping[str, Sequence[str]]


class AlsoKeys(ClusterKeys, ExpectKeys, total=False):
    """The keys of a row of `also_with`: of a [cluster] and of an [expect] side by side."""


class ProducerKeys(TypedDict, total=False):
    """The keys of a [[producer]], without its name and its script."""

    transactional_id: str
    starts: Starts
    transaction_timeout_ms: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_in_flight: int


class ConsumerKeys(TypedDict, total=False):
    """The keys of a [[consumer]], without its name and what it reads."""

    isolation: Literal["read_committed", "read_uncommitted"]
    group: str
    starts: Starts


class ProcessorKeys(TypedDict, total=False):
    """The keys of a [[processor]], without its name, what it reads and what it writes."""

    transactional_id: str
    group: str
    starts: Starts


@attrs.define(eq=False)
class When:
    """A fault of which is known when it strikes, and not yet what it does."""

    builder: Builder
    when: tuple[str, ...]
    times: int

    def do(self, what: str, *, until: str | None = None) -> Builder:
        """What it does, and until when."""
        end = {} if until is None else {"until": until}
        if self in self.builder.unfinished:
            self.builder.unfinished.remove(self)
        return self.builder.add("fault", when=self.when, do=what, times=self.times, **end)

    @property
    def lack(self) -> str:
        """What is missing, for whoever takes it for a whole fault."""
        return f".when({', '.join(map(quoted, self.when))}) is no fault yet: .do(...) says what it does"

    if not TYPE_CHECKING:  # a type checker knows without it

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(self.lack, name=name, obj=self)


@attrs.define(eq=False)
class Builder:
    """A scenario in the making; `scenario` reads it as it reads a file."""

    values: dict[str, Any]
    unfinished: list[When] = attrs.Factory(list[When])
    """Faults that do nothing so far."""

    def add(self, table: str, **keys: object) -> Self:
        """One more of a table that a file may hold several of."""
        self.values.setdefault(table, []).append(_plain(keys))
        return self

    def cluster(self, **keys: Unpack[ClusterKeys]) -> Self:
        """What is unusual about the cluster."""
        self.values.setdefault("cluster", {}).update(_plain(keys))
        return self

    def producer(self, name: str, *script: str, **keys: Unpack[ProducerKeys]) -> Self:
        """Somebody who follows a script, line by line."""
        return self.add("producer", name=name, script=script, **keys)

    def consumer(self, name: str, *reads: str, **keys: Unpack[ConsumerKeys]) -> Self:
        """Somebody who reads these partitions."""
        return self.add("consumer", name=name, reads=reads, **keys)

    def processor(self, name: str, *reads: str, writes: str, **keys: Unpack[ProcessorKeys]) -> Self:
        """Somebody who copies these partitions to those of another topic."""
        return self.add("processor", name=name, reads=reads, writes=writes, **keys)

    def when(self, *points: str, times: int = 1) -> When:
        """A fault that strikes at this point; of several, each makes a run of its own."""
        self.unfinished.append(When(self, points, times))
        return self.unfinished[-1]

    def expect(self, **keys: Unpack[ExpectKeys]) -> Self:
        """What must come of it."""
        self.values.setdefault("expect", {}).update(_plain(keys))
        return self

    def also_with(self, **keys: Unpack[AlsoKeys]) -> Self:
        """The same in another cluster, with another outcome where keys say so."""
        self.values.setdefault("expect", {}).setdefault("also_with", []).append(_plain(keys))
        return self

    def scenario(self) -> Scenario:
        """The whole, in the order in which a file has its people; BadScenario when it makes no sense."""
        source = f"scenario {self.values['name']!r}"
        if self.unfinished:
            raise BadScenario(f"{source}: {self.unfinished[0].lack}")
        return scenario_in(self.values, source)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            because = f"a Builder has no {name}"
            if name == "do":
                because = "a fault begins with .when(...), and .do(...) follows it"
            raise AttributeError(because, name=name, obj=self)


def scenario(name: str, lesson: str = "") -> Builder:
    """Begins a scenario of this name."""
    return Builder({"name": name, "lesson": lesson})


def _plain(value: object) -> Any:
    """As TOML has it: tables are dictionaries, and whatever has several values is a list."""
    match value:
        case Mapping():
            table = cast("Mapping[str, object]", value)
            return {key: _plain(inner) for key, inner in table.items()}
        case tuple() | list():
            return [_plain(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
