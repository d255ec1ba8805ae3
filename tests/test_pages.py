"""Pages name real things: every file, function and class that a page shows as code exists.

A page that sends its reader to a name that was renamed is worse than a page without names.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from inspect import Parameter, Signature, signature
from pathlib import Path

import pytest

from fencepost import RunResult, simulate
from tests.house_rules import nodes, parsed

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fencepost"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "scenarios" / "README.md"])

CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|md)|[\w.-]+/[\w./-]+\.(?:toml|json)")
DOTTED = re.compile(r"(\w+)\.(\w+)(?:\(.*\))?")
CALL = re.compile(r"(?:\w+\.)*([a-z_]\w*)\(.*\)")
OF_OTHERS = frozenset({"move_on_after", "run_sync", "partition.metadata"})  # of anyio, and a file of Kafka
DRAWN_CALL = re.compile(r"\w+\.\w+\([^)\n]*\)")  # in a picture made of lines
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
PICTURES_BYTES_MAX = 1_200_000  # of all pictures together: they are part of the package
ALTERNATIVE_MIN = 30  # characters: a picture is described, not named
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def files() -> frozenset[str]:
    """Every file of the repository, relative to its root."""
    folders = (
        PACKAGE,
        *(ROOT / name for name in ("tests", "docs", "examples", "scenarios", "benchmarks", "tools")),
    )
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return frozenset(path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*.*")])


@cache
def names_by_owner() -> dict[str, set[str]]:
    """What each module and each class defines: functions, classes, methods, attributes and constants."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        tree = parsed(path.read_text(encoding="utf-8"), str(path))
        names[path.stem] |= defined_in(tree)
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name] |= defined_in(node)
    return dict(names)


def defined_in(tree: ast.AST) -> set[str]:
    """What a module or a class defines, however deep inside."""
    names: set[str] = set()
    for node in nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names


def missing(page: str) -> list[str]:
    """The names in the prose of a page that lead nowhere."""
    known = names_by_owner()
    everything = set[str]().union(*known.values())
    wrong: list[str] = []
    drawn = [call for block in FENCED.findall(page) if "┌" in block for call in DRAWN_CALL.findall(block)]
    for code in [*CODE.findall(FENCED.sub("", page)), *drawn]:
        if FILE.fullmatch(code):
            exists = any(f"/{file}".endswith(f"/{code}") for file in files())
        elif (dotted := DOTTED.fullmatch(code)) and dotted[1] in known:
            exists = dotted[2] in known[dotted[1]] or code in OF_OTHERS
        elif call := CALL.fullmatch(code):
            exists = call[1] in everything or call[1] in OF_OTHERS
        else:
            continue
        if not exists:
            wrong.append(code)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_what_a_page_names_exists(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == []


def test_every_picture_is_shown_and_described_and_all_of_them_are_small() -> None:
    shown = [
        (path.parent / target, words)
        for path in PAGES
        for words, target in PICTURE.findall(path.read_text(encoding="utf-8"))
    ]
    stored = set((ROOT / "docs" / "pictures").iterdir())
    assert {file for file, _ in shown} == stored
    assert [file.name for file, words in shown if len(words) < ALTERNATIVE_MIN] == []
    assert sum(file.stat().st_size for file in stored) < PICTURES_BYTES_MAX


def test_the_page_of_the_simulator_shows_simulate_as_it_is() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    found = re.search(r"`fencepost\.simulate(\(seed, .*\))` returns a `RunResult`:([^.]*)\.", page)
    assert found is not None
    shape = signature(simulate)
    bare = [each.replace(annotation=Parameter.empty) for each in shape.parameters.values()]
    assert found[1] == str(Signature(bare)).replace("'", '"')
    names = CODE.findall(found[2])
    assert names
    assert [name for name in names if name not in dir(RunResult)] == []


@pytest.mark.parametrize(
    "code",
    [
        "broker/transaction.py",
        "tables.no_such_table",
        "Node.no_such_method",
        "no_such_function(state)",
        "no_such_module.no_such_function(state)",
    ],
)
def test_a_name_that_leads_nowhere_is_found(code: str) -> None:
    assert missing(f"It ends in `{code}`.") == [code]


def test_a_call_in_a_picture_that_leads_nowhere_is_found() -> None:
    assert missing("```\n┌───┐\n│ node.step(input) │\n```\n") == ["node.step(input)"]
