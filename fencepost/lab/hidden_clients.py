"""Clients that no recording shows: those of a test itself, and the lab's.

Rule: a file without imports, since every assertion about a broker loads it.
"""

from __future__ import annotations

from typing import Final

ASSERTING_CLIENT: Final = "fencepost-assertions"
FIXTURE_CLIENT: Final = "fencepost-fixtures"
LAB_CLIENT: Final = "fencepost-lab"
HIDDEN_CLIENTS: Final = frozenset({ASSERTING_CLIENT, FIXTURE_CLIENT, LAB_CLIENT})
