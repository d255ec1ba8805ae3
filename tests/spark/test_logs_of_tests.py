"""What PySpark does to the logging of its process must not change what other tests read."""

import logging
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import ArithmeticException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def failed_query(spark: "SparkSession") -> None:
    """A setup, since pytest begins to catch logs anew in each phase of a test."""
    with pytest.raises(ArithmeticException):
        spark.sql("SELECT 1 / 0").collect()


@pytest.mark.usefixtures("failed_query")
def test_the_log_of_a_test_is_text_after_an_error_of_a_query(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise LookupError("here")
    except LookupError:
        logging.getLogger("fencepost.client").exception("what failed")
    assert "LookupError: here" in caplog.text
