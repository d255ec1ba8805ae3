"""One Spark session for several programs that would each start and stop their own, which takes seconds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession


@contextmanager
def one_spark() -> Generator[None]:
    """The first session that is started in its body goes on until its end."""
    stopped: list[SparkSession] = []

    def stop(session: SparkSession) -> None:
        stopped.append(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", stop)
        yield
    # Not the active session: that is one of this thread, and programs start theirs in others.
    for session in stopped[-1:]:
        session.stop()
