"""What searches found, in the cores or in a judge, stays found: each world of scenarios/found holds its rule,
and breaks it again when the mistake is made again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.runner import run
from tests.simulator.planting import Edit, Mutation, planted

FOLDER = Path(__file__).resolve().parent.parent.parent / "scenarios" / "found"
FILES = sorted(FOLDER.glob("*.toml"))

MISTAKES: Final = {
    "lost_sequence": Mutation(
        "a lost sequence of an older identity counts",
        breaks="A producer of old asks for a new identity at each end, whether it needs one or not.",
        edits=(
            Edit(
                "client.accumulator:Accumulator.lacks_sequence",
                {
                    "queue.is_broken and (queue.producer_id, queue.producer_epoch) == identity": (
                        "queue.is_broken"
                    )
                },
            ),
        ),
    ),
    "replaced_member_learns_late": Mutation(
        "a member that the group has replaced counts as one",
        breaks="The judge accuses a member whose commits the group refuses.",
        workload="groups",
        edits=(
            Edit(
                "simulator.judges.group_rules:OwnerRule.added",
                {"and self._knows(group_id, member.member_id)": ""},
            ),
        ),
    ),
}


def test_each_find_has_its_mistake_and_its_lesson() -> None:
    assert [path.stem for path in FILES] == sorted(MISTAKES)
    for path in FILES:
        assert len(scenario_of(path.read_text(), path.name).lesson) > 100
        assert f"`found/{path.stem}`" in (FOLDER.parent / "README.md").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_mended_code_keeps_the_rule_and_the_mistake_breaks_it(path: Path) -> None:
    story = scenario_of(path.read_text(), path.name)
    (mended,) = run(story)
    assert mended.problems == ()
    with planted(MISTAKES[path.stem]):
        (broken,) = run(story)
    assert broken.broken == story.expect.holds
