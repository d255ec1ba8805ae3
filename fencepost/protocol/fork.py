"""One fork and one fingerprint for every state: of nodes, partitions, coordinators and clients.

Rule: a state is a slotted object that changes; a value is a tuple, an enum or a class that is hashed by its
fields, and never changes. Forks copy states and share values.
"""

# Theory of operation
#
# A search over every future of a small world (simulator/explore) needs two things from a state: a copy to
# take the next step in, and a key by which it recognises a state that it has met before. Recovery needs a
# third: the part of a state that its log determines, for `recover(log) == forget_notes(live)`. All three are
# one walk over the fields:
#
#     fork(state)         a state that continues on its own. What two fields share stays shared: in the fork,
#                         too, `machine.delivery.calls is machine.calls`.
#     fingerprint(state)  all that decides how the state will act, as a value that can be hashed. A state that
#                         is met a second time is written as the number of its first meeting.
#     log_state(state)    the same walk without notes.
#
# A field says in its annotation how it takes part; most need not say anything:
#
#     Note[T]        lost at a restart: part of the fingerprint, not of the log state
#     LastLogged[T]  of this tuple the last entry is log state, and the others are notes
#     Ignored[T]     in neither: it follows from other fields, or only says which number comes next
#     Shared[T]      in neither, and forks share it: a constant, such as settings
#     Ordered[T]     a dictionary whose order decides something; others are equal in any order, as for ==
#     Rank(...)      a number that a counter gave: a ticket, a token, a guard. Only the order of such numbers
#                    means something, so each is replaced by its rank: a state that was reached with one more
#                    retry is the same state. Otherwise a world with retries would have no end of states
#     Scope[T]       guards are counted per partition: after a scope, their ranks are those within it
#     Due, Pace[T]   when something is due, and what decides how long a pause takes. Under a Clock only this
#                    counts: due or not yet. How long a pause takes decides nothing in an explored world
#
# A slot without an annotation is walked by the class of what it holds. So a new field is copied and compared
# by default: a missing declaration makes a search larger, not wrong. Ordered is the exception; the tests that
# visit a world's states in another order find the fields that lack it.
#
# A walk by reflection would be several times slower than code written by hand. So each class is compiled
# once, as attrs and namedtuple do: its annotations become the source of one function, in which for example
# `records: dict[str, TransactionRecord]` is the expression `tuple(sorted(o.records.items()))`.

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
from sortedcontainers import SortedSet

from fencepost.protocol.batches import Buffer

T = TypeVar("T")


class FieldRole(Enum):
    """How a field takes part in a fork and in a fingerprint."""

    NOTE = "note"
    IGNORED = "ignored"
    SHARED = "shared"
    LAST_LOGGED = "last entry logged"
    ORDERED = "ordered"
    SCOPE = "scope"
    DUE = "due"
    PACE = "pace"
    CLOCK = "clock"


@attrs.frozen
class Rank:
    """The number is replaced by its rank among those of its kind, and, if `scoped`, of its scope."""

    kind: str
    scoped: bool = False


Note = Annotated[T, FieldRole.NOTE]
Ignored = Annotated[T, FieldRole.IGNORED]
Shared = Annotated[T, FieldRole.SHARED]
LastLogged = Annotated[T, FieldRole.LAST_LOGGED]
Ordered = Annotated[T, FieldRole.ORDERED]
Scope = Annotated[T, FieldRole.SCOPE]
Pace = Annotated[T, FieldRole.PACE]
Due = Annotated[int, FieldRole.DUE]
Clock = Annotated[int, FieldRole.CLOCK]

_constants: Final[dict[int, Any]] = {}


def constant(state: T) -> T:
    """A state that never changes, such as the batch that stands for none: forks share it."""
    _constants[id(state)] = state
    return state


def fork(state: T) -> T:
    """A state that continues from here on its own; values are shared."""
    return _FORKS[type(state)](state, _constants.copy())


