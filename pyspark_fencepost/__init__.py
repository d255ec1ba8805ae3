"""Spark looks for packages whose names begin with `pyspark_` and registers their `DefaultSource` by itself.

Rule: nothing else lives here. Where it is installed, `format("fencepost")` works without a call to register.
"""

from fencepost.spark_bridge.data_source import FencepostDataSource as DefaultSource

__all__ = ["DefaultSource"]
