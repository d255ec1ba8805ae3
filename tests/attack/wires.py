"""Connections of an attacker: raw bytes out, and what comes back counted."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from fencepost.protocol import messages as m
from fencepost.protocol.frames import FrameReader, encode_request
from tests.attack.scene import Scene

RECEIVE_SIZE = 1 << 16
TAKES_NO_MORE_S = 1.0  # a peer that has taken nothing for so long holds the sender back
ANSWER_S = 120.0  # a bound on a hang
RESET = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # struct linger: on, for no time


@attrs.define
class Exchange:
    """What went over a connection: bytes sent if all were taken, and what was received until it closed."""

    sent: int = 0
    received: int = 0
    answers: int = 0
    is_closed: bool = False


def encoded(requests: Iterable[m.Request]) -> bytes:
    """The frames of requests, in one piece; correlation ids count from 1."""
    return b"".join(
        piece
        for number, request in enumerate(requests, start=1)
        for piece in encode_request(request, correlation_id=number)
    )


@asynccontextmanager
async def connections(scene: Scene, count: int) -> AsyncGenerator[list[trio.SocketStream]]:
    """So many connections, closed at the end."""
    opened: list[trio.SocketStream] = []
    try:
        for _ in range(count):
            opened.append(await scene.target.connect())
        yield opened
    finally:
        for stream in opened:
            stream.socket.close()


def reset(stream: trio.SocketStream) -> None:
    """Ends a connection so that the kernel drops what is on its way."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.socket.close()


async def send(stream: trio.SocketStream, data: bytes) -> int:
    """Sends until the peer is gone or takes no more; how many bytes it took."""
    view, sent = memoryview(data), 0
    while sent < len(view):
        with trio.move_on_after(TAKES_NO_MORE_S) as scope:
            try:
                sent += await stream.socket.send(view[sent:])
            except OSError:
                return sent
        if scope.cancelled_caught:
            return sent
    return sent


async def exchange(scene: Scene, data: bytes, *, answers: int) -> Exchange:
    """Sends bytes on a connection of its own, and reads so many answers, or to the end of the connection."""
    done, frames = Exchange(), FrameReader()
    async with connections(scene, 1) as (stream,), trio.open_nursery() as nursery:

        async def write() -> None:
            with suppress(trio.BrokenResourceError):  # the reader notices it, too
                await stream.send_all(data)
                done.sent = len(data)

        nursery.start_soon(write)
        with trio.move_on_after(ANSWER_S):
            while done.answers < answers and not done.is_closed:
                try:
                    chunk = await stream.receive_some(RECEIVE_SIZE)
                except trio.BrokenResourceError:
                    chunk = b""
                done.is_closed = not chunk
                done.received += len(chunk)
                done.answers += len(list(frames.feed(chunk)))
        nursery.cancel_scope.cancel()
    return done
