"""The one option that every command has which talks to a broker."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

DEFAULT = "127.0.0.1:9092"

Bootstrap = Annotated[
    str,
    Parameter("--bootstrap", env_var="FENCEPOST_BOOTSTRAP", help="Where the broker listens, as host:port."),
]
AsJson = Annotated[bool, Parameter("--json", negative="", help="Print JSON instead of words.")]
