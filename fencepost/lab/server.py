"""The lab's server: a page for one person on this machine, and the requests that it makes.

Rule: it listens on loopback only, and answers no request without the token. Scenarios are played in other
processes (workers.py), which are killed when they take too long or too much; here, a scenario is only text.
"""

# Theory of operation
#
#     browser ──HTTP──▶ Hypercorn ──▶ Guard: host, origin, token, size ──▶ Starlette: routes ──▶ WorkerPool
#                                                                                          └──▶ Searches
#
# Anyone who can open a socket on this machine can talk to a port of loopback: other users, and every page
# that the person's browser shows. So each request is checked, before anything else is done with it:
#
#   Host     must be this address. A name that an attacker's DNS leads to 127.0.0.1 (rebinding) is not it.
#   Origin   and Sec-Fetch-Site, where a browser sends them, must be this page's: no other page may ask.
#   token    from the address of the page, in a header that no form and no image of another page can send.
#            Files of the page carry it in their path, since a browser sends no header for them.
#   size     of the body, counted as it arrives.
#
# The page in turn may load only its own files and talk only to this server (its content security policy, as
# pages.py writes it), and no other page may frame it. What a scenario contains reaches it as JSON, and it
# shows that as text.
#
# Shutdown: Ctrl-C and SIGTERM cancel everything, and each worker is killed by the task that started it. If
# this process is killed, its workers see the end of their stdin.

from __future__ import annotations

import json
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any, Final, cast

import attrs
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http  # pyright: ignore[reportUnknownVariableType] - a dict without types
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fencepost.client.security import SecuritySettings
from fencepost.lab.live import Live
from fencepost.lab.pages import STATIC, served_page
from fencepost.lab.search_jobs import SearchJobs
from fencepost.lab.workers import Unplayable, WorkerPool, WorkLimits
from fencepost.protocol.errors import FencepostError

LOOPBACK: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 1 << 20
TOKEN_BYTES: Final = 24
CONNECTIONS_MAX: Final = 64
SEARCH_DIGITS_MAX: Final = 9
POLICY_VIOLATION: Final = 1008  # RFC 6455: nothing here speaks over a websocket
TOKEN_HEADER: Final = "X-Fencepost-Token"
NO_TOKEN: Final = "the token is missing: open the address that `fencepost lab` printed"
NO_TOKEN_HEADER: Final = (
    f"the token is missing: send it in the header {TOKEN_HEADER}; only the page takes it from its address, "
    "which `fencepost lab` printed"
)
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",  # the token is in the address
    "x-content-type-options": "nosniff",
}


REFUSED_PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Fencepost lab</title>'
    '<link rel="icon" href="data:,"></head>'
    "<body><main><h1>Fencepost lab</h1><p>{because}</p></main></body></html>\n"
)


class PortUnusable(FencepostError):
    """The lab cannot listen on its port; `then` is what to do about it."""

    def __init__(self, what: str, *, then: str) -> None:
        super().__init__(what)
        self.then = then


@attrs.frozen(kw_only=True)
class LabSettings:
    """What a lab is started with. `bundled`: the texts of the bundled scenarios by name. `broker`: the one to
    follow, instead of playing scenarios, and `security`: of the client that does.
    """

    bundled: Mapping[str, str] = attrs.field(repr=False)
    limits: WorkLimits = attrs.Factory(WorkLimits)
    token: str = attrs.field(factory=partial(secrets.token_urlsafe, TOKEN_BYTES), repr=False)
    broker: str | None = None
    security: SecuritySettings = attrs.field(factory=SecuritySettings, repr=False)


