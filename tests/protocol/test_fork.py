"""Forks, fingerprints and log states of small classes, one rule at a time."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any, NamedTuple

import attrs
import pytest
from sortedcontainers import SortedSet

from fencepost.protocol.fork import (
    Clock,
    Due,
    Ignored,
    LastLogged,
    Note,
    Ordered,
    Pace,
    Rank,
    Scope,
    Shared,
    constant,
    fingerprint,
    fork,
    log_state,
)

Ticket = Annotated[int, Rank("ticket")]
Token = Annotated[int, Rank("token")]
Guard = Annotated[int, Rank("guard", scoped=True)]


class Entry(NamedTuple):
    epoch: int
    batches: LastLogged[tuple[int, ...]] = ()


class Slots:
    """A class without attrs; only `order` says what it is."""

    __slots__ = ("items", "nested", "order")
    order: Ordered[dict[str, int]]

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.nested = {"a": [1]}
        self.order = {}


NONE_OF_THEM = constant(Slots())


@attrs.define(eq=False)
class Log:
    key: Scope[str]
    entries: dict[int, Entry] = attrs.Factory(dict[int, Entry])
    guards: Note[dict[str, Guard]] = attrs.Factory(dict[str, Guard])
    opened: SortedSet[int] = attrs.Factory(SortedSet[int])
    guards_given: Ignored[int] = 0


@attrs.define(eq=False)
class Server:
    settings: Shared[list[int]] = attrs.Factory(lambda: [1])
    logs: dict[str, Log] = attrs.Factory(dict[str, Log])
    leader: Log | None = None
    waiting: deque[tuple[int, str]] = attrs.Factory(deque[tuple[int, str]])
    asked: dict[Ticket, str] = attrs.Factory(dict[Ticket, str])
    answered: list[Ticket] = attrs.Factory(list[Ticket])
    tokens: set[Token] = attrs.Factory(set[Token])
    data: bytearray = attrs.Factory(bytearray)
    slots: Slots = attrs.Factory(Slots)


def server() -> Server:
    made = Server()
    made.logs["b"] = Log("b")
    made.logs["a"] = made.leader = Log("a")
    made.logs["a"].entries[7] = Entry(1, (1, 2, 3))
    made.waiting.append((1, "x"))
    return made


# --- forks -----------------------------------------------------------------------------------------------


def test_a_fork_shares_nothing_that_changes() -> None:
    original = server()
    before = fingerprint(original)
    made = fork(original)
    assert fingerprint(made) == before
    made.logs["a"].entries[8] = Entry(2)
    made.logs["c"] = Log("c")
    made.logs["b"].opened.add(5)
    made.waiting.append((2, "y"))
    made.asked[1] = "q"
    made.tokens.add(4)
    made.data += b"x"
    made.slots.items.append(1)
    made.slots.nested["a"].append(2)
    assert fingerprint(original) == before != fingerprint(made)


def test_what_two_fields_share_stays_shared() -> None:
    made = fork(server())
    assert made.leader is made.logs["a"]
    assert isinstance(made.waiting, deque)


def test_constants_and_settings_are_shared() -> None:
    original = server()
    original.slots.items += [NONE_OF_THEM, Slots()]
    made = fork(original)
    assert made.settings is original.settings
    assert made.slots.items[0] is NONE_OF_THEM
    assert made.slots.items[1] is not original.slots.items[1]


def test_a_class_whose_fields_are_not_known_is_refused() -> None:
    class Open:
        pass

    with pytest.raises(AssertionError, match="Open has neither"):
        fork(Open())


# --- fingerprints ----------------------------------------------------------------------------------------


def numbered(*tickets: int, answered: tuple[int, ...] = (), tokens: tuple[int, ...] = ()) -> Server:
    made = Server()
    made.asked = {ticket: str(at) for at, ticket in enumerate(tickets)}
    made.answered, made.tokens = list(answered), set(tokens)
    return made


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (numbered(1, 2), numbered(5, 9), True),
        (numbered(1, 2), numbered(2, 1), False),
        (numbered(1, 2, answered=(2,)), numbered(3, 7, answered=(7,)), True),
        (numbered(1, 2, answered=(2,)), numbered(3, 7, answered=(3,)), False),
        (numbered(1, answered=(2,)), numbered(3, answered=(1,)), False),
        (numbered(1, tokens=(2,)), numbered(3, tokens=(1,)), True),
        (numbered(1), numbered(1, 2), False),
    ],
)
def test_only_the_order_of_numbers_of_one_kind_counts(one: Server, other: Server, *, equal: bool) -> None:
    assert (fingerprint(one) == fingerprint(other)) is equal


@pytest.mark.parametrize(
    ("guards", "equal"),
    [(({"p": 1}, {"p": 1}), True), (({"p": 2}, {"p": 1}), True), (({"p": 1, "q": 2}, {"p": 1}), False)],
)
def test_numbers_of_different_scopes_are_not_compared(
    guards: tuple[dict[str, int], dict[str, int]], *, equal: bool
) -> None:
    plain, other = server(), server()
    plain.logs["a"].guards, plain.logs["b"].guards = {"p": 3}, {"p": 9}
    other.logs["a"].guards, other.logs["b"].guards = guards
    assert (fingerprint(plain) == fingerprint(other)) is equal


def test_dictionaries_are_equal_in_any_order_unless_they_say_otherwise() -> None:
    one, other = server(), server()
    other.logs = dict(reversed(other.logs.items()))
    assert fingerprint(one) == fingerprint(other)
    one.slots.order, other.slots.order = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert fingerprint(one) != fingerprint(other)


def test_sharing_tells_states_apart() -> None:
    one, other = server(), server()
    other.leader = fork(other.logs["a"])
    assert fingerprint(one) != fingerprint(other)


@attrs.define(eq=False)
class Call:
    retry_at: Due
    attempts: Pace[int]


@attrs.define(eq=False)
class Client:
    calls: list[Call]
    now: Clock = 0


def test_under_a_clock_only_what_is_due_counts() -> None:
    early, late = Client([Call(5, 1)], now=4), Client([Call(90, 7)], now=4)
    assert fingerprint(early) == fingerprint(late)
    assert fingerprint(early) != fingerprint(Client([Call(5, 1)], now=5))
    assert fingerprint(early.calls[0]) != fingerprint(late.calls[0]), "without a clock every time counts"


# --- what a log determines -------------------------------------------------------------------------------


def test_a_log_state_has_no_notes() -> None:
    one, other = server().logs["a"], server().logs["a"]
    other.guards["p"] = 1
    other.guards_given = 9
    other.entries[7] = Entry(1, (9, 9, 3))
    assert log_state(one) == log_state(other)
    assert fingerprint(one) != fingerprint(other)
    other.entries[7] = Entry(1, (1, 2, 4))
    assert log_state(one) != log_state(other)
    assert hash(log_state(one)) == hash(log_state(fork(one)))
