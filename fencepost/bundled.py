"""The bundled scenarios and pages by name: inside the package in a wheel, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path


def bundled_scenarios() -> dict[str, Path]:
    """The files of the bundled scenarios by name, such as `zombie_fencing`: the stories first, then what
    searches found.
    """
    found = [path for pattern in ("*.toml", "found/*.toml") for path in _in("scenarios", pattern)]
    return {path.stem: path for path in found}


def bundled_pages() -> dict[str, Path]:
    """The pages of the documentation by name, such as `access`; `scenarios` describes the format of them."""
    pages = {path.stem: path for path in _in("docs", "*.md")}
    return dict(sorted({**pages, "scenarios": _in("scenarios", "README.md")[0]}.items()))


def _in(folder: str, pattern: str) -> list[Path]:
    package = Path(__file__).parent
    return sorted(path for place in (package, package.parent) for path in (place / folder).glob(pattern))
