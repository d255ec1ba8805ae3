"""Values that are made for every request and every batch: messages, inputs, effects.

Rule: nobody changes a value. The type checker holds everybody to it; at run time nothing does, for attrs'
own guard makes a value three times as dear, and one transaction takes seventy of them.
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
    """Makes a class as `attrs.frozen` does, equal and hashed by its fields, with slots."""
    decorate = attrs.define(unsafe_hash=True, kw_only=kw_only)
    return decorate if kind is None else decorate(kind)
