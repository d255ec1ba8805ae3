"""The manifest: what it says is there, half of one is none, and readers may go on from it by walking."""

import pytest

from fencepost.journal.indexes import AbortedRange, CorruptIndex
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    CHECKPOINT_VERSION,
    MANIFEST_FILE,
    MANIFEST_VERSION,
    ManifestState,
    MisplacedFile,
    SegmentSummary,
    decode_manifest,
    encode_json,
)
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import NO_PRODUCER_ID
from tests.journal.logs import DIRECTORY, new_writer, open_journal
from tests.python_calls import calls_of

PATH = f"{DIRECTORY}/{MANIFEST_FILE}"
SEGMENTS = 200


def read(storage: StorageReader) -> bytes:
    data = storage.read_file(PATH)
    assert data is not None
    return data


def test_a_manifest_tells_segments_bounds_and_open_transactions() -> None:
    storage, writer = new_writer()
    first = writer.plain(2, timestamp=3_000)
    writer.roll()
    second = writer.data(7, timestamp=2_000)
    open_ = tuple(writer.transactions)
    writer.journal.write_manifest(
        ManifestState(last_stable_offset=2, high_watermark=3, open_transactions=open_)
    )
    manifest = decode_manifest(read(storage), directory=DIRECTORY)
    assert manifest.segments == (
        SegmentSummary(
            base_offset=0, end_offset=2, bytes=first.size, max_timestamp=3_000, last_crc=first.crc
        ),
        SegmentSummary(
            base_offset=2, end_offset=3, bytes=second.size, max_timestamp=2_000, last_crc=second.crc
        ),
    )
    assert manifest.open_transactions == (OpenTransaction(2, 7, 0),)
    assert (manifest.log_start_offset, manifest.last_stable_offset, manifest.high_watermark) == (0, 2, 3)
    assert manifest.log_end_offset == 3


def test_a_reader_goes_on_from_a_manifest_by_walking() -> None:
    """The last stable offset of later batches follows from the open transactions that the manifest names."""
    storage, writer = new_writer()
    writer.data(7)
    writer.data(8)
    open_ = tuple(writer.transactions)
    writer.journal.write_manifest(
        ManifestState(last_stable_offset=0, high_watermark=2, open_transactions=open_)
    )
    writer.commit(7)
    writer.plain()
    manifest = decode_manifest(read(storage), directory=DIRECTORY)
    transactions = OpenTransactions(manifest.open_transactions)
    assert transactions.first_offset == manifest.last_stable_offset
    for header, batch in writer.journal.segments.batches(manifest.log_end_offset):
        transactions.update(header, batch)
    assert transactions.first_offset == 1
    assert list(transactions) == [OpenTransaction(1, 8, 0)]


def test_a_transactional_batch_without_a_producer_id_opens_no_transaction() -> None:
    """No marker could end it. A broker accepts it, as Kafka does."""
    _, writer = new_writer()
    writer.data(NO_PRODUCER_ID)
    assert list(writer.transactions) == []
    writer.data(7)
    writer.abort(7)
    assert writer.journal.segments.aborted_between(0, upper=3) == [
        AbortedRange(7, 1, 2, last_stable_offset=3)
    ]


def test_a_manifest_comes_after_the_index_entries_of_what_it_describes() -> None:
    storage, writer = new_writer()
    for _ in range(5):
        writer.plain(size=3_000)
    assert storage.files(DIRECTORY)[f"{0:020d}.index"] == 0
    writer.journal.write_manifest(ManifestState(last_stable_offset=0, high_watermark=5))
    assert storage.files(DIRECTORY)[f"{0:020d}.index"] == 16
    writer.journal.write_manifest(ManifestState(last_stable_offset=0, high_watermark=5))
    assert storage.files(DIRECTORY)[f"{0:020d}.index"] == 16


@pytest.mark.parametrize(("stable", "watermark"), [(0, 2), (2, 1)])
def test_a_manifest_never_promises_more_than_there_is(stable: int, watermark: int) -> None:
    _, writer = new_writer()
    writer.plain()
    with pytest.raises(AssertionError, match="goes beyond the log end 1"):
        writer.journal.write_manifest(ManifestState(last_stable_offset=stable, high_watermark=watermark))


