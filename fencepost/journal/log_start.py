"""Where a log starts for its readers, when records before that were deleted (Kafka's log start offset).

Rule: it only moves forward, and is durable before anybody hears of it; segments that lie wholly below it go
when the log is opened next, and only where a snapshot tells what they said of producers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.manifest import decode_json, encode_json
from fencepost.journal.storage import Storage

LOG_START_FILE: Final = "log-start-offset.json"
LOG_START_VERSION: Final = 1


def read_log_start(storage: Storage, directory: str) -> int:
    """The log start that was written last, 0 when none was or it cannot be read."""
    data = storage.read_file(f"{directory}/{LOG_START_FILE}")
    try:
        content = (
            {} if data is None else decode_json(data, name="log start offset", version=LOG_START_VERSION)
        )
        return int(content.get("log_start_offset", 0))
    except (CorruptIndex, TypeError, ValueError):
        return 0


def write_log_start(storage: Storage, directory: str, offset: int) -> None:
    """Makes a log start durable."""
    content = encode_json({"format": LOG_START_VERSION, "log_start_offset": offset})
    storage.replace(f"{directory}/{LOG_START_FILE}", content, durable=True)


def deletable(bases: Sequence[int], log_start_offset: int, *, snapshots: Sequence[int]) -> list[int]:
    """Which of the segments that begin at `bases` nobody needs: those before the last one that begins with
    a snapshot at or below the log start.
    """
    needed = max((base for base in bases if base <= log_start_offset and base in snapshots), default=0)
    return [base for base in bases if base < needed]
