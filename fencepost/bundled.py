"""The bundled scenarios and pages by name: inside the package in a wheel, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STORIES: Final = (
    *("duplicate_after_lost_ack", "out_of_order_sequence", "flipped_bit"),
    *("zombie_fencing", "two_instances", "init_producer_id_retry"),
    *("coordinator_crash_in_commit", "coordinator_crash_in_abort", "marker_twice"),
    *("timeout_beats_commit", "commit_beats_timeout"),
    *("commit_outcome_unknown", "commit_outcome_unknown_aborted"),
    *("hanging_transaction", "late_record", "verification_race"),
    *("late_end_txn", "late_marker", "late_offsets"),
    "zombie_coordinator",
    *("replaced_member", "rebalance_in_a_transaction"),
    *("consume_transform_produce", "processor_dies", "unstable_offsets"),
)
"""The stories in the order of the course (docs/course.md), each with those of its kind after it."""


def bundled_scenarios() -> dict[str, Path]:
    """The files of the bundled scenarios by name, such as `zombie_fencing`: the stories in the order of the
    course, then what searches found.
    """
    files = {path.stem: path for path in _in("scenarios", "*.toml")}
    found = {path.stem: path for path in _in("scenarios", "found/*.toml")}
    return {name: files[name] for name in STORIES} | found


def bundled_pages() -> dict[str, Path]:
    """The pages of the documentation by name, such as `access`; `scenarios` describes the format of them."""
    pages = {path.stem: path for path in _in("docs", "*.md")}
    return dict(sorted({**pages, "scenarios": _in("scenarios", "README.md")[0]}.items()))


def _in(folder: str, pattern: str) -> list[Path]:
    package = Path(__file__).parent
    return sorted(path for place in (package, package.parent) for path in (place / folder).glob(pattern))
