"""`fencepost audit DIR`: looks for broken guarantees in the logs, with Spark.

Rule: it only reads; a broker may run. The exit code is 0 without problems (notes do not count), 1 with
problems, 2 if there is no such directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fencepost.check.findings import Findings
from fencepost.cli.check import print_findings
from fencepost.cli.errors import CHECK_THE_PATH, WrongUsage
from fencepost.cli.likely_paths import did_you_mean_beside
from fencepost.cli.options import NOT_EMPTY, AsJson
from fencepost.cli.output import print_progress
from fencepost.cli.spark_calls import reason_of, start_spark, with_spark
from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import LogLayout, open_layout
from fencepost.journal.storage import DirectoryInUse, StorageReader
from fencepost.spark_bridge.filesystems import absolute, open_storage
from fencepost.spark_bridge.session import SHORT_RUN, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit(
    directory: str,
    /,
    *more: str,
    acks: Path | None = None,
    source: Annotated[str | None, NOT_EMPTY, Parameter(name="--input")] = None,
    target: Annotated[str | None, NOT_EMPTY, Parameter(name="--output")] = None,
    by: Annotated[str | None, NOT_EMPTY] = None,
    master: Annotated[str, NOT_EMPTY] = "local[*]",
    as_json: AsJson = False,
) -> int:
    """Look for broken guarantees in the logs, with Spark.

    Parameters
    ----------
    directory
        The data directory of `fencepost serve`, or a log directory of Apache Kafka: a path, or a URI of an
        object store or HDFS (`s3://bucket/data`).
    more
        Other log directories of the same Kafka cluster.
    acks
        File of JSON lines, one for each acknowledged record: topic, partition, offset, and optionally key.
    source
        The input topic of an application. Needs --output and --by.
    target
        The topic to which the application writes its results.
    by
        A Spark SQL expression over key and value (strings) and headers: what a record and its result have in
        common, such as `key` or `get_json_object(value, '$.id')`.
    master
        The Spark master URL.
    """
    comparison = _comparison(source, target, by)
    if acks is not None and not acks.is_file():
        raise WrongUsage(f"--acks {acks} is not a file", then=did_you_mean_beside(acks) or CHECK_THE_PATH)
    require_spark()
    storages = [open_storage(path) for path in (directory, *more)]
    layout = open_layout(storages)  # before Spark, which takes seconds to start
    for option, topic in zip(("--input", "--output"), comparison or (), strict=False):
        _check_exists(layout, topic, option)
    in_use = [_is_in_use(storage) for storage in storages]  # locks each of the others
    try:
        paths = [absolute(path) for path in (directory, *more)]
        found = with_spark(
            lambda: _run(storages, paths, acks, comparison, master=master, is_in_use=any(in_use))
        )
    finally:
        for storage in storages:
            if isinstance(storage, DiskStorage):
                storage.unlock()
    counts = {"partitions": found.partitions, "batches": found.batches, "bytes": found.bytes}
    return print_findings(found, counts, "internal ones included, except __cluster_metadata", as_json=as_json)


def _comparison(source: str | None, target: str | None, by: str | None) -> tuple[str, str, str] | None:
    """The two topics to compare and the expression; CommandFailed if one of them is missing."""
    if source and target and by:
        return source, target, by
    named = {"--input": source, "--output": target, "--by": by}
    given = [name for name, value in named.items() if value]
    if given:
        raise WrongUsage(
            f"{given[0]} is given, but --input, --output and --by must be given together",
            then="for example: fencepost audit ./data --input orders --output totals --by key",
        )
    return None


def _run(
    storages: Sequence[StorageReader],
    paths: Sequence[str],
    acks: Path | None,
    comparison: tuple[str, str, str] | None,
    *,
    master: str,
    is_in_use: bool,
) -> Findings:
    from fencepost.audit.acks import missing_acks
    from fencepost.audit.audit import audit
    from fencepost.audit.compare import compare

    layout = open_layout(storages)  # again: a broker may have ended before the locks
    print_progress("starting Spark ...")
    with start_spark("fencepost audit", master, SHORT_RUN) as spark:
        if comparison is not None:  # before the audit, which may take long
            _check_expression(spark, paths, topic=comparison[0], by=comparison[2])
        print_progress("reading the logs ...")
        findings = audit(spark, layout, paths, is_in_use=is_in_use)
        if acks is not None:
            findings.found += missing_acks(spark, paths, acks).found
        if comparison is not None:
            source, target, by = comparison
            compared = compare(spark, layout, paths, source=source, target=target, by=by)
            findings.found += compared.found
    return findings


def _check_expression(spark: SparkSession, paths: Sequence[str], *, topic: str, by: str) -> None:
    """WrongUsage if Spark does not understand --by."""
    from pyspark.errors import AnalysisException

    from fencepost.audit.compare import check_expression

    try:
        check_expression(spark, paths, topic=topic, by=by)
    except AnalysisException as problem:
        raise WrongUsage(
            f"--by {by}: {reason_of(problem)}",
            then="give a Spark SQL expression over key, value and headers, such as key",
        ) from problem


def _check_exists(layout: LogLayout, topic: str, option: str) -> None:
    """CommandFailed if a topic has no partition: a misspelt name would look like records that are lost."""
    topics = sorted({each.topic for each in layout.partitions()})
    if topic not in topics:
        raise WrongUsage(
            f"{option} {topic}: there is no such topic in {layout.location}",
            then=f"the topics are: {', '.join(topics)}",
        )


def _is_in_use(storage: StorageReader) -> bool:
    """Whether a broker runs on a directory; if not, none can start until it is unlocked."""
    if not isinstance(storage, DiskStorage):
        return False  # a broker runs on a local disk; this is a copy
    try:
        storage.keep_out()
    except DirectoryInUse:
        return True
    return False
