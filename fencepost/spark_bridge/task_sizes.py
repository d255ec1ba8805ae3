"""How large the tasks of a read are: Spark's rule for files, applied to logs.

Rule: every core gets work, and no task is so small that starting it costs more than its work.
"""

from __future__ import annotations

from typing import Final

import attrs

# Spark's spark.sql.files.maxPartitionBytes and openCostInBytes. A task costs 6 to 14 ms to start: a read in
# tasks of 4 MB is 3 times slower than one in tasks of 128 MB, and larger tasks leave cores idle at the end.
TASK_BYTES_MAX: Final = 128 << 20
TASK_BYTES_MIN: Final = 4 << 20
RANGE_BYTES: Final = 256 << 10  # opening a partition takes as long as reading this many bytes


@attrs.frozen(kw_only=True)
class TaskSizes:
    """How much work a task gets."""

    parallelism: int = 1
    """How many tasks run at the same time: Spark's default parallelism."""
    min_partitions: int | None = None
    max_records: int | None = None
    """How many offsets a task may have."""

    def task_bytes(self, *, total: int, range_count: int) -> int:
        """The bytes of a task for `total` bytes of log in this many ranges."""
        work = total + range_count * RANGE_BYTES
        size = min(TASK_BYTES_MAX, max(TASK_BYTES_MIN, -(-work // self.parallelism)))
        return min(size, max(1, total // self.min_partitions)) if self.min_partitions else size
