"""`fencepost help`: every page that a message names exists."""

import re
from pathlib import Path

import pytest

from fencepost.bundled import bundled_pages
from fencepost.cli.application import run
from tests.cli.tool import Output

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"fencepost help ([a-z-]+)`")


def test_pages_are_listed_and_printed(capsys: Output) -> None:
    assert run(["help"]) == 0
    listed = capsys.readouterr().out
    assert {"access", "cli", "operations", "scenarios"} <= bundled_pages().keys()
    for name in bundled_pages():
        assert re.search(rf"^{name} ", listed, re.MULTILINE)
    assert run(["help", "access"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "access.md").read_text(encoding="utf-8")


def test_a_page_is_shown_without_the_settings_of_its_slides(capsys: Output) -> None:
    assert run(["help"]) == 0
    assert re.search(r"^slides +The broker's decision tables$", capsys.readouterr().out, re.MULTILINE)
    assert run(["help", "slides"]) == 0
    assert capsys.readouterr().out.startswith("# The broker's decision tables\n")


def test_an_unknown_page_is_refused(capsys: Output) -> None:
    assert run(["help", "acess"]) == 2
    assert "no page 'acess'; did you mean" in capsys.readouterr().err


def test_every_page_that_a_message_names_exists() -> None:
    named = {
        name
        for path in (ROOT / "fencepost").rglob("*.py")
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert "access" in named
    assert named - {"topic"} <= bundled_pages().keys()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "fencepost" / "cli").glob("*.py")), ids=lambda path: path.stem
)
def test_no_message_names_a_file_of_the_repository(path: Path) -> None:
    """Only the first docstring of a file, which is for its readers, may."""
    _, _, rest = path.read_text(encoding="utf-8").partition('"""\n')
    assert not re.findall(r"docs/[a-z-]+\.md|scenarios/README", rest)


@pytest.mark.parametrize("command", [[], ["serve"], ["topic"], ["topic", "create"], ["dump"], ["demo"]])
def test_every_command_has_help(command: list[str], capsys: Output) -> None:
    assert run([*command, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage" in said
    assert "with-parent" not in said, "only the demo starts a broker as its child"
