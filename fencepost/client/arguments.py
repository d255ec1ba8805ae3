"""The arguments of public calls, checked where they are given, by the annotations of their parameters.

Rule: a wrong type is a TypeError and a value out of range a ValueError; each names the parameter, the value
and what is possible, before anything is sent. So no broker has to refuse it, and no request is retried.
"""

# Every public method is made from a script (`shells/clients.py`), and every constructor carries
# `checks_arguments`, so a parameter is checked because it has an annotation, and none can be forgotten. What
# an annotation allows is compiled at the first call.
#
#     int, float, str, bool, a class      an object of this type. True is not a number, and NaN not a time.
#     Annotated[int, Range(0, 10)]        and within these limits
#     X | None, Literal["a", "b"]         one of these
#     Iterable[X], Mapping[K, V]          each of its items; the call gets a list or a dict of its own, so an
#                                         iterator is read once, and later changes have no effect
#     Sequence[X]                         itself: columns of records are checked where they are split
#     Callable, Any                       anything that can be called; anything
#     a NamedTuple or a class of attrs    and each of its fields

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from math import inf, isnan
from reprlib import Repr
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_origin,
    get_type_hints,
)
from typing import get_args as parts_of

import attrs

from fencepost.client.kafka_options import instead_of
from fencepost.protocol.suggestions import question
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, TopicPartition

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class Range(NamedTuple):
    """The numbers that a parameter may have."""

    low: float
    high: float = inf

    def __str__(self) -> str:
        return f"of at least {self.low}" if self.high == inf else f"from {self.low} to {self.high}"


Milliseconds = Annotated[float, Range(0)]
Offset = Annotated[int, Range(0, INT64_MAX)]
Timestamp = Annotated[int, Range(0, INT64_MAX)]
"""Milliseconds since 1970."""
TimestampOrEnd = Annotated[int, Range(-2, INT64_MAX)]
"""Milliseconds since 1970, or -2 for the start of a log and -1 for its end."""
OffsetOrEnd = Annotated[int, Range(-1, INT64_MAX)]
"""An offset, or -1 for the end or for none."""
Count = Annotated[int, Range(1, INT32_MAX)]


def any_value(_name: str, value: Any) -> Any:
    """The check of a type whose values are all allowed."""
    return value


def _is(*kinds: type) -> Callable[[Any], bool]:
    def is_type(value: Any) -> bool:
        return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))

    return is_type


class Allowed(NamedTuple):
    """What an annotation allows: a type, and then a check of the value, which returns it for the call."""

    expected: str
    is_type: Callable[[Any], bool]
    checked: Callable[[str, Any], Any]

    def argument(self, name: str, value: Any) -> Any:
        """The value for the call; TypeError or ValueError if it is not allowed."""
        if not self.is_type(value):
            raise TypeError(f"{name} must be {self.expected}, not {_shown(value)}")
        return self.checked(name, value)


BootstrapServers = Annotated[
    str,
    Allowed(
        'one string, such as "localhost:9092,localhost:9093", with settings as keyword arguments, such as '
        'client_id="billing"',
        _is(str),
        any_value,
    ),
]
NodeId = Annotated[int, Range(0, INT32_MAX)]
PartitionNumber = Annotated[int, Range(0, INT32_MAX)]
FaultId = Annotated[int, Range(0, INT32_MAX)]
LeaderEpoch = Annotated[int, Range(0, INT32_MAX)]

_repr: Final = Repr()
_repr.maxstring = _repr.maxother = 60


def _shown(value: Any) -> str:
    return _repr.repr(value)


