"""`fencepost transactions list|describe`: what the transaction coordinator knows. Rule: words as in Kafka."""

from __future__ import annotations

import time

from fencepost.cli.bootstrap import ANSWER_MS, DEFAULT, AsJson, Bootstrap, reach
from fencepost.cli.printing import moment, print_json, print_table
from fencepost.client.sync import Admin


def list_transactions(*, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False) -> None:
    """List every transactional id that the coordinator knows."""
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
        listed = sorted(admin.list_transactions(), key=lambda entry: entry.transactional_id)
    rows = [
        {
            "transactional_id": entry.transactional_id,
            "producer_id": entry.producer_id,
            "state": entry.state.title,
        }
        for entry in listed
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("TRANSACTIONAL ID", "PRODUCER ID", "STATE"), [tuple(row.values()) for row in rows])


def describe_transaction(
    transactional_id: str, /, *, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False
) -> None:
    """Show where one transactional id stands: state, producer, timeout, partitions of the transaction."""
    with Admin(reach(bootstrap), api_timeout_ms=ANSWER_MS) as admin:
        found = admin.describe_transaction(transactional_id)
    is_open = found.start_ms >= 0
    partitions = [f"{entry.topic}-{entry.partition}" for entry in found.partitions]
    facts = {
        "transactional_id": found.transactional_id,
        "state": found.state.title,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if is_open else None,
        "partitions": partitions,
    }
    if as_json:
        print_json(facts)
        return
    since = round(time.time() - found.start_ms / 1000, 1) if is_open else None
    print_table(
        (),
        [
            ("transactional id", found.transactional_id),
            ("state", found.state.title),
            ("producer", f"{found.producer_id} epoch {found.producer_epoch}"),
            ("timeout", f"{found.timeout_ms / 1000:g} s"),
            ("started", f"{moment(found.start_ms)}, {since} s ago" if is_open else None),
            ("partitions", ", ".join(partitions) or None),
        ],
    )
