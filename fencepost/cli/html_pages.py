"""Pages of runs in HTML files, and `--beside`: the same run with something changed, on the right side.

Rule: a changed run that is a variant of the scenario is that variant, with its expectations. Any other run
has none, so its page only says which rules it broke.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from fencepost.cli.errors import WrongUsage
from fencepost.cli.files import PAGE, Target

if TYPE_CHECKING:
    from fencepost.cli.scenario_files import Chosen
    from fencepost.lab.document import RunDocument
    from fencepost.simulator.scenarios.model import Case

HTML: Final = ".html"
NAMED_MAX: Final = 5  # files in one line


def numbered(path: Path, count: int, suffix: str) -> Path:
    """The file with this number, from 1: NAME.html, NAME-2.html, and so on."""
    return path if count == 1 else path.with_name(f"{path.stem}-{count}{path.suffix or suffix}")


def files_line(word: str, files: Sequence[Path], *, width: int) -> str:
    """The line that names files of one kind; of many, the first two and the last one. `width`: of headings in
    the lines around it.
    """
    shown = [str(file) for file in files]
    if len(files) > NAMED_MAX:
        shown[2:-1] = ["..."]
    heading = f"{word}{'s' if len(files) > 1 else ''}:"
    return f"{heading:{width}} {', '.join(shown)}"


@attrs.define
class Pages:
    """Writes pages of runs to `path`, and numbers the files; writes nothing without a path."""

    path: Path | None
    count: int = 0

    def check(self) -> None:
        """CommandFailed if the first file cannot be written."""
        if self.path is not None:
            _target(self.path).check()

    def write(self, documents: Sequence[RunDocument], divergence: tuple[int, int] | None = None) -> Path:
        """Writes the page of a run, or of two side by side; returns its path."""
        from fencepost.lab.pages import file_page

        assert self.path is not None, "pages are wanted"
        self.count += 1
        file = numbered(self.path, self.count, HTML)
        target = _target(file)
        target.check()
        target.write(file_page(documents, divergence=divergence))
        return file

    def of_case(self, case: Case, other: Case | None = None) -> Path:
        """Runs a case for its page, and the `other` one for the right side; returns the path of the page."""
        from fencepost.lab.comparison import compare
        from fencepost.lab.recordings import record

        if other is None:
            return self.write([record(case)])
        both = compare(record(case), record(other))
        return self.write([both["left"], both["right"]], both["divergence"])


def _target(path: Path) -> Target:
    return Target(path=path, option="--html", kind=PAGE)


# --- beside -------------------------------------------------------------------------------------------------

YES_OR_NO: Final = {"true": True, "false": False}
EXAMPLES: Final = "transaction_version=0, partition_verification=false, broken=dedup or without_fixes=NAME"


def _version(text: str) -> int | None:
    return int(text) if text in ("0", "1", "2") else None


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


VALUES: Final[dict[str, Callable[[str], object]]] = {
    "transaction_version": _version,
    "partition_verification": YES_OR_NO.get,
    "broken": _names,
    "without_fixes": _names,
}


def changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """The settings that `--beside` changes, by their keys in scenarios."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        read = VALUES.get(key)
        changes[key] = None if read is None else read(value)
        if changes[key] is None:
            raise WrongUsage(f"--beside {text!r} is not a valid change", then=f"give {EXAMPLES}")
    return changes


def beside(chosen: Chosen, changes: dict[str, Any]) -> Case | None:
    """The run with these changes; None if they change nothing in it."""
    from fencepost.lab.arguments import BadRequest
    from fencepost.lab.play import PlayArguments, case_of
    from fencepost.simulator.scenarios.codec import BadScenario
    from fencepost.simulator.scenarios.model import ScenarioExpectation, cases

    text = chosen.path.read_text(encoding="utf-8")
    try:
        case = case_of(PlayArguments(text=text, variant=chosen.number, **changes))
    except (BadRequest, BadScenario) as problem:
        raise WrongUsage(str(problem), then=f"--beside takes {EXAMPLES}") from None
    if (case.cluster, case.scenario.seeded) == (chosen.case.cluster, chosen.case.scenario.seeded):
        return None
    for variant in cases(chosen.case.scenario):
        if (variant.cluster, variant.faults) == (case.cluster, case.faults) and not case.scenario.seeded:
            return variant
    words = ", ".join(f"{key} {_in_words(value)}" for key, value in changes.items())
    title = ", ".join(filter(None, (chosen.case.title, words)))
    scenario = attrs.evolve(case.scenario, expect=ScenarioExpectation())
    return attrs.evolve(case, title=title, scenario=scenario, expect=scenario.expect)


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(cast("tuple[str, ...]", value)) or "nothing" if isinstance(value, tuple) else str(value)
