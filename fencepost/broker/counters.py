"""What a broker has done since it started: requests by API, and records written and read by topic.

Rule: counting costs something per request and per batch, and nothing per record. Nothing here is read by the
node: counters only leave it (broker/metrics.py, broker/status.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from functools import cache
from itertools import repeat
from typing import Any, Final, get_args, get_origin, get_type_hints

import attrs

from fencepost.broker.contract import Append, Reply
from fencepost.broker.limits import CLUSTER_PARTITIONS
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import FetchReply, ProduceReply, ReplyBody, Request

BUCKETS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 5_000.0)
"""Upper bounds of a histogram; the last bucket has no bound."""
DISK_PROBLEMS_KEPT: Final = 10
TOPICS_KEPT: Final = CLUSTER_PARTITIONS.value
"""As many as a cluster may have. Clients can name topics that do not exist, so without a bound they could
fill the memory."""


@attrs.define(eq=False)
class Durations:
    """How many times something happened, and how long it took."""

    total_ms: float = 0.0
    buckets: list[int] = attrs.Factory(lambda: [*repeat(0, len(BUCKETS_MS) + 1)])

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, took_ms: float) -> None:
        """Count one that took this many milliseconds."""
        self.total_ms += took_ms
        self.buckets[bisect_left(BUCKETS_MS, took_ms)] += 1


@attrs.define(eq=False)
class RequestCounts:
    """The requests of one API that were answered."""

    durations: Durations = attrs.Factory(Durations)
    errors: Counter[ErrorCode] = attrs.Factory(Counter[ErrorCode])  # of requests, and of parts of them


@attrs.define(eq=False)
class TopicCounts:
    """What clients and coordinators wrote to a topic, and clients read from it."""

    records_in: int = 0  # without markers
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0  # of one partition each, as Kafka counts them
    failed_produce_requests: int = 0
    fetch_requests: int = 0
    failed_fetch_requests: int = 0


NOTHING: Final = TopicCounts()
"""The counts of a topic without writes or reads."""


@attrs.define(eq=False)
class Counters:
    started_ms: int
    requests: defaultdict[type[Request], RequestCounts] = attrs.Factory(
        lambda: defaultdict[type[Request], RequestCounts](RequestCounts)
    )
    topics: dict[str, TopicCounts] = attrs.Factory(dict[str, TopicCounts])
    syncs: Durations = attrs.Factory(Durations)
    refused_connections: int = 0
    disk_problems: int = 0
    last_disk_problems: dict[str, int] = attrs.Factory(dict[str, int])  # when each was last seen, in order

    def answered(self, kind: type[Request], answer: Reply, took_ns: int) -> list[ErrorCode]:
        """A request was answered. Returns the errors of the reply."""
        counts, body = self.requests[kind], answer.body
        counts.durations.add(took_ns / 1e6)
        if type(body) is ProduceReply:
            for part in body.partitions:
                topic = self._of(part.topic)
                topic.produce_requests += 1
                topic.failed_produce_requests += part.error is not NO_ERROR
        elif type(body) is FetchReply:
            for part in body.partitions:
                topic = self._of(part.topic)
                topic.fetch_requests += 1
                topic.failed_fetch_requests += part.error is not NO_ERROR
                topic.bytes_out += len(part.records)
        errors = errors_in(answer)
        if errors:
            counts.errors.update(errors)
        return errors

    def _of(self, topic: str) -> TopicCounts:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicCounts()
            if len(self.topics) > TOPICS_KEPT:
                del self.topics[next(iter(self.topics))]
        return found

    def disk_failed(self, at_ms: int, problem: str) -> None:
        """A file could not be read or written."""
        self.disk_problems += 1
        self.last_disk_problems.pop(problem, None)
        self.last_disk_problems[problem] = at_ms
        if len(self.last_disk_problems) > DISK_PROBLEMS_KEPT:
            del self.last_disk_problems[next(iter(self.last_disk_problems))]

    def appended(self, appends: list[Append]) -> None:
        """The node appended batches."""
        for append in appends:
            name, header = append.partition.topic, append.header
            topic = self.topics.get(name) or self._of(name)
            topic.bytes_in += header.size
            if not header.is_control:
                topic.records_in += header.record_count


def errors_in(answer: Reply) -> list[ErrorCode]:
    body = answer.body
    if body is None:
        return [] if answer.error is NO_ERROR else [answer.error]
    return [
        part.error
        for name in _lists_with_errors(type(body))
        for part in getattr(body, name)
        if part.error is not NO_ERROR
    ]


@cache
def _lists_with_errors(kind: type[ReplyBody]) -> tuple[str, ...]:
    """The lists of a reply whose entries have an error of their own."""
    return tuple(name for name, annotation in get_type_hints(kind).items() if _has_errors(annotation))


def _has_errors(annotation: Any) -> bool:
    entries = get_args(annotation)
    return get_origin(annotation) is tuple and "error" in getattr(entries[0], "__annotations__", {})
