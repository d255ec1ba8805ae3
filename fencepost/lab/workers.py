"""The server's side of the processes that play (worker.py): started ahead, asked one at a time, killed and
replaced when a run takes too much time or memory.

Rule: no process outlives the nursery that it was started in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import attrs
import trio

from fencepost.lab.worker import DONE, EXHAUSTED, FAILED, PROGRESS, READY, REFUSED
from fencepost.protocol.errors import FencepostError

MIB: Final = 1 << 20
WORKERS: Final = 2  # one that plays, and one that is ready when it has to be killed
WAITING_MAX: Final = 8  # requests; a page waits for one answer before it asks the next question
READ_BYTES: Final = 1 << 18
ANSWER_BYTES_MAX: Final = 256 * MIB  # one line of JSON: a browser can show far less


class Unplayable(FencepostError):
    """A run without an answer. `status` is that of HTTP; a process that `is_spent` cannot be asked again."""

    def __init__(self, because: str, *, status: int, is_spent: bool = True) -> None:
        super().__init__(because)
        self.status = status
        self.is_spent = is_spent


@attrs.frozen(kw_only=True)
class WorkLimits:
    """What one run may take, and a search, which lasts longer."""

    seconds_max: float = 10.0
    search_seconds_max: float = 600.0
    memory_bytes_max: int = 1024 * MIB


@attrs.define(eq=False)
class PlayWorker:
    """One process, and what it has said without the end of the line."""

    process: trio.Process
    limits: WorkLimits
    unread: bytearray = attrs.Factory(bytearray)

    async def is_ready(self) -> None:
        """Wait until it can be asked. Unplayable if it dies before that."""
        said = await self.next_answer()
        assert READY in said, f"it says {said} before it was asked"

    async def answer_to(self, request: Mapping[str, Any]) -> Any:
        """The answer to a request that is not a search."""
        await self.ask(request)
        answered = await self.next_answer()
        assert PROGRESS not in answered, "only searches tell progress"
        return answered[DONE]

    async def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request. Unplayable if it is nested too deeply to be written, or if the process is dead."""
        assert self.process.stdin is not None, "it was opened with a pipe"
        try:
            line = json.dumps(request).encode() + b"\n"
        except RecursionError:
            raise Unplayable("the request is nested too deeply", status=400, is_spent=False) from None
        try:
            await self.process.stdin.send_all(line)
        except trio.BrokenResourceError:
            raise self._death() from None

    async def next_answer(self) -> dict[str, Any]:
        """The next answer, which may be of progress. Unplayable if there will be none."""
        while (end := self.unread.find(b"\n")) < 0:
            assert self.process.stdout is not None, "it was opened with a pipe"
            more = await self.process.stdout.receive_some(READ_BYTES)
            if not more:
                raise self._death()
            self.unread += more
            if len(self.unread) > ANSWER_BYTES_MAX:
                raise Unplayable("this run is too large to be shown: make it shorter", status=413)
        line = bytes(self.unread[:end])
        del self.unread[: end + 1]
        said: dict[str, Any] = json.loads(line)
        if EXHAUSTED in said:
            raise self._exhausted()
        if REFUSED in said:
            raise Unplayable(said[REFUSED], status=422, is_spent=False)
        if FAILED in said:
            because = f"the lab failed: {said[FAILED]}. This is a bug of Fencepost."
            raise Unplayable(because, status=500, is_spent=False)
        return said

    def _exhausted(self) -> Unplayable:
        return Unplayable(
            f"this needs more than {self.limits.memory_bytes_max // MIB:,} MiB of memory, and ended: "
            "use fewer transactions, records or processes, or start the lab with a larger --memory-limit",
            status=413,
        )

    def late(self, seconds_max: float) -> Unplayable:
        """The error for what takes too long; the process has to be killed."""
        return Unplayable(
            f"this takes longer than {seconds_max:g} s, and was stopped: use fewer transactions, records or "
            "processes, or start the lab with a larger --time-limit",
            status=504,
        )

    def _death(self) -> Unplayable:
        """Where memory is short, even the answer that says so may find none."""
        code = self.process.poll()
        return Unplayable(
            f"the process that played this run died (exit code {code}), which happens when memory is short: "
            "use fewer transactions, records or processes, or start the lab with a larger --memory-limit",
            status=500,
        )


@asynccontextmanager
async def worker(limits: WorkLimits) -> AsyncGenerator[PlayWorker]:
    """A process that is killed at the end of the block, whatever it is doing."""
    command = [sys.executable, "-P", "-m", "fencepost.lab.worker", str(limits.memory_bytes_max)]
    # Its errors go where the server's go. Files of the current directory are never imported (-P). Ctrl-C
    # reaches the whole session of the terminal: in another one, not even the imports are interrupted.
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield PlayWorker(process, limits)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()


@attrs.define(eq=False)
class WorkerPool:
    """Processes that are ready. One that is taken must be given back, or it is replaced."""

    limits: WorkLimits
    nursery: trio.Nursery
    waiting: int = 0
    _give: trio.MemorySendChannel[tuple[PlayWorker, trio.Event]] = attrs.field(init=False)
    _take: trio.MemoryReceiveChannel[tuple[PlayWorker, trio.Event]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._give, self._take = trio.open_memory_channel[tuple[PlayWorker, trio.Event]](WORKERS)
        for _ in range(WORKERS):
            self.nursery.start_soon(self._keep_one)

    async def _keep_one(self) -> None:
        """One process after the other, each until it is spent."""
        while True:
            async with worker(self.limits) as started:
                is_spent = trio.Event()
                # One that cannot even start is handed out as well: its first request says how it died.
                with suppress(Unplayable):
                    await started.is_ready()
                await self._give.send((started, is_spent))
                await is_spent.wait()

    async def done(self, request: Mapping[str, Any]) -> Any:
        """The answer to a request. Unplayable if there is none, or not in time."""
        if self.waiting >= WAITING_MAX:
            raise Unplayable("the lab is busy: wait for the runs that were requested earlier", status=429)
        self.waiting += 1
        try:
            taken, is_spent = await self._take.receive()
        finally:
            self.waiting -= 1
        try:
            with trio.move_on_after(self.limits.seconds_max):
                answered = await taken.answer_to(request)
                self._give.send_nowait((taken, is_spent))
                return answered
        except Unplayable as problem:
            if problem.is_spent:
                is_spent.set()
            else:
                self._give.send_nowait((taken, is_spent))
            raise
        except BaseException:  # cancelled, or our bug: what it would say next belongs to this request
            is_spent.set()
            raise
        is_spent.set()
        raise taken.late(self.limits.seconds_max)
