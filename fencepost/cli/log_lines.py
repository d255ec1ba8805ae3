"""The log of `fencepost serve` on stderr: one line of text per entry, or one JSON object.

Rule: a line of text is complete in itself; JSON has the same text, and fields besides (docs/operations.md).
A broker never waits for the reader of its log: lines for which stderr has no room are left out, and counted.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

ROOT: Final = "fencepost"
FIELDS: Final = ("peer", "principal", "client_id", "transactional_id", "producer_id", "partition")
"""What an entry may have in addition to its text."""


@contextmanager
def writing_log(level: LogLevel, form: LogFormat) -> Generator[None]:
    """Write the log of this process to stderr, until the block ends."""
    handler = StderrLines() if _has_descriptor(sys.stderr) else logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    log = logging.getLogger(ROOT)
    level_before, propagated_before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level_before)
        log.propagate = propagated_before


def _has_descriptor(stream: TextIO) -> bool:
    """Whether it has a descriptor; an object that a program has put in the place of stderr may have none."""
    try:
        stream.fileno()
    except OSError:
        return False
    return True


class StderrLines(logging.Handler):
    """Writes to stderr only if that does not block: the pipe that a test gave to the broker may have no
    reader, and a terminal may be stopped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = 0
        self._is_torn = False  # only the beginning of the last line was written

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it as left out."""
        text = self.format(record)
        if self._left_out:
            gap = f"lines left out because stderr was full or closed: {self._left_out}"
            text = f"{self.format(_line_about_the_log(gap))}\n{text}"
        if self._is_torn:
            text = f"\n{text}"
        line = f"{text}\n".encode(sys.stderr.encoding, "backslashreplace")
        written = _write(line)
        self._left_out = 0 if written == len(line) else self._left_out + 1
        self._is_torn = 0 < written < len(line) or (self._is_torn and not written)


def _write(data: bytes) -> int:
    """Write to stderr until it has no room; how many bytes were written."""
    stderr, written = sys.stderr.fileno(), 0
    with suppress(OSError):  # its reader is gone, or its disk is full
        # A pipe has room for PIPE_BUF bytes or for none.
        while written < len(data) and select.select([], [stderr], [], 0)[1]:
            written += os.write(stderr, data[written : written + select.PIPE_BUF])
    return written


def _line_about_the_log(text: str) -> logging.LogRecord:
    return logging.LogRecord(f"{ROOT}.broker", logging.WARNING, __file__, 0, text, None, None)


class TextLines(logging.Formatter):
    """`2026-11-23T16:02:30.123Z WARNING fencepost.transactions: transaction of 'app' timed out ...`"""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_time_of(record)} {record.levelname} {record.name}: {_message_of(record)}"


class JsonLines(logging.Formatter):
    """`{"time": ..., "level": "warning", "logger": ..., "message": ..., "transactional_id": ...}`"""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message_of(record),
        }
        fields = {name: getattr(record, name, None) for name in FIELDS}
        return json.dumps(entry | {name: value for name, value in fields.items() if value is not None})


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _message_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return text
