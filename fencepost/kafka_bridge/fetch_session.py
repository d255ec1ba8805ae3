"""The fetch session of a connection (KIP-227): a client names its partitions once, then only what changes.

Rule: a partition that is left out of a response has nothing new for its client.
"""

# A Fetch of epoch 0 opens a session with all partitions that the client reads, and its response names the
# session. Each further Fetch increments the epoch and names the partitions that are new or have moved; the
# session adds the others. Its response leaves out the partitions without news.
#
# Kafka keeps up to 1,000 sessions for a broker (max.incremental.fetch.session.cache.slots), and its clients
# open another one when they connect again. So a session belongs to its connection here: no client can reach
# another's session, and it ends with the connection. All of them share room for partitions, which bounds
# their memory. As in Kafka, a session may be denied: the response to an epoch of 0 then names none, and the
# client continues with full requests.
#
#     session id   epoch   the client ...                              the response has ...
#     0            0       wants a session                             an id, and all partitions
#     id           n > 0   continues it; n counts its requests         the id, and the partitions with news
#     id           0       replaces it by another one                  another id, and all partitions
#     any          -1      wants none, and ends that of this id        no id, and all partitions
#
# When the client and the broker disagree about id or epoch, one of them has missed a message. The client
# then begins again with all its partitions, so no partition is forgotten.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

import attrs

from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_OFFSET
from fencepost.protocol.wire_protocol import SessionRoom

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0  # opens a session
FINAL_EPOCH: Final = -1  # of a client that wants no session, or no longer
FIRST_FETCH_BY_ID: Final = 13  # a version
_EPOCH_MAX: Final = 2**31 - 1
SESSION_SIZE_MAX: Final = 1_000  # partitions, and another for every 250 letters of a name
_NAME_LENGTH: Final = 250

TopicRef = str | UUID | None
"""A topic as requests name it: since version 13, by its id."""


