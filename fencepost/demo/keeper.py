"""Keeps a broker running on one directory and one port, through every kill.

Rule: a broker that holds between PREPARE and COMPLETE has said so, and is killed right there.
"""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path

import trio

from fencepost.demo.children import Child, Children
from fencepost.demo.stage import Stage


class Keeper:
    """The broker's process, whichever it is at the moment."""

    def __init__(
        self, children: Children, *, data: Path, broken: str | None, lose_every: int, stage: Stage
    ) -> None:
        self._children = children
        self._data = data
        self._broken = broken
        self._stage = stage
        self._lose_every = lose_every
        self._port = 0
        self._child: Child | None = None
        self._lock = trio.Lock()
        self.kills = 0
        self.lost_replies = 0
        self.holds: deque[int] = deque()
        self.rounds = (
            0  # of the worker that have ended so far: a broker counts its PREPAREs from its own start
        )

    @property
    def bootstrap(self) -> str:
        """Where the broker listens, in all its lives."""
        return f"127.0.0.1:{self._port}"

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Starts the broker, and watches it until cancelled."""
        await self._start()
        task_status.started()
        while (child := self._child) is not None:
            said = await child.hear()
            self.lost_replies += said is not None and "lost_reply" in said
            if said is not None and "held" in said:
                self.holds.popleft()
                await self.kill(f"{said['held']} is in the log, and nothing after it yet")
            elif said is None:
                async with self._lock:
                    if child is self._child:
                        raise child.failure()

    async def kill(self, moment: str) -> None:
        """SIGKILL, and another broker on what is left."""
        async with self._lock:
            assert self._child is not None, "a broker has been started"
            await self._child.end()
            self.kills += 1
            self._stage.tell(f"broker killed: {moment}")
            await self._start()

    async def stop(self) -> None:
        """Ends the broker in good order: nobody needs it any more."""
        async with self._lock:
            assert self._child is not None, "a broker has been started"
            child, self._child = self._child, None
            await child.end(signal.SIGTERM)

    async def _start(self) -> None:
        arguments = ["fencepost", "serve", str(self._data), "--port", str(self._port)]
        arguments += ["--lose-reply", f"Produce:{self._lose_every}", "--with-parent"]
        if self._broken is not None:
            arguments += ["--break", self._broken]
        if self.holds:
            arguments += ["--hold-at", f"prepare:{max(1, self.holds[0] - self.rounds)}"]
        child = await self._children.start("broker", *arguments)
        ready = await child.hear()
        if ready is None:
            await child.wait()
            raise child.failure()
        self._port = ready["port"]
        self._child = child
