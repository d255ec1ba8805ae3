"""One client's connection in the server: what it sent so far, and what it has not taken yet. Part of the
trio shell.

Rule: an answer goes to the kernel at once; only what the peer does not take waits for a task of its own.
"""

from __future__ import annotations

import socket
from collections import deque
from itertools import islice
from typing import Final

import attrs
import trio

from fencepost.protocol.batches import Buffer
from fencepost.protocol.frames import FrameReader

UNSENT_BYTES_MAX: Final = 64 << 20  # a reader that does not take its answers is not read from until it does
PIECES_PER_SEND_MAX: Final = 256  # below IOV_MAX, which is 1024 on Linux and macOS


@attrs.define(eq=False)
class Connection:
    """One client: what it sent so far, and what it has not taken yet."""

    number: int
    socket: socket.socket
    frames: FrameReader = attrs.Factory(FrameReader)
    unsent: deque[memoryview] = attrs.Factory(deque[memoryview])
    unsent_bytes: int = 0
    fetches: int = 0  # that wait for their answer
    is_closed: bool = False
    room: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)
    work: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)

    def send(self, pieces: list[Buffer]) -> None:
        """Hand over an answer: to the kernel as far as it takes it, the rest waits for `write_rest`."""
        if self.is_closed:
            return
        was_waiting = bool(self.unsent)
        # An empty piece would never leave: sending it moves nothing.
        self.unsent.extend(memoryview(piece) for piece in pieces if len(piece))
        self.unsent_bytes += sum(len(piece) for piece in pieces)
        if not was_waiting:
            self._send_some()
            if self.unsent:
                self.work.unpark_all()

    def _send_some(self) -> None:
        while self.unsent:
            try:
                sent = self.socket.sendmsg(list(islice(self.unsent, PIECES_PER_SEND_MAX)))
            except BlockingIOError:
                return
            except OSError:
                self.close()  # the peer is gone; its reading task says so to the node
                return
            self.unsent_bytes -= sent
            while sent:
                piece = self.unsent[0]
                if sent < len(piece):
                    self.unsent[0] = piece[sent:]
                    return
                sent -= len(piece)
                self.unsent.popleft()

    async def write_rest(self) -> None:
        """The slow path: wait until the peer takes more. Ends when the connection does."""
        while not self.is_closed:
            if not self.unsent:
                await self.work.park()
                continue
            try:
                await trio.lowlevel.wait_writable(self.socket)
            except (OSError, trio.ClosedResourceError):
                self.close()
                return
            self._send_some()
            if self.unsent_bytes < UNSENT_BYTES_MAX:
                self.room.unpark_all()

    def close(self) -> None:
        """Closes once; whoever waits on this connection learns of it."""
        if not self.is_closed:
            self.is_closed = True
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
            self.work.unpark_all()
            self.room.unpark_all()
