"""Hypothesis on a shared machine: bounded by examples, never by the clock. One Spark session for all."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from fencepost.spark_bridge.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile("bounded", max_examples=100, print_blob=True)
settings.load_profile("bounded")


@pytest.fixture(scope="package")
def spark() -> Iterator["SparkSession"]:
    """A session of two cores. It takes seconds to start, so it is shared; other packages start their own."""
    with session("tests", master="local[2]") as started:
        yield started
