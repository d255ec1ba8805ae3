"""What nodes leave on their disks when they die, as `fencepost check` reads it: whole, or something that the
next start completes.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import attrs
import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.check.directory import check_logs
from fencepost.check.findings import Finding, Severity
from fencepost.check.meanings import POWER, REBUILT
from fencepost.check.scan import CUT, LOG_SUFFIX, TORN, UNSYNCED
from fencepost.check.sealed_files import MANIFEST
from fencepost.check.txn_consistency import SPLIT, TO_FINISH
from fencepost.simulator.fuzz.plan import draw_power
from fencepost.simulator.fuzz.worlds import WorldKind, try_choices
from fencepost.simulator.judges.files_rule import ClusterDisks, judge_files
from fencepost.simulator.judges.rules import FILES, Exercised, Violation
from fencepost.simulator.run import Run
from fencepost.simulator.scenarios.model import FuzzPlan
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import Life, LifeChanged, NodeKilled
from tests.simulator.planting import Edit, Mutation, planted

SEEDS: Final = {"power": 24, "transactions": 12}
SEEDS_WITHOUT_SYNCS: Final = range(13, 24)  # they come to torn tails, lost indexes and lost segments
UNSYNCED_MARKERS: Final = Mutation(
    "a marker is confirmed before it is durable",
    breaks="A loss of power takes a marker of a transaction that its coordinator has completed.",
    edits=(
        Edit(
            "broker.sync_policy:needs_sync",
            {"append.header.is_transactional": "append.header.is_transactional > append.header.is_control"},
        ),
    ),
)
FINDS_UNSYNCED_MARKERS: Final = (28, 142)  # the seeds to begin with
OLD_ENTRIES: Final = Mutation(
    "a manifest lists a segment as the first one did",
    breaks="Readers of the files see only the beginning of a log that has grown.",
    edits=(
        Edit(
            "journal.segments:Segment.summary", {"known is None or known.bytes != self.size": "known is None"}
        ),
    ),
)
FINDS_OLD_ENTRIES: Final = (3, 5)


@attrs.define
class Checked:
    """What `check` finds in a run: after each death of a node, and at the end. `has_lost_power`: any node, so
    that there may be torn logs until they have a leader again.
    """

    run: Run
    has_lost_power: bool = False
    after_kills: list[Finding] = attrs.Factory(list[Finding])
    after_power_losses: list[Finding] = attrs.Factory(list[Finding])
    at_end: list[Finding] = attrs.Factory(list[Finding])

    def __attrs_post_init__(self) -> None:
        self.run.world.writes_manifests = True  # as a server does
        self.run.world.events.subscribe(NodeKilled, self._killed)
        self.run.world.events.subscribe(LifeChanged, self._changed)

    def look(self) -> list[Finding]:
        return check_logs(ClusterDisks(self.run.world.journals)).found

    def _killed(self, killed: NodeKilled) -> None:
        self.has_lost_power = self.has_lost_power or killed.power_is_lost

    def _changed(self, life: LifeChanged) -> None:
        if life.change is Life.CRASHES:
            found = self.after_power_losses if self.has_lost_power else self.after_kills
            found += self.look()


def checked(seed: int, workload: str) -> Checked:
    seen = list[Checked]()
    try_choices(Choices(seed), WorldKind(workload=workload).planner, lambda run: seen.append(Checked(run)))
    seen[0].at_end += seen[0].look()
    return seen[0]


def problems(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity is Severity.PROBLEM]


@pytest.mark.parametrize("workload", SEEDS)
def test_the_next_start_completes_what_a_node_leaves(workload: str) -> None:
    to_finish = 0
    for seed in range(SEEDS[workload]):
        seen = checked(seed, workload)
        deaths = (*seen.after_kills, *seen.after_power_losses)
        assert problems([*deaths, *seen.at_end]) == []
        to_finish += sum(each.means == TO_FINISH for each in deaths)
        assert all(each.means != TO_FINISH for each in seen.at_end), "the coordinators run again"
    assert to_finish, "some node died between a decision and its markers"


def draw_without_syncs(choices: Choices) -> FuzzPlan:
    return attrs.evolve(draw_power(choices), sync=SyncPolicy.NONE)


def test_a_log_that_power_shortened_is_no_problem_although_nothing_was_synced() -> None:
    """The judges find what was lost, and so does a comparison of logs. But a start mends each log."""
    watched = list[Checked]()
    for seed in SEEDS_WITHOUT_SYNCS:
        try_choices(Choices(seed), draw_without_syncs, lambda run: watched.append(Checked(run)))
    found = [each for seen in watched for each in seen.after_power_losses]
    assert {TORN, UNSYNCED, POWER, REBUILT} <= {each.means for each in found}
    assert CUT not in {each.means for each in found}
    of_files = [each for each in found if "/" in each.file and not each.file.endswith(LOG_SUFFIX)]
    assert problems(of_files) == []


def test_a_marker_that_was_lost_is_a_problem() -> None:
    """And not a decision that the next start completes."""
    with planted(UNSYNCED_MARKERS):
        for seed in chain(FINDS_UNSYNCED_MARKERS, range(400)):
            seen = checked(seed, "power")
            if any(each.means == SPLIT for each in problems(seen.after_power_losses)):
                return
    pytest.fail("no loss of power took a marker")


def test_an_old_entry_of_a_manifest_is_a_problem() -> None:
    with planted(OLD_ENTRIES):
        for seed in chain(FINDS_OLD_ENTRIES, range(20)):
            if any(MANIFEST in each.file for each in problems(checked(seed, "transactions").at_end)):
                return
    pytest.fail("no manifest was written again after its log had grown")


def test_the_judge_names_the_file() -> None:
    seen = checked(0, "transactions")
    disks, exercised = seen.run.world.journals.disks, Exercised(int)
    judge_files(seen.run.world.journals, exercised)
    assert exercised[FILES.name] == len(disks)
    where, disk = next((where, disk) for where, disk in disks.items() if where.topic == "payments")
    path = f"{where}/{0:020d}.txnindex"
    disk.replace(path, b"an entry has as many bytes as this", durable=True)
    with pytest.raises(Violation, match=rf"I22 files: {path}: entry 0 is of version"):
        judge_files(seen.run.world.journals, exercised)