def fingerprint(state: object) -> tuple[Any, ...]:
    """Equal for states that will act alike, however their tickets, tokens and guards are numbered."""
    walk = _Walk()
    seen = _KEYS[type(state)](state, walk)
    numbers = walk.numbers
    # In `seen` each number becomes the place of its first occurrence. Together with the order of these
    # places that says all that ranks would say, and takes one walk instead of two.
    order = tuple([numbers[number] for number in sorted(numbers)]) if len(numbers) > 1 else ()
    return (seen, order)


def log_state(state: object) -> tuple[Any, ...]:
    """What the log alone determines: equal after a recovery and after forgetting all notes."""
    return _LOG_KEYS[type(state)](state, _Walk())


class _Walk:
    """One walk: the states and the numbers that it has met, and the clock and the scope that it is under."""

    __slots__ = ("now", "numbers", "scope", "states")

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.scope: Any = None
        self.now: int | None = None

    def enter(self, scope: T) -> T:
        """The guards that follow belong to this scope."""
        self.scope = scope
        return scope


# --- what annotations say ----------------------------------------------------------------------------------

_SCALARS: Final = (int, str, bytes, bool, float, types.NoneType, type, Enum)
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_SETS: Final = (set, frozenset, SortedSet)
_SEQUENCES: Final = (list, deque, tuple)
_BUFFERS: Final = (bytearray, memoryview)
_CONTAINERS: Final = frozenset({dict, *_SETS, *_SEQUENCES, *_BUFFERS})


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The annotation without its roles, and the roles."""
    if get_origin(hint) is Annotated:
        base, *roles = get_args(hint)
        return base, tuple(roles)
    return hint, ()


def _arms(base: Any) -> list[Any] | None:
    """The members of a union, None for any other annotation."""
    return list(get_args(base)) if get_origin(base) in (Union, types.UnionType) else None


def _is_named_tuple(kind: type[Any]) -> bool:
    return issubclass(kind, tuple) and hasattr(cast("Any", kind), "_fields")


def _fields(kind: type[Any]) -> list[tuple[str, Any]]:
    """Names and annotations of the fields of a class; Any for a slot without an annotation."""
    if attrs.has(kind):
        names = [field.name for field in attrs.fields(kind) if field.eq or not _is_value(kind)]
    elif _is_named_tuple(kind):
        names = list(cast("Any", kind)._fields)
    else:
        slots = [cast("Any", base.__dict__.get("__slots__")) for base in reversed(kind.__mro__[:-1])]
        assert None not in slots, f"{kind.__name__} has neither attrs' fields nor slots: it cannot be copied"
        names = [name for each in slots for name in each]
    hints = get_type_hints(kind, include_extras=True)
    return [(name, hints.get(name, Any)) for name in names]


def _is_value(kind: type[Any]) -> bool:
    """Whether what is of this class never changes: hashed by its fields, or frozen and known by identity."""
    if issubclass(kind, (*_SCALARS, *_FUNCTIONS, tuple, frozenset)):
        return True
    is_frozen = attrs.has(kind) and kind.__setattr__ is not object.__setattr__
    return is_frozen or not (kind.__hash__ is None or _has_identity(kind))


def _has_identity(kind: type[Any]) -> bool:
    return kind.__hash__ is object.__hash__


# --- from annotations to code ------------------------------------------------------------------------------


class _Compiler(dict[type[Any], Callable[[Any, Any], Any]]):
    """The function for each class, compiled at first use. In its source `o` is the object, `w` what the walk
    remembers, `walk` this dictionary, and `plain` the classes whose objects stand for themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain: set[type[Any]] = set()

    def __missing__(self, kind: type[Any]) -> Callable[[Any, Any], Any]:
        if self._stands_for_itself(kind):
            self.plain.add(kind)
            made = self._define(["return o"])
        elif kind in _CONTAINERS:
            made = self._define([f"return {self._code(kind, 'o')}"])
        else:
            made = self._of_class(kind)
        self[kind] = made
        return made

    def _of_class(self, kind: type[Any]) -> Callable[[Any, Any], Any]:
        raise NotImplementedError

    def _stands_for_itself(self, hint: Any) -> bool:
        """Whether the walk leaves it as it is."""
        raise NotImplementedError

    def _code(self, hint: Any, what: str, depth: int = 0) -> str:
        """The expression for `what`, which has this annotation."""
        raise NotImplementedError

    def _define(self, lines: Sequence[str], **names: Any) -> Callable[[Any, Any], Any]:
        scope: dict[str, Any] = {"walk": self, "plain": self.plain, **names}
        exec("\n    ".join(["def f(o, w):", *lines]), scope)
        return scope["f"]

    def _of_optional(self, hint: Any, what: str, depth: int) -> str | None:
        """The expression for something or None; None for any other annotation."""
        some = [arm for arm in _arms(hint) or () if arm is not types.NoneType]
        if len(some) != 1:
            return None
        return f"(None if {what} is None else {self._code(some[0], what, depth)})"