def test_half_a_manifest_is_none() -> None:
    storage, writer = new_writer()
    writer.data(7)
    writer.journal.write_manifest(
        ManifestState(last_stable_offset=0, high_watermark=1, open_transactions=tuple(writer.transactions))
    )
    whole = read(storage)
    for size in range(len(whole.rstrip())):
        with pytest.raises(CorruptIndex):
            decode_manifest(whole[:size], directory=DIRECTORY)
        with pytest.raises(CorruptIndex):
            decode_manifest(whole[:size] + bytes(len(whole) - size), directory=DIRECTORY)


@pytest.mark.parametrize(
    "content",
    [b"[]", b"7", b"{}", b'{"format": 1}', b'{"format": 5}', b'{"format": 5, "segments": 7}', b"\xff"],
)
def test_a_manifest_without_sense_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptIndex):
        decode_manifest(content, directory=DIRECTORY)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "is not JSON: "),
        (b'{"format": 5, "segments": ' + b"[" * 100_000, "is not JSON: "),
        (b'{"format": 1, "segments": []}', "has format 1; this version reads format 5"),
        (b'{"format": 5, "segments": []}', "has no checksum"),
        (b'{"format": 5, "segments": [], "checksum": 1}', "does not name its own path: another program"),
    ],
)
def test_a_manifest_is_refused_in_words(content: bytes, words: str) -> None:
    with pytest.raises(CorruptIndex, match=words):
        decode_manifest(content, directory=DIRECTORY)


def test_a_manifest_of_any_depth_is_refused() -> None:
    for depth in range(700, 1_000):  # up to what can be read, but not written
        content = b'{"format": 3, "segments": ' + b"[" * depth + b"]" * depth
        content += b', "file": "x", "checksum": 1}'
        with pytest.raises(CorruptIndex):
            decode_manifest(content, directory=DIRECTORY)


def test_a_flipped_bit_is_damage_and_names_no_other_directory() -> None:
    storage, writer = new_writer()
    writer.journal.write_manifest(ManifestState(last_stable_offset=0, high_watermark=0))
    whole = read(storage)
    for at in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptIndex) as caught:
            decode_manifest(bytes(damaged), directory=DIRECTORY)
        assert caught.type is CorruptIndex
    other = encode_json({"format": MANIFEST_VERSION}, place=f"other-0/{MANIFEST_FILE}")
    with pytest.raises(MisplacedFile, match=f"{PATH} was written as other-0/{MANIFEST_FILE}"):
        decode_manifest(other, directory=DIRECTORY)


def test_a_small_file_of_another_kind_is_misplaced_too() -> None:
    """Its format has another number, as that of a damaged file may have."""
    other = encode_json({"format": CHECKPOINT_VERSION}, place=f"{DIRECTORY}/{CHECKPOINT_FILE}")
    with pytest.raises(MisplacedFile, match=f"{PATH} was written as {DIRECTORY}/{CHECKPOINT_FILE}"):
        decode_manifest(other, directory=DIRECTORY)


def test_recovery_never_reads_the_manifest() -> None:
    storage, writer = new_writer()
    writer.plain(2)
    storage.replace(PATH, b"nonsense", durable=False)
    assert open_journal(storage).log_end_offset == 2


def test_a_manifest_costs_what_was_written_since_the_last_one() -> None:
    """A log may have thousands of segments, and its manifest is replaced five times in a second."""
    storage, writer = new_writer()
    for _ in range(SEGMENTS):
        writer.plain()
        writer.roll()

    def write() -> None:
        end = writer.journal.log_end_offset
        writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))

    write()
    last = writer.plain()
    assert calls_of(write) < 2 * SEGMENTS, "little more than a look at each segment"
    written = decode_manifest(read(storage), directory=DIRECTORY).segments[-1]
    assert (written.end_offset, written.last_crc) == (last.next_offset, last.crc)


def test_the_manifest_of_a_roll_costs_no_more() -> None:
    """It lists a new segment and a new snapshot, and all the others as before."""
    storage, writer = new_writer()
    for _ in range(SEGMENTS):
        writer.plain()
        writer.roll()
    end = writer.journal.log_end_offset
    writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
    writer.plain()
    assert calls_of(writer.roll) < 4 * SEGMENTS
    written = decode_manifest(read(storage), directory=DIRECTORY)
    assert [each.offset for each in written.snapshots] == [*range(1, SEGMENTS + 2)]


def test_a_checkpoint_costs_what_was_synced_since_the_last_one() -> None:
    _, writer = new_writer()
    for _ in range(SEGMENTS):
        writer.plain()
        writer.roll()
    writer.journal.sync()
    writer.plain()
    writer.roll()
    assert calls_of(writer.journal.sync) < SEGMENTS
