"""What a history does not contain: what each step changed in nodes and readers, and what its messages said.

Rule: it holds values by the number of a step or message, wherever they come from: the observer of a simulated
world (observer.py), of an explored one, or of a running broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs

from fencepost.broker.contract import Append
from fencepost.broker.faults import every_error
from fencepost.lab.node_state import Changes
from fencepost.lab.rules import Reason
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.messages import Produce, ReplyBody, Request, WriteTxnMarkers
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.simulator.draw.fates import SILENT_FROM, SPEAKS_FROM, fault_word
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Event, Struck, Truncated
from fencepost.simulator.world.labels import VALUES_MAX, batch_label, value_text

_LOG: Final = "log/"


@attrs.frozen(kw_only=True)
class MessageDetails:
    """What a message is about. `error` is the first one that a reply names."""

    transactional_id: str | None = None
    producer_ids: tuple[int, ...] = ()
    error: str | None = None


@attrs.define(eq=False)
class Details:
    """By step: the `changes` of states, the `values` of batches, the `points` of the protocol and the
    `reasons`. By number: `messages`. By rule: `breaches`, the steps that broke them. `state` is what the
    changes add up to.
    """

    changes: dict[int, Changes] = attrs.Factory(dict[int, dict[str, Any]])
    values: dict[int, tuple[str, ...]] = attrs.Factory(dict[int, tuple[str, ...]])
    messages: dict[int, MessageDetails] = attrs.Factory(dict[int, MessageDetails])
    reasons: dict[int, Reason] = attrs.Factory(dict[int, Reason])
    points: dict[int, str] = attrs.Factory(dict[int, str])
    breaches: dict[str, int] = attrs.Factory(dict[str, int])
    state: Changes = attrs.Factory(dict[str, Any])

    def put(self, step: int, changes: Mapping[str, Any]) -> None:
        """These values are new at this step. A log that loses its leader stays as it was, without a
        leader.
        """
        for key, new in changes.items():
            value, before = new, self.state.get(key)
            if value is None and before is not None and key.startswith(_LOG):
                value = {**before, "leader": None}
            if value != before:
                self.changes.setdefault(max(step, 0), {})[key] = value
                if value is None:
                    del self.state[key]
                else:
                    self.state[key] = value


NO_DETAILS: Final = Details()


def shown_by(events: Sequence[Event], where: TopicPartition, began: int) -> int:
    """The last step since `began` that shows a change of this log, or the last step."""
    for place in range(len(events) - 1, began - 1, -1):
        event = events[place]
        is_its = isinstance(event, Bounded | Truncated | Appended) and event.partition == where
        if is_its or (isinstance(event, Coordinated) and where.topic == TRANSACTION_STATE_TOPIC):
            return place
    return len(events) - 1


def participant_change(event: Struck) -> Changes:
    """How a fault, or its end, changes the state of the participant that it strikes."""
    word, key = fault_word(event), f"participant/{event.participant}"
    if word in SILENT_FROM:
        return {key: "paused" if word == "pause" else "down"}
    return {key: "up"} if word in SPEAKS_FROM else {}


# --- messages and batches -----------------------------------------------------------------------------------


def request_details(request: Request) -> MessageDetails:
    name: object = getattr(request, "transactional_id", None)
    return MessageDetails(
        transactional_id=name if isinstance(name, str) else None,
        producer_ids=tuple(dict.fromkeys(_producer_ids(request))),
    )


def _producer_ids(request: Request) -> Iterator[int]:
    match request:
        case Produce():
            for part in request.partitions:
                with suppress(ProtocolViolation):  # a stranger's garbage has no producer
                    found = (header.producer_id for _, header in walk(part.records))
                    yield from (number for number in found if number != NO_PRODUCER_ID)
        case WriteTxnMarkers():
            yield from (marker.producer_id for marker in request.markers)
        case _:
            number: object = getattr(request, "producer_id", NO_PRODUCER_ID)
            if isinstance(number, int) and number != NO_PRODUCER_ID:
                yield number


def reply_details(error: ErrorCode, body: ReplyBody | None) -> MessageDetails:
    """The first error of a reply, or of a part of it."""
    found = every_error(error, body)
    return MessageDetails(error=found[0].name if found else None)


def batch_values(append: Append) -> tuple[str, ...]:
    """The values of a batch as people read them; of a batch of many, and of offsets, its label."""
    header = append.header
    if header.is_control:
        return ()
    if append.partition.topic != CONSUMER_OFFSETS_TOPIC and header.record_count <= VALUES_MAX:
        with suppress(ProtocolViolation):  # a broker does not open compressed records
            return tuple(value_text(value) for value in read_columns(append.batch, header).values)
    return (batch_label(append.partition, header, append.batch),)
