"""`python -m tests.oracle [--wire kafka] [FILES]`: plays recorded conversations, and counts differences.

Rule: the last line is one JSON object; the exit code is 1 when any answer differs without being meant to.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.oracle.conversation import UnreadableRecording, read_conversations, settings_of
from tests.oracle.over_kafka import can_be_asked
from tests.oracle.report import (
    Played,
    areas_of,
    count,
    play_in_memory,
    play_over_kafka,
    play_over_socket,
    sample,
)
from tests.oracle.speech import KNOWN

RECORDINGS: Final = Path(__file__).parent
PER_TASK: Final = 8  # conversations of one process, so that none is left with the long ones at the end


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle", description="Plays recorded conversations."
    )
    parser.add_argument("files", nargs="*", type=Path, help="recordings; without any those of the project")
    parser.add_argument("--memory-only", action="store_true", help="no broker process, no socket")
    parser.add_argument(
        "--wire",
        choices=("fencepost", "kafka"),
        default="fencepost",
        help="the bytes that a broker is asked in",
    )
    options = parser.parse_args(arguments)
    files: list[Path] = options.files or sorted(RECORDINGS.glob("*.jsonl"))
    played: list[Played] = []
    try:
        for part in (
            _play_kafka(files)
            if options.wire == "kafka"
            else _play(files, over_socket=not options.memory_only)
        ):
            played.append(part)
            for difference in part.differences:
                print(difference.text, flush=True)
    except (UnreadableRecording, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    totals = count(played)
    print(json.dumps(totals))
    return 1 if totals["different"] else 0


def _name_unknown_generations(files: list[Path]) -> None:
    for path in files:
        if settings_of(path) is None:
            print(f"{path.name}: the name does not tell the generation; played in the newest")


def _play(files: list[Path], *, over_socket: bool) -> Iterator[Played]:
    _name_unknown_generations(files)
    tasks = [(path, area) for path in files for area in areas_of(path)]
    with ProcessPoolExecutor() as pool:
        yield from pool.map(play_in_memory, *zip(*tasks, strict=True)) if tasks else ()
    for path in files if over_socket else ():
        chosen = sample(read_conversations(path, KNOWN))
        part = play_over_socket(path, chosen)
        print(f"{path.name}: {len(chosen)} conversations over the socket, {len(part.asked)} answers")
        yield part


def _play_kafka(files: list[Path]) -> Iterator[Played]:
    """All conversations that one broker can play, a few at a time."""
    _name_unknown_generations(files)
    tasks: list[tuple[Path, list[int]]] = []
    left_out = 0
    for path in files:
        lines: list[int] = []
        for each in read_conversations(path, KNOWN):
            if can_be_asked(each):
                lines.append(each.line)
            else:
                left_out += len(each.questions)
        tasks += [(path, lines[at : at + PER_TASK]) for at in range(0, len(lines), PER_TASK)]
    if left_out:
        print(f"{left_out} answers are not asked: their conversations need a second broker, or KIP-848")
    with ProcessPoolExecutor() as pool:
        yield from pool.map(play_over_kafka, *zip(*tasks, strict=True)) if tasks else ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