class WantedPartition(NamedTuple):
    """A partition to read from, with the fields of a Fetch."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    partition_max_bytes: int


class WantedTopic(NamedTuple):
    """A topic to read from, under both of the names that a Fetch may have for it."""

    topic: TopicRef
    topic_id: TopicRef
    partitions: tuple[WantedPartition, ...]


class SessionFetch(NamedTuple):
    """What a Fetch asks for, and the session in which it does so."""

    topics: tuple[WantedTopic, ...]
    session_id: int = NO_SESSION
    is_incremental: bool = False


@attrs.define
class _CachedPartition:
    """A partition of the session, and what was last sent to its client (FetchSession.CachedPartition)."""

    wanted: WantedPartition
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET


_Key = tuple[TopicRef, int]


@attrs.define
class FetchSession:
    """The session of one connection, if its client has opened one and the broker has room for it."""

    room: SessionRoom
    session_id: int = NO_SESSION
    epoch: int = FIRST_EPOCH
    uses_ids: bool = False
    _opened: int = 0  # sessions, of this connection
    _reserved: int = 0  # of the room
    _partitions: dict[_Key, _CachedPartition] = attrs.Factory(dict[_Key, _CachedPartition])

    def open(self, request: Any, version: int) -> SessionFetch | ErrorCode:
        """Take a Fetch: it opens a session, continues it, ends it or does without."""
        session_id = getattr(request, "session_id", NO_SESSION)
        # Before version 7 there were no sessions.
        epoch = getattr(request, "session_epoch", FINAL_EPOCH)
        if epoch not in (FIRST_EPOCH, FINAL_EPOCH):
            return self._continue(request, version, session_id, epoch)
        if session_id == self.session_id:
            self.end()
        wanted = _wanted(request.topics)
        if epoch == FINAL_EPOCH or not wanted or not self._reserve(_size(wanted)):
            return SessionFetch(_by_topic(wanted.items()))
        self._opened += 1
        self.session_id, self.epoch = self._opened, _next(FIRST_EPOCH)
        self.uses_ids = version >= FIRST_FETCH_BY_ID
        self._partitions = {key: _CachedPartition(part) for key, part in wanted.items()}
        return SessionFetch(_by_topic(wanted.items()), self.session_id)

    def _continue(self, request: Any, version: int, session_id: int, epoch: int) -> SessionFetch | ErrorCode:
        # The order of the checks is Kafka's (FetchManager.newContext).
        if session_id == NO_SESSION or session_id != self.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if epoch != self.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if self.uses_ids != (version >= FIRST_FETCH_BY_ID):
            # Names and ids are different keys of a session: a client that was upgraded has to begin again.
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        for key, part in _wanted(request.topics).items():
            cached = self._partitions.get(key)
            if cached is None:
                self._partitions[key] = _CachedPartition(part)
            else:
                cached.wanted = part
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                self._partitions.pop((_ref(topic), number), None)
        if not self._reserve(_size(self._partitions)):
            # The client begins again, and gets no session while there is no room: full requests need none.
            self.end()
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        # As in Kafka, a session that has lost its last partition is over.
        if not self._partitions:
            self.end()
            return SessionFetch(())
        self.epoch = _next(self.epoch)
        every = ((key, cached.wanted) for key, cached in self._partitions.items())
        return SessionFetch(_by_topic(every), self.session_id, is_incremental=True)

    def end(self) -> None:
        """Forget the session, and give its room to others."""
        self.session_id = NO_SESSION
        self._partitions = {}
        self._reserve(0)

    def _reserve(self, size: int) -> bool:
        """Reserve room for this number of partitions; False if it is too large for a session, or for all."""
        more = size - self._reserved
        if size > SESSION_SIZE_MAX or more > self.room.free:
            return False
        self.room.free -= more
        self._reserved = size
        return True

    def answered(self, opened: SessionFetch, response: Mapping[str, Any]) -> Mapping[str, Any]:
        """The response within the session: without the partitions that have no news."""
        if opened.session_id == NO_SESSION or response["error_code"] is not NO_ERROR:
            return response
        topics: list[Mapping[str, Any]] = []
        for topic in response["responses"]:
            # Of a full response, too: it notes what is sent, with which the next one is compared.
            news = [part for part in topic["partitions"] if self._is_news(_ref_of_values(topic), part)]
            parts = news if opened.is_incremental else topic["partitions"]
            if parts:
                topics.append({**topic, "partitions": parts})
        return {**response, "session_id": opened.session_id, "responses": topics}

    def _is_news(self, ref: TopicRef, part: Mapping[str, Any]) -> bool:
        """Whether the client has not seen this yet (FetchSession.CachedPartition.maybeUpdateResponseData)."""
        key = (ref, part["partition_index"])
        cached = self._partitions.get(key)
        if cached is None:
            return True
        sent = (cached.high_watermark, cached.log_start_offset)
        cached.high_watermark, cached.log_start_offset = part["high_watermark"], part["log_start_offset"]
        if part["error_code"] is not NO_ERROR:
            cached.high_watermark = NO_OFFSET  # so that the end of the error is news, too
            return True
        if part["records"]:
            # The partitions that have given records go to the end of the queue, so that none is starved.
            self._partitions[key] = self._partitions.pop(key)
            return True
        return sent != (cached.high_watermark, cached.log_start_offset)


def _next(epoch: int) -> int:
    # 0 and -1 have meanings of their own (FetchMetadata.nextEpoch).
    return 1 if epoch == _EPOCH_MAX else epoch + 1


def _ref(topic: Any) -> TopicRef:
    return topic.topic_id if hasattr(topic, "topic_id") else topic.topic


def _ref_of_values(topic: Mapping[str, Any]) -> TopicRef:
    return topic["topic_id"] if "topic_id" in topic else topic["topic"]


def _wanted(topics: Iterable[Any]) -> dict[_Key, WantedPartition]:
    return {
        (_ref(topic), part.partition): WantedPartition(
            part.partition,
            getattr(part, "current_leader_epoch", NO_LEADER_EPOCH),
            part.fetch_offset,
            part.partition_max_bytes,
        )
        for topic in topics
        for part in topic.partitions
    }


def _size(keys: Iterable[_Key]) -> int:
    return sum(1 + len(ref) // _NAME_LENGTH if isinstance(ref, str) else 1 for ref, _ in keys)


def _by_topic(parts: Iterable[tuple[_Key, WantedPartition]]) -> tuple[WantedTopic, ...]:
    # In the order of the session, so a topic may occur several times.
    runs = groupby(parts, key=lambda each: each[0][0])
    return tuple(WantedTopic(ref, ref, tuple(part for _, part in its)) for ref, its in runs)
