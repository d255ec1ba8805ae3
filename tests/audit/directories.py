"""Directories on the disk: Spark's workers are other processes."""

from __future__ import annotations

from pathlib import Path

from fencepost.journal.memory import MemoryStorage


def put_on_disk(storage: MemoryStorage, target: Path) -> Path:
    """Writes every file of a directory in memory."""
    for directory in ["", *storage.directories()]:
        (target / directory).mkdir(parents=True, exist_ok=True)
        for name in storage.files(directory):
            path = f"{directory}/{name}" if directory else name
            (target / path).write_bytes(storage.read_file(path) or b"")
    return target
