"""`fencepost dump`: what lies in a log, in words. Rule: reads beside a living broker and takes no lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fencepost.cli.agreement import disagreements
from fencepost.cli.errors import FAILED, OK, WRONG_USAGE, CommandFailed
from fencepost.cli.log_facts import facts_of_file
from fencepost.cli.log_files import check_is_log, partition_directories, partition_of, segment_files
from fencepost.cli.log_words import in_words
from fencepost.cli.printing import print_json
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.journal.segments import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX


def dump(
    path: Path,
    /,
    *,
    topic: tuple[str, ...] = (),
    records: Annotated[bool, Parameter(negative="")] = False,
    indexes: Annotated[bool, Parameter(negative="")] = False,
    check: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter("--json", negative="")] = False,
) -> int:
    """Say in words what lies in a log: batches, markers, transactions, committed offsets, indexes, snapshots.

    The log may belong to a running broker or to a dead one.

    Parameters
    ----------
    path
        A data directory, one partition in it, or one file: .log, .index, .timeindex, .txnindex, .snapshot,
        manifest.json.
    topic
        Only these topics of a data directory. May be given several times.
    records
        Show the records inside data batches too.
    indexes
        Show the entries of offset and time indexes too, of a directory; of a single file they always are.
    check
        Only check that transaction log and markers agree; exit code 1 and a list when they do not.
    as_json
        One JSON object per line.
    """
    check_is_log(path)
    if check:
        return check_agreement(path, as_json=as_json)
    check_topics(path, topic)
    for directory, files in parts(path, topics=topic, indexes=indexes):
        if not as_json and directory is not None:
            print(f"\n{directory.name}")
        for file in files:
            dump_file(file, records=records, as_json=as_json, titled=directory is not None)
    return OK


def check_topics(path: Path, topics: tuple[str, ...]) -> None:
    """CommandFailed when a directory has no partition of a topic that was asked for."""
    if not topics:
        return
    partitions = partition_directories(path) if path.is_dir() else []
    present = {partition.topic for partition, _ in partitions}
    for topic in topics:
        if topic not in present:
            raise CommandFailed(
                f"{path} has no topic {topic}",
                then=f"it has {', '.join(sorted(present))}" if present else "--topic is for data directories",
            )


def parts(path: Path, *, topics: tuple[str, ...], indexes: bool) -> Iterator[tuple[Path | None, list[Path]]]:
    """(partition's directory, its files in order); a single file stands without its directory."""
    if path.is_file():
        yield None, [path]
        return
    partitions = partition_directories(path)
    if not partitions:
        yield path.resolve(), files_of_partition(path, indexes=indexes)
    for partition, directory in partitions:
        if not topics or partition.topic in topics:
            yield directory, files_of_partition(directory, indexes=indexes)


def files_of_partition(directory: Path, *, indexes: bool) -> list[Path]:
    """The files worth a look: segment by segment the log, then what stands beside it."""
    kinds = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX) if indexes else (LOG, TRANSACTION_INDEX)
    files = sorted(
        (path for kind in kinds for path in segment_files(directory, kind)),
        key=lambda path: (path.stem, kinds.index(path.suffix[1:])),
    )
    manifest = directory / MANIFEST_FILE
    return [*files, *segment_files(directory, SNAPSHOT), *([manifest] if manifest.exists() else [])]


def dump_file(file: Path, *, records: bool, as_json: bool, titled: bool) -> None:
    """Prints the facts of one file."""
    facts = facts_of_file(file, records=records)
    if as_json:
        for fact in facts:
            print_json(fact)
        return
    if titled and file.stat().st_size:
        print(f"  {file.name}")
    for fact in facts:
        print(in_words(fact))


def check_agreement(path: Path, *, as_json: bool) -> int:
    """Tells whether the directory tells one story."""
    if path.is_file() or partition_of(path.resolve()):
        raise CommandFailed(
            "only a whole data directory can be checked", then=f"fencepost dump {path}", code=WRONG_USAGE
        )
    found = disagreements(path)
    if as_json:
        print_json({"agree": not found, "disagreements": found})
    else:
        print("\n".join(found) if found else "The transaction log and the markers agree.")
    return FAILED if found else OK
