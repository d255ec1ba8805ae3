"""Planted core bugs: a mutation is a small edit of real functions of the cores, made for a while.

Rule: what an edit replaces stands exactly once in its function, so that a mutation which no longer fits the
code fails instead of planting nothing.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, Final

import attrs

_FILE: Final = "<a planted mistake>"


@attrs.frozen
class Edit:
    """The function at `where` (`module:function` or `module:Class.method`, inside the package), and what
    becomes of its text: old to new.
    """

    where: str
    texts: Mapping[str, str]


@attrs.frozen
class Mutation:
    """One mistake that somebody could have made: what it breaks, and which bug or rule of Kafka it is
    like. `workload` is that of the worlds that find it; `rule` is the one that has to find it, or "" for any.
    """

    name: str
    breaks: str = attrs.field(kw_only=True)
    workload: str = attrs.field(default="transactions", kw_only=True)
    rule: str = attrs.field(default="", kw_only=True)
    edits: tuple[Edit, ...] = attrs.field(kw_only=True)


def one_edit(name: str, where: str, old: str, new: str, *, breaks: str) -> Mutation:
    """A mistake of one edit in one function."""
    return Mutation(name, breaks=breaks, edits=(Edit(where, {old: new}),))


@contextmanager
def planted(mutation: Mutation) -> Generator[None]:
    """The cores make this mistake inside the block. LookupError when it does not fit the code."""
    with ExitStack() as stack:
        for edit in mutation.edits:
            stack.enter_context(_edited(edit))
        yield


@contextmanager
def _edited(edit: Edit) -> Generator[None]:
    function = _function_at(edit.where)
    before = function.__code__
    # In place, so that tables and modules which hold the function have the mistake too.
    function.__code__ = _code(edit, function)
    try:
        yield
    finally:
        function.__code__ = before


def _function_at(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(f"fencepost.{module}")
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{where} is no function"
    return found


def _code(edit: Edit, function: FunctionType) -> CodeType:
    assert function.__code__.co_filename != _FILE, f"{edit.where} has a mistake already: join the two edits"
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edit.texts.items():
        if source.count(old) != 1:
            raise LookupError(f"{edit.where} holds {source.count(old)} times: {old}")
        source = source.replace(old, new)
    module = compile(source, _FILE, "exec")
    codes = (code for code in module.co_consts if isinstance(code, CodeType))
    # From Python 3.14 on, the annotations have a code of their own, which comes first.
    return next(code for code in codes if code.co_name == function.__name__)
