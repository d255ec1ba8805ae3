"""A broker in a thread of this process, for notebooks and tests: `with fencepost.Broker() as broker:`.

Rule: it is the broker of `fencepost serve`, on a real socket; only the process is the caller's.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Literal

import outcome
import trio

from fencepost.broker.access.files import parse_acls
from fencepost.broker.access.session import AccessSettings
from fencepost.broker.fault_handles import Faults, ThreadDesk
from fencepost.broker.host import SyncPolicy
from fencepost.broker.observer import Observer
from fencepost.broker.server import BrokerSettings, Ready, injector_of, parsed_listener, serve
from fencepost.broker.settings import NodeSettings
from fencepost.broker.wire_protocols import ServedProtocol
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.scram import KEY_SIZE, SALT_SIZE, Users, make_credential

START_SECONDS_MAX: Final = 30.0  # a large log is read before the broker is ready


def users_of(passwords: Mapping[str, str]) -> Users:
    """Users with new salts, as a user file would hold them."""
    credentials = {
        name: make_credential(password, secrets.token_bytes(SALT_SIZE))
        for name, password in passwords.items()
    }
    return Users(credentials=credentials, decoy_key=secrets.token_bytes(KEY_SIZE))


class BrokerFailed(FencepostError):
    """The broker did not start, or its thread ended unexpectedly; the cause is chained."""


class Broker:
    """A broker on loopback. `directory` None means in memory; `sync` is "none", "commit" or "all".

    Use it as a context manager, or call `start()` and `stop()`. Clients take `address` as bootstrap server.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        port: int = 0,
        sync: Literal["none", "commit", "all"] = "none",
        protocol: Literal["kafka", "fencepost", "both"] = "both",
        advertised_listener: str | None = None,
        node: NodeSettings | None = None,
        users: Mapping[str, str] | None = None,
        acls: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        observer: Observer | None = None,
        faults: Iterable[str] = (),
    ) -> None:
        """`protocol`: which clients are served on the port. `advertised_listener`: the HOST:PORT that clients
        are told to connect to, if it is not where the broker listens. `users`: passwords by name; then
        clients must authenticate. `acls`: the text of an ACL file. `tls_cert`, `tls_key`, `tls_client_ca`:
        PEM files. See docs/access.md. `observer`: hears what happens, such as a fencepost.Recording.
        `faults`: as `fencepost serve --fault` takes them (docs/testing.md).
        """
        access = AccessSettings(
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            users=None if users is None else users_of(users),
            acls=None if acls is None else parse_acls(acls, "acls"),
        )
        self.settings = BrokerSettings(
            directory=directory,
            port=port,
            protocol=ServedProtocol(protocol),
            advertised=None if advertised_listener is None else parsed_listener(advertised_listener),
            access=access,
            sync=SyncPolicy(sync),
            node=node or NodeSettings(),
            observer=observer,
            faults=tuple(faults),
        )
        self._injector = injector_of(self.settings)
        self.faults = Faults(ThreadDesk(self._injector, lambda: self._token, self._is_alive))
        self._thread: threading.Thread | None = None
        self._ready: Ready | None = None
        self._is_settled = threading.Event()
        self._problem: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()

    @property
    def address(self) -> str:
        """`host:port` of the running broker."""
        if self._ready is None:
            raise BrokerFailed("the broker is not running: use it as a context manager, or call start()")
        return self._ready.address

    @property
    def bootstrap_servers(self) -> str:
        """The same, by the name that Kafka's clients have for it."""
        return self.address

    def start(self) -> Broker:
        """Start the thread, and return when the broker accepts connections. Raises BrokerFailed, or the error
        that prevented the start.
        """
        if self._thread is not None:
            raise BrokerFailed("this broker was started before; create a new Broker to start again")
        self._thread = threading.Thread(target=self._run, name="fencepost broker", daemon=True)
        self._thread.start()
        if not self._is_settled.wait(START_SECONDS_MAX):
            raise BrokerFailed(f"the broker was not ready after {START_SECONDS_MAX:.0f} s")
        if self._ready is None:
            self._thread.join()
            raise self._problem or BrokerFailed("the broker ended before it was ready")
        return self

    def stop(self) -> None:
        """Stop cleanly; return when everything is written and closed. Raises BrokerFailed if the broker had
        ended unexpectedly.
        """
        if self._thread is None or self._ready is None:
            return
        self._ready = None
        if self._token is not None and self._thread.is_alive():
            # Trio objects may only be touched from trio's own thread; the token is the one exception.
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()
        if self._problem is not None:
            raise BrokerFailed(f"the broker ended unexpectedly: {self._problem}") from self._problem

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        ended = outcome.capture(trio.run, self._serve)
        if isinstance(ended, outcome.Error):
            self._problem = ended.error
        self._is_settled.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await serve(self.settings, on_ready=self._became_ready, faults=self._injector)

    def _became_ready(self, ready: Ready) -> None:
        self._ready = ready
        self._is_settled.set()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Without an error, FaultNeverStruck is raised if a fault has not struck."""
        self.stop()
        if error is None:
            self.faults.require_all_struck()
