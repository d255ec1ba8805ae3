"""A broker in a thread of this process, for notebooks and tests: `with fencepost.Broker() as broker:`.

Rule: it is the broker of `fencepost serve`, on a real socket; only the process is the caller's.
"""

# Theory of operation
#
#     caller's thread                                 thread of the broker
#     start()        a new _Run ------------------->  trio.run: lifecycle.serve
#                    waits until it is settled <----  ready, or the problem that prevented it
#     stop()         token.run_sync_soon ---------->  cancels the scope: a clean stop
#     kill()         token.run_sync_soon ---------->  Server.kill: nothing more is written
#                    joins the thread <-------------  the end
#
# A _Run is one life of the broker, with the crashes in it after which a fault lets it start again by itself.
# What the lives share is kept by Broker: the machine with the data (journal/power.py), the bound ports, the
# faults with their counts. Objects of trio belong to the broker's thread, so whatever a caller wants of them
# goes through the token of its loop.

from __future__ import annotations

import os
import secrets
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

import attrs
import outcome
import trio

from fencepost.broker.access.files import AccessFileError, check_name, parse_acls
from fencepost.broker.access.session import AccessSettings
from fencepost.broker.broker_configs import check_together, kafka_generation, overridden
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.fault_handles import Faults, ThreadFaultRegistry, naming_help
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.fault_site import injector_of
from fencepost.broker.feed import Feed
from fencepost.broker.lifecycle import Ready, machine_of, serve
from fencepost.broker.listeners import PORT_MAX, bound_sockets, parsed_listener
from fencepost.broker.loop_calls import LoopCalls
from fencepost.broker.observer import Observer
from fencepost.broker.settings import ConnectionSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.user_calls import ObserverFailed, UserCalls
from fencepost.broker.wire_protocols import ServedProtocol
from fencepost.journal.power import Machine
from fencepost.journal.storage import Storage, claimed
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.forked_process import in_child
from fencepost.protocol.scram import KEY_SIZE, SALT_SIZE, Users, make_credential

START_SECONDS_MAX: Final = 30.0  # a large log is read before the broker is ready


