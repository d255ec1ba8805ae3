"""Files of another log that an operator put in the place of others, or after its end, while no broker ran."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from fencepost import Admin, Broker, Producer
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.disk import DiskStorage
from fencepost.journal.manifest import CLEAN_FILE, LOG_START_FILE, MANIFEST_FILE, decode_manifest
from fencepost.journal.storage import ReplacedFile
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.requests import ORDERS
from tests.broker.wire import PATIENCE_S
from tests.reading import records
from tests.topics import create_topic

DIRECTORY = str(ORDERS)
SEGMENT_BYTES = 1 << 20


def filled(directory: Path, values: list[bytes], *, stops: bool) -> Path:
    """The directory of a broker that has written these records, and then stopped or was killed."""
    live = directory.with_suffix(".live")
    with Broker(live) as broker:
        create_topic(broker.address, "orders", configs={"segment.bytes": str(SEGMENT_BYTES)})
        with Producer(broker.address) as producer:
            for value in values:
                producer.send("orders", value).result()
        path, patience = live / DIRECTORY / MANIFEST_FILE, time.monotonic() + PATIENCE_S
        while not path.exists() or _end(path) < len(values):
            assert time.monotonic() < patience, "the broker writes no manifest"
            read(broker)
        if not stops:
            shutil.copytree(live, directory)  # what a kill would leave
    if stops:
        live.rename(directory)
    return directory


def _end(manifest: Path) -> int:
    return decode_manifest(manifest.read_bytes(), directory=DIRECTORY).high_watermark


def read(broker: Broker) -> list[bytes | None]:
    """The values from the beginning of the topic to its end; none if the broker does not serve it."""
    with Admin(broker.address) as admin:
        if ORDERS in admin.broker_status(1).unserved:
            return []
    return [record.value for record in records(broker.address, [ORDERS])]


def served(directory: Path) -> list[bytes | None]:
    with Broker(directory) as broker:
        return read(broker)


def logs(directory: Path) -> list[Path]:
    return sorted((directory / DIRECTORY).glob("*.log"))


def problems(directory: Path) -> list[tuple[str, str]]:
    """What `fencepost check` finds, by file."""
    found = check_directory(DiskStorage(directory, read_only=True)).found
    return [(each.file, each.what) for each in found if each.severity is Severity.PROBLEM]


def repair(directory: Path) -> None:
    storage = DiskStorage(directory)
    storage.lock()
    try:
        perform(storage, make_plan(storage))
    finally:
        storage.unlock()


def test_a_segment_of_another_cluster_that_continues_a_log_after_a_kill_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, last = logs(filled(tmp_path / "theirs", [b"t" * 100_000] * 12, stops=False))
    values = [b"mine"] * int(last.stem)
    mine = filled(tmp_path / "mine", values, stops=False)
    for path in last.parent.glob(f"{last.stem}.*"):
        shutil.copy(path, mine / DIRECTORY)
    killed = shutil.copytree(mine, tmp_path / "killed")
    assert served(mine) == []
    assert f"{last.name} was not written here, since {MANIFEST_FILE} does not list it" in caplog.text
    assert (f"{DIRECTORY}/{last.name}", f"{MANIFEST_FILE} does not list it") in problems(killed)
    repair(killed)
    assert (killed / f"{DIRECTORY}~1" / last.name).read_bytes() == last.read_bytes()
    assert served(killed) == values


@pytest.mark.parametrize(
    ("stops", "value", "witness"),
    # All have the offsets that were promised. Longer; of the same size, with the same indexes; and shorter.
    [
        (False, b"theirs", f"{DIRECTORY}/{MANIFEST_FILE}"),
        (True, b"your", CLEAN_FILE),
        (False, b"her", f"{DIRECTORY}/{MANIFEST_FILE}"),
        (True, b"her", CLEAN_FILE),
    ],
)
def test_the_log_file_of_another_cluster_is_not_served_in_the_place_of_the_last_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes, witness: str, *, stops: bool
) -> None:
    (other,) = logs(filled(tmp_path / "theirs", [value] * 3, stops=stops))
    mine = filled(tmp_path / "mine", [b"mine"] * 3, stops=stops)
    (file,) = logs(mine)
    right = shutil.copy(file, tmp_path)
    shutil.copy(other, file)
    advice = f"{DIRECTORY}/{file.name} is not the file that {witness} describes, so this log is not served"
    assert (f"{DIRECTORY}/{file.name}", f"it is not the file that {witness} describes") in problems(mine)
    with pytest.raises(ReplacedFile, match=advice):
        repair(mine)
    assert served(mine) == []
    assert advice in caplog.text
    assert f"To keep the file that is there, remove {witness}" in caplog.text
    assert file.read_bytes() == other.read_bytes()
    shutil.copy(right, file)
    assert served(mine) == [b"mine"] * 3
    shutil.copy(other, file)
    for name in (CLEAN_FILE, f"{DIRECTORY}/{MANIFEST_FILE}"):  # as the advice says, one after the other
        (mine / name).unlink()
    assert served(mine) == [value] * 3


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize(
    ("sizes", "pattern"),
    # With the indexes that are there, with the same positions and with others; and with its own.
    [([100_000] * 11, "*.log"), ([*[99_000, 101_000] * 5, 100_000], "*.log"), ([98_000] * 11, "*")],
)
def test_a_full_segment_of_another_cluster_is_not_served_in_the_place_of_an_older_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sizes: list[int], pattern: str, *, stops: bool
) -> None:
    theirs = filled(tmp_path / "theirs", [b"t" * size for size in (*sizes, 1)], stops=stops)
    mine = filled(tmp_path / "mine", [b"m" * 100_000] * 23, stops=stops)
    first, *_ = logs(mine)
    right = shutil.copy(first, tmp_path)
    for path in (theirs / DIRECTORY).glob(f"{first.stem}{pattern}"):
        shutil.copy(path, mine / DIRECTORY)
    witness = f"{DIRECTORY}/{MANIFEST_FILE}"
    advice = f"{DIRECTORY}/{first.name} is not the file that {witness} describes, so this log is not served"
    assert (f"{DIRECTORY}/{first.name}", f"it is not the file that {witness} describes") in problems(mine)
    with pytest.raises(ReplacedFile, match=advice):
        repair(mine)
    assert served(mine) == []
    assert advice in caplog.text
    shutil.copy(right, first)
    assert served(mine)[0] == b"m" * 100_000


@pytest.mark.parametrize("has_manifest", [True, False])
def test_the_log_start_of_another_cluster_deletes_no_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_manifest: bool
) -> None:
    theirs = filled(tmp_path / "theirs", [b"theirs"] * 3, stops=True)
    with Broker(theirs) as broker, Admin(broker.address) as admin:
        admin.delete_records({ORDERS: 2})
    mine = filled(tmp_path / "mine", [b"mine"] * 3, stops=True)
    shutil.copy(theirs / DIRECTORY / LOG_START_FILE, mine / DIRECTORY)
    if has_manifest:
        assert f"{DIRECTORY}/{LOG_START_FILE}" in [file for file, _ in problems(mine)]
    else:
        (mine / DIRECTORY / MANIFEST_FILE).unlink()
    killed = shutil.copytree(mine, tmp_path / "killed")
    with Broker(mine) as broker:
        assert read(broker) == []
    assert f"{LOG_START_FILE} is damaged (it was written for a topic with id" in caplog.text
    repair(killed)
    assert served(killed) == [b"mine"] * 3
