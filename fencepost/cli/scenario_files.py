"""Which scenarios a user means: bundled ones by name, files, directories of files, and single variants.

Rule: a path that exists is always that path; only then a word is the name of a bundled scenario.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from fencepost.bundled import bundled_scenarios
from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.likely_paths import did_you_mean_beside, near_names, question

if TYPE_CHECKING:
    from fencepost.simulator.scenarios.model import Case, Scenario

SHOWN_MAX: Final = 12  # variants that an error lists
LIST: Final = "`fencepost run --list` shows the bundled scenarios"


def files_of(given: Sequence[str]) -> list[Path]:
    """The scenario files that the words name; without any, the bundled ones."""
    return [path for word in given for path in _files_of(word)] or list(bundled_scenarios().values())


def _in_directory(directory: Path) -> list[Path]:
    """The scenarios in a directory and those below it. The first file that is none is an error."""
    found = sorted(directory.rglob("*.toml"))
    if not found:
        raise WrongUsage(
            f"{directory} has no scenario in it",
            then="give a directory with scenarios, which are *.toml files",
        )
    for path in found:
        try:
            read(path)
        except CommandFailed as problem:
            raise WrongUsage(
                f"not every *.toml file in {directory} is a scenario: {problem}",
                then="give a directory that has only scenarios, or give the files themselves",
            ) from problem
    return found


def _files_of(word: str) -> list[Path]:
    path = Path(word)
    return _in_directory(path) if word and path.is_dir() else [file_of(word)]


def file_of(word: str) -> Path:
    """The file of one scenario: the word is its path or its name. If there is none, reading it says so."""
    if not word:  # Path("") is the current directory
        raise WrongUsage("the name of a scenario is empty", then=LIST)
    path, bundled = Path(word), bundled_scenarios()
    name = path.name.removesuffix(".toml")
    return path if path.exists() or word != path.name else bundled.get(name, path)


def read(path: Path, *, advice: str | None = None) -> Scenario:
    """The scenario in a file; an error says what is wrong and where. `advice` is for a missing file."""
    from fencepost.simulator.scenarios.codec import BadScenario
    from fencepost.simulator.scenarios.files import scenario_of

    try:
        return scenario_of(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        problem, then = _missing(path, advice or LIST)
    except IsADirectoryError:
        problem, then = f"{path} is a directory", advice or "give a scenario file in it"
    except UnicodeDecodeError as undecodable:
        problem = f"{path} is not UTF-8: {undecodable.reason} (byte {undecodable.start})"
        then = "give a scenario, which is a TOML file"
    except BadScenario as bad:
        problem, then = str(bad), "`fencepost help scenarios` describes the format of scenarios"
    raise WrongUsage(problem, then=then)


def _missing(path: Path, advice: str) -> tuple[str, str]:
    """The error for a scenario that does not exist, and the next step."""
    if path.name != str(path):
        return f"no such file: {path}", did_you_mean_beside(path) or advice
    from fencepost.protocol.suggestions import likely  # only this error needs it

    bundled = likely(path.name.removesuffix(".toml"), bundled_scenarios())
    meant = question(list(map(Path, bundled)) or near_names(path))
    return f"there is no scenario {path}, bundled or in a file", f"{meant} {advice}".lstrip()


@attrs.frozen(kw_only=True)
class Chosen:
    """One requested run: variant `number` (from 1) of the `of` runs of the scenario in a file."""

    path: Path
    number: int
    of: int
    case: Case

    @property
    def words(self) -> str:
        """The scenario and its variant, as arguments of `fencepost run`."""
        name = name_of(self.path)
        return name if self.of == 1 else f"{name} --variant {self.number}"

    @property
    def stem(self) -> str:
        """A name for files about this run."""
        return self.path.stem if self.of == 1 else f"{self.path.stem}-{self.number}"


def name_of(path: Path) -> str:
    """A scenario as an argument of `fencepost run`: a bundled one by its name, others by their path."""
    return path.stem if bundled_scenarios().get(path.stem) == path else str(path)


def chosen(paths: Iterable[Path], variant: str | None) -> list[list[Chosen]]:
    """For each file its runs, or those that `variant` selects: a number from 1, or part of the title. Where
    two files have scenarios of one name, their names say the file as well.
    """
    from fencepost.simulator.scenarios.model import variants

    scenarios = [(path, read(path)) for path in paths]
    names = Counter(name for _, name in {(path, scenario.name) for path, scenario in scenarios})
    found: list[list[Chosen]] = []
    for path, scenario in scenarios:
        if names[scenario.name] > 1:
            scenario = attrs.evolve(scenario, name=f"{scenario.name} [{name_of(path)}]")
        every, wanted = variants(scenario), variants(scenario, variant)
        if not wanted:
            raise _no_variant(path, every, str(variant))
        found.append([Chosen(path=path, number=number, of=len(every), case=case) for number, case in wanted])
    return found


def _no_variant(path: Path, every: Sequence[tuple[int, Case]], variant: str) -> CommandFailed:
    shown = [f"{number} {case.title or '(plain)'}" for number, case in every[:SHOWN_MAX]]
    more = f", and {len(every) - SHOWN_MAX} more" if len(every) > SHOWN_MAX else ""
    name = name_of(path)
    return WrongUsage(
        f"{name} has no variant {variant!r}",
        then=f"its variants are: {'; '.join(shown)}{more} (`fencepost run {name} --list`)",
    )
