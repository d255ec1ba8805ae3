"""Python's garbage collector kept calm while worlds run.

Rule: a world is full of cycles and short-lived: it is collected as a whole when it is over, never in between.
"""

from __future__ import annotations

import gc


class CalmCollector:
    """Inside it nothing is collected unless it is asked for, and what was there before is never looked at."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()
