"""`fencepost serve`: one broker in this process until Ctrl-C or SIGTERM.

Rule: imports only the broker, no tables or progress bars, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter, validators

from fencepost.cli.errors import OK, WRONG_USAGE, CommandFailed
from fencepost.cli.options import WithoutFixes, text_of

if TYPE_CHECKING:
    from fencepost.broker.access.session import AccessSettings
    from fencepost.broker.memory import MemoryBound
    from fencepost.broker.server import BrokerSettings, Ready
    from fencepost.broker.settings import ConnectionSettings, NodeSettings

DEFAULT_PORT = 9092  # Kafka's
Parsed = TypeVar("Parsed")

_Hidden = Parameter(show=False)
_Count = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]
_QueueSize = Annotated[int | None, Parameter(validator=validators.Number(gte=144 << 20))]
_Limit = Annotated[int | None, Parameter(validator=validators.Number(gte=-1))]  # -1: none
_SegmentSize = Annotated[int | None, Parameter(validator=validators.Number(gte=1 << 14, lte=1 << 30))]
_Duration = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]


def serve(
    directory: Path | None = None,
    /,
    *,
    memory: Annotated[bool, Parameter(negative="")] = False,
    host: str = "127.0.0.1",
    insecure: Annotated[bool, Parameter(negative="")] = False,
    port: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))] = DEFAULT_PORT,
    advertised_listener: str | None = None,
    protocol: Literal["kafka", "fencepost", "both"] = "both",
    max_connections: _Count = None,
    connections_max_idle_ms: _Duration = None,
    queued_max_request_bytes: _QueueSize = None,
    queued_max_response_bytes: _QueueSize = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    users: Path | None = None,
    acls: Path | None = None,
    auto_create_topics_enable: bool = True,
    num_partitions: _Count = None,
    sync: Literal["none", "commit", "all"] = "none",
    transaction_max_timeout_ms: _Duration = None,
    transactional_id_expiration_ms: _Duration = None,
    transaction_remove_expired_transaction_cleanup_interval_ms: _Duration = None,
    producer_id_expiration_ms: _Duration = None,
    producer_id_expiration_check_interval_ms: _Duration = None,
    offsets_retention_minutes: _Duration = None,
    offsets_retention_check_interval_ms: _Duration = None,
    log_retention_ms: _Limit = None,
    transaction_state_log_segment_bytes: _SegmentSize = None,
    transaction_version: Literal[0, 1, 2] = 2,
    partition_verification: bool = True,
    without_fixes: WithoutFixes = (),
    break_: Annotated[tuple[Literal["fencing", "dedup"], ...], Parameter("--break", show=False)] = (),
    fault: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    with_parent: Annotated[bool, _Hidden] = False,
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
        Listen beyond this machine although TLS, users or ACLs are missing. Without any of them, anyone who
        reaches the port can read, write and delete everything.
    port
        Port to listen on; 0 picks a free port.
    advertised_listener
        HOST:PORT that clients are told to connect to. [default: where the broker listens]
    protocol
        Clients that the port serves: Kafka's own, Fencepost's, or both.
    max_connections
        Connections at a time; more are refused. [default: 10,000, or half of the file descriptors if that is
        less]
    connections_max_idle_ms
        Close a connection that is idle for this long. [default: 10 minutes, as in Kafka]
    queued_max_request_bytes
        Memory for all requests that have arrived and are not answered. [default: 256 MiB]
    queued_max_response_bytes
        Memory for all answers that clients have not taken yet. [default: 256 MiB]
    tls_cert
        PEM file with the broker's certificate and its chain: clients must then use TLS.
    tls_key
        PEM file with the private key of that certificate.
    tls_client_ca
        PEM file with authorities: each client must present a certificate that one of them signed.
    users
        User file, written by `fencepost user add`: clients must log in (SASL PLAIN or SCRAM-SHA-256).
    acls
        TOML file with the rights of users (docs/access.md). Without it, everyone who may connect may do
        everything.
    auto_create_topics_enable
        Whether a topic is created when a client of Kafka names one that does not exist.
    num_partitions
        Number of partitions of a topic for which nobody says how many. [default: 1]
    sync
        When to force the log to disk: none = never (survives kills, not power loss), commit = before a commit
        is acknowledged, all = before every acknowledgement.
    transaction_max_timeout_ms
        Longest transaction timeout that a producer may request. [default: 15 minutes, as in Kafka]
    transactional_id_expiration_ms
        How long to keep an unused transactional id. [default: 7 days, as in Kafka]
    transaction_remove_expired_transaction_cleanup_interval_ms
        How often to remove expired transactional ids. [default: 1 hour, as in Kafka]
    producer_id_expiration_ms
        How long a partition keeps the state of an inactive producer. [default: 1 day, as in Kafka]
    producer_id_expiration_check_interval_ms
        How often to remove expired producers. [default: 10 minutes, as in Kafka]
    offsets_retention_minutes
        How long to keep the offsets of an empty group. [default: 7 days, as in Kafka]
    offsets_retention_check_interval_ms
        How often to remove expired offsets. [default: 10 minutes, as in Kafka]
    log_retention_ms
        How long to keep records of topics without retention.ms of their own; -1 keeps them for ever.
        [default: 7 days, as in Kafka]
    transaction_state_log_segment_bytes
        Size of a full segment of the transaction log. Only full segments are compacted, so a large one keeps
        the history of every transaction, and makes a start slower. [default: 16 KiB]
    transaction_version
        Transaction protocol: 2 is KIP-890 with an epoch per transaction, 0 is KIP-98.
    partition_verification
        Whether partition leaders verify transactions of older clients with the coordinator (KIP-890).
    without_fixes
        Switch off one of Kafka's later fixes, by its name in docs/fidelity.md. Repeatable.
    fault
        Inject a fault for your own tests, in the phrases of scenarios (scenarios/README.md). Repeatable.
        For example "when node 1 sends Produce reply #3 do drop", or
        "when coordinator of app appends PREPARE_COMMIT do pause node 1".
    """
    _check_place(directory, memory=memory)
    access = _access(tls_cert, tls_key, tls_client_ca, users, acls, reachable=host, insecure=insecure)
    _check_faults(fault)
    import attrs

    from fencepost.broker.host import SyncPolicy
    from fencepost.broker.server import BrokerSettings
    from fencepost.broker.wire_protocols import ServedProtocol

    given = {
        "transaction_max_timeout_ms": transaction_max_timeout_ms,
        "transactional_id_expiration_ms": transactional_id_expiration_ms,
        "transaction_remove_expired_transaction_cleanup_interval_ms": (
            transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        "producer_id_expiration_ms": producer_id_expiration_ms,
        "producer_id_expiration_check_interval_ms": producer_id_expiration_check_interval_ms,
        "offsets_retention_minutes": offsets_retention_minutes,
        "offsets_retention_check_interval_ms": offsets_retention_check_interval_ms,
        "log_retention_ms": log_retention_ms,
        "auto_create_topics_enable": auto_create_topics_enable,
        "num_partitions": num_partitions,
        "transaction_state_log_segment_bytes": transaction_state_log_segment_bytes,
    }
    queues = (queued_max_request_bytes, queued_max_response_bytes)
    node = _generation(transaction_version, partition_verification, without_fixes, break_)
    settings = BrokerSettings(
        directory=_path(directory),
        host=host,
        port=port,
        advertised=_advertised(advertised_listener),
        protocol=ServedProtocol(protocol),
        access=access,
        sync=SyncPolicy(sync),
        node=attrs.evolve(node, **_given(given)),
        connections=_connections(max_connections, connections_max_idle_ms, queues),
        faults=fault,
    )
    return _run(settings, with_parent=with_parent)


def _run(settings: BrokerSettings, *, with_parent: bool) -> int:
    """Serve until a signal."""
    import trio

    from fencepost.broker.server import serve_until_signalled

    tell = partial(_tell_ready, settings, with_parent=with_parent)
    trio.run(partial(serve_until_signalled, settings, on_ready=tell))
    return OK


def _advertised(listener: str | None) -> tuple[str, int] | None:
    from fencepost.broker.server import parsed_listener

    try:
        return None if listener is None else parsed_listener(listener)
    except ValueError as problem:
        raise CommandFailed(f"--advertised-listener: {problem}", code=WRONG_USAGE) from problem


def _connections(
    count: int | None, idle_ms: int | None, queues: tuple[int | None, int | None]
) -> ConnectionSettings:
    """What clients may take together; `queues` are the bytes of requests and of answers."""
    from fencepost.broker.settings import ConnectionSettings

    given = {
        "max_connections": count,
        "connections_max_idle_ms": idle_ms,
        "queued_max_request_bytes": queues[0],
        "queued_max_response_bytes": queues[1],
    }
    return ConnectionSettings(**_given(given))


def _given(options: Mapping[str, int | None]) -> dict[str, Any]:
    """The options that were given; the others keep their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _check_place(directory: Path | None, *, memory: bool) -> None:
    if memory and directory is not None:
        raise CommandFailed(
            f"serve cannot keep its data both in memory and in {directory}",
            then="leave out --memory, or the directory (data in memory is lost when the broker stops)",
            code=WRONG_USAGE,
        )
    if not memory and directory is None:
        raise CommandFailed(
            "serve needs either a data directory or --memory",
            then="for example: fencepost serve ./data",
            code=WRONG_USAGE,
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

    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise CommandFailed(
            "TLS needs both --tls-cert and --tls-key; --tls-client-ca needs them, too",
            then="give the certificate and its private key, each as a PEM file",
            code=WRONG_USAGE,
        )
    access = AccessSettings(
        tls_cert=_path(tls_cert),
        tls_key=_path(tls_key),
        tls_client_ca=_path(tls_client_ca),
        users=None if users is None else _parsed("--users", users, parse_users),
        acls=None if acls is None else _parsed("--acls", acls, parse_acls),
    )
    _check_host(reachable, access, insecure=insecure)
    return access


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _parsed(option: str, file: Path, parse: Callable[[str, str], Parsed]) -> Parsed:
    """What the file of an option holds."""
    from fencepost.broker.access.files import AccessFileError

    then = {
        "--users": "`fencepost user add FILE NAME` writes a user file",
        "--acls": "docs/access.md shows an ACL file",
    }
    text = text_of(option, file, then=then[option])
    try:
        return parse(text, str(file))
    except AccessFileError as problem:
        raise CommandFailed(f"{option} {problem}", code=WRONG_USAGE) from problem


def _check_host(host: str, access: AccessSettings, *, insecure: bool) -> None:
    missing = access.missing
    if missing and not insecure and not _is_loopback(host):
        raise CommandFailed(
            f"--host {host} opens the broker to other machines, but it has no {', no '.join(missing)}",
            then="docs/access.md shows how to set them up; --insecure starts the broker without them, open "
            "to everyone who can reach the port",
            code=WRONG_USAGE,
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name that does not resolve is the listener's error."""
    import socket
    from ipaddress import ip_address

    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host or "0.0.0.0", None)}
    except (OSError, UnicodeError):
        return True
    return all(ip_address(address.partition("%")[0]).is_loopback for address in found)


