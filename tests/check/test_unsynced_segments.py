"""After a loss of power a log may end in the middle, with later segments after it. A start cuts the log off
there, unless a sync had promised more; the check and a repair say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.check.meanings import REBUILT
from fencepost.check.scan import TORN, UNSYNCED
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import DamagedLog
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.requests import ORDERS, identity_of, init_request
from tests.check.directories import BIG, SMALL, Directory, Teller

MANIFEST = f"{ORDERS}/manifest.json"
CHECKPOINT = f"{ORDERS}/checkpoint.json"


@cache
def _written(*, is_synced: bool) -> MemoryStorage:
    teller = Teller()
    plain = identity_of(teller.story.ask(init_request(None)))
    for sequence in range(15):
        teller.write(plain, BIG, sequence=sequence, name=None)
    for sequence in range(2):
        teller.write(plain, BIG, key=SMALL, sequence=sequence, name=None)
    if is_synced:
        teller.story.host.directory.journal(ORDERS).sync()
    teller.story.host.write_manifests()
    teller.story.kill()
    assert isinstance(teller.story.storage, MemoryStorage)
    return teller.story.storage


def without_power(*, is_synced: bool = False) -> Directory:
    """What a broker leaves when the machine loses its power: orders-0 has three segments."""
    disk = Directory(_written(is_synced=is_synced))
    disk.boot_id = "the next"
    return disk


def torn(disk: Directory) -> None:
    """The first segment lacks its last bytes."""
    disk.cut(disk.logs(str(ORDERS))[0], 7)


def zeroed(disk: Directory) -> None:
    """The size of the first segment was written, and not its last bytes."""
    path = disk.logs(str(ORDERS))[0]
    data = disk.get(path)
    disk.put(path, data[:-2_000] + bytes(2_000))


def shortened(disk: Directory) -> None:
    """The first segment ends between two batches."""
    path = disk.logs(str(ORDERS))[0]
    disk.put_batches(path, disk.batches(path)[:-1])


def emptied(disk: Directory) -> None:
    disk.put(disk.logs(str(ORDERS))[1], b"")


LOSSES = [torn, zeroed, shortened, emptied]


def problems(disk: Directory) -> list[str]:
    found = check_directory(disk).found
    return [each.file for each in found if each.severity is Severity.PROBLEM]


@pytest.mark.parametrize("lose", LOSSES)
def test_what_nothing_promised_is_cut_off_with_the_later_segments(lose: Callable[[Directory], None]) -> None:
    disk = without_power()
    *_, last = logs = disk.logs(str(ORDERS))
    assert len(logs) == 3
    lose(disk)
    found = [each for each in check_directory(disk).found if each.file.startswith(str(ORDERS))]
    assert {each.severity for each in found} == {Severity.NOTE}
    assert (last, UNSYNCED) in [(each.file, each.means) for each in found]
    if lose in (torn, zeroed):
        assert (logs[0], TORN) in [(each.file, each.means) for each in found]
    plan = make_plan(disk)
    assert plan.damages == []
    assert f"{last}: the log ends before it, and nothing promised to keep it; the next start removes it" in (
        plan.notes
    )
    journal = DataDirectory.open(disk).journal(ORDERS)
    assert journal.dropped is not None
    assert journal.log_end_offset <= 6, "the last segment begins at 12"
    assert last not in disk.logs(str(ORDERS))
    assert [each for each in check_directory(disk).found if each.file.startswith(str(ORDERS))] == []


def test_an_entry_of_an_index_may_be_torn_and_its_batch_lost() -> None:
    disk = without_power()
    torn(disk)
    index = disk.logs(str(ORDERS))[0].replace(".log", ".timeindex")
    disk.put(index, disk.get(index)[:-4] + bytes(4))
    assert [each.means for each in check_directory(disk).found if each.file == index] == [REBUILT]
    assert problems(disk) == []


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("witness", [MANIFEST, CHECKPOINT])
def test_what_a_sync_promised_is_not(lose: Callable[[Directory], None], witness: str) -> None:
    """A sync after the roll puts the first segment into the checkpoint before it returns, and so before an
    acknowledgement that waits for it. Either witness is enough.
    """
    disk = without_power(is_synced=True)
    disk.remove(CHECKPOINT if witness == MANIFEST else MANIFEST)
    lose(disk)
    assert [file for file in problems(disk) if file.startswith(str(ORDERS))]
    assert make_plan(disk).damages
    if (lose, witness) == (zeroed, CHECKPOINT):  # its sizes are right, so the file is not read
        assert DataDirectory.open(disk).journal(ORDERS).log_end_offset == 15
        return
    with pytest.raises(DamagedLog, match="run `fencepost repair"):
        DataDirectory.open(disk).journal(ORDERS)


@pytest.mark.parametrize("lose", LOSSES)
def test_no_death_of_a_process_explains_it(lose: Callable[[Directory], None]) -> None:
    disk = without_power()
    disk.boot_id = _written(is_synced=False).boot_id
    lose(disk)
    assert [file for file in problems(disk) if file.startswith(str(ORDERS))]
    assert make_plan(disk).damages
    with pytest.raises(DamagedLog):
        DataDirectory.open(disk).journal(ORDERS)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_repair_of_something_else_cuts_off_what_a_start_would(lose: Callable[[Directory], None]) -> None:
    disk = without_power()
    lose(disk)
    served = Directory(disk)
    served.boot_id = disk.boot_id
    end = DataDirectory.open(served).journal(ORDERS).log_end_offset
    later = [path for path in disk.logs(str(ORDERS)) if path not in served.logs(str(ORDERS))]
    kept = {path: disk.get(path) for path in later}
    disk.flip(disk.logs(str(SMALL))[0], 100)
    plan = make_plan(disk)
    assert [each.file for each in plan.damages] == disk.logs(str(SMALL))
    asides = perform(disk, plan)
    assert problems(disk) == []
    journal = DataDirectory.open(disk).journal(ORDERS)
    assert (journal.log_end_offset, journal.dropped) == (end, None)
    (aside,) = [name for name in asides if name.startswith(f"{ORDERS}~")]
    for path, data in kept.items():
        assert disk.get(f"{aside}/{path.rpartition('/')[2]}") == data


@pytest.mark.parametrize("lose", LOSSES)
def test_what_follows_damage_is_saved(lose: Callable[[Directory], None]) -> None:
    """A start refuses such a log. So no loss of power need be the reason that it ends early."""
    disk = without_power()
    first, second, third = disk.logs(str(ORDERS))
    whole = b"".join(map(disk.get, (first, second, third)))
    lose(disk)
    disk.flip(first, 100)
    perform(disk, make_plan(disk))
    assert problems(disk) == []
    assert DataDirectory.open(disk).journal(ORDERS).log_end_offset == 15
    assert whole.endswith(disk.get(third))


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_promises_without_a_manifest(count: int) -> None:
    disk = Directory(_written(is_synced=True))
    disk.remove(MANIFEST)
    assert problems(disk) == []
    for path in disk.logs(str(ORDERS))[-count:]:
        disk.remove(path)
    is_promised = count == 2  # the checkpoint lists full segments
    assert problems(disk) == [CHECKPOINT] * is_promised
    assert bool(make_plan(disk).damages) == is_promised
    if is_promised:
        with pytest.raises(DamagedLog, match="is missing"):
            DataDirectory.open(disk).journal(ORDERS)
