"""Requests about several topics: each topic is decided once and has a result of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from fencepost.broker.contract import Refused
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import NO_TOPIC_ID

BECAUSE_LENGTH_MAX: Final = 1_000  # a reason quotes the request, whose strings may be long
NAMED_TWICE: Final = Refused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")

Wanted = TypeVar("Wanted", m.CreateTopic, m.NewPartitions, m.TopicConfigChanges)


def each_topic(topics: Sequence[Wanted]) -> Iterator[tuple[Wanted, Refused | None]]:
    """The topics of a request, each once; with the refusal if it is named more often."""
    times_named = Counter([wanted.topic for wanted in topics])
    for wanted in {each.topic: each for each in topics}.values():
        yield wanted, NAMED_TWICE if times_named[wanted.topic] > 1 else None


def result_for(topic: str, refused: Refused | None, topic_id: bytes = NO_TOPIC_ID) -> m.TopicError:
    """The result for one topic; without a refusal, what was asked for is done."""
    error, because = (NO_ERROR, "") if refused is None else (refused.error, refused.because)
    return m.TopicError(topic=topic, error=error, because=because[:BECAUSE_LENGTH_MAX], topic_id=topic_id)
