"""The decorator for values that are made for every request and batch: messages, inputs, effects.

Rule: a value is never changed. The type checker enforces it; at run time nothing does, since attrs' frozen
check triples the cost of construction, and one transaction constructs about seventy values.
"""

from __future__ import annotations

from collections.abc import Callable
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
    # unsafe_hash: attrs will not hash a class that could change, and the type checker sees to it that it does
    # not.
    decorate = attrs.define(unsafe_hash=True, kw_only=kw_only)
    return decorate if kind is None else decorate(kind)