# --- who may ask --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Guard:
    """Lets through what the page asks, and refuses the rest; see the theory of operation."""

    app: ASGIApp
    token: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        refusal = self.refusal(Request(scope))
        if refusal is not None:
            respond = _refused_page if scope["path"] == "/" else _error_response
            await respond(*refusal)(scope, receive, _with_headers(send))
            return
        await self.app(scope, _limited(receive), _with_headers(send))

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and the reason for refusing a request that is not from the page; None if it is."""
        headers = request.headers
        hosts = {f"{name}:{self.port}" for name in (LOOPBACK, "localhost")}
        if headers.get("host") not in hosts:
            return 403, "this is not the host of the lab: open the address that `fencepost lab` printed"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return 403, "another page may not ask the lab"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "another page may not ask the lab"
        token = self._token(request)
        if token is None:
            return 401, NO_TOKEN if request.url.path == "/" else NO_TOKEN_HEADER
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return 403, "the token is of another lab: open the address that `fencepost lab` printed"
        return None

    def _token(self, request: Request) -> str | None:
        path = request.url.path
        if path == "/":
            return request.query_params.get("token")
        first, rest, _ = path.removeprefix("/").partition("/static/")
        return first if rest else request.headers.get(TOKEN_HEADER)


def _limited(receive: Receive) -> Receive:
    """Counts the body as it arrives."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            raise HTTPException(413, f"the request is larger than {BODY_BYTES_MAX:,} bytes")
        return message

    return limited


def _with_headers(send: Send) -> Send:
    """Adds the headers of every response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending


def _error_response(status: int, because: str) -> Response:
    return JSONResponse({"error": because}, status_code=status)


def _refused_page(status: int, because: str) -> Response:
    """What a person reads in place of the page, for example after opening the bookmark of an earlier lab."""
    return HTMLResponse(REFUSED_PAGE.format(because=escape(because)), status_code=status)


# --- what can be asked --------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Lab:
    """The routes of the page. `stories` are the bundled scenarios as the page lists them. `live`: the broker
    that is followed, if one is.
    """

    settings: LabSettings
    pool: WorkerPool
    searches: SearchJobs
    live: Live | None = None
    stories: Any = None

    def routes(self) -> list[Route | Mount]:
        """Every path."""
        static = StaticFiles(directory=STATIC)
        return [
            Route("/", self.page),
            Mount("/{token}/static", static),
            Route("/api/scenarios", self.scenarios),
            Route("/api/vocabulary", self.vocabulary),
            Route("/api/check", self.check, methods=["POST"]),
            Route("/api/play", self.play, methods=["POST"]),
            Route("/api/compare", self.compare, methods=["POST"]),
            Route("/api/save", self.save, methods=["POST"]),
            Route("/api/searches", self.begin_search, methods=["POST"]),
            Route("/api/live", self.live_updates),
            Route("/api/searches/{number}", self.search, methods=["GET", "DELETE"]),
        ]

    async def page(self, _: Request) -> Response:
        """The page itself, which gets the token for its requests."""
        token, mode = self.settings.token, "lab" if self.live is None else "live"
        return HTMLResponse(served_page({"mode": mode, "token": token}, static=f"{token}/static/"))

    async def live_updates(self, request: Request) -> Response:
        """What happened at the broker that is followed, after what the page has."""
        if self.live is None:
            raise HTTPException(404, "no broker is followed: start the lab with --bootstrap-server HOST:PORT")
        return JSONResponse(await self.live.answer(request.query_params.get("after", "")))

    async def scenarios(self, _: Request) -> Response:
        """The bundled scenarios with their lessons, variants and texts."""
        if self.stories is None:
            self.stories = await self.pool.done({"do": "list", "texts": dict(self.settings.bundled)})
        return JSONResponse(self.stories)

    async def vocabulary(self, _: Request) -> Response:
        """What the editor can complete."""
        return JSONResponse(await self.pool.done({"do": "vocabulary"}))

    async def check(self, request: Request) -> Response:
        given = await _body(request)
        try:
            found = await self.pool.done({"do": "check", "text": given.get("text")})
        except Unplayable as problem:
            if problem.is_spent:
                raise
            return JSONResponse({"ok": False, "error": str(problem)})
        return JSONResponse({"ok": True, "error": None, **found})

    async def play(self, request: Request) -> Response:
        return JSONResponse(await self.pool.done({"do": "play", "run": self._run(await _body(request))}))

    async def compare(self, request: Request) -> Response:
        """The documents of two runs, and where they diverge."""
        given = await _body(request)
        runs = {side: self._run(_inner(given, side)) for side in ("left", "right")}
        return JSONResponse(await self.pool.done({"do": "compare", **runs}))

    async def save(self, request: Request) -> Response:
        """A run as a scenario file."""
        return JSONResponse(await self.pool.done({"do": "save", "run": self._run(await _body(request))}))

    def _run(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """A run with the text of the bundled scenario that it names."""
        name = given.get("scenario")
        if name is None or given.get("text") is not None:
            return given
        if not isinstance(name, str) or name not in self.settings.bundled:
            raise Unplayable(f"there is no bundled scenario {name!r:.80}", status=404)
        return {**given, "text": self.settings.bundled[name]}

    async def begin_search(self, request: Request) -> Response:
        return JSONResponse({"id": self.searches.begin(await _body(request))}, status_code=201)

    async def search(self, request: Request) -> Response:
        """How far a search is, or its end."""
        number = _search_number(request.path_params["number"])
        if request.method == "DELETE":
            self.searches.stop(number)
        return JSONResponse(self.searches.state(number))


def _search_number(text: str) -> int:
    if not text.isdecimal() or len(text) > SEARCH_DIGITS_MAX:
        raise Unplayable("there is no such search", status=404)
    return int(text)


async def _body(request: Request) -> dict[str, Any]:
    try:
        given: object = await request.json()
        json.dumps(
            given, ensure_ascii=False
        ).encode()  # fails for half of a surrogate pair, as the response would
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body of the request is not JSON") from None
    return _inner({"body": given}, "body")


def _inner(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = given.get(key)
    if not isinstance(value, dict):
        raise HTTPException(400, f"{key} must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType] - JSON objects have text keys


async def _on_unplayable(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Unplayable), "the handler is for these"
    return _error_response(problem.status, str(problem))


async def _on_http_error(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException), "the handler is for these"
    return _error_response(problem.status_code, problem.detail)


async def _on_disconnect(_: Request, _problem: Exception) -> Response:
    """A page that was closed before its request had arrived: no one reads the response."""
    return Response()


# --- the server ---------------------------------------------------------------------------------------------


def bound_socket(port: int) -> socket.socket:
    """A socket of loopback that listens on this port; 0 is any. PortUnusable if there is none."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((LOOPBACK, port))
        opened.listen(CONNECTIONS_MAX)
    except OSError as problem:
        opened.close()
        then = "stop the program that listens there, or give another port (0: any free one)"
        if isinstance(problem, PermissionError):
            then = "give a port above 1023 (0: any free one), or run the lab as a user who may use lower ones"
        raise PortUnusable(f"cannot listen on {LOOPBACK}:{port}: {problem.strerror}", then=then) from None
    return opened


