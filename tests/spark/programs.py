"""Spark programs in a process of their own, with a Python that has every library, but not this project."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from fencepost.spark_bridge.session import use_java
from tests.spark.test_source import executable, java_options

ROOT = Path(__file__).resolve().parent.parent.parent


def bare_python(place: Path, *installed: Path) -> Path:
    """A Python that finds every library, and of this project only what is `installed`."""
    paths = ":".join(map(str, (*installed, sysconfig.get_path("purelib"))))
    # -S reads no .pth file, such as the one that makes this project known.
    return executable(
        place / "python", f'#!/bin/sh\nPYTHONPATH="{paths}:$PYTHONPATH" exec {sys.executable} -S "$@"\n'
    )


def words_of(job: str, data: Path, place: Path, *, python: Path, **variables: str) -> list[str]:
    """The words that a job prints. It runs in `place`; its arguments are ROOT and the directory `data`."""
    use_java()
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "HOME": str(place),
        "PYSPARK_PYTHON": str(python),
        **java_options(),
        **variables,
    }
    ran = subprocess.run(
        [python, "-c", job, ROOT, data],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()
