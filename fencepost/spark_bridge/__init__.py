"""Reads a broker's log with PySpark, from its files alone: `spark.read.format("fencepost")`.

Rule: importing this package is cheap and needs no Spark; a name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.spark_bridge.data_source import FencepostDataSource as FencepostDataSource
    from fencepost.spark_bridge.session import register as register

_HOMES = {"FencepostDataSource": "data_source", "register": "session"}


def __getattr__(name: str) -> Any:
    """Imports the module of a public name on first access (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
