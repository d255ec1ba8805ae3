"""The configuration file: values of options that a user would otherwise repeat.

Rule: the command line wins over the environment, the environment over the file. An unknown key is an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import attrs
from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict

from fencepost.cli.errors import WRONG_USAGE, CommandFailed

SHARED: Final = ("bootstrap-server", "command-config")
"""The keys outside tables: options of every command that has them."""
THEN: Final = "`fencepost help cli` shows a configuration file; FENCEPOST_CONFIG names the file to read"


@attrs.frozen
class ConfigFile:
    """A source of options for cyclopts, which calls it before a command runs."""

    commands: frozenset[str]
    """The words of each command and of each group of commands."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Sets the options that neither the command line nor the environment gives."""
        path = config_path()
        if path is None:
            return
        values = _read(path)
        self._check(path, values)
        Dict(values, source=str(path))(app, commands, arguments)
        names = {name.lstrip("-") for argument in arguments for name in argument.names}
        shared = {name: values[name] for name in SHARED if name in values and name in names}
        Dict(shared, source=str(path), use_commands_as_keys=False)(app, commands, arguments)

    def _check(self, path: Path, values: dict[str, Any]) -> None:
        for words, is_table in _keys(values):
            if is_table and words not in self.commands:
                what = f"{path}: [{'.'.join(words.split())}] is not a command"
                raise CommandFailed(what, then=THEN, code=WRONG_USAGE)
            if not is_table and words not in SHARED:
                what = (
                    f"{path}: the key {words} is not {' or '.join(SHARED)}, and not in a table of a command"
                )
                raise CommandFailed(what, then=THEN, code=WRONG_USAGE)


def config_path() -> Path | None:
    """The file that FENCEPOST_CONFIG names, or the user's own if there is one."""
    if named := os.environ.get("FENCEPOST_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(home, "fencepost", "config.toml")
    return path if path.exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        what = f"cannot read the configuration file {path}: {problem.strerror}"
        raise CommandFailed(what, then=THEN, code=WRONG_USAGE) from problem
    except ValueError as problem:  # not TOML, or not UTF-8
        what = f"the configuration file {path} is not TOML: {problem}"
        raise CommandFailed(what, then=THEN, code=WRONG_USAGE) from problem


def _keys(values: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The keys outside the tables of commands, and the tables by the words of their commands."""
    for key, value in values.items():
        if not isinstance(value, dict):
            yield key, False
            continue
        yield key, True
        for inner, nested in cast("dict[str, Any]", value).items():
            if isinstance(nested, dict):
                yield f"{key} {inner}", True
