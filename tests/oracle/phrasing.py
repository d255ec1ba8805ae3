"""What questions are put into words with, and answers into the recordings' form; what all of them share.

Rule: a refusal of the whole request, which Kafka repeats in each part of its answer, travels once here and is
written out again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import attrs

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.terms import TopicPartition
from tests.oracle.conversation import Fields, Question
from tests.oracle.symbols import Symbols

Body = TypeVar("Body")
Told = Any
"""An answer in the recordings' form: JSON."""


class Asking(NamedTuple):
    """What one question is put into words with."""

    question: Question
    symbols: Symbols
    now_ms: int
    is_kafka: bool
    """Whether records are encoded as Kafka's, and not as columns."""

    @property
    def args(self) -> Fields:
        return self.question.args


@attrs.frozen(kw_only=True)
class Telling:
    """What one answer is put into the recordings' form with."""

    question: Question
    symbols: Symbols
    listed: dict[str, list[Any]]
    """The batches of each partition that the last read_uncommitted fetch showed."""

    @property
    def args(self) -> Fields:
        return self.question.args


def partition_of(text: str) -> TopicPartition:
    """`orders-0` as the cores name it."""
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def names_of(partitions: Iterable[str]) -> tuple[TopicPartition, ...]:
    return tuple(map(partition_of, partitions))


def body_of(reply: Reply, kind: type[Body]) -> Body | None:
    """The answer's body; None when the whole request was refused."""
    assert reply.body is None or isinstance(reply.body, kind), f"expected a {kind.__name__}, got {reply.body}"
    return reply.body


def tell_error(reply: Reply, _telling: Telling) -> Told:
    return {"error": reply.error.name}


def errors_of(errors: Iterable[m.PartitionError]) -> dict[str, str]:
    return {f"{part.topic}-{part.partition}": part.error.name for part in errors}
