"""The sockets that a broker listens on: one for clients, and one for metrics.

Rule: an address that cannot be bound, or that clients could not connect to, is refused before anything else
of the broker exists.
"""

from __future__ import annotations

import errno
import socket
from typing import Final, NamedTuple

from fencepost.broker.access.session import AccessSettings
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.forked_process import in_child

PORT_MAX: Final = 65_535
EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # the hosts that stand for all interfaces


class CannotListen(FencepostError):
    """The broker cannot listen on this address. The message is the cause (`because`) and the next step
    (`advice`); `option` is the option of `fencepost serve` for that step.
    """

    def __init__(self, because: str, *, advice: str, option: str) -> None:
        super().__init__(f"{because}; {advice}")
        self.because = because
        self.advice = advice
        self.option = option


def parsed_listener(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`; an IPv6 address is in brackets. ValueError if it is not that."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare) != (bare != host) or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT, such as broker.example:9092")
    return bare, int(port)


def shown_listener(host: str, port: int, access: AccessSettings) -> str:
    """An address as Kafka's settings write it: `SASL_SSL://broker.example:9092`."""
    security = "PLAINTEXT" if access.tls_cert is None else "SSL"
    security = security if access.users is None else f"SASL_{security}"
    return f"{security}://[{host}]:{port}" if ":" in host else f"{security}://{host}:{port}"


class BoundSockets(NamedTuple):
    clients: socket.socket
    metrics: socket.socket | None

    def close(self) -> None:
        self.clients.close()
        if self.metrics is not None:
            self.metrics.close()


def bound_sockets(settings: BrokerSettings, *, listens: bool) -> BoundSockets:
    """Sockets that are bound to the addresses of these settings; connections are refused unless they
    `listen`. Raises CannotListen.
    """
    if settings.advertised is None and settings.host in EVERY_ADDRESS:
        raise CannotListen(
            f"{settings.host!r} stands for every address of this machine, but clients need one that they can "
            "connect to",
            advice="give it as the advertised listener",
            option="--advertised-listener HOST:PORT",
        )
    clients, metrics = _bound(settings.host, settings.port, "port", listens=listens), None
    if settings.metrics_port is not None:
        try:
            metrics = _bound(settings.metrics_host, settings.metrics_port, "metrics port", listens=listens)
        except CannotListen:
            clients.close()
            raise
    return BoundSockets(clients, metrics)


def _bound(host: str, port: int, name: str, *, listens: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = in_child(socket.socket(family, socket.SOCK_STREAM), socket.socket.close)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        if listens:
            listener.listen(1024)
    except (OSError, UnicodeError) as problem:  # UnicodeError: no host can have this name
        listener.close()
        reason = getattr(problem, "strerror", None) or problem
        advice, chosen = _advice(problem, name)
        raise CannotListen(
            f"cannot listen on {host}:{port}: {reason}", advice=advice, option=f"--{chosen.replace(' ', '-')}"
        ) from problem
    listener.setblocking(False)
    return listener


def _advice(problem: OSError | UnicodeError, name: str) -> tuple[str, str]:
    """What to do, and what can be chosen: the port of this name, or its host."""
    match problem:
        case socket.gaierror() | UnicodeError() | OSError(errno=errno.EADDRNOTAVAIL):
            return "choose another host", name.replace("port", "host")
        case PermissionError():
            return f"choose a {name} above 1023, or run the broker as a user who may use lower ones", name
        case _:
            return f"stop what listens there, or choose another {name} (0 is a free one)", name