class _Forks(_Compiler):
    """What the walk remembers is the fork of each state, by the identity of the original."""

    def _of_class(self, kind: type[Any]) -> Callable[[Any, Any], Any]:
        lines = [
            "made = w.get(id(o))",
            "if made is not None:",
            "    return made",
            "made = w[id(o)] = new(kind)",
            *(f"made.{name} = {self._code(hint, f'o.{name}')}" for name, hint in _fields(kind)),
            "return made",
        ]
        return self._define(lines, new=object.__new__, kind=kind)

    def _stands_for_itself(self, hint: Any) -> bool:
        base, roles = _split(hint)
        arms = _arms(base)
        if arms is not None and FieldRole.SHARED not in roles:
            return all(map(self._stands_for_itself, arms))
        origin = get_origin(base) or base
        return FieldRole.SHARED in roles or (isinstance(origin, type) and _is_value(origin))

    def _code(self, hint: Any, what: str, depth: int = 0) -> str:
        if self._stands_for_itself(hint):
            return what
        base, _ = _split(hint)
        origin, arms = get_origin(base) or base, get_args(base)
        k, x = f"k{depth}", f"x{depth}"
        if origin in _CONTAINERS:
            item = self._code(arms[-1] if arms else Any, x, depth + 1)
            if item == x or origin in (bytearray, *_SETS):
                return f"{what}.copy()"
            if origin is dict:
                return f"{{{k}: {item} for {k}, {x} in {what}.items()}}"
            made = f"[{item} for {x} in {what}]"
            return made if origin is list else f"type({what})({made})"
        found = self._of_optional(base, what, depth)
        return found or f"({what} if type({what}) in plain else walk[type({what})]({what}, w))"


