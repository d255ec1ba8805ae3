"""The optional parts of an installation, such as `fencepost[spark]`: how to add one that is missing."""

from __future__ import annotations

import sys


def adding(extras: str) -> str:
    """How to add extras to this installation. pip takes them from the installed package, which may come from
    an index or from a clone.
    """
    return (
        f"`{sys.executable} -m pip install 'fencepost[{extras}]'` adds what is missing to this installation"
    )
