"""The life of a broker: it starts, reads its logs, serves, and ends; after some crashes it starts again.

Rule: what a start opens, the end closes in the opposite order. A kill closes nothing, and is equally legal.
"""

# Theory of operation
#
#     claim -> ports, certificates -> data directory -> node and host -> recovery -> `on_ready` -> the tasks
#
# Ports come before everything that writes: a broker without them leaves no trace in the directory. But a
# broker that already runs on the directory, or on one around it, often has the same port, and then the
# directory is the cause. So it is looked at and claimed first, which writes nothing. Recovery is ordinary
# work of the host: each log is led, and what its records decided is finished. Only then are connections
# accepted.
#
# A stop closes host, directory and listener, in this order (`_opened`). A kill skips it: recovery must cope
# anyway; a clean stop only makes the next start faster. The machine (journal/power.py) outlives the broker:
# what it holds is what the next start finds.

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import attrs
import trio

from fencepost.broker.admission import admission_to
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.clocks import monotonic_ms, now_ms
from fencepost.broker.connections import half_of_descriptors, raise_descriptor_limit
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.fault_site import injector_of
from fencepost.broker.feed import FEED_BYTES
from fencepost.broker.host import Host, MetadataLost
from fencepost.broker.listeners import bound_sockets, shown_listener
from fencepost.broker.memory import MemoryBound
from fencepost.broker.monitor import shown_directory
from fencepost.broker.node import Node
from fencepost.broker.notices import BROKER
from fencepost.broker.server import ROUND_NS, Killed, Server
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.data_directory import DataDirectory, refuse_wrong_place
from fencepost.journal.disk import DiskStorage
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.power import Machine
from fencepost.journal.storage import claimed, directory_name
from fencepost.protocol.terms import METADATA_PARTITION


@attrs.frozen
class Ready:
    """Where a broker listens, the most memory that it takes for its clients, and its server; the port for
    metrics, if it has one.
    """

    host: str
    port: int
    memory: MemoryBound
    server: Server = attrs.field(repr=False)
    metrics_port: int | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@contextmanager
def _opened(
    settings: BrokerSettings, machine: Machine, faults: BrokerFaultInjector
) -> Generator[tuple[Server, socket.socket | None]]:
    """A server over its started data directory, and the socket of its port for metrics if it has one; closes
    everything in order.
    """
    storage = machine.process()
    refuse_wrong_place(storage)
    with claimed(storage), closing(bound_sockets(settings, listens=True)) as (listener, metrics):
        port = listener.getsockname()[1]
        admission = admission_to(listener, settings.access)
        directory = DataDirectory.open(storage, settings=settings.journal, open_files=half_of_descriptors())
        try:
            node = Node(_node_settings(settings, port=port, cluster_id=directory.cluster_id))
            host = Host(node, directory, policy=settings.sync, contains_failures=True)
            host.start(now_ms() + faults.clock_ms)
            server = Server(settings, host, listener, admission, faults)
            try:
                yield server, metrics
            except Exception:
                server.kill()  # a clean stop would fail, too, and hide the cause
                raise
            finally:
                faults.detach()
                if server.killed is None:
                    BROKER.info("stopping")
                    host.stop()
        finally:
            directory.abandon()
            storage.end()
            BROKER.info("stopped")


def _node_settings(settings: BrokerSettings, *, port: int, cluster_id: str) -> NodeSettings:
    """The settings of the node in a process that listens on this port."""
    advertised = settings.advertised
    host, advertised_port = advertised or (settings.host, port)
    shown = None if advertised is None else shown_listener(host, advertised_port, settings.access)
    return attrs.evolve(
        settings.node,
        host=host,
        port=advertised_port,
        cluster_id=cluster_id,
        listeners=shown_listener(settings.host, port, settings.access),
        advertised_listeners=shown,
        log_dirs=shown_directory(settings.directory),
    )


def machine_of(settings: BrokerSettings) -> Machine:
    """The machine on which a broker with these settings runs, and runs again after a crash."""
    if settings.directory is None:
        return Machine(MemoryStorage())
    # Each election writes to the log of the metadata, even an election that follows because another log found
    # the disk full. The broker would end if that write failed.
    reserved_for = directory_name(METADATA_PARTITION)
    # Manifests are replaced five times a second, and waiting for each could cost a fifth of that time. But a
    # manifest says what was synced, and one that is lost in a power failure no longer does. So only a broker
    # that syncs nothing does without the wait.
    starts_writeback = settings.sync is not SyncPolicy.NONE
    return Machine(
        DiskStorage(Path(settings.directory), reserved_for=reserved_for, starts_writeback=starts_writeback)
    )


