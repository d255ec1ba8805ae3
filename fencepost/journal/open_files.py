"""The log files that a broker has open: as many as its limit on file descriptors allows.

Rule: a segment opens its file when it needs it. Beyond the limit, the file that was opened first is closed.
"""

# Not the one that was used least recently: noting each use would cost time in every append, and opening a
# file again takes 10 microseconds.

from __future__ import annotations

from collections.abc import Callable


class OpenFiles:
    """Open files by the path of the segment, each with the function that closes it. Only the thread that
    appends may use it.
    """

    __slots__ = ("_closes", "_limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0, "an append needs an open file"
        self._closes: dict[str, Callable[[], None]] = {}
        self._limit = limit

    def opened(self, path: str, close: Callable[[], None]) -> None:
        """A file was opened; `close` must call `closed`."""
        self._closes[path] = close
        if len(self._closes) > self._limit:
            next(iter(self._closes.values()))()

    def closed(self, path: str) -> None:
        """A file was closed."""
        self._closes.pop(path, None)

    def __len__(self) -> int:
        return len(self._closes)
