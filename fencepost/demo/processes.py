"""The child processes of the demonstration, each in its own session: their messages and signals.

Rule: no child outlives the demonstration, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import attrs
import trio

from fencepost.demo.plan import TRANSACTIONAL_ID, Disruption, DisruptionPlan
from fencepost.demo.report import DemoResult, StoryLog
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import INT64_MAX

CHUNK_BYTES = 65_536
LAST_WORDS = 2_000  # characters of stderr in the error of a failed process


class ChildFailed(FencepostError):
    """A process of the demonstration ended unexpectedly."""


class ChildProcess:
    """A child process that writes JSON lines."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        self._buffer = b""

    async def hear(self) -> dict[str, Any] | None:
        """Returns the next JSON line, None at the end of its output; skips other lines."""
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
        """Sends a line to its stdin; does nothing if the process has ended."""
        assert self._process.stdin is not None, "its input is ours"
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(f"{word}\n".encode())

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Sends the signal to the process and its children, waits, and returns its return code."""
        self.send(how)
        return await self._process.wait()

    def send(self, how: signal.Signals) -> None:
        """Sends a signal to its whole session."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, how)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    async def wait(self) -> int:
        """Waits for its end and returns its return code."""
        return await self._process.wait()

    def failure(self) -> ChildFailed:
        """Returns the error for an unexpected end, with the last lines of its stderr."""
        words = self._errors.read_text(errors="replace").strip()[-LAST_WORDS:]
        return ChildFailed(
            f"the {self.name} process ended with exit code {self._process.returncode}:\n{words}"
        )


class ChildProcesses:
    """Starts processes and kills those that are left at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[ChildProcess] = []

    async def start(self, name: str, *arguments: str) -> ChildProcess:
        """Starts `python -m *arguments` in its own session, so that Ctrl-C reaches only the demonstration."""
        errors = self._directory / f"{len(self._started):03d}-{name}.stderr"
        with errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", *arguments],
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        child = ChildProcess(name, process, errors)
        self._started.append(child)
        return child

    async def end_all(self) -> None:
        """Kills the processes that still run."""
        for child in self._started:
            child.send(signal.SIGKILL)
        for child in self._started:
            await child.wait()


@asynccontextmanager
async def children(directory: Path) -> AsyncGenerator[ChildProcesses]:
    """Kills all processes of the block at its end; their stderr is in `directory`."""
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    processes = ChildProcesses(directory)
    try:
        yield processes
    finally:
        with trio.CancelScope(shield=True):
            await processes.end_all()


@attrs.frozen(kw_only=True)
class Demo:
    """One run: `data` becomes the data directory, `source` is the file of flights; with `follow`, a lab may
    follow the broker.
    """

    plan: DisruptionPlan
    data: Path
    source: Path
    story: StoryLog
    result: DemoResult
    follow: bool = False

    @property
    def stream(self) -> Path:
        """The directory with the checkpoint and the result of the stream."""
        return self.data.parent / "stream"


class DemoBroker:
    """The broker under load: its current process, restarted on the same port and directory after a kill."""

    def __init__(self, children: ChildProcesses, demo: Demo) -> None:
        self._children = children
        self._demo = demo
        self._port = 0
        self._child: ChildProcess | None = None
        self._lock = trio.Lock()
        self._drop = f"when node 1 sends Produce reply do drop every {demo.plan.lose_every} times"
        self._holds = deque(
            event.round for event in demo.plan.events if event.kind is Disruption.KILL_BROKER_AT_PREPARE
        )
        self.rounds = 0  # of the workers so far: a restarted broker counts its PREPAREs from 1 again

    @property
    def bootstrap(self) -> str:
        """The address of the broker, even after restarts."""
        return f"127.0.0.1:{self._port}"

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Starts the broker and handles its messages until cancelled."""
        await self._start()
        if self._demo.follow:
            self._demo.story.tell(f"to watch: fencepost lab --bootstrap-server {self.bootstrap}")
        task_status.started()
        while (child := self._child) is not None:
            said = await child.hear()
            if said is not None and "struck" in said and said["fault"] == self._drop:
                self._demo.result.lost_replies += 1
            elif said is not None and "struck" in said:
                self._holds.popleft()
                state = said["point"].rpartition(" ")[2]
                await self.kill(f"{state} is the last record of the log")
            elif said is None:
                async with self._lock:
                    if child is self._child:
                        raise child.failure()

    async def kill(self, moment: str) -> None:
        """Kills the broker with SIGKILL and starts a new one on the same directory."""
        async with self._lock:
            assert self._child is not None, "a broker has been started"
            await self._child.end()
            self._demo.result.broker_kills += 1
            self._demo.story.tell(f"broker killed: {moment}")
            await self._start()

    async def stop(self) -> None:
        """Stops the broker cleanly."""
        async with self._lock:
            assert self._child is not None, "a broker has been started"
            child, self._child = self._child, None
            await child.end(signal.SIGTERM)

    async def _start(self) -> None:
        arguments = ["fencepost", "serve", str(self._demo.data), "--port", str(self._port)]
        arguments += ["--sync", self._demo.plan.sync, "--fault", self._drop, "--with-parent"]
        # The check compares each decision with the markers, so compaction must not remove one.
        arguments += ["--override", f"log.cleaner.min.compaction.lag.ms={INT64_MAX}"]
        if self._demo.follow:
            arguments += ["--follow"]
        if self._demo.result.broken in ("fencing", "dedup"):  # isolation is turned off in the readers
            arguments += ["--break", self._demo.result.broken]
        if self._holds:
            number = max(1, self._holds[0] - self.rounds)
            decision = f"coordinator of {TRANSACTIONAL_ID} appends PREPARE #{number}"
            arguments += ["--fault", f"when {decision} do pause node 1"]
        child = await self._children.start("broker", *arguments)
        ready = await child.hear()
        if ready is None:
            await child.wait()
            raise child.failure()
        self._port = ready["port"]
        self._child = child