async def _serve_once(
    settings: BrokerSettings, machine: Machine, faults: BrokerFaultInjector, on_ready: Callable[[Ready], None]
) -> Killed | None:
    """Run a broker until cancelled, then stop it cleanly; or until it is killed, and return how."""
    began_ms = monotonic_ms()
    with _opened(settings, machine, faults) as (server, metrics), server.scope:
        async with _monitored(server, metrics):
            await recover(server, is_monitored=metrics is not None)
            if server.killed is None:
                ready = _ready(server, metrics)
                _log_start(server, ready, monotonic_ms() - began_ms)
                on_ready(ready)
            try:
                async with trio.open_nursery() as nursery:
                    server.start(nursery)
            except* MetadataLost as group:
                server.fail(_first_of(group))
    if server.failure is not None:
        raise server.failure
    if server.killed is not None and server.killed.loses_power:
        BROKER.info("the power was cut: lost %d bytes that were not synced", machine.lose_power())
    return server.killed


async def recover(server: Server, *, is_monitored: bool) -> None:
    """Read the logs, and do what they ask for. If the server `is_monitored`, this pauses now and then, so
    that its port for metrics can answer that it is not yet ready.
    """
    host = server.host
    if is_monitored and not server.fault_site.goes_by_steps:
        ends_ns = time.monotonic_ns() + ROUND_NS
        while not host.is_idle:
            host.work(server.fault_site.now())
            if time.monotonic_ns() >= ends_ns:
                await trio.lowlevel.checkpoint()
                ends_ns = time.monotonic_ns() + ROUND_NS
    server.turn()
    server.is_ready = True


def _ready(server: Server, metrics: socket.socket | None) -> Ready:
    return Ready(
        server.settings.host,
        server.listener.getsockname()[1],
        _memory(server),
        server,
        None if metrics is None else metrics.getsockname()[1],
    )


def _memory(server: Server) -> MemoryBound:
    bound = server.connections.memory
    return bound if server.settings.feed is None else bound._replace(feed=FEED_BYTES)


@asynccontextmanager
async def _monitored(server: Server, listener: socket.socket | None) -> AsyncGenerator[None]:
    if listener is None:
        yield
        return
    from fencepost.broker.metrics_port import MetricsPort

    async with trio.open_nursery() as nursery:
        nursery.start_soon(MetricsPort(server, listener).serve)
        yield
        nursery.cancel_scope.cancel()


def _first_of(group: BaseExceptionGroup[MetadataLost]) -> MetadataLost:
    problem = group.exceptions[0]
    return _first_of(problem) if isinstance(problem, BaseExceptionGroup) else problem


async def serve(
    settings: BrokerSettings,
    *,
    machine: Machine,
    faults: BrokerFaultInjector,
    on_ready: Callable[[Ready], None],
) -> None:
    """Run a broker until cancelled, then stop it cleanly; or until it is killed. After a crash that is to end
    by itself, start it again. Raises CannotListen, DirectoryInUse or StorageError if it cannot start.
    """
    while True:
        killed = await _serve_once(settings, machine, faults, on_ready)
        if killed is None or killed.restarts_after_ms is None:
            return
        await trio.sleep(killed.restarts_after_ms / 1000)


def _log_start(server: Server, ready: Ready, took_ms: int) -> None:
    directory, node = server.settings.directory, server.host.node
    place = "in memory" if directory is None else f"in {directory}"
    BROKER.info(
        "node %d is ready on %s: partitions %s: %d, read in %d ms",
        node.settings.node_id, ready.address, place, len(node.logs), took_ms,
    )  # fmt: skip
    if ready.metrics_port is not None:
        BROKER.info("metrics are on http://%s:%d/metrics", server.settings.metrics_host, ready.metrics_port)


async def serve_until_signalled(
    settings: BrokerSettings, *, on_ready: Callable[[Ready], None], faults: BrokerFaultInjector | None = None
) -> signal.Signals:
    """Run a broker until SIGINT or SIGTERM; return the signal."""

    def became_ready(ready: Ready) -> None:
        gc.collect()
        # Modules and settings live forever: once they are frozen, the collector skips them. Only a process of
        # its own may do this, so `serve` itself does not.
        gc.freeze()
        on_ready(ready)

    async def run() -> None:
        machine, injector = machine_of(settings), faults or injector_of(settings)
        await serve(settings, machine=machine, faults=injector, on_ready=became_ready)
        os.kill(os.getpid(), signal.SIGKILL)  # as a fault asked

    raise_descriptor_limit()
    caught = signal.SIGTERM
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            async for number in signals:
                caught = signal.Signals(number)
                BROKER.info("caught %s", caught.name)
                nursery.cancel_scope.cancel()
                break
    return caught
