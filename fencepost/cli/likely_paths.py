"""What the path of a directory was probably meant to be: users give the directory of a topic, or a parent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ANCESTORS: Final = 3  # from the file of a segment to its data directory, or one more
NAMED_MAX: Final = 3


def likely_directories(path: Path) -> list[Path]:
    """The data directories around a path that is not one: the one that it lies in, or those in it."""
    try:
        if above := next(filter(_is_data_directory, _ancestors(path)), None):
            return [above]
        return [each for each in sorted(path.iterdir()) if _is_data_directory(each)] if path.is_dir() else []
    except OSError:  # what this user may not see is no advice
        return []


def did_you_mean(path: Path) -> str:
    """The question that names them; empty if there is none."""
    found = likely_directories(path)[:NAMED_MAX]
    return f"did you mean {' or '.join(map(str, found))}?" if found else ""


def _ancestors(path: Path) -> Iterator[Path]:
    """The nearest ones: those that the path itself names, then by their absolute paths."""
    yield from [each for each in path.parents if each != Path()][:ANCESTORS]
    yield from list(path.absolute().parents)[:ANCESTORS]


def _is_data_directory(path: Path) -> bool:
    from fencepost.journal.data_directory import META_FILE
    from fencepost.journal.kafka_directory import PROPERTIES_FILE

    return any((path / name).is_file() for name in (META_FILE, PROPERTIES_FILE))
