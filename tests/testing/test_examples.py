"""The examples: a sweep finds the bug of the service that has one, and passes the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0  # a bound on a hang


def swept(name: str, output: Path) -> subprocess.CompletedProcess[str]:
    """pytest, as the README of the examples calls it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rP",
        f"--fencepost-output={output}",
        f"examples/{name}.py",
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


SERVICES = ["test_order_service", pytest.param("test_confluent_order_service", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("service", SERVICES)
def test_a_right_service_passes(tmp_path: Path, service: str) -> None:
    done = swept(service, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "broker killed" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_bug_is_found(tmp_path: Path, service: str) -> None:
    done = swept(f"{service}_with_bug", tmp_path)
    assert done.returncode == 1, done.stdout
    assert "invoices does not have each of orders exactly once" in done.stdout
    assert "duplicated" in done.stdout
    assert "never struck" not in done.stdout
    [saved] = tmp_path.iterdir()
    names = ["drawing.svg", "page.html", "sweep.txt", "table.txt"]
    assert sorted(path.name for path in saved.iterdir()) == names
