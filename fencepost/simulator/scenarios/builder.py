"""Scenarios in Python, table by table as in a file.

Rule: keys, values and errors are those of a file, because the same reader checks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, Self, cast

import attrs

from fencepost.faults.grammar import quoted
from fencepost.simulator.scenarios.codec import BadScenario
from fencepost.simulator.scenarios.files import scenario_in
from fencepost.simulator.scenarios.model import Scenario


@attrs.define(eq=False)
class When:
    """A fault that still needs its action: `do` completes it. `builder`: to which it belongs. `when`,
    `times`: as given.
    """

    builder: Builder
    when: tuple[str, ...]
    times: int

    def do(self, what: str, *, until: str | None = None) -> Builder:
        """Complete the fault. `what`: what it does, a phrase such as "drop". `until`: when it ends, a phrase
        such as "after 300 ms".
        """
        end = {} if until is None else {"until": until}
        if self in self.builder.unfinished:
            self.builder.unfinished.remove(self)
        return self.builder.add("fault", when=self.when, do=what, times=self.times, **end)

    @property
    def lack(self) -> str:
        """The error for an incomplete fault."""
        when = ", ".join(map(quoted, self.when))
        return f".when({when}) is not a complete fault; .do(...) must say what it does"

    if not TYPE_CHECKING:  # a type checker finds the mistake itself

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(self.lack, name=name, obj=self)


@attrs.define(eq=False)
class Builder:
    """A scenario in the making, which scenario() begins; each method returns it. Keywords, `keys`, are the
    keys of the table in a file (scenarios/README.md).

    `values`: the tables so far. `unfinished`: faults without an action.
    """

    values: dict[str, Any] = attrs.field(repr=lambda values: f"<{', '.join(values)}>")
    unfinished: list[When] = attrs.field(factory=list[When], repr=False)

    def add(self, table: str, **keys: object) -> Self:
        """Add a `table` that a file may hold several times."""
        self.values.setdefault(table, []).append(_plain(keys))
        return self

    def cluster(self, **keys: object) -> Self:
        """Set keys of [cluster]."""
        self.values.setdefault("cluster", {}).update(_plain(keys))
        return self

    def producer(self, name: str, *script: str, **keys: object) -> Self:
        """Add a [[producer]] called `name` that follows a `script`, line by line."""
        return self.add("producer", name=name, script=script, **keys)

    def consumer(self, name: str, *reads: str, **keys: object) -> Self:
        """Add a [[consumer]] called `name` that `reads` these partitions."""
        return self.add("consumer", name=name, reads=reads, **keys)

    def processor(self, name: str, *reads: str, writes: str, **keys: object) -> Self:
        """Add a [[processor]] called `name` that `reads` these partitions and `writes` to those of another
        topic.
        """
        return self.add("processor", name=name, reads=reads, writes=writes, **keys)

    def when(self, *points: str, times: int = 1) -> When:
        """Begin a [[fault]]. `points`: where it strikes; of several, each makes a run of its own. `times`:
        how often.
        """
        self.unfinished.append(When(self, points, times))
        return self.unfinished[-1]

    def expect(self, **keys: object) -> Self:
        """Set keys of [expect]."""
        self.values.setdefault("expect", {}).update(_plain(keys))
        return self

    def also_with(self, **keys: object) -> Self:
        """Add a row of `also_with`: the same story in another cluster, perhaps with another outcome."""
        self.values.setdefault("expect", {}).setdefault("also_with", []).append(_plain(keys))
        return self

    def scenario(self) -> Scenario:
        """Return the scenario; BadScenario when a file with these tables would be refused."""
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
    """Begin a scenario called `name`. `lesson`: what it shows, for its table and drawing."""
    return Builder({"name": name, "lesson": lesson})


def _plain(value: object) -> Any:
    """The value as TOML has it: tables are dictionaries, and several values are a list."""
    match value:
        case Mapping():
            table = cast("Mapping[str, object]", value)
            return {key: _plain(inner) for key, inner in table.items()}
        case tuple() | list():
            return [_plain(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
