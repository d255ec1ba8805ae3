"""A world that a search found, as a scenario: its plan and its choices, from TOML and to TOML.

Rule: what is written is read back as the same plan and the same choices; only what differs from the calmest
plan is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.broker.kafka_fixes import FIX_NAMES, KafkaFixes
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.faults.grammar import BadPhrase, quoted
from fencepost.journal.journal import JournalSettings
from fencepost.simulator.faults.kinds import FaultKind, Struck
from fencepost.simulator.fuzz.plan import FuzzPlan, TxnWriterPlan, draw, hurried
from fencepost.simulator.fuzz.trial import CORE_FAILED, NOT_LIVE
from fencepost.simulator.judges.known_anomalies import OLD_BEHAVIOURS
from fencepost.simulator.scenarios.limits import (
    CHOICES_MAX,
    NODES_MAX,
    PARTITIONS_MAX,
    TRANSACTION_TIMEOUT_MAX_MS,
    WORK_MAX,
)
from fencepost.simulator.scenarios.model import Expectation, Scenario, SeededRun
from fencepost.simulator.scenarios.rule_names import RULE_NAMES, contradictory
from fencepost.simulator.scenarios.tables import Table
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.clock import NS_PER_MS
from fencepost.simulator.world.noted_choices import Note
from fencepost.simulator.world.world import WorldSettings

NS_PER_US: Final = 1_000
BREAKABLE: Final = (NOT_LIVE, CORE_FAILED, *RULE_NAMES, *(each.name for each in OLD_BEHAVIOURS))
NEWEST_VERSION: Final = 2

DEFAULT_PLAN: Final = attrs.evolve(draw(Choices()), txn_writers=(), drifts_ppm=())
_CALM_TXN_WRITER: Final = TxnWriterPlan(
    name="", transactional_id="", transactions=1, transaction_timeout_ms=60_000
)


# --- reading ------------------------------------------------------------------------------------------------


def seeded_scenario(top: Table) -> Scenario:
    """The scenario of a file with a `[seeded]` table; BadScenario for what it cannot be."""
    table = top.table("seeded")
    plan = _plan(table)
    expect = top.table("expect")
    violates, holds = expect.texts("violates"), expect.texts("holds")
    expect.named("violates", violates, BREAKABLE)
    expect.named("holds", holds, BREAKABLE)
    for name in contradictory(holds, violates):
        raise expect.wrong("holds", f"{quoted(name)} cannot be kept and be broken, too")
    scenario = Scenario(
        name=top.text("name"),
        lesson=" ".join(top.text("lesson", "").split()),
        expect=Expectation(violates=violates, holds=holds),
        seeded=SeededRun(plan=plan),
        choices=_choices(table.table("choices", "[seeded.choices]")),
    )
    for each in (table, expect, top):
        each.finish()
    return scenario


def _plan(table: Table) -> FuzzPlan:
    faults = table.table("faults", "[seeded.faults]")
    plan = FuzzPlan(
        world=_world(table),
        transaction_version=table.one_of("transaction_version", (0, 1, 2), NEWEST_VERSION),
        txn_writers=tuple(_txn_writer(each) for each in table.tables("txn_writer", "[[seeded.txn_writer]]")),
        idempotent_writes=table.count("idempotent_writes", most=WORK_MAX),
        processors=table.texts("processors"),
        epoch_bumps=table.count("epoch_bumps", most=WORK_MAX),
        reads_uncommitted=table.flag("reads_uncommitted", DEFAULT_PLAN.reads_uncommitted),
        kinds=faults.words("kinds", _kind),
        strikes=faults.count("strikes", most=WORK_MAX),
        pause=faults.positive("pause_ms", DEFAULT_PLAN.pause // NS_PER_MS) * NS_PER_MS,
        drifts_ppm=table.words("clock_drifts_ppm", _drift),
        slow_participants=table.count("slow_participants", most=WORK_MAX),
    )
    faults.finish()
    return plan


def _world(table: Table) -> WorldSettings:
    calm, usual = DEFAULT_PLAN.world, DEFAULT_PLAN.world.node_settings
    broken = table.texts("broken")
    table.named("broken", broken, sorted(PROTECTIONS))
    without = table.texts("without_fixes")
    table.named("without_fixes", without, FIX_NAMES)
    policies = {policy.value: policy for policy in SyncPolicy}
    return WorldSettings(
        nodes=table.positive("nodes", calm.nodes, most=NODES_MAX),
        node_settings=hurried(
            NodeSettings(
                broken=frozenset(broken),
                fixes=KafkaFixes.without(without),
                partition_verification=table.flag("partition_verification", usual.partition_verification),
            ),
            transaction_version=table.one_of("transaction_version", (0, 1, 2), NEWEST_VERSION),
            coordinators=table.positive("coordinators", 1, most=PARTITIONS_MAX),
        ),
        policy=policies[table.one_of("sync", list(policies), calm.policy.value)],
        journals=JournalSettings(segment_bytes=table.positive("segment_bytes", calm.journals.segment_bytes)),
        latency=table.positive("latency_us", calm.latency // NS_PER_US) * NS_PER_US,
        sync_latency=table.positive("sync_latency_us", calm.sync_latency // NS_PER_US) * NS_PER_US,
        encodes=table.flag("encodes", calm.encodes),
        own_travels=table.flag("own_travels", calm.own_travels),
        events_max=calm.events_max,
    )


def _txn_writer(table: Table) -> TxnWriterPlan:
    name = table.text("name")
    made = TxnWriterPlan(
        name=name,
        transactional_id=table.text("transactional_id", name),
        transactions=table.positive("transactions", _CALM_TXN_WRITER.transactions, most=WORK_MAX),
        records_max=table.positive("records_max", _CALM_TXN_WRITER.records_max, most=WORK_MAX),
        transaction_timeout_ms=table.positive(
            "transaction_timeout_ms", _CALM_TXN_WRITER.transaction_timeout_ms, most=TRANSACTION_TIMEOUT_MAX_MS
        ),
        reads=table.flag("reads", _CALM_TXN_WRITER.reads),
    )
    table.finish()
    return made


def _kind(text: str) -> FaultKind:
    try:
        return FaultKind(text)
    except ValueError:
        possible = [kind.value for kind in FaultKind]
        raise BadPhrase(f"{quoted(text)} is no kind of fault", possible=possible) from None


def _drift(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadPhrase(f"{quoted(text)} is no number", possible=["0", "200", "-200"]) from None


def _choices(table: Table) -> tuple[int, ...]:
    chosen: dict[int, int] = {}
    for key in table.values:
        if not key.isdecimal():
            raise table.wrong(key, "is no place in the list of choices: a number from 0 on")
        place = int(key) if len(key) <= len(str(CHOICES_MAX)) else CHOICES_MAX
        if place >= CHOICES_MAX:
            raise table.wrong(key, f"is no place in the list of choices: {CHOICES_MAX} are the most")
        chosen[place] = table.count(key)
    table.finish()
    return tuple(chosen.get(place, 0) for place in range(max(chosen, default=-1) + 1))


# --- writing ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Commentary:
    """What is known of a run besides what makes it: for people. `ending` are lines of its table."""

    found: str = ""
    struck: tuple[Struck, ...] = ()
    notes: Mapping[int, Note] = attrs.field(factory=dict[int, Note])
    ending: tuple[str, ...] = ()


def seeded_text(scenario: Scenario, commentary: Commentary) -> str:
    """The TOML of a scenario with a seeded run."""
    seeded = scenario.seeded
    assert seeded is not None, "only a scenario that was found by a search has a plan"
    plan = seeded.plan
    lines = [f"# {line}".rstrip() for line in commentary.found.splitlines()]
    lines += [f"name = {json.dumps(scenario.name)}", f"lesson = {json.dumps(scenario.lesson)}"]
    lines += ["", "[seeded]", *_changed(_of_world(plan), _of_world(DEFAULT_PLAN))]
    for txn_writer in plan.txn_writers:
        calm = attrs.evolve(_CALM_TXN_WRITER, transactional_id=txn_writer.name)
        lines += ["", "[[seeded.txn_writer]]", *_changed(attrs.asdict(txn_writer), attrs.asdict(calm))]
    faults = list(_changed(_of_faults(plan), _of_faults(DEFAULT_PLAN)))
    if faults:
        lines += ["", "[seeded.faults]", *faults]
    lines += [f"# {_ms(each.at)}: {each.kind.value}, {each.whom}" for each in commentary.struck]
    lines += ["", "# Every choice that is not here is 0, the calmest.", "[seeded.choices]"]
    lines += _choice_lines(scenario.choices, commentary.notes)
    lines += ["", "[expect]", *_changed(_of_expectation(scenario.expect), _of_expectation(Expectation()))]
    if commentary.ending:
        lines += ["", "# How it ends:", "#", *(f"# {line}".rstrip() for line in commentary.ending)]
    return "\n".join(lines) + "\n"


def _of_world(plan: FuzzPlan) -> dict[str, object]:
    world = plan.world
    return {
        "transaction_version": plan.transaction_version,
        "partition_verification": world.node_settings.partition_verification,
        "nodes": world.nodes,
        "sync": world.policy.value,
        "broken": sorted(world.node_settings.broken),
        "without_fixes": list(world.node_settings.fixes.off),
        "coordinators": world.node_settings.transaction_state_log_num_partitions,
        "segment_bytes": world.journals.segment_bytes,
        "latency_us": world.latency // NS_PER_US,
        "sync_latency_us": world.sync_latency // NS_PER_US,
        "encodes": world.encodes,
        "own_travels": world.own_travels,
        "idempotent_writes": plan.idempotent_writes,
        "processors": list(plan.processors),
        "epoch_bumps": plan.epoch_bumps,
        "reads_uncommitted": plan.reads_uncommitted,
        "clock_drifts_ppm": [str(drift) for drift in plan.drifts_ppm],
        "slow_participants": plan.slow_participants,
    }


def _of_faults(plan: FuzzPlan) -> dict[str, object]:
    return {
        "kinds": [kind.value for kind in plan.kinds],
        "strikes": plan.strikes,
        "pause_ms": plan.pause // NS_PER_MS,
    }


def _of_expectation(expect: Expectation) -> dict[str, object]:
    return {"violates": list(expect.violates), "holds": list(expect.holds)}


def _changed(values: Mapping[str, object], usual: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if value != usual[name]:
            yield f"{name} = {json.dumps(value)}"


def _choice_lines(choices: tuple[int, ...], notes: Mapping[int, Note]) -> Iterator[str]:
    for place, chosen in enumerate(choices):
        if chosen:
            note = notes.get(place)
            line = f"{place} = {chosen}"
            yield line if note is None else f"{line:<12} # {_ms(note.at)}: {note.about}"


def _ms(at: int) -> str:
    return f"{at / NS_PER_MS:.3f} ms"
