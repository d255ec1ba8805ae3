"""Times and durations as users write them.

Rule: a time without a time zone is in UTC, as times are shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cyclopts import Token

SECONDS_OF: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


def now_ms() -> int:
    """Milliseconds since 1970, as in timestamps."""
    return time.time_ns() // 1_000_000


def parse_duration(text: str) -> float:
    """The seconds of 90s, 10m, 1h30m or 7d; ValueError if it is not such a duration."""
    parts = re.findall(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", text)
    if not parts or "".join(text.split()) != "".join(number + unit for number, unit in parts):
        raise ValueError(f"{text!r} is not a time such as 500ms, 90s or 1h30m")
    return sum(float(number) * SECONDS_OF[unit] for number, unit in parts)


def parse_time(text: str) -> int:
    """The milliseconds since 1970 of 2026-11-23T16:00 and the like; ValueError if it is not such a time."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


def convert_duration(_: type, tokens: Sequence[Token]) -> float:
    """The converter of options that are durations; a number without a unit is in seconds."""
    text = tokens[0].value
    return float(text) if re.fullmatch(r"\d*\.?\d+", text) else parse_duration(text)
