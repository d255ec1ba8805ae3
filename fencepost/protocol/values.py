"""The decorator for values that are made for every request and batch: messages, inputs, effects.

Rule: a value is never changed. The type checker enforces it; at run time nothing does, since attrs' frozen
check triples the cost of construction, and one transaction constructs about seventy values.
"""

# attrs compiles each method that it writes, for each class. With 130 classes that is a large part of a start,
# so it writes __init__ only; the other methods are closures over the names of the fields.
#
# CPython puts the keyword arguments of a class into a dict, which doubles the cost of a construction. So the
# values of few fields that are made several times per transaction are made by position.

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar, dataclass_transform, overload

import attrs

Kind = TypeVar("Kind")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def value(kind: type[Kind], /) -> type[Kind]: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def value(*, kw_only: bool) -> Callable[[type[Kind]], type[Kind]]: ...


def value(
    kind: type[Kind] | None = None, /, *, kw_only: bool = False
) -> type[Kind] | Callable[[type[Kind]], type[Kind]]:
    """Make a class as `attrs.frozen` does: with slots, compared and hashed by its fields."""

    def decorate(plain: type[Kind]) -> type[Kind]:
        return _compared(attrs.define(eq=False, repr=False, kw_only=kw_only)(plain))

    return decorate if kind is None else decorate(kind)


def _compared(kind: type[Kind]) -> type[Kind]:
    """Add __eq__, __hash__ and __repr__, each over the fields that attrs would take."""
    compared = [field.name for field in attrs.fields(kind) if field.eq]
    named = [field.name for field in attrs.fields(kind) if field.repr]
    parts: Callable[[object], object] = attrgetter(*compared) if compared else lambda _: ()

    def equals(self: object, other: object) -> bool:
        return parts(self) == parts(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: object) -> int:
        return hash(parts(self))

    def shown(self: object) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in named)
        return f"{kind.__qualname__}({inside})"

    for name, method in (("__eq__", equals), ("__hash__", hash_of), ("__repr__", shown)):
        setattr(kind, name, method)
    return kind
