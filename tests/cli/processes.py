"""`fencepost ...` as processes of their own: started on loopback, heard, and gone at the end of the test."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0  # a bound on a hang
COMMAND = [sys.executable, "-m", "fencepost"]

# Shells start background jobs deaf to Ctrl-C, and so is all that these start: our commands shall hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def fencepost(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
    )


@contextmanager
def started(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Starts a command; kills it at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def broker(directory: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A broker on a free port: (its process, its address)."""
    with started("serve", str(directory), "--port", "0", *options) as process:
        ready = read_ready(process)
        yield process, f"{ready['host']}:{ready['port']}"


def read_ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The lines that say that a broker is ready: words, its memory, a line for each fault, then JSON."""
    assert process.stdout is not None
    words = process.stdout.readline()
    assert process.stdout.readline().startswith("Memory: at most ")
    line = process.stdout.readline()
    while line.startswith("Fault "):
        line = process.stdout.readline()
    ready: dict[str, Any] = json.loads(line)
    assert ready["ready"] is True
    assert f"ready on {ready['host']}:{ready['port']}" in words
    return ready
