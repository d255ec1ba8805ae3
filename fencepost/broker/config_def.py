"""The definition of a setting, as in Kafka's ConfigDef: its name and type, and how its value is read.

Rule: ValueError says what the value must be; whoever asked adds the name of the setting.
"""

from __future__ import annotations

import re
from math import inf
from typing import Any, Final, NamedTuple

from fencepost.protocol.terms import INT32_MAX, INT64_MAX, ConfigType

COMPACT: Final = "compact"
DELETE: Final = "delete"
_FIELDS: Final = {"transaction.partition.verification.enable": "partition_verification"}
_BOOLEANS: Final = {"true": True, "false": False}
_HIGHEST: Final = {ConfigType.INT: INT32_MAX, ConfigType.LONG: INT64_MAX}
# Long strings of digits are not parsed: that takes quadratic time.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class ConfigDef(NamedTuple):
    """A setting of a broker. `lowest` and `highest` bound a numeric value."""

    name: str
    config_type: ConfigType
    lowest: int = 0
    highest: int | None = None
    """None: what the type can hold."""

    @property
    def field(self) -> str:
        """The field of NodeSettings or ConnectionSettings."""
        return _FIELDS.get(self.name, self.name.replace(".", "_"))

    def parse(self, text: str) -> Any:
        """The value that the text stands for; ValueError if there is none."""
        match self.config_type:
            case ConfigType.BOOLEAN:
                if text not in _BOOLEANS:
                    raise ValueError("it must be true or false")
                return _BOOLEANS[text]
            case ConfigType.DOUBLE:
                return _ratio(text)
            case ConfigType.LIST:
                return _cleanup_policy(text)
            case _:
                return self._integer(text.strip())  # as ConfigDef.parseType

    def _integer(self, text: str) -> int:
        highest = _HIGHEST[self.config_type] if self.highest is None else self.highest
        if not _INTEGER.fullmatch(text) or not self.lowest <= int(text) <= highest:
            raise ValueError(f"it must be an integer from {self.lowest} to {highest}")
        return int(text)

    @property
    def values(self) -> str:
        """What it can be, in words."""
        match self.config_type:
            case ConfigType.BOOLEAN:
                return "true, false"
            case ConfigType.DOUBLE:
                return "0 to 1"
            case ConfigType.LIST:
                return "delete, compact, both, or empty"
            case _ if self.highest is None:
                return f"at least {self.lowest:,}"
            case _:
                return f"{self.lowest:,} to {self.highest:,}"


def _ratio(text: str) -> float:
    wrong = "it must be a number from 0 to 1"
    try:
        value = float(text) if len(text) <= 20 else inf
    except ValueError as problem:
        raise ValueError(wrong) from problem
    if not 0 <= value <= 1:
        raise ValueError(wrong)
    return value


def _cleanup_policy(text: str) -> tuple[str, ...]:
    """The policies that a text names, in its order. An empty text keeps everything (KIP-1161)."""
    entries = [part.strip() for part in text.split(",")] if text.strip() else []
    if set(entries) - {COMPACT, DELETE}:
        raise ValueError(f"it must be {DELETE}, {COMPACT}, both separated by a comma, or empty")
    return tuple(dict.fromkeys(entries))  # as in Kafka, a repetition does not count
