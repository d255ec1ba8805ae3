"""The log of `fencepost serve` on stderr: one line of text per entry, or one JSON object.

Rule: a line of text is complete in itself; JSON has the same text, and fields besides (docs/operations.md).
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

ROOT: Final = "fencepost"
FIELDS: Final = ("peer", "principal", "client_id", "transactional_id", "producer_id", "partition")
"""What an entry may have in addition to its text."""


@contextmanager
def writing_log(level: LogLevel, form: LogFormat) -> Generator[None]:
    """Write the log of this process to stderr, until the block ends."""
    handler = logging.StreamHandler()
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
