"""What the README, docs/simulator.md and scenarios/README.md show of searches and stories comes of them
today.

How long something took is not compared, and neither are counts of a hundred worlds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from fencepost import SimulationFailed, simulate
from fencepost.cli.application import run
from fencepost.cli.commands import COMMANDS
from fencepost.simulator.explore import ExploreConfig, Explored, explore
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import run_case

ROOT: Final = Path(__file__).parent.parent.parent
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE: Final = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
MORE: Final = "..."  # a line of the page that stands for lines which it leaves out

Output = pytest.CaptureFixture[str]


FOUND: Final = "fencepost fuzz --first-seed 33 --seeds 200 --cores 1 --break fencing"


def shown(page: str, command: str) -> list[str]:
    """What stands below a command."""
    (found,) = re.findall(rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", page, re.DOTALL | re.MULTILINE)
    return found.splitlines()


def printed(capsys: Output, command: str, *, code: int = 0) -> list[str]:
    """What a command prints."""
    assert run(command.split()[1:]) == code
    return capsys.readouterr().out.splitlines()


def without_times(lines: list[str]) -> list[str]:
    """How long it took is different every time."""
    return [re.sub(r"\bin [\d.,]+ s\b", "in ... s", line) for line in lines]


def without_counts(lines: list[str]) -> list[str]:
    """Counts of a hundred worlds move a little with most changes of what is simulated."""
    return [re.sub(r" +\d[\d,.]*", " N", line) for line in lines]


def test_the_seed_of_the_page_breaks_that_rule(capsys: Output) -> None:
    found, again, small, more = shown(PAGE, FOUND)
    assert more == MORE
    assert printed(capsys, again.partition("replay:")[2], code=1)[:3] == [found, again, small]
    command = small.partition("shrink:")[2].strip()
    assert shown(PAGE, command)[0] == f"s{found[1:]}", "the seed that was found is the one made small"


@pytest.mark.thorough
def test_the_seed_of_the_page_is_shrunk_to_the_scenario_of_the_page(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = shown(PAGE, FOUND)[2].partition("shrink:")[2].strip()
    lines = shown(PAGE, command)
    assert without_times(printed(capsys, command)) == without_times(lines)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (file,) = tmp_path.iterdir()
    assert file.read_text(encoding="utf-8").startswith(text)


def test_the_examples_of_the_help_use_the_seed_of_the_page() -> None:
    _, again, small = (line.partition(": ")[2] for line in shown(PAGE, FOUND)[:3])
    assert again in COMMANDS["fuzz"].examples
    assert small in COMMANDS["shrink"].examples


def test_the_scenario_of_the_page_is_what_its_seed_became() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    scenario = scenario_of(text, "docs/simulator.md")
    report = run_case(*cases(scenario))
    assert report.passed, report.problems
    sizes = shown(PAGE, shown(PAGE, FOUND)[2].partition("shrink:")[2].strip())[1]
    choices = sum(1 for choice in scenario.choices if choice)
    assert f"-> {report.events:,} events and {choices:,} choice" in sizes
    assert report.broken == (shown(PAGE, FOUND)[0].partition("violates ")[2].partition(":")[0],)


@pytest.mark.thorough
def test_both_pages_show_what_a_hundred_seeds_come_to(capsys: Output) -> None:
    lines = without_counts(printed(capsys, "fencepost fuzz --seeds 100 --cores 2 --coverage"))
    cells = without_counts(shown(PAGE, "fencepost fuzz --seeds 100 --coverage"))
    assert [line for line in cells if line != MORE] == [line for line in lines if line in cells]
    *readme, last = without_counts(shown(README, "fencepost fuzz --seeds 100"))
    table = next(at for at, line in enumerate(lines) if line.startswith("state "))
    *summary, told = [*lines[:table], *lines[-2:]]
    assert readme == summary
    assert told.startswith(last.removesuffix(MORE)), "the speed is another one each time"


@pytest.fixture(scope="module", params=[0, 2])
def explored(request: pytest.FixtureRequest) -> tuple[int, Explored]:
    """The world that both pages tell of."""
    version: int = request.param
    return version, explore(ExploreConfig(transaction_version=version))


def test_the_states_of_the_page_are_those_of_the_search(explored: tuple[int, Explored]) -> None:
    version, found = explored
    clean = "no violation in any reachable state"
    result = f"{found.violation} after {len(found.trace)} steps" if found.trace else clean
    assert f"| {version} | {result} | {found.states:,} |" in PAGE


@pytest.mark.parametrize(("command", "code"), [("explore --transaction-version 0", 1), ("explore", 0)])
def test_the_readme_shows_how_a_search_ends(capsys: Output, command: str, code: int) -> None:
    lines = shown(README, f"fencepost {command}")
    end = without_times(lines[lines.index(MORE) + 1 :] if MORE in lines else lines)
    assert without_times(printed(capsys, f"fencepost {command}", code=code))[-len(end) :] == end


def test_the_readme_shows_a_story(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = "fencepost run duplicate_after_lost_ack --text"
    *lines, more = shown(README, command)
    assert more == MORE
    assert printed(capsys, command)[: len(lines)] == lines


def test_the_page_shows_what_a_test_of_a_seed_says() -> None:
    (block,) = re.findall(r"```\n(seed 3: .*?)```", PAGE, re.DOTALL)
    first, last = block.split(f"\n{MORE}\n")
    with pytest.raises(SimulationFailed) as failed:
        simulate(3, broken=("fencing",)).raise_if_failed()
    said = str(failed.value)
    assert said.startswith(first)
    assert said.endswith(last.removesuffix("\n"))


def test_the_page_has_a_complete_scenario() -> None:
    page = (ROOT / "scenarios" / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    report = run_case(*cases(scenario_of(text, "scenarios/README.md")))
    assert report.problems == ()
    assert report.struck == ("drop (node 1 sends Produce reply to shop)",)


def test_the_page_shows_how_a_story_is_built(capsys: Output) -> None:
    page = (ROOT / "scenarios" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (printed,) = re.findall(r"It prints:\n\n```\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "scenarios/README.md", "exec"), {})
    assert capsys.readouterr().out == printed
