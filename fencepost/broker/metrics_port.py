"""The port for monitoring, in plain HTTP: `/metrics` for Prometheus, `/ready` for supervisors.

Rule: it only reads, has no login, and listens on loopback by default.
A client that is slow or speaks nonsense costs one of a few connections for a few seconds, or until another
client needs it.
"""

# It answers while the broker reads its logs, too, with 503: between two pieces of that work
# (lifecycle.recover). A scrape is collected in the broker's thread, since it reads the state of the node; its
# text is made in a worker thread, because 10,000 partitions have 50,000 lines. Both take CPU time from the
# clients of the broker, so one text is made at a time, and clients that ask meanwhile share the next one.

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from fencepost.broker.clocks import now_ms
from fencepost.broker.metrics import Families, Scrape, exposition, families_of
from fencepost.broker.status import partition_statuses
from fencepost.protocol.forked_process import in_child

if TYPE_CHECKING:
    from fencepost.broker.server import Server

REQUEST_SIZE_MAX: Final = 8 << 10  # bytes of a request line and its headers
REQUEST_SECONDS: Final = 10.0  # for a request and its response
CONNECTIONS_MAX: Final = 16
END_OF_HEADERS: Final = b"\r\n\r\n"


class HttpResponse(NamedTuple):
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self, *, has_body: bool) -> bytes:
        """Its bytes; the response to HEAD has no body."""
        head = (
            f"HTTP/1.1 {self.status}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (self.body if has_body else b"")


OK: Final = "200 OK"
NOT_READY: Final = HttpResponse("503 Service Unavailable", b"the broker reads its logs\n")
READY: Final = HttpResponse(OK, b"ready\n")
NOT_FOUND: Final = HttpResponse("404 Not Found", b"/metrics and /ready are here\n")
ONLY_GET: Final = HttpResponse("405 Method Not Allowed", b"only GET and HEAD\n")
NO_REQUEST: Final = HttpResponse("400 Bad Request", b"this is not an HTTP request\n")


class MetricsPort:
    def __init__(self, server: Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._open = 0
        self._idle: list[trio.CancelScope] = []  # no whole request yet; the oldest first
        self._scraping = trio.Lock()
        self._scrapes_begun = 0
        self._text = b""  # of the last scrape

    async def serve(self) -> None:
        """Answer until cancelled."""
        # A duplicate, since trio closes what it serves.
        duplicate = in_child(self._listener.dup(), socket.socket.close)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(duplicate))
        await trio.serve_listeners(self._serve_one, [listener])

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if self._open >= CONNECTIONS_MAX:
            if not self._idle:
                return  # all of them are being answered; `serve_listeners` closes this one
            self._idle.pop(0).cancel()  # a serious client sends its request at once
        self._open += 1
        scope = trio.move_on_after(REQUEST_SECONDS)
        self._idle.append(scope)
        try:
            with scope:
                method, path = await _request(stream)
                self._leave_idle(scope)
                answer = await self.answer(method, path)
                await stream.send_all(answer.encoded(has_body=method != "HEAD"))
        except trio.BrokenResourceError:
            pass  # the client has left
        finally:
            self._leave_idle(scope)
            self._open -= 1

    def _leave_idle(self, scope: trio.CancelScope) -> None:
        if scope in self._idle:
            self._idle.remove(scope)

    async def answer(self, method: str, path: str) -> HttpResponse:
        """The response to a request; `method` is empty if it is not a request."""
        if not method:
            return NO_REQUEST
        if method not in ("GET", "HEAD"):
            return ONLY_GET
        match path:
            case "/ready":
                return READY if self._server.is_ready else NOT_READY
            case "/metrics":
                return await self._metrics() if self._server.is_ready else NOT_READY
            case _:
                return NOT_FOUND

    async def _metrics(self) -> HttpResponse:
        begun_before = self._scrapes_begun
        async with self._scraping:
            # Another client's scrape is as good, unless it began before this request.
            if self._scrapes_begun == begun_before or not self._text:
                self._scrapes_begun += 1
                self._text = b""
                self._text = await trio.to_thread.run_sync(exposition, self._collected())
            text = self._text
        return HttpResponse(OK, text, CONTENT_TYPE_PLAIN_0_0_4)

    def _collected(self) -> Families:
        server, now = self._server, now_ms()
        scrape = Scrape(
            node=server.host.node,
            counters=server.monitor.counters,
            now_ms=now,
            sizes=server.host.log_sizes(),
            connections=len(server.connections.opened),
            connections_made=server.connections.made,
            partitions=partition_statuses(server.host.node, now),
        )
        return families_of(scrape)


async def _request(stream: trio.SocketStream) -> tuple[str, str]:
    """The method and the path of a request, without its query; two empty strings if it is not one."""
    received = bytearray()
    while END_OF_HEADERS not in received:
        chunk = await stream.receive_some(REQUEST_SIZE_MAX)
        received += chunk
        if not chunk or len(received) > REQUEST_SIZE_MAX:
            return "", ""
    words = received.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):
        return "", ""
    return words[0], words[1].partition("?")[0]
