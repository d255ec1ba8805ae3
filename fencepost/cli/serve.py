"""`fencepost serve`: one broker in this process until Ctrl-C or SIGTERM.

Rule: imports only the broker, no tables or progress bars, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter, validators

from fencepost.cli.errors import OK, CommandFailed, WrongUsage, complain
from fencepost.cli.files import read_text, refuse_uri
from fencepost.cli.likely_paths import did_you_mean_beside
from fencepost.cli.log_lines import LogFormat, LogLevel, writing_log
from fencepost.cli.options import NOT_EMPTY, Flag, WithoutFixes, settings_in

if TYPE_CHECKING:
    import trio

    from fencepost.broker.access.session import AccessSettings
    from fencepost.broker.broker_settings import BrokerSettings
    from fencepost.broker.fault_injector import BrokerFaultInjector
    from fencepost.broker.faults import PlannedFault
    from fencepost.broker.feed import Feed
    from fencepost.broker.lifecycle import Ready
    from fencepost.broker.memory import MemoryBound
    from fencepost.broker.observer import Observer
    from fencepost.broker.settings import NodeSettings
    from fencepost.faults.phrases import Point

DEFAULT_PORT = 9092  # Kafka's
WARNINGS_MAX = 5  # about users that do not exist; there may be a file of ACLs for several brokers
POWER_CUT = "cut the power\n"  # what a parent may write
Parsed = TypeVar("Parsed")

_Hidden = Parameter(show=False)
PortNumber = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]
SET_OTHERWISE = {
    "advertised.listeners": "give --advertised-listener",
    "listeners": "give --host and --port",
    "log.dirs": "give the data directory",
    "transaction.partition.verification.enable": "give --no-partition-verification",
}
"""Kafka's settings that are set in another way here."""


