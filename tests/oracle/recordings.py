"""The recordings of this directory, by generation.

Rule: every answer of every one is Fencepost's, too; what is otherwise on purpose is not in them, but in
docs/fidelity.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.oracle.report import areas_of, play_in_memory

HERE: Final = Path(__file__).parent
V2_CLIENT_V2: Final = HERE / "broker-v2-verified-client-v2.jsonl"
V2_CLIENT_V0: Final = HERE / "broker-v2-verified-client-v0.jsonl"
V0_VERIFIED: Final = HERE / "broker-v0-verified-client-v0.jsonl"
V0_UNVERIFIED: Final = HERE / "broker-v0-unverified-client-v0.jsonl"

RECORDED: Final = (V2_CLIENT_V2, V2_CLIENT_V0, V0_VERIFIED, V0_UNVERIFIED)
ASKED: Final = tuple(path.with_name(f"asked-{path.name}") for path in RECORDED)
"""What was asked later of the same four clusters, where the recordings say little."""
OTHER_CLUSTERS: Final = tuple(
    HERE / f"random-broker-{generation}.jsonl"
    for generation in (
        "v0-unverified-client-v2",
        "v0-verified-client-v2",
        "v1-unverified-client-v2",
        "v1-verified-client-v0",
        "v1-verified-client-v2",
        "v2-unverified-client-v0",
        "v2-unverified-client-v2",
    )
)
"""Random conversations of old clients with new clusters, and of new clients with old ones."""


def areas_to_check(path: Path) -> list[Any]:
    """The areas of a recording, as parameters. In one of them, tens of thousands of requests use up the
    epochs, so it is thorough; `make test` has it for the newest cluster and client.
    """
    marks = {"init_producer_id": [pytest.mark.thorough]}
    return [pytest.param(area, marks=marks.get(area, [])) for area in areas_of(path)]


def check_area(path: Path, area: str) -> None:
    """Every answer of the area is Kafka's."""
    played = play_in_memory(path, area)
    assert played.asked, f"{path.name} has no answers in {area}"
    assert not played.differences, "\n".join(difference.text for difference in played.differences)
