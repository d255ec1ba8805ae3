"""One Spark session for all tests of a process: to start one and to warm it up takes seconds of two cores.

tests/conftest.py has the fixture `spark`, and deals out to one process all files that use it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from fencepost.spark_bridge.session import session


@contextmanager
def one_spark() -> Generator[SparkSession]:
    """A session of two cores. Programs that would stop theirs get this one, and leave it running."""

    def leave_it(_: SparkSession) -> None:
        """Stops nothing."""

    with session("tests", master="local[2]") as spark, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", leave_it)
        yield spark
