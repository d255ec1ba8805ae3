"""The processes of the demonstration, each in its own session: what they say, and the signals they get.

Rule: none outlives the demonstration, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import trio

from fencepost.protocol.errors import FencepostError

CHUNK_BYTES = 65_536
LAST_WORDS = 2_000  # of a process's stderr are shown when it failed


class ChildFailed(FencepostError):
    """A process of the demonstration ended in a way that nobody planned."""


class Child:
    """One process that speaks JSON lines."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        self._buffer = b""

    async def hear(self) -> dict[str, Any] | None:
        """The next JSON line, None at the end of its output; lines in words are passed over."""
        assert self._process.stdout is not None, "its output is ours"
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                if line.startswith(b"{"):
                    return json.loads(line)
                continue
            chunk = await self._process.stdout.receive_some(CHUNK_BYTES)
            if not chunk:
                return None
            self._buffer += chunk

    async def tell(self, word: str) -> None:
        """Sends a line to its stdin; a process that is gone by then does not mind."""
        assert self._process.stdin is not None, "its input is ours"
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(f"{word}\n".encode())

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Sends the signal to the process and all that it started, and waits; its return code."""
        self.send(how)
        return await self._process.wait()

    def send(self, how: signal.Signals) -> None:
        """Sends a signal to its whole session."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, how)

    async def wait(self) -> int:
        """Its return code when it has ended."""
        return await self._process.wait()

    def failure(self) -> ChildFailed:
        """The end that nobody planned, with its last words."""
        words = self._errors.read_text(errors="replace").strip()[-LAST_WORDS:]
        return ChildFailed(f"the {self.name} ended with {self._process.returncode}\n{words}")


class Children:
    """Starts processes and remembers them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Child] = []

    async def start(self, name: str, *arguments: str) -> Child:
        """`python -m *arguments` in a session of its own: Ctrl-C reaches the demonstration alone."""
        errors = self._directory / f"{len(self._started):03d}-{name}.stderr"
        with errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", *arguments],
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        child = Child(name, process, errors)
        self._started.append(child)
        return child

    async def end_all(self) -> None:
        """Kills whoever still runs."""
        for child in self._started:
            child.send(signal.SIGKILL)
        for child in self._started:
            await child.wait()


@asynccontextmanager
async def children(directory: Path) -> AsyncGenerator[Children]:
    """All processes started inside are gone afterwards; their stderr lies in `directory`."""
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    family = Children(directory)
    try:
        yield family
    finally:
        with trio.CancelScope(shield=True):
            await family.end_all()
