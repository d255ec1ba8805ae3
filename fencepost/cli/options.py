"""Where the broker is: the one option that every command has which talks to a broker."""

from __future__ import annotations

import socket
from typing import Annotated, Final

from cyclopts import Parameter, validators

from fencepost.cli.errors import NO_BROKER, WRONG_USAGE, CommandFailed
from fencepost.protocol.terms import INT64_MAX

DEFAULT: Final = "127.0.0.1:9092"
CONNECT_SECONDS: Final = 5.0
ANSWER_MS: Final = 15_000  # a person waits; programs have the client's own, longer timeouts

Bootstrap = Annotated[
    str,
    Parameter("--bootstrap", env_var="FENCEPOST_BOOTSTRAP", help="Where the broker listens, as host:port."),
]
Int64 = Annotated[int, Parameter(validator=validators.Number(gte=-INT64_MAX - 1, lte=INT64_MAX))]
"""What the wire can hold as a time or an id."""
AsJson = Annotated[bool, Parameter("--json", negative="", help="Print JSON instead of words.")]


def is_offset(given: str) -> bool:
    """Whether somebody typed an offset, one that a log can have."""
    return given.isdecimal() and len(given) <= len(str(INT64_MAX)) and int(given) <= INT64_MAX


def reach(bootstrap: str) -> str:
    """The same address if something listens there; else CommandFailed, sooner than a client would give up."""
    host, colon, port = bootstrap.rpartition(":")
    if not colon or not port.isdecimal():
        raise CommandFailed(
            f"--bootstrap {bootstrap} is not host:port", then=f"as {DEFAULT}", code=WRONG_USAGE
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as problem:
        raise CommandFailed(
            f"no broker listens on {bootstrap}: {problem}",
            then="start one with `fencepost serve DIR`, or name another with --bootstrap",
            code=NO_BROKER,
        ) from problem
    return bootstrap
