"""The examples on confluent-kafka: a sweep finds the bug of the one service, and passes the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.test_examples import assert_finds_duplicate, assert_passes

pytestmark = pytest.mark.thorough


def test_a_right_service_passes(tmp_path: Path) -> None:
    assert_passes("test_confluent_order_service", tmp_path)


def test_a_bug_is_found(tmp_path: Path) -> None:
    assert_finds_duplicate("test_confluent_order_service_with_bug", tmp_path)
