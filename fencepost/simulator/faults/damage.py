"""Damage to disks: which bytes change, which file vanishes, which read goes astray.

Rule: damage strikes only what a broker promised to notice, and each log only once.
"""

# Theory of operation. A log has no second copy, so a broker cannot repair it; it can only notice. What it
# must notice is what it has written down elsewhere:
#
#     manifest.json     "everything below this offset was written (or synced)"   at most 200 ms old
#     checkpoint.json   "these full segments were synced"
#
#     ├── promised: damage strikes here ──┤── the newest batches: a torn tail looks the same, no damage ──┤
#
# Damaging the same log again could destroy the evidence of the first damage. TigerBeetle's simulator draws
# the same line: it never damages all copies of a block. Every other file of the log may be struck at any
# time.
#
# What the damage may lead to is the judges' business (judges/damage.py): *detected or harmless, never wrong*.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from fencepost.faults.phrases import Action, ActionKind
from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.manifest import CHECKPOINT_FILE, MANIFEST_FILE, decode_checkpoint, decode_manifest
from fencepost.journal.segments import LOG, file_name, parse_file_name, walk_batches
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import TEMPORARY_SUFFIX, directory_name
from fencepost.protocol.batches import HEADER_SIZE
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.world.journals import ClusterJournals

SECTORS: Final = (512, 4096)  # bytes that a disk writes at once


class Damage(NamedTuple):
    """What is struck, in words, and the act that damages it."""

    what: str
    do: Callable[[], None]


class _Victim(NamedTuple):
    """A log's directory on its disk, and how many bytes of each file in it may be damaged; logs first."""

    journals: ClusterJournals
    partition: TopicPartition
    disk: SimulatedStorage
    directory: str
    files: Mapping[str, int]

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def damageable(journals: ClusterJournals) -> list[TopicPartition]:
    """The logs that have promised something and are not damaged yet, sorted."""
    return [where for where in sorted(journals.disks) if _victim(journals, where) is not None]


def damage_of(journals: ClusterJournals, where: TopicPartition, action: Action) -> Damage | None:
    """The damage that an action does to a log; None if there is nothing to damage."""
    victim = _victim(journals, where)
    return None if victim is None else _DAMAGES[action.kind](victim, action)


def _victim(journals: ClusterJournals, where: TopicPartition) -> _Victim | None:
    disk = journals.disks.get(where)
    if disk is None or where in journals.damaged:
        return None
    directory = directory_name(where)
    promised = _promised(disk, directory)
    if not promised:
        return None
    others = {
        name: size
        for name, size in disk.files(directory).items()
        if size and parse_file_name(name)[1] != LOG and not name.endswith(TEMPORARY_SUFFIX)
    }
    return _Victim(journals, where, disk, directory, {**promised, **others})


def _promised(disk: SimulatedStorage, directory: str) -> dict[str, int]:
    """How many bytes of each log file a start must find; empty as long as nothing says so."""
    # The files themselves, not what the journal has in memory: after a kill only they can tell.
    manifest = disk.content_of(f"{directory}/{MANIFEST_FILE}")
    checkpoint = disk.content_of(f"{directory}/{CHECKPOINT_FILE}")
    if manifest is None:  # nothing vouches for the last segment, nor for the directory
        return {}
    promised: dict[str, int] = {}
    try:
        if checkpoint is not None:
            for entry in decode_checkpoint(checkpoint, directory=directory):
                promised[file_name(entry.base_offset, LOG)] = entry.bytes
        said = decode_manifest(manifest, directory=directory)
    except CorruptIndex:  # torn by a loss of power
        return {}
    end = said.promised_end(disk.boot_id)
    for segment in said.segments:
        if segment.end_offset <= end:
            promised[file_name(segment.base_offset, LOG)] = segment.bytes
    # Compaction may have made a file smaller since.
    present = disk.files(directory)
    sizes = {name: min(size, present.get(name, 0)) for name, size in sorted(promised.items())}
    return {name: size for name, size in sizes.items() if size}


# --- the kinds ----------------------------------------------------------------------------------------------


def _flip(victim: _Victim, action: Action) -> Damage | None:
    if action.amount:
        return _flip_at(victim, action.amount)
    choose = victim.disk.choose
    name, size = _file(victim)
    at, bit = choose(size - 1), choose(7)
    return _flipped(victim, name, at, bit)


def _flip_at(victim: _Victim, offset: int) -> Damage | None:
    """A bit of the first record in the batch that holds this offset."""
    for name, size in victim.files.items():
        if parse_file_name(name)[1] == LOG:
            for position, header, _ in walk_batches(victim.disk.open(victim.path(name)), 0, size):
                if header.base_offset <= offset <= header.last_offset:
                    return _flipped(victim, name, position + HEADER_SIZE, 0)
    return None


def _flipped(victim: _Victim, name: str, at: int, bit: int) -> Damage:
    content = victim.disk.content_of(victim.path(name)) or b""
    changed = bytes((content[at] ^ 1 << bit,))
    return Damage(
        f"bit {bit} of byte {at} in {name}", lambda: victim.disk.overwrite(victim.path(name), at, changed)
    )


def _lose_sector(victim: _Victim, _: Action) -> Damage | None:
    """The bytes before it, or zeros where there are none, stand for what the disk had there earlier."""
    choose = victim.disk.choose
    name, size = _file(victim)
    sector = SECTORS[choose(len(SECTORS) - 1)]
    at = choose((size - 1) // sector) * sector
    end = min(at + sector, size)
    is_old = choose(1) == 1 and at > 0
    content = victim.disk.content_of(victim.path(name)) or b""
    lost = content[at - sector : at][: end - at] if is_old else bytes(end - at)
    if lost == content[at:end]:
        return None
    what = f"bytes {at} to {end} of {name} are {'those before them' if is_old else 'zeros'}"
    return Damage(what, lambda: victim.disk.overwrite(victim.path(name), at, lost))


def _misdirect(victim: _Victim, _: Action) -> Damage | None:
    choose = victim.disk.choose
    name, size = _file(victim)
    others = list(victim.files)
    other, shift = others[choose(len(others) - 1)], 1 + choose(size - 1)
    return Damage(
        f"the next read of {name} returns {other}, {shift} bytes further on",
        lambda: victim.disk.misdirect(victim.path(name), victim.path(other), shift=shift, below=size),
    )


def _lose_file(victim: _Victim, _: Action) -> Damage | None:
    name = _file(victim)[0]
    return Damage(f"{name} vanishes", lambda: victim.disk.vanish(victim.path(name)))


def _lose_directory(victim: _Victim, _: Action) -> Damage | None:
    def lose() -> None:
        # Where a topic of this name was deleted, its directory may be what the disk has left.
        if not victim.journals.restore_former(victim.partition):
            victim.disk.vanish(victim.directory)

    return Damage("", lose)


def _file(victim: _Victim) -> tuple[str, int]:
    """One of the files; in half of all cases a log, since most files are small descriptions of logs."""
    choose = victim.disk.choose
    logs = [item for item in victim.files.items() if parse_file_name(item[0])[1] == LOG]
    files = logs if choose(1) == 0 else list(victim.files.items())
    return files[choose(len(files) - 1)]


_DAMAGES: Final[dict[ActionKind, Callable[[_Victim, Action], Damage | None]]] = {
    ActionKind.FLIP_BIT: _flip,
    ActionKind.LOSE_SECTOR: _lose_sector,
    ActionKind.MISDIRECT: _misdirect,
    ActionKind.LOSE_FILE: _lose_file,
    ActionKind.LOSE_DIRECTORY: _lose_directory,
}
