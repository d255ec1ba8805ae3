"""Figures that pages state are those of the code, of its limits and of the lists of its tests.

Rule: a figure stands here with enough of its sentence to be found, and with what it follows from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from fencepost.broker.memory import (
    CONNECTION_BYTES,
    FETCH_OWN_BYTES,
    FETCHES_MAX,
    HEADER_WEIGHT,
    KIBIBYTE,
    READ_SIZE,
    REQUEST_OWN_BYTES,
    SESSION_PARTITIONS_MAX,
    TLS_BYTES,
    MemoryBound,
)
from fencepost.broker.settings import ConnectionSettings
from fencepost.cli.serve import memory_line
from fencepost.journal.compaction import KEYS_MAX
from fencepost.lab.broker_recording import EVENTS_KEPT
from fencepost.lab.search_jobs import RUNNING_MAX
from fencepost.lab.server import BODY_BYTES_MAX
from fencepost.lab.workers import MIB, WorkLimits
from fencepost.protocol.batch_work import BYTES_PER_WORK, COMPRESSED_RECORDS_MAX, REQUEST_WORK_MAX
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import PLANNERS
from fencepost.testing.pytest_runs import EVENTS_SHOWN
from fencepost.testing.sweep import DOWN_MS, POINTS_MAX, TIME_LIMIT_S
from tests.attack.run import ATTACKS
from tests.journal import compaction_mutations
from tests.simulator.old_mutations import OLD_MUTATIONS

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = [*(ROOT / "tests" / "oracle").glob("*.jsonl")]
CONVERSATIONS: Final = sum(path.read_bytes().count(b"\n") for path in RECORDINGS)
COMBINATIONS: Final = {path.name[path.name.index("broker-") :] for path in RECORDINGS}
STORIES: Final = (ROOT / "docs" / "course.md").read_text(encoding="utf-8").count("\n## ")
MISTAKES: Final = (*compaction_mutations.MUTATIONS, *compaction_mutations.OF_FILES)
BOUND: Final = MemoryBound.of(ConnectionSettings(), connections=9_968)
OWN: Final = CONNECTION_BYTES + READ_SIZE + REQUEST_OWN_BYTES + FETCHES_MAX * FETCH_OWN_BYTES
LAB: Final = WorkLimits()
WORDS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")

FIGURES: Final = (
    ("README.md", f"in {CONVERSATIONS:,} recorded conversations"),
    ("README.md", memory_line(BOUND)),
    ("CHANGELOG.md", f"{CONVERSATIONS:,} conversations"),
    ("docs/fidelity.md", f"{CONVERSATIONS:,} conversations"),
    ("docs/fidelity.md", f"in {WORDS[len(COMBINATIONS)]} combinations of broker and client versions"),
    ("docs/course.md", f"{WORDS[STORIES].title()} stories;"),
    ("docs/simulator.md", f"{WORDS[STORIES]} stories"),
    ("docs/simulator.md", f"{WORDS[len(OLD_MUTATIONS)]} bugs are planted there"),
    ("docs/compaction.md", f"plants {len(MISTAKES)} mistakes"),
    ("docs/compaction.md", f"keeps up to {KEYS_MAX:,} keys in memory"),
    ("docs/compaction.md", f"decompresses up to {REQUEST_WORK_MAX:,} records of a request"),
    ("docs/compaction.md", f"every {BYTES_PER_WORK} decompressed bytes count as an additional record"),
    ("docs/testing.md", f"It shows the last {EVENTS_SHOWN} events"),
    ("docs/testing.md", f"at least the last {EVENTS_KEPT // 2:,} events, and at most {EVENTS_KEPT:,}"),
    ("docs/testing.md", f"more than {POINTS_MAX:,} points of the protocol"),
    ("docs/testing.md", f"| `down_ms` | {DOWN_MS} |"),
    ("docs/testing.md", f"| `time_limit` | {TIME_LIMIT_S:.0f} |"),
    ("docs/lab.md", f"at most {WORDS[int(LAB.seconds_max)]} seconds (`--time-limit`)"),
    ("docs/lab.md", f"{LAB.memory_bytes_max / MIB / 1024:.0f} GiB of memory"),
    ("docs/lab.md", f"A search may take at most {WORDS[int(LAB.search_seconds_max / 60)]} minutes"),
    ("docs/lab.md", f"at most {WORDS[RUNNING_MAX]} searches run at a time"),
    ("docs/lab.md", f"an HTTP request may be at most {BODY_BYTES_MAX / MIB:.0f} MiB"),
    ("docs/trust.md", memory_line(BOUND)),
    ("docs/trust.md", f"`max.connections` × {OWN // KIBIBYTE} KiB"),
    ("docs/trust.md", f"With TLS, {TLS_BYTES // KIBIBYTE} KiB more for each"),
    ("docs/trust.md", f"plus {HEADER_WEIGHT} times its header"),
    ("docs/trust.md", f"at most {SESSION_PARTITIONS_MAX:,} partitions in all"),
    ("docs/trust.md", f"A compressed batch has at most {COMPRESSED_RECORDS_MAX:,} records"),
)


@pytest.mark.parametrize(("page", "sentence"), FIGURES)
def test_a_figure_of_a_page_is_that_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_page_has_every_random_fault_and_every_workload() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    table = page.partition("\n| fault | what it does |\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)) == sorted(
        kind.value for kind in FaultKind
    )
    workloads = page.partition("\n### Workloads\n")[2].partition("\n### ")[0]
    assert [name for name in PLANNERS if f"{name}`" not in workloads] == []


def test_the_page_has_the_figures_of_every_attack() -> None:
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    table = page.partition("| attack | figures |")[2].partition("\n\n")[0]
    assert {row.split(" | ")[0] for row in table.split("\n| ")[2:]} == {attack.name for attack in ATTACKS}
