"""`fencepost serve`: one broker in this process until Ctrl-C or SIGTERM.

Rule: imports the broker and nothing for people's eyes, so that a start takes a fraction of a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fencepost.cli.failures import OK, WRONG_USAGE, CommandFailed

DEFAULT_PORT = 9092  # Kafka's

_Hidden = Parameter(show=False)


def serve(
    directory: Path | None = None,
    /,
    *,
    memory: Annotated[bool, Parameter(negative="")] = False,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    sync: Literal["none", "commit", "all"] = "none",
    break_: Annotated[tuple[Literal["fencing", "dedup"], ...], Parameter("--break", show=False)] = (),
    stop_at: Annotated[str, _Hidden] = "",
    lose_reply: Annotated[str, _Hidden] = "",
) -> int:
    """Run a broker until Ctrl-C or SIGTERM; two lines on stdout say when it is ready and where: words, then JSON.

    Parameters
    ----------
    directory
        Where the logs lie; made when it is missing. One broker at a time owns it.
    memory
        Keep everything in memory and forget it at the end.
    host
        Address to listen on.
    port
        Port to listen on; 0 picks a free one.
    sync
        When the log is forced to disk: never (survives kills, not power loss), before a commit, before each answer.
    """
    if memory == (directory is not None):
        raise CommandFailed(
            "a broker needs either a directory or --memory", then="fencepost serve ./data", code=WRONG_USAGE
        )
    from fencepost.cli.broker_process import run_broker

    run_broker(
        directory, host=host, port=port, sync=sync, broken=frozenset(break_), stop_at=stop_at, lose_reply=lose_reply
    )
    return OK