async def serve_lab(settings: LabSettings, listening: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve on this socket until Ctrl-C or SIGTERM; `on_ready` gets the address of the page."""
    port = listening.getsockname()[1]
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            # Hypercorn and Starlette write the types of ASGI differently.
            app = cast("Any", lab_app(settings, port, nursery))
            # Hypercorn makes a socket of its own from the number, and closes it.
            config = _config(listening.detach())
            await nursery.start(partial(serve_http, app, config, shutdown_trigger=trio.sleep_forever))
            on_ready(f"http://{LOOPBACK}:{port}/?token={settings.token}")
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


def lab_app(settings: LabSettings, port: int, nursery: trio.Nursery) -> ASGIApp:
    """The application; its workers and searches run in the nursery."""
    lab = Lab(settings, WorkerPool(settings.limits, nursery), SearchJobs(settings.limits, nursery))
    if settings.broker is not None:
        lab.live = Live(settings.broker, settings.security)
        nursery.start_soon(lab.live.follow)
    handlers = {Unplayable: _on_unplayable, HTTPException: _on_http_error, ClientDisconnect: _on_disconnect}
    app = Starlette(routes=lab.routes(), exception_handlers=handlers)
    return Guard(app, settings.token, port)


def _config(listening: int) -> Config:
    config = Config()
    config.bind = [f"fd://{listening}"]
    config.alpn_protocols = ["http/1.1"]
    config.accesslog = None
    config.loglevel = "WARNING"
    config.include_server_header = False
    return config