def serve(
    directory: Path | None = None,
    /,
    *,
    memory: Flag = False,
    host: Annotated[str, NOT_EMPTY] = "127.0.0.1",
    insecure: Flag = False,
    port: PortNumber = DEFAULT_PORT,
    advertised_listener: str | None = None,
    protocol: Literal["kafka", "fencepost", "both"] = "both",
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    users: Path | None = None,
    acls: Path | None = None,
    override: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    sync: Literal["none", "commit", "all"] = "none",
    transaction_version: Literal[0, 1, 2] = 2,
    partition_verification: bool = True,
    without_fixes: WithoutFixes = (),
    break_: Annotated[tuple[Literal["fencing", "dedup"], ...], Parameter("--break", show=False)] = (),
    fault: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    follow: Flag = False,
    metrics_port: PortNumber | None = None,
    metrics_host: Annotated[str, NOT_EMPTY] = "127.0.0.1",
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    with_parent: Annotated[bool, _Hidden] = False,
    record_to: Annotated[Path | None, _Hidden] = None,
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    Parameters
    ----------
    directory
        Data directory; created if missing. Only one broker at a time can use it.
    memory
        Keep all data in memory; it is lost when the broker stops.
    host
        Address to listen on.
    insecure
        Let --host be an address that other machines can reach, even if TLS, users or ACLs are
        missing. If all three are missing, anyone who can reach the port can read, write and delete
        everything.
    port
        Port to listen on; 0 picks a free port.
    advertised_listener
        HOST:PORT that the broker gives to clients. [default: where the broker listens]
    protocol
        Clients that the port serves: Kafka's own, Fencepost's, or both.
    tls_cert
        PEM file with the broker's certificate and its chain: clients must then use TLS.
    tls_key
        PEM file with the private key of that certificate.
    tls_client_ca
        PEM file with certificate authorities: each client must present a certificate that one of them signed.
    users
        User file, written by `fencepost user add`: clients must log in (SASL PLAIN or SCRAM-SHA-256).
    acls
        TOML file with the ACLs: the rights of users (`fencepost help access`). Without it, everyone who may
        connect may do everything.
    override
        A setting of the broker as NAME=VALUE, under its name in Kafka, such as
        group.initial.rebalance.delay.ms=0. `fencepost help clients` lists them. Repeatable.
    sync
        When to force the log to disk: none = never (survives kills, not power loss), commit = before a commit
        is acknowledged, all = before every acknowledgement.
    transaction_version
        Transaction protocol: 0 is KIP-98, 1 is the same with another format of the transaction log, 2 is
        KIP-890 with an epoch per transaction.
    partition_verification
        Whether partition leaders verify transactions of older clients with the coordinator (KIP-890).
    without_fixes
        Switch off one of Kafka's later fixes, by its name in `fencepost help fidelity`. Repeatable.
    fault
        Inject a fault for your own tests, at a point of the protocol (`fencepost help faults`).
        Repeatable.
        For example "when node 1 sends Produce reply #3 do drop", or
        "when coordinator of app appends PREPARE_COMMIT do pause node 1".
    follow
        Keep the last 20,000 steps in memory for `fencepost lab --bootstrap-server`, which shows live what the
        broker does. Followers see values of records, so they must be on this machine, or have ACLs that allow
        ClusterAction on the cluster.
    metrics_port
        Serve Prometheus metrics (/metrics) and readiness (/ready) on this port, without encryption or login.
    metrics_host
        Address of the port for metrics.
    log_level
        The least severe level that is logged. The log goes to stderr.
    log_format
        One line of text per entry, or one JSON object.
    """
    _check_place(directory, memory=memory)
    access = _access(tls_cert, tls_key, tls_client_ca, users, acls, reachable=host, insecure=insecure)
    import attrs

    from fencepost.broker.broker_configs import kafka_generation
    from fencepost.broker.broker_settings import BrokerSettings
    from fencepost.broker.settings import ConnectionSettings
    from fencepost.broker.sync_policy import SyncPolicy
    from fencepost.broker.wire_protocols import ServedProtocol

    of_node, of_connections = _overridden(override)
    node = kafka_generation(
        transaction_version, partition_verification, without_fixes=without_fixes, broken=break_
    )
    settings = BrokerSettings(
        directory=_path(directory),
        host=host,
        port=port,
        advertised=_advertised(advertised_listener),
        protocol=ServedProtocol(protocol),
        access=access,
        sync=SyncPolicy(sync),
        node=_together(attrs.evolve(node, **of_node)),
        connections=ConnectionSettings(**of_connections),
        faults=fault,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        observer=_recording(record_to),
        feed=_feed() if follow else None,
    )
    with writing_log(log_level, log_format):
        return _run(settings, with_parent=with_parent)


def _run(settings: BrokerSettings, *, with_parent: bool) -> int:
    """Serve until a signal."""
    import trio

    from fencepost.broker.lifecycle import serve_until_signalled
    from fencepost.broker.listeners import CannotListen

    parent = _Parent() if with_parent else None
    faults = _faults(settings)
    tell = partial(_print_ready, settings, parent, faults)
    try:
        trio.run(partial(serve_until_signalled, settings, on_ready=tell, faults=faults))
    except* CannotListen as failed:
        problem = failed.exceptions[0]
        assert isinstance(problem, CannotListen), "there is one nursery"
        then = f"{problem.advice}; the option is {problem.option}"
        raise CommandFailed(problem.because, then=then) from problem
    for fault in faults.describe():
        if fault.missing:
            print(fault.missing, file=sys.stderr)
    return OK


def _recording(path: Path | None) -> Observer | None:
    """The recording that a test which started this process asked for, if it did."""
    if path is None:
        return None
    from fencepost.testing.process_recording import FileRecording

    return FileRecording.to(path)


def _feed() -> Feed:
    """What `fencepost lab --bootstrap-server` follows."""
    from fencepost.lab.feed import StepFeed

    return StepFeed()


def _advertised(listener: str | None) -> tuple[str, int] | None:
    from fencepost.broker.listeners import parsed_listener

    try:
        return None if listener is None else parsed_listener(listener)
    except ValueError as problem:
        raise WrongUsage(f"--advertised-listener: {problem}") from problem


def _overridden(given: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of NodeSettings and of ConnectionSettings that --override names."""
    from fencepost.broker.broker_configs import overridden

    settings = settings_in("--override", given, example="num.partitions=3")
    for name in SET_OTHERWISE.keys() & settings:
        raise WrongUsage(f"--override cannot set {name}", then=SET_OTHERWISE[name])
    try:
        return overridden(settings)
    except ValueError as problem:
        raise WrongUsage(
            f"--override: {problem}",
            then="`fencepost help clients` lists the settings; those of a topic are set by "
            "`fencepost topic create --config`",
        ) from problem


def _together(node: NodeSettings) -> NodeSettings:
    """The settings; CommandFailed if one of them contradicts another one."""
    from fencepost.broker.broker_configs import check_together

    try:
        check_together(node)
    except ValueError as problem:
        then = "set both with --override; `fencepost help clients` lists the settings"
        raise WrongUsage(f"--override: {problem}", then=then) from problem
    return node


def _check_place(directory: Path | None, *, memory: bool) -> None:
    if memory and directory is not None:
        raise WrongUsage(
            f"serve cannot keep its data both in memory and in {directory}",
            then="leave out --memory, or the directory (data in memory is lost when the broker stops)",
        )
    if directory is not None:
        what = "a local directory, and serve keeps its data in one"
        refuse_uri(directory, what, then="give the path of a directory")
        if directory.exists() and not directory.is_dir():
            raise WrongUsage(
                f"{directory} is a file, and serve keeps its data in a directory",
                then="give the path of a directory; serve creates it if it does not exist",
            )
    if not memory and directory is None:
        raise WrongUsage(
            "serve needs either a data directory or --memory", then="for example: fencepost serve ./data"
        )


def _access(
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    users: Path | None,
    acls: Path | None,
    *,
    reachable: str,
    insecure: bool,
) -> AccessSettings:
    """Who may connect and do what, from the files of the options."""
    from fencepost.broker.access.files import parse_acls, parse_users
    from fencepost.broker.access.session import AccessSettings

    parsed_users = None if users is None else _parsed("--users", users, parse_users)
    parsed_acls = None if acls is None else _parsed("--acls", acls, parse_acls)
    try:
        access = AccessSettings(
            tls_cert=_path(tls_cert),
            tls_key=_path(tls_key),
            tls_client_ca=_path(tls_client_ca),
            users=parsed_users,
            acls=parsed_acls,
        )
    except ValueError as problem:
        then = "give both --tls-cert and --tls-key, each a PEM file; --tls-client-ca needs both of them"
        raise WrongUsage(str(problem), then=then) from problem
    _check_tls(access)
    _check_host(reachable, access, insecure=insecure)
    _warn_of_unknown_principals(access, users, acls)
    return access


def _check_tls(access: AccessSettings) -> None:
    """WrongUsage for a PEM file that the broker could not use; it would name its setting, not the option."""
    from fencepost.protocol.tls import BadCertificate, PemFile, server_context

    cert, key, ca = access.tls_cert, access.tls_key, access.tls_client_ca
    if cert is None or key is None:
        return
    authorities = None if ca is None else PemFile("--tls-client-ca", ca)
    try:
        server_context(PemFile("--tls-cert", cert), PemFile("--tls-key", key), authorities)
    except BadCertificate as problem:
        cause = problem.__cause__
        then = did_you_mean_beside(Path(cause.filename)) if isinstance(cause, FileNotFoundError) else ""
        raise WrongUsage(problem.because, then=then or problem.advice) from problem


def _warn_of_unknown_principals(access: AccessSettings, users: Path | None, acls: Path | None) -> None:
    """A warning, not an error: an ACL may be written before its user is added."""
    from fencepost.protocol.suggestions import suggestion

    unknown = access.unknown_principals
    known = [] if access.users is None else sorted(access.users.credentials)
    for principal in unknown[:WARNINGS_MAX]:
        if access.users is None:
            because = "but every client is User:ANONYMOUS"
            then = "--users or --tls-client-ca tells the broker who its clients are"
        else:
            because = f"a user that --users {users} does not have"
            because += suggestion(principal.removeprefix("User:"), known)
            then = "correct the name, or add the user with `fencepost user add`"
        complain(f"--acls {acls} names {principal}, {because}", then=then)
    if len(unknown) > WARNINGS_MAX:
        complain(f"--acls {acls} names {len(unknown) - WARNINGS_MAX} more such users")


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _parsed(option: str, file: Path, parse: Callable[[str, str], Parsed]) -> Parsed:
    """What the file of an option holds."""
    from fencepost.broker.access.files import AccessFileError

    then = {
        "--users": "`fencepost user add FILE NAME` writes a user file",
        "--acls": "`fencepost help access` shows an ACL file",
    }
    text = read_text(option, file, then=then[option])
    try:
        return parse(text, str(file))
    except AccessFileError as problem:
        raise WrongUsage(f"{option} {problem}") from problem


def _check_host(host: str, access: AccessSettings, *, insecure: bool) -> None:
    missing = access.missing
    if missing and not insecure and not _is_loopback(host):
        raise WrongUsage(
            f"--host {host or repr(host)} opens the broker to other machines, which needs "
            f"{', and '.join(missing)}",
            then="`fencepost help access` shows how to set them up; --insecure starts the broker without "
            "them, open to everyone who can reach the port",
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name that does not resolve is the listener's error."""
    import socket
    from ipaddress import ip_address

    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return True
    return all(ip_address(address.partition("%")[0]).is_loopback for address in found)


def _faults(settings: BrokerSettings) -> BrokerFaultInjector:
    """The faults of --fault. One that a broker cannot play is refused before anything starts."""
    from fencepost.broker.fault_site import injector_of
    from fencepost.faults.grammar import BadPhrase
    from fencepost.faults.phrases import FAULTS_HELP

    try:
        injector = injector_of(settings)
    except BadPhrase as problem:
        possible = "; ".join(each for each in problem.possible if each not in str(problem))
        then = f"{possible}\n  {FAULTS_HELP}" if possible else FAULTS_HELP
        raise WrongUsage(f"--fault: {problem}", then=then) from problem
    injector.report = _print_strike
    return injector


def _print_strike(planned: PlannedFault, point: Point) -> None:
    facts = {"fault_id": planned.number, "fault": str(planned.line), "struck": planned.struck}
    print(json.dumps({**facts, "point": str(point), "pid": os.getpid()}), flush=True)


def _print_ready(
    settings: BrokerSettings, parent: _Parent | None, faults: BrokerFaultInjector, ready: Ready
) -> None:
    if parent is not None:
        parent.obey(ready)
    place = f"data in {settings.directory}" if settings.directory else "data in memory"
    print(f"Fencepost is ready on {ready.address}, {place} (sync {settings.sync.value}). Ctrl-C stops it.")
    print(memory_line(ready.memory))
    for planned in faults.plan.faults.values():
        if planned.may_strike:
            absent = [f"{each}{faults.instead_of(each)}" for each in faults.absent(planned)]
            print(_fault_line(planned, absent))
    facts = {"host": ready.host, "port": ready.port, "directory": settings.directory, "pid": os.getpid()}
    if ready.metrics_port is not None:
        facts["metrics_port"] = ready.metrics_port
    print(json.dumps({"ready": True, **facts, "memory_bytes_max": ready.memory.total}), flush=True)


def _fault_line(planned: PlannedFault, absent: list[str]) -> str:
    """A waiting fault, the clients that it waits for, and the partitions that do not exist: a name that no
    client has is not an error, nor is a topic that is created later.
    """
    from fencepost.broker.faults import awaited

    missing = f"not created yet: {', '.join(absent)}" if absent else ""
    told = "; ".join(filter(None, [awaited(planned.line.when), missing]))
    return f"Fault {planned.number} waits: {planned.line}" + (f" ({told})" if told else "")


def memory_line(bound: MemoryBound) -> str:
    """The most memory that the broker takes for its clients, and what it consists of."""
    parts = ", ".join(f"{size >> 20:,} for {name}" for name, size in bound.shares())
    return (
        f"Memory: at most {bound.total >> 20:,} MiB ({parts}), not counting topics, groups and transactions."
    )


class _Parent:
    """The process that started this one and holds the other end of stdin. It may cut the power; when it dies,
    the system closes stdin.
    """

    def __init__(self) -> None:
        self._ready: Ready | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._wants_power_cut = False

    def obey(self, ready: Ready) -> None:
        """Listen to it from the first start on: before, a signal would kill the broker instead of stopping
        it.
        """
        import trio

        is_first, self._ready = self._ready is None, ready
        self._token = trio.lowlevel.current_trio_token()
        if is_first:
            Thread(target=self._listen, daemon=True).start()
        if self._wants_power_cut:
            self._cut_power()

    def _listen(self) -> None:
        assert self._token is not None, "the broker is running"
        for line in sys.stdin:
            if line == POWER_CUT:
                self._token.run_sync_soon(self._cut_power)
        os.kill(os.getpid(), signal.SIGTERM)

    def _cut_power(self) -> None:
        assert self._ready is not None, "the broker is running"
        self._wants_power_cut = True  # if it is restarting after a crash, `obey` cuts the power
        self._ready.server.kill(loses_power=True)
