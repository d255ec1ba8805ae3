"""The recordings of this directory, by generation.

Rule: every answer of every one is Fencepost's, too; what is otherwise on purpose is not in them, but in
docs/fidelity.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