class _Keys(_Compiler):
    """What the walk remembers is in a _Walk."""

    def __init__(self, *, logged: bool) -> None:
        super().__init__()
        self._left_out = {
            FieldRole.IGNORED,
            FieldRole.SHARED,
            FieldRole.CLOCK,
            *((FieldRole.NOTE,) if logged else ()),
        }
        self._active = {FieldRole.LAST_LOGGED} if logged else {FieldRole.DUE, FieldRole.PACE, FieldRole.SCOPE}
        self._known: dict[Any, bool] = {}

    def _of_class(self, kind: type[Any]) -> Callable[[Any, Any], Any]:
        fields = [(f"o.{name}", *_split(hint)) for name, hint in _fields(kind)]
        kept = [field for field in _fields(kind) if self._left_out.isdisjoint(_split(field[1])[1])]
        made = "".join(f"{self._code(hint, f'o.{name}')}, " for name, hint in kept)
        if _is_value(kind):
            whole = _is_named_tuple(kind) and len(kept) == len(fields)
            return self._define([f"return {'kind' if whole else ''}({made})"], kind=kind)
        lines = [
            "states, at = w.states, id(o)",
            "if at in states:",
            "    return states[at]",
            "states[at] = len(states)",
            *(f"w.now = {what}" for what, _, roles in fields if FieldRole.CLOCK in roles),
            f"return ({made})",
        ]
        return self._define(lines)

    def _stands_for_itself(self, hint: Any) -> bool:
        """Values in which nothing has a role."""
        if hint not in self._known:
            self._known[hint] = True  # for a class that refers to itself: its other fields decide
            self._known[hint] = self._is_plain(hint)
        return self._known[hint]

    def _is_plain(self, hint: Any) -> bool:
        base, roles = _split(hint)
        if any(isinstance(role, Rank) or role in self._active for role in roles):
            return False
        origin, arms = get_origin(base) or base, [arm for arm in get_args(base) if arm is not ...]
        if origin is tuple or _arms(base) is not None:
            return bool(arms) and all(map(self._stands_for_itself, arms))
        if not isinstance(origin, type) or origin is memoryview or not _is_value(origin):
            return False
        has_fields = (attrs.has(origin) and not _has_identity(origin)) or _is_named_tuple(origin)
        fields = _fields(origin) if has_fields else []
        # Bytes in a value are compared by their content, whatever holds them.
        return all(_split(arm)[0] == Buffer or self._stands_for_itself(arm) for _, arm in fields)

    def _code(self, hint: Any, what: str, depth: int = 0) -> str:
        base, roles = _split(hint)
        for role in roles:
            match role:
                case Rank(kind, scoped=scoped):
                    number = f"({kind!r}, {'w.scope, ' if scoped else ''}{what})"
                    return f"w.numbers.setdefault({number}, len(w.numbers))"
                case FieldRole.DUE:
                    return f"({what} if w.now is None else {what} <= w.now)"
                case FieldRole.PACE:
                    return f"({self._code(base, what, depth)} if w.now is None else None)"
                case FieldRole.SCOPE:
                    return f"w.enter({what})"
                case FieldRole.LAST_LOGGED if role in self._active:
                    return f"{what}[-1:]"
                case _:
                    pass
        if self._stands_for_itself(base):
            return what
        if (get_origin(base) or base) in _CONTAINERS:
            return self._of_container(base, what, depth, is_ordered=FieldRole.ORDERED in roles)
        if isinstance(base, type) and base is not object:
            return f"walk[type({what})]({what}, w)"
        found = self._of_optional(base, what, depth)
        return found or f"({what} if type({what}) in plain else walk.any({what}, w))"

    def _of_container(self, base: Any, what: str, depth: int, *, is_ordered: bool) -> str:
        origin, arms = get_origin(base) or base, get_args(base) or (Any, Any)
        k, x = f"k{depth}", f"x{depth}"
        if origin in _BUFFERS:
            return f"bytes({what})"
        if origin is dict:
            key, item = self._code(arms[0], k, depth + 1), self._code(arms[1], x, depth + 1)
            items = f"{what}.items()" if is_ordered else f"sorted({what}.items())"
            if (key, item) == (k, x):
                return f"tuple({items})"
            return f"tuple([({key}, {item}) for {k}, {x} in {items}])"
        if origin is tuple and arms[-1] is not ... and get_args(base):
            places = (self._code(arm, f"{what}[{at}]", depth) for at, arm in enumerate(arms))
            return f"({''.join(f'{place}, ' for place in places)})"
        item = self._code(arms[0], x, depth + 1)
        if origin in _SETS:
            return f"frozenset({what})" if item == x else f"tuple([{item} for {x} in sorted({what})])"
        return f"tuple({what})" if item == x else f"tuple([{item} for {x} in {what}])"

    def any(self, found: Any, walk: _Walk) -> Any:
        """A value whose annotation says nothing: its class decides. The class is part of its key: two kinds
        may have equal fields.
        """
        kind: type[Any] = type(cast("object", found))
        key = self[kind](found, walk)
        return key if kind in self.plain else (kind, key)


_FORKS: Final = _Forks()
_KEYS: Final = _Keys(logged=False)
_LOG_KEYS: Final = _Keys(logged=True)