def _generation(
    transaction_version: int,
    partition_verification: bool,
    without_fixes: tuple[str, ...],
    broken: tuple[str, ...],
) -> NodeSettings:
    """The generation of Kafka that the broker behaves like, and what is switched off in it."""
    from fencepost.broker.kafka_fixes import KafkaFixes
    from fencepost.broker.settings import NodeSettings
    from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS

    return NodeSettings(
        transaction_version=TRANSACTION_VERSIONS[transaction_version],
        partition_verification=partition_verification,
        fixes=KafkaFixes.without(without_fixes),
        broken=frozenset(broken),
    )


def _check_faults(texts: tuple[str, ...]) -> None:
    """Refuse a fault that the server cannot play before anything starts."""
    from fencepost.broker.faults import server_faults
    from fencepost.broker.settings import NodeSettings
    from fencepost.faults.grammar import BadPhrase

    try:
        server_faults(texts, node_id=NodeSettings().node_id)
    except BadPhrase as problem:
        possible = "; ".join(problem.possible) or "scenarios/README.md lists the phrases"
        raise CommandFailed(f"--fault: {problem}", then=possible, code=WRONG_USAGE) from problem


def _tell_ready(settings: BrokerSettings, ready: Ready, *, with_parent: bool) -> None:
    if with_parent:  # not earlier: before this point a signal would kill the broker instead of stopping it
        Thread(target=_end_with_parent, daemon=True).start()
    place = f"data in {settings.directory}" if settings.directory else "data in memory"
    print(f"Fencepost is ready on {ready.address}, {place} (sync {settings.sync.value}). Ctrl-C stops it.")
    print(_memory_line(ready.memory))
    facts = {"host": ready.host, "port": ready.port, "directory": settings.directory, "pid": os.getpid()}
    print(json.dumps({"ready": True, **facts, "memory_bytes_max": ready.memory.total}), flush=True)


def _memory_line(bound: MemoryBound) -> str:
    """The most memory that the broker takes for its clients, and how it comes about."""
    parts = ", ".join(f"{size >> 20:,} for {name}" for name, size in bound.shares())
    return (
        f"Memory: at most {bound.total >> 20:,} MiB ({parts}), not counting topics, groups and transactions."
    )


def _end_with_parent() -> None:
    """The parent holds the other end of stdin, which the system closes when the parent dies."""
    while sys.stdin.readline():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
