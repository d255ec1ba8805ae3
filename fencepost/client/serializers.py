"""Keys and values from and to bytes: plain functions for `value_serializer`, `key_deserializer` and so on.

Rule: None stays None, because a null value is a tombstone and not a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Serializer = Callable[[Any], bytes | None]
"""From an object of the program to the bytes of a key or value."""

Deserializer = Callable[[bytes | None], Any]
"""From the bytes of a key or value to an object of the program."""


def string_serializer(text: str | None) -> bytes | None:
    """The UTF-8 bytes of `text`; None for None."""
    return None if text is None else text.encode()


def string_deserializer(data: bytes | None) -> str | None:
    """The text of `data` in UTF-8; None for None. UnicodeDecodeError for other bytes."""
    return None if data is None else data.decode()


def json_serializer(value: Any) -> bytes | None:
    """`value` as compact JSON with sorted keys: equal keys have equal bytes and go to the same partition.
    None for None. TypeError for what JSON cannot hold.
    """
    if value is None:
        return None
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def json_deserializer(data: bytes | None) -> Any:
    """The object that `data` holds as JSON; None for None. ValueError for other bytes."""
    return None if data is None else json.loads(data)
