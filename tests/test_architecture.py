"""The plan of the house as tests: who may import whom, who may touch the world, and how large a thing may be.

Rule: THINK HARD before changing the tables below; each check is shown to catch a planted fault.
"""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house_rules
from tests.house_rules import FACE, PACKAGE

ROOT = Path(__file__).resolve().parent.parent

CORES = frozenset(
    {"protocol", "faults", "journal", "log_model", "check", "repair", "broker", "client", "simulator"}
)
EDGES = frozenset({"spark_bridge", "kafka_bridge", "audit", "lab", "testing"})
FACES = frozenset({FACE, "cli", "demo"})

# Each part, and the parts that it may import besides itself.
ARROWS: dict[str, frozenset[str]] = {
    "protocol": frozenset(),
    "faults": frozenset({"protocol"}),
    "journal": frozenset({"protocol"}),
    "log_model": frozenset({"protocol"}),
    "check": frozenset({"protocol", "journal", "log_model"}),
    "repair": frozenset({"protocol", "journal", "log_model", "check"}),
    "broker": frozenset({"protocol", "journal", "faults", "kafka_bridge"}),
    "client": frozenset({"protocol"}),
    "simulator": frozenset({"protocol", "journal", "log_model", "check", "faults", "broker", "client"}),
    "spark_bridge": frozenset({"protocol", "journal"}),
    "kafka_bridge": frozenset({"protocol"}),
    "audit": frozenset({"protocol", "journal", "log_model", "check", "spark_bridge"}),
    "lab": frozenset({"protocol", "journal", "log_model", "faults", "broker", "client", "simulator"}),
    "testing": frozenset({"protocol", "journal", "faults", "broker", "client", "simulator", "lab", FACE}),
    FACE: CORES | EDGES | FACES,
    "cli": CORES | EDGES | FACES,
    "demo": CORES | EDGES | FACES,
}

# The only files of the cores' parts that may wait, see clocks, draw numbers and touch files or sockets.
SHELLS = frozenset(
    {
        "broker/admission.py",
        "broker/clocks.py",
        "broker/connections.py",
        "broker/disk_tasks.py",
        "broker/embedded.py",
        "broker/fault_handles.py",
        "broker/fault_site.py",
        "broker/follow_site.py",
        "broker/lifecycle.py",
        "broker/listeners.py",
        "broker/loop_calls.py",
        "broker/metrics_port.py",
        "broker/monitor.py",
        "broker/notices.py",
        "broker/server.py",
        "broker/sync_threads.py",
        "client/append_lock.py",
        "client/send_path.py",
        "client/shells/aio.py",
        "client/shells/aio_driver.py",
        "client/shells/clients.py",
        "client/shells/signals.py",
        "client/shells/sockets.py",
        "client/shells/sync.py",
        "client/shells/sync_driver.py",
        "journal/disk.py",
        "protocol/forked_process.py",
        "protocol/tls.py",
    }
)

# Functions that one module alone may use, so that everybody else gets its limits, too.
OWNERS: dict[str, str] = {"difflib.get_close_matches": "protocol/suggestions.py"}

Check = Callable[[Path], list[str]]


def arrows(root: Path) -> list[str]:
    """The first table."""
    return house_rules.forbidden_arrows(root, ARROWS)


def outside_world(root: Path) -> list[str]:
    """The second table."""
    return house_rules.outside_world_in_cores(root, CORES, SHELLS)


def owned(root: Path) -> list[str]:
    """The third table."""
    return house_rules.not_by_the_owner(root, OWNERS)