def checks_arguments(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """The same method; it refuses arguments that the annotations of its parameters do not allow."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        return _call(function, args[0], args[1:], kwargs)

    return checked


def _call(
    function: Callable[..., ResultT], client: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ResultT:
    given = _positional(function, args) if args else ()
    named = _named(function, client, kwargs) if kwargs else kwargs
    try:
        return function(client, *given, **named)
    except TypeError:
        _check_count(function, client, args, kwargs)
        raise


def _name(function: Callable[..., Any], client: object) -> str:
    """The call as programs write it: the class for a constructor, else the method."""
    return type(client).__name__ if function.__name__ == "__init__" else function.__name__


def _check_count(
    function: Callable[..., Any], client: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """TypeError for too many or too few arguments. Python's own would name a class that is not public."""
    try:
        signature(function).bind(client, *args, **kwargs)
    except TypeError as problem:
        raise TypeError(f"{_name(function, client)}(): {problem}") from None


def _positional(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    names, rest, allowed = _parameters(function)
    if rest is not None:
        return [allowed[rest].argument(f"each of {rest}", value) for value in args]
    found = [allowed[name].argument(name, value) for name, value in zip(names, args, strict=False)]
    return [*found, *args[len(names) :]]  # too many: the call itself says so


def _named(function: Callable[..., Any], client: object, kwargs: dict[str, Any]) -> dict[str, Any]:
    _, _, allowed = _parameters(function)
    for name in kwargs:
        if name not in allowed:
            call = _name(function, client)
            hint = question(name, allowed) or f"it has {', '.join(allowed)}"
            raise TypeError(f"{call}() has no parameter {name!r}: {instead_of(name).in_client or hint}")
    return {name: allowed[name].argument(name, value) for name, value in kwargs.items()}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[list[str], str | None, dict[str, Allowed]]:
    """The positional parameters, the one of `*args` if there is one, and what each parameter allows."""
    hints = get_type_hints(function, include_extras=True)
    positional: list[str] = []
    rest: str | None = None
    allowed: dict[str, Allowed] = {}
    for name, parameter in list(signature(function).parameters.items())[1:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            (settings,) = parts_of(hints[name])
            fields = get_type_hints(settings, include_extras=True)
            allowed.update({field: what_allows(hint) for field, hint in fields.items()})
            continue
        allowed[name] = what_allows(hints[name])
        if parameter.kind is Parameter.VAR_POSITIONAL:
            rest = name
        elif parameter.kind is not Parameter.KEYWORD_ONLY:
            positional.append(name)
    return positional, rest, allowed


# --- annotations --------------------------------------------------------------------------------------------


@cache
def what_allows(hint: Any) -> Allowed:
    """What an annotation allows."""
    origin, parts = get_origin(hint), parts_of(hint)
    if hint is Any:
        return Allowed("anything", _is(object, bool), any_value)
    if origin is Annotated:
        return parts[1] if isinstance(parts[1], Allowed) else _within(what_allows(parts[0]), parts[1])
    if origin in (Union, types.UnionType):
        return _one_of([what_allows(part) for part in parts])
    if origin is Literal:
        return _literal(parts)
    if origin is Callable or hint is Callable:
        return Allowed("a function", callable, any_value)
    if origin is Mapping:
        return _mapping(what_allows(parts[0]), what_allows(parts[1]))
    if origin is Sequence:
        return Allowed("a sequence, such as a list", _is_column, any_value)
    if origin is Iterable:
        return _items(what_allows(parts[0]))
    return _SCALARS.get(hint) or _object(hint)


def check_text(name: str, value: str) -> str:
    """Returns the text. ValueError if UTF-8 cannot encode it, as no request could carry it; `os.fsdecode`
    makes such texts.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text that UTF-8 can encode, not {_shown(value)}") from None
    return value


def _time(name: str, value: float) -> float:
    if isnan(value):
        raise ValueError(f"{name} must be a number, not nan")
    return value


_SCALARS: Final = {
    int: Allowed("a whole number", _is(int), any_value),
    float: Allowed("a number", _is(int, float), _time),
    str: Allowed("a string", _is(str), check_text),
    bool: Allowed("True or False", _is(bool), any_value),
    types.NoneType: Allowed("None", _is(types.NoneType), any_value),
}


def _within(inner: Allowed, limits: Range | int) -> Allowed:
    if isinstance(limits, int):  # bits of a field of a message
        limits = Range(0, 2 ** (limits - 1) - 1)
    within = limits
    expected = f"{inner.expected} {within}"

    def checked(name: str, value: Any) -> Any:
        inner.checked(name, value)
        if not within.low <= value <= within.high:
            raise ValueError(f"{name} must be {expected}, not {_shown(value)}")
        return value

    return Allowed(expected, inner.is_type, checked)


def _one_of(choices: list[Allowed]) -> Allowed:
    def checked(name: str, value: Any) -> Any:
        choice = next(choice for choice in choices if choice.is_type(value))
        return choice.checked(name, value)

    def is_type(value: Any) -> bool:
        return any(choice.is_type(value) for choice in choices)

    return Allowed(" or ".join(choice.expected for choice in choices), is_type, checked)


def _literal(values: tuple[str, ...]) -> Allowed:
    expected = " or ".join(map(repr, values))

    def checked(name: str, value: str) -> str:
        if value not in values:
            raise ValueError(f"{name} must be {expected}, not {_shown(value)}")
        return value

    return Allowed(expected, _is(str), checked)


def _is_column(value: Any) -> bool:
    is_sized = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return is_sized and not isinstance(value, (str, bytes, bytearray, Mapping))


def _items(inner: Allowed) -> Allowed:
    def is_type(value: Any) -> bool:
        return isinstance(value, Iterable) and not isinstance(value, (str, bytes, TopicPartition))

    def checked(name: str, value: Iterable[Any]) -> list[Any]:
        return [inner.argument(f"each of {name}", item) for item in value]

    return Allowed(f"a list in which each item is {inner.expected}", is_type, checked)


def _mapping(key: Allowed, content: Allowed) -> Allowed:
    def checked(name: str, value: Mapping[Any, Any]) -> dict[Any, Any]:
        return {
            key.argument(f"each key of {name}", each): content.argument(f"each value of {name}", value[each])
            for each in value
        }

    expected = f"a dictionary from {key.expected}{',' if ',' in key.expected else ''} to {content.expected}"
    return Allowed(expected, _is(Mapping), checked)


def _object(kind: type) -> Allowed:
    example = f', such as {kind.__name__}("orders", 0)' if kind is TopicPartition else ""
    expected = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}{example}"
    # A value is compared by its fields. The fields of other objects are their own affair.
    is_value = hasattr(kind, "_fields") or (attrs.has(kind) and "__eq__" in vars(kind))
    hints = get_type_hints(kind, include_extras=True) if is_value else {}
    fields = {name: what_allows(hint) for name, hint in hints.items()}

    def checked(name: str, value: Any) -> Any:
        for field, allowed in fields.items():
            allowed.argument(f"{name}.{field}", getattr(value, field))
        return value

    return Allowed(expected, _is(kind), checked)
