"""The most that a scenario may ask for.

Rule: what can be written can be run: in seconds, and with numbers that the protocol has room for.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.settings import NodeSettings

NODES_MAX: Final = 9  # the story of more cannot be followed
PARTITIONS_MAX: Final = 100  # of one topic, and of coordinators
CHOICES_MAX: Final = 1_000_000
WORK_MAX: Final = 10_000  # transactions, records and strikes of a seeded run
TRANSACTION_TIMEOUT_MAX_MS: Final = NodeSettings().transaction_max_timeout_ms
