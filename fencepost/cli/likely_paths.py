"""What a path was probably meant to be: users give the directory of a topic, or a parent, or misspell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ANCESTORS: Final = 3  # from the file of a segment to its data directory, or one more
NAMED_MAX: Final = 3


def likely_directories(path: Path) -> list[Path]:
    """The data directories around a path that is not one: the one that it lies in, those in it, or those
    beside it with nearly its name.
    """
    try:
        if above := next(filter(_is_data_directory, _ancestors(path)), None):
            return [above]
        near = path.iterdir() if path.is_dir() else near_names(path)
        return [each for each in sorted(near) if _is_data_directory(each)]
    except OSError:  # what this user may not see is no advice
        return []


def did_you_mean(path: Path) -> str:
    """The question that names them."""
    return question(likely_directories(path))


def did_you_mean_beside(path: Path) -> str:
    """The question that names what lies beside a path that does not exist, under nearly its name."""
    return question(near_names(path))


def question(found: Sequence[Path]) -> str:
    """The question that names these paths; empty if there is none."""
    from fencepost.protocol.suggestions import either  # only these errors need it

    return f"did you mean {either(map(str, found[:NAMED_MAX]))}?" if found else ""


def near_names(path: Path) -> list[Path]:
    """What lies beside a path that does not exist, under nearly the same name."""
    from fencepost.protocol.suggestions import likely  # only these errors need it

    try:
        names = [each.name for each in path.parent.iterdir()]
    except OSError:  # what this user may not see is no advice
        return []
    return [path.parent / name for name in likely(path.name, names)]


def _ancestors(path: Path) -> Iterator[Path]:
    """The nearest ones: those that the path itself names, then by their absolute paths."""
    yield from [each for each in path.parents if each != Path()][:ANCESTORS]
    yield from list(path.absolute().parents)[:ANCESTORS]


def _is_data_directory(path: Path) -> bool:
    from fencepost.journal.data_directory import META_FILE
    from fencepost.journal.kafka_directory import PROPERTIES_FILE

    return any((path / name).is_file() for name in (META_FILE, PROPERTIES_FILE))
