"""The recordings of this directory, by generation, and which of their answers Fencepost does not give yet.

Rule: what is listed as missing must differ, and nothing else may: whoever builds it strikes it off here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.oracle.report import play_in_memory

HERE: Final = Path(__file__).parent
V2_CLIENT_V2: Final = HERE / "broker-v2-verified-client-v2.jsonl"
V2_CLIENT_V0: Final = HERE / "broker-v2-verified-client-v0.jsonl"
V0_VERIFIED: Final = HERE / "broker-v0-verified-client-v0.jsonl"
V0_UNVERIFIED: Final = HERE / "broker-v0-unverified-client-v0.jsonl"

RECORDED: Final = (V2_CLIENT_V2, V2_CLIENT_V0, V0_VERIFIED, V0_UNVERIFIED)
ASKED: Final = tuple(path.with_name(f"asked-{path.name}") for path in RECORDED)
"""What was asked later of the same four clusters, where the recordings say little."""

MISSING: Final = frozenset[str]()
"""The conversations that Fencepost cannot hold as Kafka does yet."""


def check_area(path: Path, area: str) -> None:
    """Every answer of the area is Kafka's, in every conversation but the missing ones."""
    played = play_in_memory(path, area)
    assert played.asked, f"{path.name} has no answers in {area}"
    surprises = [d.text for d in played.differences if d.answer.conversation.name not in MISSING]
    assert not surprises, "\n".join(surprises)
    different = {difference.answer.conversation.name for difference in played.differences}
    held = MISSING.intersection(played.names) - different
    assert not held, f"agree by now, and are listed as missing: {sorted(held)}"
