"""`fencepost serve`: one broker in this process until Ctrl-C or SIGTERM.

Rule: imports the broker and nothing for people's eyes, so that a start takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from fencepost.cli.errors import OK, WRONG_USAGE, CommandFailed
from fencepost.cli.fixes import WithoutFixes

if TYPE_CHECKING:
    from fencepost.broker.server import BrokerSettings, Ready
    from fencepost.broker.settings import NodeSettings

DEFAULT_PORT = 9092  # Kafka's

_Hidden = Parameter(show=False)
_Duration = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]


def serve(
    directory: Path | None = None,
    /,
    *,
    memory: Annotated[bool, Parameter(negative="")] = False,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))] = DEFAULT_PORT,
    sync: Literal["none", "commit", "all"] = "none",
    transaction_max_timeout_ms: _Duration = None,
    transactional_id_expiration_ms: _Duration = None,
    transaction_remove_expired_transaction_cleanup_interval_ms: _Duration = None,
    producer_id_expiration_ms: _Duration = None,
    producer_id_expiration_check_interval_ms: _Duration = None,
    offsets_retention_minutes: _Duration = None,
    offsets_retention_check_interval_ms: _Duration = None,
    transaction_version: Literal[0, 1, 2] = 2,
    partition_verification: bool = True,
    without_fixes: WithoutFixes = (),
    break_: Annotated[tuple[Literal["fencing", "dedup"], ...], Parameter("--break", show=False)] = (),
    hold_at: Annotated[str | None, _Hidden] = None,
    lose_reply: Annotated[str | None, _Hidden] = None,
    with_parent: Annotated[bool, _Hidden] = False,
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    When it is ready, two lines on stdout say where: words, then JSON.

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
        When the log is forced to disk: never (survives kills, not power loss), before a commit, before any
        answer.
    transaction_max_timeout_ms
        The longest timeout that a producer may ask for; Kafka's default, 15 minutes.
    transactional_id_expiration_ms
        How long an unused transactional id is kept; Kafka's default, 7 days.
    transaction_remove_expired_transaction_cleanup_interval_ms
        How often expired transactional ids are looked for; Kafka's default, 1 hour.
    producer_id_expiration_ms
        How long a partition remembers a producer that is silent; Kafka's default, 1 day.
    producer_id_expiration_check_interval_ms
        How often expired producers are looked for; Kafka's default, 10 minutes.
    offsets_retention_minutes
        How long a group's offsets are kept once nobody is in it; Kafka's default, 7 days.
    offsets_retention_check_interval_ms
        How often expired offsets are looked for; Kafka's default, 10 minutes.
    transaction_version
        The protocol: 2 is KIP-890's with an epoch per transaction, 0 is KIP-98's.
    partition_verification
        Whether partition leaders ask the coordinator about batches of older clients (KIP-890).
    without_fixes
        One of Kafka's later fixes to turn off, by its name in docs/fidelity.md; may be repeated.
    """
    if memory == (directory is not None):
        raise CommandFailed(
            "a broker needs either a directory or --memory", then="fencepost serve ./data", code=WRONG_USAGE
        )
    import attrs
    import trio

    from fencepost.broker.host import SyncPolicy
    from fencepost.broker.server import BrokerSettings, serve_until_signalled

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
    }
    durations = {name: value for name, value in given.items() if value is not None}
    node = _generation(transaction_version, partition_verification, without_fixes, break_)
    settings = BrokerSettings(
        directory=None if directory is None else str(directory),
        host=host,
        port=port,
        sync=SyncPolicy(sync),
        node=attrs.evolve(node, **durations),
        hold_at=hold_at,
        lose_reply=lose_reply,
    )
    tell = partial(_tell_ready, settings, with_parent=with_parent)
    trio.run(partial(serve_until_signalled, settings, on_ready=tell))
    return OK


def _generation(
    transaction_version: int,
    partition_verification: bool,
    without_fixes: tuple[str, ...],
    broken: tuple[str, ...],
) -> NodeSettings:
    """The Kafka version that the broker behaves as, and what is turned off."""
    from fencepost.broker.kafka_fixes import KafkaFixes
    from fencepost.broker.settings import NodeSettings
    from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS

    return NodeSettings(
        generation=TRANSACTION_VERSIONS[transaction_version],
        partition_verification=partition_verification,
        fixes=KafkaFixes.without(without_fixes),
        broken=frozenset(broken),
    )


def _tell_ready(settings: BrokerSettings, ready: Ready, *, with_parent: bool) -> None:
    if with_parent:  # not before: until now a signal would not have ended the broker in order
        Thread(target=_end_with_parent, daemon=True).start()
    place = f"data in {settings.directory}" if settings.directory else "data in memory"
    print(f"Fencepost is ready on {ready.address}, {place} (sync {settings.sync.value}). Ctrl-C stops it.")
    facts = {"host": ready.host, "port": ready.port, "directory": settings.directory, "pid": os.getpid()}
    print(json.dumps({"ready": True, **facts}), flush=True)


def _end_with_parent() -> None:
    """Whoever started this process holds the other end of its stdin; it closes when that one dies."""
    while sys.stdin.readline():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
