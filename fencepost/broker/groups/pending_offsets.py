"""Offsets that wait for the markers of their transactions (OffsetMetadataManager.openTransactions).

Rule: a question about one group or one key looks at no other. A request may delete thousands of groups, and
each of them may have offsets in open transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

import attrs

from fencepost.protocol.fork import Ignored
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord


class Committed(NamedTuple):
    """A committed or pending offset, and the offset of its record in the log: the later record wins
    (OffsetMetadataManager).
    """

    record: OffsetRecord
    written_at: int


@attrs.define(eq=False)
class PendingOffsets:
    """Pending offsets by producer id. `_producers` holds the same keys by group, each with the ids of the
    producers that wrote it.
    """

    _offsets: dict[int, dict[OffsetKey, Committed]] = attrs.Factory(dict[int, dict[OffsetKey, Committed]])
    _producers: Ignored[dict[str, dict[OffsetKey, set[int]]]] = attrs.Factory(
        dict[str, dict[OffsetKey, set[int]]]
    )

    def put(self, producer_id: int, key: OffsetKey, committed: Committed) -> None:
        self._offsets.setdefault(producer_id, {})[key] = committed
        self._producers.setdefault(key.group_id, {}).setdefault(key, set()).add(producer_id)

    def pop(self, producer_id: int) -> dict[OffsetKey, Committed]:
        """The offsets of a producer, which wait no longer."""
        ended = self._offsets.pop(producer_id, {})
        for key in ended:
            producers = self._producers[key.group_id][key]
            producers.remove(producer_id)
            if not producers:
                self._forget(key)
        return ended

    def discard(self, key: OffsetKey) -> None:
        """Drop the offsets of this key, whoever wrote them."""
        for producer_id in self._forget(key):
            of_producer = self._offsets[producer_id]
            del of_producer[key]
            if not of_producer:
                del self._offsets[producer_id]

    def _forget(self, key: OffsetKey) -> set[int]:
        """The producers that wrote the key, which is pending no longer."""
        of_group = self._producers.get(key.group_id, {})
        producers = of_group.pop(key, set[int]())
        if not of_group:
            self._producers.pop(key.group_id, None)
        return producers

    def keys(self, group_id: str) -> Set[OffsetKey]:
        """The keys of the group that have a pending offset."""
        return self._producers.get(group_id, {}).keys()

    def records(self) -> Iterator[tuple[OffsetKey, OffsetRecord]]:
        """Every pending offset; several may have one key."""
        for offsets in self._offsets.values():
            for key, offset in offsets.items():
                yield key, offset.record