def users_of(passwords: Mapping[str, str]) -> Users:
    """Users with new salts, as a user file would hold them. TypeError or ValueError if a name or a password
    cannot be used.
    """
    for name, password in checked_mapping("users", passwords).items():
        try:
            check_name(name, "users: ")
        except AccessFileError as problem:
            raise ValueError(str(problem)) from None
        if not isinstance(password, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the caller may err
            raise TypeError(f"users: the password of {name} must be a string, not {type(password).__name__}")
        if not password:
            raise ValueError(f"users: the password of {name} is empty")
    credentials = {
        name: make_credential(password, secrets.token_bytes(SALT_SIZE))
        for name, password in passwords.items()
    }
    return Users(credentials=credentials, decoy_key=secrets.token_bytes(KEY_SIZE))


class BrokerFailed(FencepostError):
    """The broker did not start, its thread ended unexpectedly, or it belongs to another process; the cause is
    chained.
    """


class KeptPorts:
    """The ports of a broker. On Linux they stay bound while the broker is down: connections are refused, and
    no other program gets them.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """The port for clients; 0 if it may be any, before it is bound."""
        self._close: Callable[[], object] | None = None

    def keep(self, settings: BrokerSettings, disk: Storage) -> BrokerSettings:
        """Bind the ports of these settings; returns the settings with those that are bound. Raises
        CannotListen, or DirectoryInUse if another broker has the directory and so, perhaps, the ports, too.
        """
        if self._close is None:
            with claimed(disk):
                bound = bound_sockets(settings, listens=False)
            port, metrics_port = (None if each is None else each.getsockname()[1] for each in bound)
            settings = attrs.evolve(settings, port=port, metrics_port=metrics_port)
            self.port = settings.port
            if sys.platform == "linux":  # elsewhere, no second socket could listen on them
                self._close = weakref.finalize(self, bound.close)
            else:
                bound.close()
        return settings

    def release(self) -> None:
        """Leave the ports to others, until the next `keep`."""
        if self._close is not None:
            self._close()
            self._close = None


class LocalBroker(ABC):
    """A broker that this program runs on loopback, in a thread or in a process."""

    def __init__(self, port: int) -> None:
        self._ports = KeptPorts(port)
        self._is_parents = False
        in_child(self, LocalBroker._leave_to_parent)

    def _leave_to_parent(self) -> None:
        self._is_parents = True

    def _check_own(self) -> None:
        """Raise BrokerFailed in a forked process: a fork copies no threads, and the broker runs in its
        parent.
        """
        if self._is_parents:
            raise BrokerFailed(
                "this broker belongs to the parent of this forked process. Make a client here with its "
                "`address`, or a broker with a directory of its own"
            )

    @property
    def port(self) -> int:
        """The port, from the first start on."""
        if self._ports.port == 0:
            raise BrokerFailed("the broker has no port yet: use it as a context manager, or call start()")
        return self._ports.port

    @property
    def address(self) -> str:
        """`host:port`, from the first start on, even while the broker is down."""
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        """The same as `address`, by the name that Kafka's clients have for it."""
        return self.address

    @abstractmethod
    def start(self) -> Self: ...

    def restart(self) -> Self:
        """Start again, with the same port and data, after kill() or power_cut(); a running broker is stopped
        cleanly first.
        """
        self._check_own()
        self._end()
        return self.start()

    @abstractmethod
    def _end(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()


class _Run:
    """The broker between a start and its end, in a thread of its own."""

    def __init__(self, settings: BrokerSettings, machine: Machine, faults: BrokerFaultInjector) -> None:
        self.ready: Ready | None = None
        self.problem: BaseException | None = None
        self._settings, self._machine, self._faults = settings, machine, faults
        self._is_settled, self._has_ended = threading.Event(), threading.Event()
        self.token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="fencepost broker", daemon=True)

    def start(self) -> None:
        """Return when the broker accepts connections; raise what prevented it."""
        try:
            self._thread.start()
            if not self._is_settled.wait(START_SECONDS_MAX):
                raise BrokerFailed(f"the broker was not ready after {START_SECONDS_MAX:.0f} s")
        except RuntimeError:  # there are too many threads
            raise
        except BaseException:  # Ctrl-C, too: nobody could stop a broker that becomes ready later
            self._give_up()
            raise
        if self.ready is None:
            self._thread.join()
            raise self.problem or BrokerFailed("the broker ended before it was ready")

    def _give_up(self) -> None:
        # In this order: the thread publishes its token before it checks whether it was given up.
        self._is_given_up = True
        self._call_soon(self._scope.cancel)
        self._has_ended.wait()  # a thread whose start was interrupted cannot be joined before it runs
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether there is a broker to stop; during a crash, too, if the broker comes back by itself."""
        return self._thread.is_alive()

    def end(self, *, is_killed: bool = False) -> None:
        """Stop the broker cleanly, or kill it; return when its thread has ended."""
        self._call_soon(self._kill if is_killed else self._scope.cancel)
        self._thread.join()
        if self.problem is not None:
            raise BrokerFailed(f"the broker ended unexpectedly: {self.problem}") from self.problem

    def _call_soon(self, work: Callable[[], object]) -> None:
        if self.token is not None:
            # Trio objects may only be touched from trio's own thread; the token is the one exception.
            with suppress(trio.RunFinishedError):
                self.token.run_sync_soon(work)

    def _kill(self) -> None:
        assert self.ready is not None, "it was ready when it was started"
        if self.ready.server.killed is None:
            self.ready.server.kill()
        else:
            self._scope.cancel()  # it has crashed and waits for the time to start again

    def _run(self) -> None:
        ended = outcome.capture(trio.run, self._serve)
        if isinstance(ended, outcome.Error):
            self.problem = ended.error
        self._is_settled.set()
        self._has_ended.set()

    async def _serve(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        if self._is_given_up:
            return
        with self._scope:
            await serve(
                self._settings, machine=self._machine, faults=self._faults, on_ready=self._became_ready
            )

    def _became_ready(self, ready: Ready) -> None:
        self.ready = ready
        self._is_settled.set()


class Broker(LocalBroker):
    """A broker on loopback.

    Use it as a context manager, or call `start()` and `stop()`. Clients take `address` as bootstrap server.
    Port and data stay the same through all kills and starts; data in memory lives as long as this object.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        sync: Literal["none", "commit", "all"] = "none",
        protocol: Literal["kafka", "fencepost", "both"] = "both",
        advertised_listener: str | None = None,
        override: Mapping[str, object] | None = None,
        transaction_version: int = 2,
        partition_verification: bool = True,
        without_fixes: Iterable[str] = (),
        broken: Iterable[str] = (),
        users: Mapping[str, str] | None = None,
        acls: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        observer: Observer | None = None,
        feed: Feed | None = None,
        faults: Iterable[str] = (),
        metrics_port: int | None = None,
    ) -> None:
        """`directory`: for the data, created if it does not exist; None keeps the data in memory. `port`: 0
        is any free one. `sync`: what a loss of power cannot take away: "none" (nothing is synced), "commit"
        (everything transactional), "all" (everything that was acknowledged). `protocol`: which clients are
        served on the port. `advertised_listener`: the HOST:PORT that the broker gives to clients, if it is
        not where the broker listens. `override`: settings of the broker under their names in Kafka
        (docs/clients.md), such as {"num.partitions": 3}. `transaction_version`, `partition_verification`,
        `without_fixes` and `broken` select the behaviour of an older Kafka, or turn off protections that
        every Kafka has ("fencing", "dedup"): docs/fidelity.md. `users`: passwords by name; then clients must
        authenticate. `acls`: the text of an ACL file. `tls_cert`, `tls_key`, `tls_client_ca`: PEM files
        (docs/access.md). `observer`: an object, such as a fencepost.Recording, that is called at each step.
        `feed`: a fencepost.StepFeed lets `fencepost lab --bootstrap-server` follow this broker; None turns
        that off.
        `faults`: as `fencepost serve --fault` takes them (docs/faults.md). `metrics_port`: for `/metrics` and
        `/ready`, on loopback; 0 is any free one (docs/operations.md). ValueError if an argument is invalid.
        """
        super().__init__(checked_port(port))
        access = AccessSettings(
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            users=None if users is None else users_of(users),
            acls=None if acls is None else parse_acls(acls, "acls"),
        )
        self._users = UserCalls()
        of_node, of_connections = overridden(checked_mapping("override", override or {}))
        generation = kafka_generation(
            transaction_version, partition_verification, without_fixes=without_fixes, broken=broken
        )
        settings = attrs.evolve(generation, **of_node)
        check_together(settings)
        self.settings = BrokerSettings(
            directory=None if directory is None else checked_directory(directory),
            port=port,
            protocol=checked_choice("protocol", protocol, ServedProtocol),
            advertised=None if advertised_listener is None else parsed_listener(advertised_listener),
            access=access,
            sync=checked_choice("sync", sync, SyncPolicy),
            node=settings,
            connections=ConnectionSettings(**of_connections),
            observer=None if observer is None else self._users.observing(observer),
            feed=feed,
            faults=tuple(faults),
            metrics_port=None if metrics_port is None else checked_port(metrics_port, "metrics_port"),
        )
        """The settings that the arguments make."""
        with naming_help():
            self._injector = injector_of(self.settings)
        self._changes = threading.RLock()
        loop = LoopCalls(lambda: self._token, lambda: self.is_running, self._changes)
        self.faults = Faults(ThreadFaultRegistry(self._injector, loop, self._users))
        """The faults of this broker: `broker.faults.when(...).do(...)`."""
        self._machine = machine_of(self.settings)
        self._run: _Run | None = None

    @property
    def _token(self) -> trio.lowlevel.TrioToken | None:
        self._check_own()
        return None if self._run is None else self._run.token

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        self._check_own()
        return self._run is not None and self._run.is_running

    @property
    def advertised_listener(self) -> str | None:
        """The HOST:PORT that the broker gives to clients, if it is not `address`. A new value
        applies from the next start.
        """
        if self.settings.advertised is None:
            return None
        host, port = self.settings.advertised
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @advertised_listener.setter
    def advertised_listener(self, listener: str | None) -> None:
        advertised = None if listener is None else parsed_listener(listener)
        self.settings = attrs.evolve(self.settings, advertised=advertised)

    @property
    def metrics_port(self) -> int | None:
        """The port for metrics, from the first start on, if it has one."""
        return self.settings.metrics_port

    @property
    def has_lost_data(self) -> bool:
        """Whether a power cut has taken bytes that were not synced."""
        return self._machine.lost_bytes > 0

    def start(self) -> Self:
        """Start the broker, for the first time or after its end, and return when it accepts connections.
        Raises BrokerFailed, or the error that prevented the start.
        """
        self._check_own()
        with self._changes:
            if self.is_running:
                raise BrokerFailed("this broker is running; restart() stops it first")
            self.settings = self._ports.keep(self.settings, self._machine.disk)
            self._run = _Run(self.settings, self._machine, self._injector)
            try:
                self._run.start()
            except BaseException:
                self._forget_ended()
                raise
        return self

    def stop(self) -> None:
        """Stop cleanly; return when everything is written and closed. Does nothing if the broker is down.
        Raises BrokerFailed if it had ended unexpectedly, and ObserverFailed if an observer raised an error.
        In a forked process this does nothing: the broker is the parent's.
        """
        if self._is_parents:
            return
        try:
            self._end()
        finally:
            self._forget_ended()
        if (failed := self._users.take_failure()) is not None:
            raise failed

    def kill(self) -> None:
        """End the broker at once, as SIGKILL ends a process: connections are reset, nothing more is written.
        What was written is there at the next start. Raises BrokerFailed if the broker is down.
        """
        self._check_own()
        with self._changes:
            if not self.is_running:
                self._run = None
                raise BrokerFailed("the broker is down already; start() starts it")
            self._end(is_killed=True)

    def power_cut(self) -> None:
        """Kill the broker if it is running, and lose every byte that was not synced; `sync` says which bytes
        are.
        """
        if self.is_running:
            self.kill()
        self._machine.lose_power()

    def _end(self, *, is_killed: bool = False) -> None:
        with self._changes:
            try:
                if self._run is not None:
                    self._run.end(is_killed=is_killed)
            finally:
                # A thread that has not ended is still this object's: `stop` can be called again.
                if not self.is_running:  # Ctrl-C ends the wait, and not the broker
                    self._run = None

    def _forget_ended(self) -> None:
        """Leave the ports to others, unless the broker is still running."""
        if not self.is_running:
            self._run = None
            self._ports.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Without an error, FaultNeverStruck is raised if a fault has not struck."""
        try:
            self.stop()
        except ObserverFailed as failed:
            if error is None:
                raise
            error.add_note(f"Before that, {failed}")
        if error is None and not self._is_parents:
            self.faults.require_all_struck()


# --- arguments ----------------------------------------------------------------------------------------

Choice = TypeVar("Choice", bound=Enum)
Value = TypeVar("Value")


def checked_port(port: object, name: str = "port") -> int:
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"{name} must be a number from 0 to {PORT_MAX}, not {port!r}")
    if not 0 <= port <= PORT_MAX:
        raise ValueError(f"{name} {port} is not between 0 (any free port) and {PORT_MAX}")
    return port


def checked_mapping(name: str, given: Mapping[str, Value]) -> Mapping[str, Value]:
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - the caller may err
        raise TypeError(f"{name} must be a mapping from names, not {type(given).__name__}")
    return given


def checked_choice(name: str, given: str, choices: type[Choice]) -> Choice:
    try:
        return choices(given)
    except ValueError:
        possible = ", ".join(repr(choice.value) for choice in choices)
        raise ValueError(f"{name}={given!r} is not one of {possible}") from None


def checked_directory(directory: str | os.PathLike[str]) -> str:
    """The absolute path of a directory that exists, or may be made. Files are opened later, when the program
    may have another working directory.
    """
    if not os.fspath(directory):
        raise ValueError("directory is empty; give the directory of a broker's data, or None")
    path = os.path.abspath(directory)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{path} is a file; give the directory of a broker's data, or a new name")
    return path
