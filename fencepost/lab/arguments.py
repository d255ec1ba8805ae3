"""What a page asks for: the arguments of a request, from a JSON object.

Rule: every error is a sentence for the person who asked, and names the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar, cast

import attrs

from fencepost.protocol.errors import FencepostError

ValueT = TypeVar("ValueT")

_KINDS: Final[dict[type, str]] = {int: "a whole number", str: "text", bool: "true or false"}


class BadRequest(FencepostError):
    """A request that asks for nothing that can be played; the message says why."""


@attrs.frozen
class Arguments:
    """The arguments that were `given`, by key; null means not given."""

    given: Mapping[str, object]

    def refuse_others(self, known: Iterable[str]) -> None:
        """BadRequest if there is a key that is not known."""
        if unknown := self.given.keys() - known:
            raise BadRequest(f"{', '.join(sorted(unknown))}: not a key here; the keys are {', '.join(known)}")

    def value(self, key: str, kind: type[ValueT]) -> ValueT | None:
        """The value of a key, if it was given. BadRequest if it is of another type."""
        value = self.given.get(key)
        if value is not None and type(value) is not kind:
            raise BadRequest(f"{key} is {value!r:.80}, but must be {_KINDS[kind]}")
        return cast("ValueT | None", value)

    def number(self, key: str, default: int, *, least: int, most: int) -> int:
        """A number, or the default. BadRequest if it is not a whole number from `least` to `most`."""
        value = self.given.get(key)
        if value is None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise BadRequest(f"{key} is {value!r:.80}, but must be a whole number from {least} to {most}")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, if it was given. BadRequest if it is something else."""
        value = self.given.get(key)
        if value is None:
            return None
        names = cast("list[object]", value)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in names):
            raise BadRequest(f"{key} must be a list of texts")
        return tuple(map(str, names))
