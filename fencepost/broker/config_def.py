"""The definition of a setting, as in Kafka's ConfigDef: its name and type, and how its value is read.

Rule: ValueError says what the value must be; the caller adds the name of the setting. Values have the forms
of Java's parsers (ConfigDef.parseType). A client may send a long text, so each is read in linear time.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from fencepost.protocol.terms import INT32_MAX, INT64_MAX, INT64_MIN, ConfigType

COMPACT: Final = "compact"
DELETE: Final = "delete"
_FIELDS: Final = {"transaction.partition.verification.enable": "partition_verification"}
_BOOLEANS: Final = {"true": True, "false": False}
_HIGHEST: Final = {ConfigType.INT: INT32_MAX, ConfigType.LONG: INT64_MAX}
BLANKS: Final = "".join(map(chr, range(ord(" ") + 1)))  # what String.trim removes
# Digits of any script, as in Java; after leading zeros 19 at most, since `int` takes quadratic time for more.
_INTEGER: Final = re.compile(r"([+-]?)0*(\d{1,19})")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")


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
        text = text.strip(BLANKS)
        match self.config_type:
            case ConfigType.BOOLEAN:
                if text.lower() not in _BOOLEANS:
                    raise ValueError("it must be true or false")
                return _BOOLEANS[text.lower()]
            case ConfigType.DOUBLE:
                return _ratio(text)
            case ConfigType.LIST:
                return _cleanup_policy(text)
            case _:
                return self._integer(text)

    def _integer(self, text: str) -> int:
        highest = _HIGHEST[self.config_type] if self.highest is None else self.highest
        value = integer_of(text)
        if value is None or not self.lowest <= value <= highest:
            raise ValueError(f"it must be an integer from {self.lowest} to {highest}")
        return value

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
            case _ if self.lowest == INT64_MIN:
                return "any number"
            case _ if self.highest is None:
                return f"at least {self.lowest:,}"
            case _:
                return f"{self.lowest:,} to {self.highest:,}"


def integer_of(text: str) -> int | None:
    found = _INTEGER.fullmatch(text)
    return None if found is None else int("".join(found.groups()))


def _ratio(text: str) -> float:
    found = _DECIMAL.fullmatch(text)
    if found is None or not 0 <= float(found[1]) <= 1:
        raise ValueError("it must be a number from 0 to 1")
    return float(found[1])


def _cleanup_policy(text: str) -> tuple[str, ...]:
    """The policies that a text names, in its order. An empty text keeps everything (KIP-1161)."""
    entries = [part.strip(BLANKS) for part in text.split(",")] if text else []
    if set(entries) - {COMPACT, DELETE}:
        raise ValueError(f"it must be {DELETE}, {COMPACT}, both separated by a comma, or empty")
    return tuple(dict.fromkeys(entries))  # as in Kafka, a repetition does not count
