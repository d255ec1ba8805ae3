"""What tests of threads share."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
