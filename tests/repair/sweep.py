"""Bytes flipped and files removed, one and two at a time, and repaired: `python -m tests.repair.sweep [SEED]`
flips every byte, and damages every two files.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from typing import NamedTuple

from fencepost.journal.data_directory import META_FILE
from fencepost.journal.storage import StorageError
from fencepost.protocol.terms import METADATA_PARTITION
from tests.broker.test_every_byte import DamagedStory, disk_with, written
from tests.repair.judging import Repaired, Seen, goes_on, repaired, seen_by_readers


@cache
def whole_files() -> dict[str, bytes]:
    return written()


@cache
def whole() -> Seen:
    return seen_by_readers(DamagedStory.over(disk_with(whole_files())))


def after_flip(path: str, at: int, bit: int) -> Repaired:
    flipped = bytearray(whole_files()[path])
    flipped[at] ^= 1 << bit
    return repaired(disk_with({**whole_files(), path: bytes(flipped)}), whole())


def after_removal(path: str) -> Repaired:
    return repaired(disk_with({name: data for name, data in whole_files().items() if name != path}), whole())


def after_loss_of(directory: str, files: dict[str, bytes]) -> Repaired:
    left = {name: data for name, data in files.items() if not name.startswith(f"{directory}/")}
    return repaired(disk_with(left), whole())


def places() -> list[tuple[str, int]]:
    """Every byte of every file."""
    return [(path, at) for path, content in whole_files().items() for at in range(len(content))]


def sweep(seed: int, places: list[tuple[str, int]]) -> tuple[Counter[str], list[str]]:
    """One bit of each byte: how many repairs of each kind, and what is wrong."""
    random_, kinds, wrong = random.Random(seed), Counter[str](), list[str]()
    for path, at in places:
        bit = random_.randrange(8)
        result = after_flip(path, at, bit)
        kinds.update({damage.kind for damage in result.plan.damages} or {"none"})
        complaints = result.complaints or ([] if goes_on(result.story) else ["no new transaction commits"])
        wrong += [f"{path} {at} bit {bit}: {complaint}" for complaint in complaints]
    return kinds, wrong


class Damage(NamedTuple):
    """A file, or the directory of a log, and one flipped bit of it; it is gone without one."""

    path: str
    flipped: tuple[int, int] | None = None

    def after(self, files: dict[str, bytes]) -> dict[str, bytes]:
        if self.flipped is None:
            return {path: data for path, data in files.items() if not f"{path}/".startswith(f"{self.path}/")}
        at, bit = self.flipped
        changed = bytearray(files[self.path])
        changed[at] ^= 1 << bit
        return {**files, self.path: bytes(changed)}


def damages(seed: int, paths: Iterable[str]) -> list[Damage]:
    """Each of these files flipped at one of its bytes, each removed, and each directory removed."""
    random_, found = random.Random(seed), list[Damage]()
    for path in paths:
        found.append(Damage(path))
        size = len(whole_files()[path])
        if size:
            found.append(Damage(path, (random_.randrange(size), random_.randrange(8))))
    return [*found, *map(Damage, sorted({path.partition("/")[0] for path in paths if "/" in path}))]


def sweep_pairs(damages: list[Damage]) -> tuple[int, list[str]]:
    """Every two damages of which none is inside the other: how many pairs, and what is wrong."""
    number, wrong = 0, list[str]()
    for one, other in combinations(damages, 2):
        if one.path.startswith(other.path) or other.path.startswith(one.path):
            continue
        try:
            complaints = repaired(disk_with(one.after(other.after(whole_files()))), whole()).complaints
        except StorageError as problem:
            complaints = [str(problem)]
            if {one.path, other.path} == {META_FILE, str(METADATA_PARTITION)}:
                continue  # nothing is left that says what the directory is
        number += 1
        wrong += [f"{one} and {other}: {complaint}" for complaint in complaints]
    return number, wrong


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    found, complaints = sweep(seed, places())
    for kind, number in found.most_common():
        print(f"{number:6} {kind}")
    pairs, more = sweep_pairs(damages(seed, whole_files()))
    print("\n".join(complaints + more))
    print(f"{len(places())} bytes flipped and repaired, {len(complaints)} wrong")
    print(f"{pairs} pairs of damages repaired, {len(more)} wrong")
    sys.exit(bool(complaints + more))
