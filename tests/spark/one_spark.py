"""One Spark session for several programs that would each start and stop their own, which takes seconds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession


@contextmanager
def one_spark() -> Generator[None]:
    """The first session that is started in its body goes on until its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", _go_on)
        yield
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


def _go_on(_session: SparkSession) -> None:
    """What takes the place of a program's own `stop`."""
