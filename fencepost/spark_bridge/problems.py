"""What can go wrong when a log is read from its files; each message says where and what to do.

Rule: Spark shows an error of a worker as text only, so the sentence has to carry everything.
"""

from __future__ import annotations

from fencepost.protocol.errors import FencepostError


class UnusableOption(FencepostError):
    """An option of the reader is unknown, missing, contradictory or malformed."""


class SparkMissing(FencepostError):
    """PySpark is not installed; the message says how to get it."""


class UnfitWorker(FencepostError):
    """A Python of a Spark worker lacks a package that reading needs."""


class DataLoss(FencepostError):
    """Offsets that were asked for are not there: no longer, or not yet.

    `failOnDataLoss=false` reads what is there.
    """


class CorruptLog(FencepostError):
    """Bytes below the readable end of a log are not what was written."""
