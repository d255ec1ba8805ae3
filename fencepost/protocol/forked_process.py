"""What a forked process gives up: the sockets, locks and processes that it has inherited from its parent.

Rule: the code that makes such a thing registers here, at once, what a forked process does with its copy.
"""

# A fork copies descriptors, and no threads. While a child has a copy of a listening socket, no other process
# can listen on that port; while it has one of a locked file, none can lock the file; and while it has one of
# a connection, the peer does not notice that the parent has closed it. And a copied object whose thread is
# missing would wait for that thread forever, or end what is its parent's.
#
# Only os.fork() calls these functions, and multiprocessing's "fork" through it. A program that is started
# (subprocess) inherits nothing: Python's descriptors are closed by exec.

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

OwnerT = TypeVar("OwnerT")

_held: Final[WeakKeyDictionary[Any, Callable[[Any], object]]] = WeakKeyDictionary()


def in_child(owner: OwnerT, give_up: Callable[[OwnerT], object]) -> OwnerT:
    """Call `give_up` with the copy of this object in each process that is forked; returns the object. The
    call must not wait, nor change what the parent shares with its child.
    """
    _held[owner] = give_up
    return owner


def _give_up() -> None:
    with ExitStack() as calls:  # each is made, whatever another one raises
        for owner, give_up in list(_held.items()):
            calls.callback(give_up, owner)
        _held.clear()  # what the child makes is its own


os.register_at_fork(after_in_child=_give_up)
