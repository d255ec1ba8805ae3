"""Record batches for Kafka's clients, which read Kafka's own encoding (magic 2) alone.

Rule: a batch that Kafka's clients can read leaves as it is stored. A batch of columns is encoded again, and
the limits of a Fetch count the bytes that it then takes.
"""

# Theory of operation
#
# Encoded again, columns take more bytes than in the log: a little more if they are stored as they are, and
# up to thousands of times more if they were compressed. So one batch after the other is encoded, and the
# first that does not fit ends the response. Its reader asks again from there. As in Kafka, the first batch of
# a response may exceed the limits (KIP-74); if that batch is large, a part of it counts as the batch
# (column_batches.py).
#
# Encoding takes a microsecond or two per record, and the broker does nothing else meanwhile. So this work is
# counted in records, and bounded twice: here for a Fetch, and in broker/reads.py for all Fetches of a round.
# A batch that cannot be encoded is paid for, too; otherwise a Fetch could try one in each of its partitions.

from __future__ import annotations

from threading import Lock
from typing import Final

import attrs

from fencepost.kafka_bridge.column_batches import (
    SMALL_COUNT_MAX,
    SMALL_SIZE_MAX,
    decompressed,
    encode_part,
    encode_whole,
    headers_size,
)
from fencepost.protocol.batch_work import BYTES_PER_OBJECT, BYTES_PER_WORK, ROUND_WORK_MAX
from fencepost.protocol.batches import HEADER_SIZE, MAGIC_COLUMNS, BatchHeader, Buffer, check, walk
from fencepost.protocol.compression import DecompressedTooLarge
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import TopicPartition

RECENT_BYTES_MAX: Final = 8 << 20  # memory.py counts them with the program


@attrs.define(eq=False)
class RecentBatches:
    """Small batches that were encoded recently, as they are stored and as they leave: several readers follow
    the end of a log. All brokers of a process share them, each of them in a thread of its own.
    """

    limit: int
    held: int = 0  # bytes
    _encoded: dict[bytes, Buffer] = attrs.Factory(dict[bytes, Buffer])  # the one that was used last is last
    _lock: Lock = attrs.Factory(Lock)

    def get(self, batch: bytes) -> Buffer | None:
        """How a batch leaves, if that is still known."""
        with self._lock:
            found = self._encoded.pop(batch, None)
            if found is not None:
                self._encoded[batch] = found
            return found

    def put(self, batch: bytes, encoded: Buffer) -> None:
        """Keep a batch, and forget those that have gone unused the longest."""
        with self._lock:
            # Another thread may have encoded it meanwhile.
            if batch not in self._encoded:
                self.held += len(batch) + len(encoded)
            self._encoded[batch] = encoded
            while self.held > self.limit:
                oldest = next(iter(self._encoded))
                self.held -= len(oldest) + len(self._encoded.pop(oldest))


_recent: Final = RecentBatches(RECENT_BYTES_MAX)


@attrs.define(eq=False)
class KafkaEncoding:
    """The encoding of one Fetch, for one partition after the other."""

    work: int = 0

    def encode(
        self, stored: bytes, partition: TopicPartition, *, offset: int, max_bytes: int, is_first: bool
    ) -> Buffer:
        """The batches that were read from `offset` on, as far as they fit. A damaged batch ends them;
        ProtocolViolation if it is the first one.
        """
        view, kept, left, is_as_stored = memoryview(stored), list[Buffer](), max_bytes, True
        try:
            for at, header in walk(view):
                batch: Buffer = view[at : at + header.size]
                if header.magic == MAGIC_COLUMNS:
                    is_as_stored, must = False, is_first and not kept
                    encoded = self._encoded(batch, header, SMALL_SIZE_MAX if must else left)
                    if must and encoded is None:
                        # Nothing may follow a part: its reader continues in the middle of the stored batch.
                        size = max(left, SMALL_SIZE_MAX)
                        return self._part(batch, header, partition, offset=offset, size=size)
                    if encoded is None or (len(encoded) > left and not must):
                        break
                    batch = encoded
                elif not is_as_stored and header.size > left:
                    # As long as everything leaves as it is stored, the read has kept to the limit.
                    break
                kept.append(batch)
                left -= len(batch)
        except ProtocolViolation:
            if not kept:
                raise
            is_as_stored = False
        return stored if is_as_stored else b"".join(kept)

    def _encoded(self, stored: Buffer, header: BatchHeader, size_max: int) -> Buffer | None:
        """A small batch of columns as Kafka's; None if it is large, or surely takes more than `size_max`."""
        is_large = header.size > HEADER_SIZE + SMALL_SIZE_MAX or header.record_count > SMALL_COUNT_MAX
        if is_large or size_max <= 0 or self.work >= ROUND_WORK_MAX:
            return None
        # A copy, as it is the key of a dictionary that outlives the read.
        batch = bytes(stored)
        encoded = _recent.get(batch)
        if encoded is not None:
            return encoded
        check(batch, 0, header)  # what is encoded gets a checksum of its own, which would hide the damage
        limit = min(size_max, SMALL_SIZE_MAX)
        try:
            payload = decompressed(batch, header, limit=limit)
        except DecompressedTooLarge:
            self.work += limit // BYTES_PER_WORK
            return None
        try:
            self.work += header.record_count + headers_size(payload, header) // BYTES_PER_OBJECT
            encoded = encode_whole(payload, header)
        except ProtocolViolation:
            self.work += len(payload) // BYTES_PER_OBJECT
            raise
        self.work += len(encoded) // BYTES_PER_WORK
        _recent.put(batch, encoded)
        return encoded

    def _part(
        self, batch: Buffer, header: BatchHeader, partition: TopicPartition, *, offset: int, size: int
    ) -> Buffer:
        """A large batch, from this offset on."""
        check(batch, 0, header)
        # As much as a round allows: all of the batch is decompressed, and a Fetch gets one part.
        self.work += ROUND_WORK_MAX
        return encode_part(batch, header, partition, offset=offset, size=size)
