"""What people install: the wheel, built from the source distribution, works even beside a client.py.

Rule: our own package comes from that wheel; all others are lent by the environment that runs the tests.
"""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 600
COLLIDING = ("broker", "client", "journal", "protocol", "spark_bridge")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution of this tree and the wheel that was built from it alone."""
    place = tmp_path_factory.mktemp("built")
    # Asked for no kind, `build` makes the source distribution, unpacks it and builds the wheel from that.
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)], cwd=place)
    return place


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    """The source distribution."""
    return only(built.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    return only(built.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds our wheel, and borrows the packages it depends on."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], cwd=place)
    # Plain paths in a .pth are not followed further, so the editable install of this tree stays out.
    site_packages = Path(
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=place).strip()
    )
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder of somebody who has files with the names of our parts."""
    for name in COLLIDING:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the user was imported')\n")
    return tmp_path


def test_the_source_distribution_holds_each_file_once_and_no_link(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = [member.name.partition("/")[2] for member in members]
    assert len(names) == len(set(names))
    assert all(member.isfile() for member in members)
    assert not [name for name in names if name.startswith(COLLIDING)]
    expected = {
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "fencepost/py.typed",
        "scenarios/README.md",
        ".ci/run",
    }
    assert expected <= set(names)


def test_the_wheel_holds_the_package_its_types_and_the_scenarios(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fencepost").rglob("*.py")}
    bundled = {"fencepost/py.typed", "fencepost/scenarios/README.md", "fencepost/docs/access.md"}
    assert sources | bundled <= names
    # Spark registers the data sources of packages named so: it is how format("fencepost") is found.
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"fencepost", "pyspark_fencepost"}


def test_it_is_imported_from_the_wheel_in_a_crowded_folder(environment: Path, crowded: Path) -> None:
    found = run(
        [str(environment / "bin" / "python"), "-c", "import fencepost; print(fencepost.__file__)"],
        cwd=crowded,
    )
    assert Path(found.strip()).is_relative_to(environment)


def test_every_module_can_be_imported_in_a_crowded_folder(environment: Path, crowded: Path) -> None:
    walk = (
        "import importlib, pkgutil, fencepost\n"
        "for module in pkgutil.walk_packages(fencepost.__path__, 'fencepost.'):\n"
        "    if not module.name.endswith('.__main__'):\n"
        "        print(importlib.import_module(module.name).__name__)\n"
    )
    imported = run([str(environment / "bin" / "python"), "-c", walk], cwd=crowded).splitlines()
    assert {f"fencepost.{name}" for name in COLLIDING} <= set(imported)


def test_the_command_runs_in_a_crowded_folder(environment: Path, crowded: Path) -> None:
    assert "Usage: fencepost" in run([str(environment / "bin" / "fencepost"), "--help"], cwd=crowded)


def test_a_bundled_scenario_runs_by_its_name(environment: Path, tmp_path: Path) -> None:
    told = run(
        [str(environment / "bin" / "fencepost"), "run", "zombie_fencing", "--variant", "1"], cwd=tmp_path
    )
    assert "1 of 1 run of one scenario met the expectations" in told


def test_pytest_finds_the_fixtures_of_the_wheel(environment: Path, crowded: Path) -> None:
    (crowded / "test_shop.py").write_text(
        "def test_it(fencepost_broker):\n    assert fencepost_broker.address\n"
    )
    command = [
        str(environment / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_shop.py",
    ]
    assert "1 passed" in run(command, cwd=crowded)


def test_a_file_of_ours_would_be_shadowed_at_the_top(environment: Path, crowded: Path) -> None:
    """The fault that the crowded folder catches: an absolute import of a part by its bare name."""
    with pytest.raises(AssertionError, match=r"client\.py of the user was imported"):
        run([str(environment / "bin" / "python"), "-c", "import client"], cwd=crowded)


def only(paths: Iterable[Path]) -> Path:
    """The one path there is; ValueError when there are more or fewer."""
    (path,) = paths
    return path


def run(command: list[str], *, cwd: Path) -> str:
    """What a command prints, run without the variables of this environment; AssertionError if it fails."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=cwd, env=bare, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