CHECKS: list[Check] = [
    arrows,
    outside_world,
    owned,
    house_rules.too_long,
    house_rules.dead_modules,
    house_rules.dead_definitions,
    house_rules.overloaded_names,
    house_rules.banned_words,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_house_keeps_its_rules(check: Check) -> None:
    assert "\n".join(check(ROOT)) == ""


FAULTS: list[tuple[Check, str, str, str]] = [
    (arrows, "broker/node.py", "import fencepost.client.producer", "no arrow to client"),
    (arrows, "client/producer.py", "from fencepost.broker import node", "no arrow to broker"),
    (arrows, "client/producer.py", "def f():\n    from fencepost import journal", "no arrow to journal"),
    (arrows, "protocol/terms.py", "from ..journal.log import Log", "no arrow to journal"),
    (arrows, "protocol/__init__.py", "from . import terms\nfrom .. import client", "no arrow to client"),
    (arrows, "journal/log.py", "import fencepost", "no arrow to the face"),
    (
        arrows,
        "journal/log.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fencepost.broker import node",
        "no arrow to broker",
    ),
    (arrows, "spark_bridge/source.py", "import fencepost.client.producer", "no arrow to client"),
    (arrows, "annex/room.py", "", "annex is not in the table"),
    (outside_world, "broker/node.py", "import trio", "imports trio"),
    (outside_world, "protocol/terms.py", "from os import path", "imports os.path"),
    (outside_world, "client/producer.py", "def f():\n    import time", "imports time"),
    (outside_world, "journal/log.py", "from random import random", "imports random.random"),
    (outside_world, "journal/log.py", "from pathlib import Path", "imports pathlib.Path"),
    (outside_world, "journal/log.py", "data = open('0.log')", "calls open()"),
    (
        outside_world,
        "client/__init__.py",
        "from fencepost.client.shells.aio import Producer",
        "imports fencepost.client.shells.aio",
    ),
    (owned, "journal/log.py", "from difflib import get_close_matches", "use protocol/suggestions.py"),
    (
        house_rules.too_long,
        "journal/log.py",
        "class A:\n    def f(self):\n" + "        x = 1\n" * 41,
        "f has 41 lines",
    ),
    (house_rules.dead_modules, "journal/attic.py", "", "journal/attic.py is imported by nobody"),
    (
        house_rules.dead_modules,
        "journal/attic.py",
        "from fencepost.journal import attic",
        "attic.py is imported by nobody",
    ),
    (
        house_rules.dead_definitions,
        "journal/log.py",
        "def fold():\n    return fold()",
        "fold is used nowhere",
    ),
    (house_rules.dead_definitions, "journal/log.py", "class Fold:\n    pass", "Fold is used nowhere"),
    (house_rules.dead_definitions, "journal/log.py", "FOLDS: int = 3", "FOLDS is used nowhere"),
    (house_rules.dead_definitions, "journal/log.py", "@cache\ndef fold():\n    pass", "fold is used nowhere"),
    (
        house_rules.overloaded_names,
        "journal/log.py",
        "class Fold:\n    class Range: ...\n",
        "Range is a class in client/producer.py and in journal/log.py",
    ),
    (house_rules.banned_words, "broker/node.py", "class OffsetManager:\n    pass", "OffsetManager"),
    (house_rules.banned_words, "broker/node.py", "def f(maybe_epoch):\n    pass", "maybe_epoch"),
    (house_rules.banned_words, "broker/utils.py", "", "utils.py: the name of the file"),
    (house_rules.banned_words, "broker/node.py", "x = 1  # TO" + "DO later", "unfinished"),
    (house_rules.banned_words, "broker/node.py", "x = f()  # type: " + "ignore[no-any]", "without a reason"),
]


@pytest.mark.parametrize(("check", "place", "fault", "complaint"), FAULTS)
def test_a_planted_fault_is_found(
    check: Check, place: str, fault: str, complaint: str, tmp_path: Path
) -> None:
    small_house(tmp_path)
    assert check(tmp_path) == []
    planted = tmp_path / PACKAGE / place
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(fault)
    assert [line for line in check(tmp_path) if complaint in line]


def small_house(root: Path) -> None:
    """A tree that keeps every rule, with a file in each part of the core and a shell."""
    files = {
        "__init__.py": "from fencepost.broker import server\nfrom fencepost.client.shells import aio\n",
        "protocol/__init__.py": "",
        "protocol/terms.py": '"""Only words."""\nWORD = 1\n',
        "journal/__init__.py": "",
        "journal/log.py": "from fencepost.protocol.terms import WORD\n",
        "broker/__init__.py": "",
        "broker/node.py": "from fencepost.journal import log\n",
        "broker/server.py": "import trio\nfrom fencepost.broker import node\n",
        "client/__init__.py": "",
        "client/shells/__init__.py": "",
        "client/producer.py": "from ..protocol import terms\nclass Range: ...\n",
        "client/shells/aio.py": "import anyio\nfrom fencepost.client import producer\nproducer.Range()\n",
        "cli/__init__.py": "def main(): ...\n",
    }
    for place, text in files.items():
        path = root / PACKAGE / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "pyproject.toml").write_text('scripts = "fencepost.cli:main"\n')


