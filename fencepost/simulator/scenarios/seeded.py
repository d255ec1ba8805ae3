"""A world that a search found, as a scenario: its plan and its choices, to TOML and back.

Rule: reading what was written gives the same plan and the same choices; only what differs from the calmest
plan is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.settings import NodeSettings
from fencepost.faults.grammar import NUMBER_MAX, quoted
from fencepost.journal.journal import JournalSettings
from fencepost.simulator.actors.workloads import Membership
from fencepost.simulator.faults.random_faults import FaultKind, StruckFault
from fencepost.simulator.fuzz.plan import (
    ASSIGNORS,
    GROUP,
    POLL_INTERVALS_MS,
    SESSIONS_MS,
    FuzzPlan,
    TxnWriterPlan,
    draw,
    hurried,
)
from fencepost.simulator.judges.known_anomalies import OLD_BEHAVIOURS
from fencepost.simulator.run import CORE_FAILED, NOT_LIVE
from fencepost.simulator.scenarios.codec import Between, OneOf, Table, read_table, written
from fencepost.simulator.scenarios.model import (
    Fixes,
    Nodes,
    Partitions,
    Protections,
    Scenario,
    ScenarioExpectation,
    SeededRun,
    TransactionTimeout,
    TransactionVersion,
)
from fencepost.simulator.scenarios.rule_names import RULE_NAMES, contradictory
from fencepost.simulator.world.choices import Choices, Note
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import WorldSettings

NS_PER_US: Final = 1_000
CHOICES_MAX: Final = 1_000_000
WORK_MAX: Final = 10_000  # transactions, records and strikes
BREAKABLE: Final = (NOT_LIVE, CORE_FAILED, *RULE_NAMES, *(each.name for each in OLD_BEHAVIOURS))
DEFAULT_PLAN: Final = attrs.evolve(draw(Choices()), txn_writers=(), drifts_ppm=())

Count = Annotated[int, Between(0, WORK_MAX)]
Work = Annotated[int, Between(1, WORK_MAX)]


# --- the tables ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SeededTable:
    """[seeded]: the world and its processes."""

    transaction_version: TransactionVersion
    partition_verification: bool
    nodes: Nodes
    sync: SyncPolicy
    broken: Protections
    without_fixes: Fixes
    coordinators: Partitions
    segment_bytes: int
    latency_us: int
    sync_latency_us: int
    encodes: bool
    own_travels: bool
    idempotent_writes: Count
    processors: tuple[str, ...]
    epoch_bumps: Count
    reads_uncommitted: bool
    clock_drifts_ppm: tuple[Annotated[int, Between(-NUMBER_MAX, NUMBER_MAX)], ...]
    slow_participants: Count


@attrs.frozen(kw_only=True)
class SeededFaultsTable:
    """[seeded.faults]: which kinds strike, and how often."""

    kinds: tuple[FaultKind, ...]
    strikes: Count
    pause_ms: int


@attrs.frozen(kw_only=True)
class TxnWriterTable:
    """[[seeded.txn_writer]]: one process that writes transactions."""

    name: str
    transactional_id: str = attrs.Factory(lambda self: self.name, takes_self=True)
    transactions: Work = 1
    transaction_timeout_ms: TransactionTimeout = 60_000
    records_max: Work = 4
    reads: bool = False


@attrs.frozen(kw_only=True)
class MemberTable:
    """[[seeded.member]]: one processor that is a member of a group."""

    name: str
    group: str = GROUP
    assignor: Annotated[str, OneOf(tuple(ASSIGNORS))] = "range"
    group_instance_id: str | None = None
    session_timeout_ms: Work = SESSIONS_MS[0]
    heartbeat_interval_ms: Work = SESSIONS_MS[0] // 6
    max_poll_interval_ms: Work = POLL_INTERVALS_MS[0]
    starts_after_ms: Count = 0
    stalls: Count = 0
    leaves: Count = 0


def _member(table: MemberTable) -> tuple[str, Membership]:
    settings = attrs.asdict(table)
    return settings.pop("name"), Membership(**settings)


@attrs.frozen(kw_only=True)
class SeededExpectTable:
    """[expect]: the rule that the run breaks, or kept once the mistake was corrected."""

    violates: Annotated[tuple[str, ...], OneOf(BREAKABLE)] = ()
    holds: Annotated[tuple[str, ...], OneOf(BREAKABLE)] = ()


@attrs.frozen(kw_only=True)
class _Head:
    name: str
    lesson: str = ""


def _world_table(plan: FuzzPlan) -> SeededTable:
    world = plan.world
    return SeededTable(
        transaction_version=plan.transaction_version,
        partition_verification=world.node_settings.partition_verification,
        nodes=world.nodes,
        sync=world.policy,
        broken=tuple(sorted(world.node_settings.broken)),
        without_fixes=world.node_settings.fixes.off,
        coordinators=world.node_settings.transaction_state_log_num_partitions,
        segment_bytes=world.journals.segment_bytes,
        latency_us=world.latency // NS_PER_US,
        sync_latency_us=world.sync_latency // NS_PER_US,
        encodes=world.encodes,
        own_travels=world.own_travels,
        idempotent_writes=plan.idempotent_writes,
        processors=plan.processors,
        epoch_bumps=plan.epoch_bumps,
        reads_uncommitted=plan.reads_uncommitted,
        clock_drifts_ppm=plan.drifts_ppm,
        slow_participants=plan.slow_participants,
    )


def _faults_table(plan: FuzzPlan) -> SeededFaultsTable:
    return SeededFaultsTable(kinds=plan.kinds, strikes=plan.strikes, pause_ms=plan.pause // NS_PER_MS)


def _plan(
    table: SeededTable,
    faults: SeededFaultsTable,
    writers: tuple[TxnWriterTable, ...],
    members: tuple[MemberTable, ...],
) -> FuzzPlan:
    return FuzzPlan(
        world=_world(table),
        transaction_version=table.transaction_version,
        txn_writers=tuple(TxnWriterPlan(**attrs.asdict(writer)) for writer in writers),
        idempotent_writes=table.idempotent_writes,
        processors=table.processors,
        members=tuple(map(_member, members)),
        epoch_bumps=table.epoch_bumps,
        reads_uncommitted=table.reads_uncommitted,
        kinds=faults.kinds,
        strikes=faults.strikes,
        pause=faults.pause_ms * NS_PER_MS,
        drifts_ppm=table.clock_drifts_ppm,
        slow_participants=table.slow_participants,
    )


def _world(table: SeededTable) -> WorldSettings:
    return WorldSettings(
        nodes=table.nodes,
        node_settings=hurried(
            NodeSettings(
                broken=frozenset(table.broken),
                fixes=KafkaFixes.without(table.without_fixes),
                partition_verification=table.partition_verification,
            ),
            transaction_version=table.transaction_version,
            coordinators=table.coordinators,
        ),
        policy=table.sync,
        journals=JournalSettings(segment_bytes=table.segment_bytes),
        latency=table.latency_us * NS_PER_US,
        sync_latency=table.sync_latency_us * NS_PER_US,
        encodes=table.encodes,
        own_travels=table.own_travels,
        events_max=DEFAULT_PLAN.world.events_max,
    )


# --- reading ------------------------------------------------------------------------------------------------


def seeded_scenario(top: Table) -> Scenario:
    """The scenario of a file with a `[seeded]` table; BadScenario for what it cannot be."""
    head = read_table(_Head, top)
    table, expect = top.inner("seeded"), top.inner("expect")
    faults = table.inner("faults", "[seeded.faults]")
    writers = list(table.each("txn_writer", "[[seeded.txn_writer]]"))
    members = list(table.each("member", "[[seeded.member]]"))
    plan = _plan(
        read_table(SeededTable, table, _world_table(DEFAULT_PLAN)),
        read_table(SeededFaultsTable, faults, _faults_table(DEFAULT_PLAN)),
        tuple(read_table(TxnWriterTable, each) for each in writers),
        tuple(read_table(MemberTable, each) for each in members),
    )
    expected = read_table(SeededExpectTable, expect)
    for name in contradictory(expected.holds, expected.violates):
        raise expect.wrong("holds", f"{quoted(name)} is also in violates; remove it from one of the two")
    choices = _choices(table.inner("choices", "[seeded.choices]"))
    for each in (faults, *writers, *members, table, expect, top):
        each.finish()
    return Scenario(
        name=head.name,
        lesson=" ".join(head.lesson.split()),
        expect=ScenarioExpectation(violates=expected.violates, holds=expected.holds),
        seeded=SeededRun(plan=plan),
        choices=choices,
    )


def _choices(table: Table) -> tuple[int, ...]:
    chosen: dict[int, int] = {}
    for key, choice in table.values.items():
        if not key.isdecimal():
            raise table.wrong(key, "is not the index of a choice: a whole number from 0")
        place = int(key) if len(key) <= len(str(CHOICES_MAX)) else CHOICES_MAX
        if place >= CHOICES_MAX:
            raise table.wrong(key, f"is not the index of a choice: the maximum is {CHOICES_MAX - 1}")
        if type(choice) is not int or not 0 <= choice <= NUMBER_MAX:
            raise table.mistyped(key, f"a whole number from 0 to {NUMBER_MAX}")
        chosen[place] = choice
    return tuple(chosen.get(place, 0) for place in range(max(chosen, default=-1) + 1))


# --- writing ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Commentary:
    """Comments for people: where the run was found, what struck, what each choice decided, and how the run
    ends.
    """

    found: str = ""
    struck: tuple[StruckFault, ...] = ()
    notes: Mapping[int, Note] = attrs.field(factory=dict[int, Note])
    ending: tuple[str, ...] = ()


def seeded_text(scenario: Scenario, commentary: Commentary) -> str:
    """The TOML of a scenario with a seeded run."""
    seeded = scenario.seeded
    assert seeded is not None, "only a scenario that was found by a search has a plan"
    plan, expect = seeded.plan, scenario.expect
    lines = [f"# {line}".rstrip() for line in commentary.found.splitlines()]
    lines += [f"name = {json.dumps(scenario.name)}", f"lesson = {json.dumps(scenario.lesson)}"]
    lines += ["", "[seeded]", *written(_world_table(plan), _world_table(DEFAULT_PLAN))]
    for writer in plan.txn_writers:
        lines += ["", "[[seeded.txn_writer]]", *written(TxnWriterTable(**attrs.asdict(writer)))]
    for name, membership in plan.members:
        lines += ["", "[[seeded.member]]", *written(MemberTable(name=name, **attrs.asdict(membership)))]
    faults = list(written(_faults_table(plan), _faults_table(DEFAULT_PLAN)))
    if faults:
        lines += ["", "[seeded.faults]", *faults]
    lines += [f"# {_ms(each.at)}: {each}" for each in commentary.struck]
    lines += ["", "# Every choice that is not here is 0, the calmest.", "[seeded.choices]"]
    lines += _choice_lines(scenario.choices, commentary.notes)
    lines += ["", "[expect]", *written(SeededExpectTable(violates=expect.violates, holds=expect.holds))]
    if commentary.ending:
        lines += ["", "# How it ends:", "#", *(f"# {line}".rstrip() for line in commentary.ending)]
    return "\n".join(lines) + "\n"


def _choice_lines(choices: tuple[int, ...], notes: Mapping[int, Note]) -> Iterator[str]:
    for place, chosen in enumerate(choices):
        if chosen:
            note = notes.get(place)
            line = f"{place} = {chosen}"
            yield line if note is None else f"{line:<12} # {_ms(note.at)}: {note.about}"


def _ms(at: int) -> str:
    return f"{at / NS_PER_MS:.3f} ms"
