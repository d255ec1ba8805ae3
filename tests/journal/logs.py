"""Logs for tests: a writer that fills a journal as a leader would, and small ways to damage one."""

from fencepost.journal.indexes import AbortedRange, ProducerSnapshot
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import ManifestState, SyncedSegment
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.storage import Storage
from fencepost.protocol.batches import BatchHeader, Buffer, build_marker, place, read_header
from fencepost.protocol.record_times import first_record_since
from fencepost.protocol.records import build_data_batch, payload_of
from fencepost.protocol.terms import TopicPartition, TransactionResult

ORDERS = TopicPartition("orders", 0)
DIRECTORY = "orders-0"
EVERYTHING = 1 << 40  # more bytes or offsets than any log here has


def first_since(
    journal: Journal, timestamp: int, from_offset: int | None = None
) -> tuple[int, int, int] | None:
    """Timestamp, offset and leader epoch of the first record since a time, from an offset on."""
    start = journal.log_start_offset if from_offset is None else from_offset
    for header, batch in journal.segments.batches_since(timestamp, from_offset=start):
        found = first_record_since(payload_of(batch, header), header, timestamp, from_offset=start)
        if found is not None:
            return found.timestamp, found.offset, header.leader_epoch
    return None


class Writer:
    """Appends to a journal what a leader would: batches placed at the end, and for an abort what it
    aborts."""

    def __init__(self, journal: Journal, *, leader_epoch: int = 0) -> None:
        self.journal = journal
        self.leader_epoch = leader_epoch
        self.transactions = OpenTransactions()
        self.last_batches: dict[int, BatchHeader] = {}
        for header, batch in journal.segments.batches(0):
            self._see(header, batch)

    def plain(self, records: int = 1, *, timestamp: int = 1_000, size: int = 10) -> BatchHeader:
        """Records of no producer."""
        values = [b"v" * size] * records
        return self.append(build_data_batch(values, base_timestamp=timestamp))

    def data(
        self, producer_id: int, records: int = 1, *, timestamp: int = 1_000, size: int = 10
    ) -> BatchHeader:
        """Records of a transaction."""
        values = [b"t" * size] * records
        return self.append(
            build_data_batch(
                values,
                base_timestamp=timestamp,
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
            )
        )

    def commit(self, producer_id: int, *, timestamp: int = 1_000) -> BatchHeader:
        return self._marker(TransactionResult.COMMIT, producer_id, timestamp)

    def abort(self, producer_id: int, *, timestamp: int = 1_000) -> BatchHeader:
        return self._marker(TransactionResult.ABORT, producer_id, timestamp)

    def _marker(self, result: TransactionResult, producer_id: int, timestamp: int) -> BatchHeader:
        return self.append(
            build_marker(
                result, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=timestamp
            )
        )

    def append(self, batch: bytearray) -> BatchHeader:
        place(batch, base_offset=self.journal.log_end_offset, leader_epoch=self.leader_epoch)
        header = read_header(batch)
        aborted = self._see(header, batch)
        self.journal.append(batch, header, leader_epoch=self.leader_epoch, aborted=aborted)
        return header

    def _see(self, header: BatchHeader, batch: Buffer) -> AbortedRange | None:
        if not header.is_control:
            self.last_batches[header.producer_id] = header
        return self.transactions.update(header, batch)

    def roll(self) -> None:
        self.journal.roll(self.producers())

    def producers(self) -> list[ProducerSnapshot]:
        """What a snapshot says of the transactions that are open."""
        last = self.last_batches
        return [
            ProducerSnapshot(
                producer_id=open_.producer_id,
                producer_epoch=open_.producer_epoch,
                last_sequence=last[open_.producer_id].last_sequence,
                last_offset=last[open_.producer_id].last_offset,
                offset_delta=last[open_.producer_id].last_offset_delta,
                timestamp=0,
                coordinator_epoch=0,
                first_offset=open_.first_offset,
            )
            for open_ in self.transactions
        ]


def open_journal(
    storage: Storage, *, settings: JournalSettings | None = None, clean_mark: SyncedSegment | None = None
) -> Journal:
    """The journal that these tests are about."""
    return Journal(storage, ORDERS, settings=settings, clean_mark=clean_mark)


def new_writer() -> tuple[MemoryStorage, Writer]:
    """An empty log in memory."""
    storage = MemoryStorage()
    return storage, Writer(open_journal(storage))


def offsets(journal: Journal) -> list[int]:
    """Base offsets of all batches."""
    return [header.base_offset for header, _ in journal.segments.batches(0)]


def content(journal: Journal) -> bytes:
    """The whole log as one run of bytes."""
    return b"".join(batch for _, batch in journal.segments.batches(0))


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """The same files, so that one log can be damaged many times."""
    copied = MemoryStorage()
    for directory in storage.directories():
        copied.make_directory(directory)
        for name in storage.files(directory):
            copied.replace(
                f"{directory}/{name}", storage.read_file(f"{directory}/{name}") or b"", durable=False
            )
    return copied


def files_of(storage: Storage, kind: str) -> list[str]:
    """Paths of a partition's files of one kind, in the order of their offsets."""
    return [f"{DIRECTORY}/{name}" for name in storage.files(DIRECTORY) if name.endswith(f".{kind}")]


def flip(storage: Storage, path: str, at: int) -> None:
    """Changes one byte of a file."""
    data = bytearray(storage.read_file(path) or b"")
    data[at] ^= 0xFF
    storage.replace(path, data, durable=False)


def cut(storage: Storage, path: str, size: int) -> None:
    """Leaves the first bytes of a file."""
    storage.replace(path, (storage.read_file(path) or b"")[:size], durable=False)


def a_log(storage: Storage) -> Writer:
    return a_log_of(open_journal(storage))


def a_log_of(journal: Journal) -> Writer:
    """Three segments; one transaction aborts across two of them, one is open at the end. Not closed."""
    writer = Writer(journal)
    writer.plain(2, size=3_000, timestamp=1_000)
    writer.data(7, 3, size=3_000, timestamp=2_000)
    writer.data(8, 1)
    writer.abort(8)
    writer.plain(1, size=3_000, timestamp=3_000)
    writer.roll()
    writer.plain(2, size=5_000, timestamp=2_500)
    writer.abort(7)
    writer.data(9, 1)
    writer.roll()
    writer.plain(2, size=5_000, timestamp=4_000)
    writer.data(10, 2)
    writer.abort(9)
    return writer


def a_log_in_memory() -> tuple[MemoryStorage, Writer]:
    storage = MemoryStorage()
    return storage, a_log(storage)


def crash(writer: Writer) -> None:
    writer.journal.abandon()


def close(writer: Writer) -> None:
    end = writer.journal.log_end_offset
    state = ManifestState(
        last_stable_offset=0, high_watermark=end, open_transactions=tuple(writer.transactions)
    )
    writer.journal.close(state, writer.producers())
