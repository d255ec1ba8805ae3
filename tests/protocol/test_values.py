"""Values are compared, hashed and shown as those of `attrs.frozen`."""

from __future__ import annotations

import attrs
import pytest

from fencepost.protocol.values import value


@value
class Login:
    name: str
    password: bytes = attrs.field(repr=False)
    attempt: int = attrs.field(default=0, eq=False, repr=False)


@value(kw_only=True)
class Single:
    number: int


@value(kw_only=True)
class Listed:
    parts: list[int]


@value
class Empty:
    pass


@value
class Nothing:
    pass


def test_values_are_equal_by_their_class_and_the_fields_that_count() -> None:
    first, second = Login("alice", b"secret"), Login("alice", b"secret", attempt=2)
    assert first == second
    assert first != Login("alice", b"other")
    assert Single(number=1) != Single(number=2)
    assert Empty() == Empty()
    assert Empty() != Nothing()
    assert Single(number=1) != (1,)
    assert len({first, second, Single(number=1), Single(number=1), Empty(), Empty(), Nothing()}) == 4


def test_a_value_with_a_field_that_has_no_hash_has_none() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Listed(parts=[1]))


def test_a_value_shows_the_fields_that_may_be_shown() -> None:
    assert repr(Login("alice", b"secret")) == "Login(name='alice')"
    assert repr(Single(number=1)) == "Single(number=1)"
    assert repr(Empty()) == "Empty()"


def test_a_value_has_slots() -> None:
    assert not hasattr(Single(number=1), "__dict__")
