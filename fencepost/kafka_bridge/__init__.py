"""Kafka's wire protocol in front of the broker: Kafka's own clients connect as they do to Apache Kafka.

A "response" here is the message of Kafka's protocol, and an "answer" is what the node returns to one request.
A response is made from any number of answers (exchange.py).
"""

from __future__ import annotations

import sys
from importlib import import_module


def _load_kio() -> None:
    """Load kio without Hypothesis, for which kio registers strategies wherever it is installed.

    Its import takes longer than that of kio, switches trio's scheduler to its test mode, and prints a warning
    into the log of the broker.
    """
    # A test has imported it already, so nothing is left to save.
    if "hypothesis" in sys.modules:
        import_module("kio.static.primitive")
        return
    sys.modules["hypothesis"] = None  # pyright: ignore[reportArgumentType] - its import fails now
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


# Here, since this runs before any module of the package can import kio.
_load_kio()