def test_a_forbidden_import_in_any_real_core_is_found(tmp_path: Path) -> None:
    real = shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    cores = [
        path
        for path in sorted(real.rglob("*.py"))
        if path.relative_to(real).parts[0] in CORES and path.relative_to(real).as_posix() not in SHELLS
    ]
    assert cores
    for path in cores:
        with path.open("a", encoding="utf-8") as text:
            text.write("\n\ndef planted() -> None:\n    import trio\n    import fencepost.cli\n")
    told_worlds, told_arrows = outside_world(tmp_path), arrows(tmp_path)
    for path in cores:
        place = path.relative_to(real).as_posix()
        assert [line for line in told_worlds if line.startswith(f"{place}:") and "imports trio" in line]
        assert [line for line in told_arrows if line.startswith(f"{place}:") and "no arrow to cli" in line]


def test_what_the_rules_leave_alone(tmp_path: Path) -> None:
    """Hooks, registered commands, modules started by name, words of the docs, long docstrings, strings."""
    small_house(tmp_path)
    package = tmp_path / PACKAGE
    (package / "cli" / "plugin.py").write_text("def pytest_configure(config): ...\n")
    (package / "cli" / "serve.py").write_text("@app.command\ndef serve(): ...\nUSAGE = '# TO' 'DO'\n")
    (package / "cli" / "topic.py").write_text("def create(): ...\nTREE = ('fencepost.cli.topic:create',)\n")
    (package / "cli" / "worker.py").write_text("def work():\n    '''" + "\n" * 60 + "'''\n    return USAGE\n")
    (package / "cli" / "__init__.py").write_text(
        "from fencepost.cli import plugin, serve, topic\nRUN = 'fencepost.cli.worker', topic.TREE\n"
    )
    (tmp_path / "README.md").write_text("Call `work(RUN)`.\n")
    assert [line for check in CHECKS for line in check(tmp_path)] == []


def test_the_links_at_the_top_lead_into_the_package() -> None:
    links = [path for path in ROOT.iterdir() if path.is_symlink() and not path.name.startswith(".")]
    # A source distribution carries none; a checkout carries all.
    expected = (
        {"broker", "client", "journal", "protocol", "spark_bridge"}
        if (ROOT / ".git").exists()
        else set[str]()
    )
    assert {path.name for path in links} == expected
    assert all(path.readlink() == Path(PACKAGE, path.name) for path in links)


def test_the_static_checks_read_our_places_and_no_program_that_a_user_saves_beside_them(
    tmp_path: Path,
) -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    places = config["tool"]["pyright"]["include"]
    shipped = [ROOT / name for name in config["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]]
    assert places == sorted(path.name for path in shipped if any(path.rglob("*.py*")))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in [*(f"{place}/ours.py" for place in places), "billing.py", "shop/app.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('"""A module."""\n')
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--no-cache", "--show-files", "."]
    listed = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(str(Path(path).relative_to(tmp_path.resolve())) for path in listed) == sorted(
        ["pyproject.toml", *(f"{place}/ours.py" for place in places)]
    )
