"""Makes `format("fencepost")` known to a Spark session, and this package known to its workers.

Rule: a worker that cannot import the package gets a copy, whatever directory it runs in.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("fencepost")` work in this session; calling it again does no harm."""
    from fencepost.spark_bridge.data_source import FencepostDataSource

    context = spark.sparkContext
    local = (context.master or "").startswith("local")
    if local and not _names_a_python(context):
        # Spark would take `python3` from the PATH, which is seldom the one of this virtual environment.
        context.pythonExec = sys.executable
    if not local or not _imports_fencepost(context.pythonExec):
        _ship(context)
    spark.dataSource.register(FencepostDataSource)


def _names_a_python(context: SparkContext) -> bool:
    return "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")


def _imports_fencepost(python: str) -> bool:
    """Whether the workers' Python has the package wherever it is started: what the driver's directory
    offers does not count.
    """
    asked = subprocess.run(
        [python, "-c", "import fencepost.protocol"], cwd="/", capture_output=True, timeout=60
    )
    return asked.returncode == 0


def _ship(context: SparkContext) -> None:
    """Gives the workers this package.

    What it stands on (attrs, msgpack, pyarrow ...) has compiled parts and must be there.
    """
    package = Path(__file__).parent.parent
    directory = tempfile.mkdtemp(prefix="fencepost-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory, "fencepost.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, Path("fencepost") / source.relative_to(package))
    context.addPyFile(str(target))
