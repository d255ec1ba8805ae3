"""The bundled scenarios by name: inside the package in a wheel, beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path


def bundled_scenarios() -> dict[str, Path]:
    """Their files by name, such as `zombie_fencing`: the stories first, then what searches found."""
    package = Path(__file__).parent
    folders = [package / "scenarios", package.parent / "scenarios"]
    found = [path for pattern in ("*.toml", "found/*.toml") for path in _in(folders, pattern)]
    return {path.stem: path for path in found}


def _in(folders: list[Path], pattern: str) -> list[Path]:
    return sorted(path for folder in folders for path in folder.glob(pattern))
