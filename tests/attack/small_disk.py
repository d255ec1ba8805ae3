"""A small disk that really fills up, and can be made larger while it is in use: a tmpfs.

Rule: it needs no rights. The tmpfs is mounted in a namespace of its own, and reached through /proc. Where the
system allows no such namespaces, there is no small disk.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

# The shell keeps the namespace alive, and mounts the disk again with each size that it reads.
SCRIPT = """
mount -t tmpfs -o size="$2" none "$1" && echo mounted
while read -r size; do mount -o remount,size="$size" "$1" && echo mounted; done
"""
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh")


@attrs.frozen
class SmallDisk:
    """The disk; `path` is its directory."""

    path: Path
    process: trio.Process

    async def resize(self, size: str) -> None:
        """Makes it so large, as mount writes sizes: "64m"."""
        assert self.process.stdin is not None, "its input is ours"
        await self.process.stdin.send_all(f"{size}\n".encode())
        assert await is_mounted(self.process), f"the disk cannot be made {size} large"


@asynccontextmanager
async def small_disk(place: Path, size: str) -> AsyncGenerator[SmallDisk | None]:
    """A disk of this size at `place`; None where it is not allowed."""
    await trio.Path(place).mkdir()
    try:
        process = await trio.lowlevel.open_process(
            [*UNSHARE, str(place), size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:  # no such command: not Linux
        yield None
        return
    try:
        path = Path(f"/proc/{process.pid}/root{place}")
        yield SmallDisk(path, process) if await is_mounted(process) else None
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def is_mounted(process: trio.Process) -> bool:
    """Waits for the shell's word."""
    assert process.stdout is not None, "its output is ours"
    return await process.stdout.receive_some() == b"mounted\n"
