"""`fencepost export DIR --to parquet OUT`: committed records as Parquet files, each exactly once.

Rule: it only reads DIR; a broker may run. Each export adds the records committed since the last one to OUT.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from fencepost.check.findings import counted
from fencepost.cli.errors import OK, CommandFailed
from fencepost.cli.files import refuse_uri
from fencepost.cli.options import NOT_EMPTY, AsJson, Flag
from fencepost.cli.output import print_json, print_progress
from fencepost.cli.spark_calls import start_spark, with_spark
from fencepost.spark_bridge.export import Exported, RecordsDeleted
from fencepost.spark_bridge.export import export as export_records
from fencepost.spark_bridge.filesystems import absolute, open_directories
from fencepost.spark_bridge.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def export(
    directory: str,
    target: Path,
    /,
    *more: str,
    to: Literal["parquet"] = "parquet",
    topic: Annotated[tuple[str, ...], NOT_EMPTY] = (),
    accept_loss: Flag = False,
    master: Annotated[str, NOT_EMPTY] = "local[*]",
    as_json: AsJson = False,
) -> int:
    """Copy committed records to Parquet files, with Spark.

    Parameters
    ----------
    directory
        The data directory of `fencepost serve`, or a log directory of Apache Kafka: a path, or a URI of an
        object store or HDFS (`s3://bucket/data`).
    target
        The local directory for the files; created if missing. Later exports add to it.
    more
        Other log directories of the same Kafka cluster.
    to
        The format of the files.
    topic
        Only this topic. By default all topics except internal ones. Repeatable.
    accept_loss
        Continue at the log start if records were deleted before their export; the manifest names the gap.
    master
        The Spark master URL.
    """
    del to  # there is one
    what = "a local directory, and export writes to one"
    refuse_uri(target, what, then="give the path of a directory, and copy it afterwards")
    require_spark()
    layout = open_directories((directory, *more))
    paths = [absolute(path) for path in (directory, *more)]

    def exported_with_spark() -> Exported:
        with ExitStack() as stack:

            def spark() -> SparkSession:
                print_progress("starting Spark ...")
                started = stack.enter_context(start_spark("fencepost export", master))
                print_progress("copying the records ...")
                return started

            return export_records(spark, layout, paths, target.absolute(), topic, accepts_loss=accept_loss)

    try:
        exported = with_spark(exported_with_spark)
    except RecordsDeleted as problem:
        raise CommandFailed(str(problem), then="add --accept-loss to export what still exists") from problem
    report(target, exported, as_json=as_json)
    return OK


def report(target: Path, exported: Exported, *, as_json: bool) -> None:
    """Prints what an export has done."""
    moved = {str(each): [exported.start[each], exported.end[each]] for each in sorted(exported.end)}
    if as_json:
        lost = {str(gap.partition): [gap.start, gap.end] for gap in exported.gaps}
        print_json({"export": exported.name or None, "rows": exported.rows, "offsets": moved, "gaps": lost})
        return
    for gap in exported.gaps:
        print(f"{gap.partition}: offsets {gap.start} to {gap.end - 1} were deleted before they were exported")
    if not exported.name:
        print("Nothing was committed since the last export.")
    else:
        print(f"{target / exported.name}: {counted(exported.rows, 'record')}")
        for partition, (start, end) in moved.items():
            print(
                f"  {partition}: offsets {start} to {end - 1}"
                if start < end
                else f"  {partition}: nothing new"
            )
        others = sum(end - start for start, end in moved.values()) - exported.rows
        if others:
            print(
                f"  no committed record: {counted(others, 'offset')} (markers, aborted or compacted records)"
            )
