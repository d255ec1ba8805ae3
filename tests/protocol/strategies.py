"""Values of every message class, drawn from the same annotations that the codec reads."""

from __future__ import annotations

import types
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs
from hypothesis import strategies as st

from fencepost.protocol.terms import TopicPartition, TransactionState

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
nullable_bytes = st.none() | st.binary(max_size=20)
int16s, int32s, int64s = (st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (16, 32, 64))
topic_partitions = st.builds(TopicPartition, words, st.integers(0, 2**31 - 1))
transaction_states = st.sampled_from(TransactionState)


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Everything that a field annotated with `kind` may hold."""
    origin = get_origin(kind)
    if origin is Annotated:
        mark = get_args(kind)[1]
        return (
            st.binary(max_size=40)
            if mark == "records"
            else st.integers(-(1 << (mark - 1)), (1 << (mark - 1)) - 1)
        )
    if origin in (Union, types.UnionType):
        return st.none() | values_of(next(a for a in get_args(kind) if a is not types.NoneType))
    if origin is tuple:
        return st.lists(values_of(get_args(kind)[0]), max_size=3).map(tuple)
    message = kind  # or a NamedTuple in one; the check below would narrow the type of `kind`
    if attrs.has(kind) or issubclass(kind, tuple):
        hints = get_type_hints(message, include_extras=True)
        return st.builds(message, **{name: values_of(hint) for name, hint in hints.items()})
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return {str: words, bytes: st.binary(max_size=20), bool: st.booleans()}[kind]
