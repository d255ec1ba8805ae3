"""Bytes flipped and files removed, one at a time, each repaired: `python -m tests.repair.sweep [SEED]` flips
every byte.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from functools import cache

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


if __name__ == "__main__":
    found, complaints = sweep(int(sys.argv[1]) if len(sys.argv) > 1 else 1, places())
    for kind, number in found.most_common():
        print(f"{number:6} {kind}")
    print("\n".join(complaints))
    print(f"{len(places())} bytes flipped and repaired, {len(complaints)} wrong")
    sys.exit(bool(complaints))
