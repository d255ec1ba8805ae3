"""What a history alone says about states, for runs whose nodes were not observed.

Rule: only what follows from the events. The verification guards, the markers that are still missing and the
positions of readers do not, so they are left open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fencepost.broker.partitions.partition import CACHED_BATCHES_MAX
from fencepost.lab.details import Details, participant_change
from fencepost.lab.node_state import transaction_state
from fencepost.protocol.terms import NO_COORDINATOR_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TransactionResult
from fencepost.simulator.world.history import (
    Appended,
    Bounded,
    Coordinated,
    Event,
    History,
    Struck,
    Truncated,
)


def details_of(history: History) -> Details:
    """The changes of states, by the steps of the history."""
    details = Details()
    details.put(0, {f"participant/{name}": "up" for name in history.participants})
    for step, event in enumerate(history.events):
        details.put(step, dict(_changes(event, details.state)))
    return details


def _changes(event: Event, state: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    match event:
        case Coordinated(transactional_id=name, record=record, node=node):
            yield f"txn/{name}", transaction_state(node, record)
        case Appended(partition=where, header=header, node=node):
            yield f"log/{where}", {**_log(state, str(where), node), "end": header.next_offset}
            if header.producer_id != NO_PRODUCER_ID:
                key = f"producer/{where}/{header.producer_id}"
                yield key, _producer(event, state.get(key))
        case Bounded(partition=where, last_stable_offset=stable, high_watermark=high, node=node):
            yield f"log/{where}", {**_log(state, str(where), node), "lso": stable, "hw": high}
        case Truncated(partition=where, next_offset=end, node=node):
            yield f"log/{where}", {**_log(state, str(where), node), "end": end}
        case Struck(participant=lane) if f"participant/{lane}" in state:
            yield from participant_change(event).items()
        case _:
            pass


def _log(state: dict[str, Any], where: str, node: str) -> dict[str, Any]:
    empty = {"start": 0, "end": 0, "lso": 0, "hw": 0, "leader_epoch": 0}
    return {**empty, **state.get(f"log/{where}", {}), "leader": node}


def _producer(event: Appended, before: dict[str, Any] | None) -> dict[str, Any]:
    header = event.header
    is_marker = isinstance(event.result, TransactionResult)
    if before is None or before["epoch"] != header.producer_epoch:
        before = {"last_sequence": NO_SEQUENCE, "batches": [], "open_since": None}
    batches, since = before["batches"], before["open_since"]
    last = before["last_sequence"]
    if is_marker:
        since = None
    else:
        last = header.last_sequence
        batches = [*batches, [header.base_sequence, last]][-CACHED_BATCHES_MAX:]
        since = header.base_offset if since is None and header.is_transactional else since
    return {
        "epoch": header.producer_epoch,
        "last_sequence": last,
        "batches": batches,
        "open_since": since,
        "guard": None,
        "coordinator_epoch": NO_COORDINATOR_EPOCH,
    }
