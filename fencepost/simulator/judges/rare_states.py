"""Rare states, which few worlds reach: their names, and the workload whose worlds do reach them.

Rule: the judges count them by what the logs and the replies say. A test fails if the seeds of a workload
never reach one of its rare states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ROTATED_AT_END: Final = "a producer id is used up: the end of a transaction brings the next one"
ROTATED_AT_INIT: Final = "a producer id is used up: InitProducerId brings the next one"
END_RETRIED: Final = "an EndTxn that brought the next producer id is retried"
INIT_RETRIED: Final = "an InitProducerId that brought the next producer id is retried"
OLD_COORDINATOR: Final = "TRANSACTION_COORDINATOR_FENCED: a marker arrives after one of a newer coordinator"
EXPIRED: Final = "a transactional id expires"
UNKNOWN_TO_COORDINATOR: Final = (
    "INVALID_PRODUCER_ID_MAPPING: the coordinator no longer knows the producer of a batch"
)
CAME_BACK: Final = "the owner of an expired transactional id comes back"

RARE_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "identities": (
        ROTATED_AT_END,
        ROTATED_AT_INIT,
        END_RETRIED,
        INIT_RETRIED,
        OLD_COORDINATOR,
        EXPIRED,
        UNKNOWN_TO_COORDINATOR,
        CAME_BACK,
    )
}
"""The rare states of each workload that has some."""
