"""The tables of the source by their names. `records` is not among them: its rows are made without a loop in
Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.spark_bridge.tables.batches import BATCHES
from fencepost.spark_bridge.tables.coordinator import COORDINATOR
from fencepost.spark_bridge.tables.losses import LOSSES
from fencepost.spark_bridge.tables.partitions import PARTITIONS
from fencepost.spark_bridge.tables.table import SourceTable
from fencepost.spark_bridge.tables.transactions import TRANSACTIONS

TABLES: Final[Mapping[str, SourceTable]] = {
    "batches": BATCHES,
    "transactions": TRANSACTIONS,
    "partitions": PARTITIONS,
    "coordinator": COORDINATOR,
    "losses": LOSSES,
}
