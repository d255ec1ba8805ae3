"""What a Spark worker runs: it reads a task from the files and yields Arrow record batches.

Rule: a task and the options are all that a worker knows, so a retried task reads the same records anywhere.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import LogLayout
from fencepost.journal.storage import NotADataDirectory, StorageError
from fencepost.protocol.errors import FencepostError
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.filesystems import open_directories
from fencepost.spark_bridge.options import RECORDS, ReadOptions
from fencepost.spark_bridge.scanning import RangeScan

if TYPE_CHECKING:
    import pyarrow as pa


class UnfitWorker(FencepostError):
    """The Python of a Spark worker lacks a package that the reader needs, or its host lacks the files."""


def layout_of(options: ReadOptions) -> LogLayout:
    """The directories that the options name; NotADataDirectory if they are not the logs of one cluster."""
    return open_directories(options.paths)


def read_task(task: Any, options: ReadOptions, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task of a table; UnfitWorker if this host cannot read them, and what a scan
    raises.
    """
    with _explained():
        from fencepost.spark_bridge.rows import record_batches
        from fencepost.spark_bridge.tables.arrow import to_arrow
        from fencepost.spark_bridge.tables.registry import TABLES

        freeze_imports()
        layout = layout_of(options)
        if options.table == RECORDS:
            scans = (
                RangeScan(layout, range_, isolation_level=options.isolation_level, report=options.report)
                for range_ in task.ranges
            )
            batches = record_batches(scans, columns)
        else:
            table = TABLES[options.table]
            wanted = frozenset(column.name for column in columns)
            batches = to_arrow(table.rows(layout, task, options, wanted), table.columns, columns)
        ends_quietly = TaskContext.get() is not None and _is_local(layout)
        for batch in batches:
            with _ended_by_closed_pipe() if ends_quietly else nullcontext():
                yield batch


def _is_local(layout: LogLayout) -> bool:
    return all(isinstance(storage, DiskStorage) for storage in layout.storages)


@contextmanager
def _ended_by_closed_pipe() -> Generator[None]:
    """While PySpark sends a batch, a closed pipe ends this worker, as it ends other programs.

    Spark closes the pipe when it has enough rows (`limit`, `show`, `head`); PySpark would print a traceback
    for each task that is still sending. Threads that talk to an object store must not end this way.
    """
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


@contextmanager
def _explained() -> Generator[None]:
    """Adds to an error what only this worker knows: its Python, and its host."""
    try:
        yield
    except ImportError as missing:
        raise UnfitWorker(
            f"a Spark worker ({sys.executable}) cannot import {missing.name}: install fencepost[spark] "
            "for it, or point PYSPARK_PYTHON to a Python that has it"
        ) from missing
    except (NotADataDirectory, StorageError) as problem:
        raise UnfitWorker(
            f"{problem} (on host {socket.gethostname()}; the planner could read it, so either it changed or "
            "this host lacks the path or the credentials: every executor needs them)"
        ) from problem


@cache
def freeze_imports() -> None:
    """Takes the modules that are loaded now out of garbage collection, once per process.

    PySpark's daemon collects after every task (daemon.py), which costs 60 ms with our modules and pyarrow's
    on the heap, and 4 ms without them.
    """
    gc.collect()
    gc.freeze()
