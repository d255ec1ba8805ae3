"""Scenarios in Python, phrase by phrase as in a file.

Rule: the same words and the same model as TOML; what could not stand in a file cannot be built either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, TypedDict, Unpack

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.scenarios.actions import action
from fencepost.simulator.scenarios.checking import check
from fencepost.simulator.scenarios.model import (
    ConsumerPart,
    CopierPart,
    Expectation,
    Fault,
    ProducerPart,
    Scenario,
    Variant,
)
from fencepost.simulator.scenarios.points import Point, point
from fencepost.simulator.scenarios.scripts import line, partition_named


class ClusterKeys(TypedDict, total=False):
    """The keys of a [cluster]."""

    nodes: int
    topics: tuple[tuple[str, int], ...]
    transaction_version: int
    partition_verification: bool
    coordinators: int
    timeout_scan_ms: int
    sync: SyncPolicy
    segment_bytes: int
    broken: tuple[str, ...]
    without: tuple[str, ...]


class ExpectKeys(TypedDict, total=False):
    """The keys of an [expect], without its rows."""

    holds: Sequence[str]
    violates: Sequence[str]
    reaches: Sequence[str]
    visible: Mapping[str, Sequence[str]]
    logs: Mapping[str, Sequence[str]]


class ProducerKeys(TypedDict, total=False):
    """The numbers of a [[producer]]."""

    transaction_timeout_ms: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_in_flight: int


@attrs.define(eq=False)
class When:
    """A fault of which is known when it strikes, and not yet what it does."""

    builder: Builder
    when: tuple[Point, ...]
    times: int

    def do(self, what: str, *, until: str | None = None) -> Builder:
        """What it does, and until when."""
        end = None if until is None else point(until)
        fault = Fault(when=self.when, do=action(what), until=end, times=self.times)
        return self.builder.changed(faults=(*self.builder.made.faults, fault))


@attrs.define(eq=False)
class Builder:
    """A scenario in the making. BadWords for a phrase that means nothing; `scenario` checks the whole."""

    made: Scenario

    def changed(self, **fields: object) -> Self:
        """The same with other fields of the model."""
        self.made = attrs.evolve(self.made, **fields)
        return self

    def cluster(self, **keys: Unpack[ClusterKeys]) -> Self:
        """What is unusual about the cluster."""
        return self.changed(cluster=attrs.evolve(self.made.cluster, **keys))

    def producer(
        self,
        name: str,
        *script: str,
        transactional_id: str | None = None,
        is_called: bool = False,
        **numbers: Unpack[ProducerKeys],
    ) -> Self:
        """Somebody who follows a script, line by line."""
        part = ProducerPart(
            name=name,
            transactional_id=transactional_id,
            script=tuple(map(line, script)),
            is_called=is_called,
            **numbers,
        )
        return self.changed(parts=(*self.made.parts, part))

    def consumer(
        self,
        name: str,
        *reads: str,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
        group: str | None = None,
        is_called: bool = False,
    ) -> Self:
        """Somebody who reads these partitions."""
        part = ConsumerPart(
            name=name,
            reads=tuple(map(partition_named, reads)),
            isolation_level=isolation_level,
            group=group,
            is_called=is_called,
        )
        return self.changed(parts=(*self.made.parts, part))

    def copier(
        self, name: str, *reads: str, writes: str, group: str = "copiers", is_called: bool = False
    ) -> Self:
        """Somebody who copies these partitions to those of another topic."""
        part = CopierPart(
            name=name,
            transactional_id=name,
            reads=tuple(map(partition_named, reads)),
            writes=writes,
            group=group,
            is_called=is_called,
        )
        return self.changed(parts=(*self.made.parts, part))

    def when(self, *points: str, times: int = 1) -> When:
        """A fault that strikes at this point; of several, each makes a run of its own."""
        return When(self, tuple(map(point, points)), times)

    def expect(self, **keys: Unpack[ExpectKeys]) -> Self:
        """What must come of it."""
        return self.changed(expect=_expectation(self.made.expect, keys))

    def also_with(self, cluster: ClusterKeys, **keys: Unpack[ExpectKeys]) -> Self:
        """The same in another cluster, with another outcome where keys say so; after `expect`."""
        variant = Variant(
            cluster=attrs.evolve(self.made.cluster, **cluster), expect=_expectation(self.made.expect, keys)
        )
        return self.changed(also_with=(*self.made.also_with, variant))

    def scenario(self) -> Scenario:
        """The whole, in the order in which a file has its people; Inconsistent when it makes no sense."""
        kinds = (ProducerPart, ConsumerPart, CopierPart)
        parts = sorted(self.made.parts, key=lambda part: kinds.index(type(part)))
        self.changed(parts=tuple(parts))
        check(self.made)
        return self.made


def scenario(name: str, lesson: str = "") -> Builder:
    """Begins a scenario of this name."""
    return Builder(Scenario(name=name, lesson=" ".join(lesson.split())))


def _expectation(usual: Expectation, keys: ExpectKeys) -> Expectation:
    made = usual
    if "holds" in keys or "violates" in keys:
        made = attrs.evolve(
            made, holds=tuple(keys.get("holds", ())), violates=tuple(keys.get("violates", ()))
        )
    if "reaches" in keys:
        made = attrs.evolve(made, reaches=tuple(map(point, keys["reaches"])))
    if "visible" in keys:
        made = attrs.evolve(made, visible=_values(keys["visible"]))
    if "logs" in keys:
        made = attrs.evolve(made, logs=_values(keys["logs"]))
    return made


def _values(values: Mapping[str, Sequence[str]]) -> tuple[tuple[TopicPartition, tuple[str, ...]], ...]:
    return tuple((partition_named(name), tuple(found)) for name, found in values.items())
