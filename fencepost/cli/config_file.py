"""The configuration file: values of options that a user would otherwise repeat, and profiles of such values.

Rule: the command line wins over the environment, the environment over the file. An unknown key is an error.
"""

# [profile.NAME] may hold the same keys as the file, for one cluster. The chosen profile wins over the rest of
# the file. If --profile chose it, its broker and its client settings also win over the environment:
# `--profile test` must not reach the broker of a forgotten FENCEPOST_BOOTSTRAP_SERVER.

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs
from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict

from fencepost.cli import environment
from fencepost.cli.environment import check_variables, variable
from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.files import read_toml

SHARED: Final = ("bootstrap-server", "command-config")
"""The keys outside tables: options of every command that also takes them from the environment."""
PROFILE: Final = "profile"
"""The table of profiles, and the option that chooses one."""
ENVIRONMENT: Final = "env"
"""Where cyclopts says that a value of a variable comes from."""
COMMAND_LINE: Final = "cli"
"""The same for a value that was written on the command line."""
HELP: Final = "help"
"""The command that prints the page about them."""
THEN: Final = f"`fencepost help cli` shows an example; the variable {environment.CONFIG} gives its path"


@attrs.frozen
class ConfigFile:
    """A source of options for cyclopts, which calls it before a command runs."""

    commands: frozenset[str]
    """The words of each command and of each group of commands."""
    profile: str | None = None
    """The profile that the command line names."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Sets the options that neither the command line nor the environment gives."""
        if commands == (HELP,):
            return  # it has no options, and describes the file and the variables that others refuse
        check_variables()
        _drop_empty_variables(arguments)
        chosen, path = self.profile or variable(environment.PROFILE), config_path()
        if path is None:
            if chosen is not None:
                raise _wrong(f"profile {chosen!r} does not exist: there is no configuration file")
            return
        values, profile = read_toml("the configuration file", path, then=THEN), dict[str, Any]()
        profiles = _profiles_in(path, values.pop(PROFILE, {}))
        root = app.app_stack.current_frame[0]
        self._check(path, values, root)
        for name, each in profiles.items():
            self._check(path, each, root, within=f"{PROFILE}.{name}.")
        if chosen is not None:
            profile = _named(path, profiles, chosen)
            values = _merged(values, profile)
            if self.profile is not None:
                _drop_environment(arguments, profile)
        Dict(values, source=str(path))(app, commands, arguments)
        shared = [argument for argument in arguments if argument.parameter.env_var]
        names = {name.lstrip("-") for argument in shared for name in argument.names}
        for name in SHARED:
            if name in values and name in names:
                source = f"profile {chosen} in {path}" if name in profile else str(path)
                Dict({name: values[name]}, source=source, use_commands_as_keys=False)(
                    app, commands, arguments
                )

    def _check(self, path: Path, values: dict[str, Any], root: App, within: str = "") -> None:
        for words, is_table in _keys(values):
            key = f"{within}{'.'.join(words.split())}"
            if is_table and words not in self.commands:
                meant = _suggestion(words, self.commands)
                raise _wrong(f"{path}: [{key}] is not a command{meant}")
            if not is_table and words not in SHARED:
                raise _wrong(
                    f"{path}: unknown key {key}: outside the tables of commands, only "
                    f"{' and '.join(SHARED)} are allowed"
                )
        for words in sorted(self.commands):
            group, space, command = words.partition(" ")
            for key, value in cast("dict[str, Any]", values.get(group, {}) if space else {}).items():
                if not isinstance(value, dict):
                    table = f"{within}{group}"
                    raise _wrong(
                        f"{path}: unknown key {table}.{key}: [{table}] is a group of commands, each of which "
                        f"has a table of its own, such as [{table}.{command}]"
                    )
        for words, is_table in _keys(values):
            if is_table:
                _check_options(path, values, root, words, within)


def _check_options(path: Path, values: dict[str, Any], command: App, words: str, within: str) -> None:
    """Refuses a key that is no option of the command whose table holds it."""
    table = values
    for word in words.split():
        table, command = table[word], command[word]
    keys = [key for key, value in table.items() if not isinstance(value, dict)]
    if not keys:
        return  # a command is only imported for keys that must be checked
    names = {name.lstrip("-") for each in command.assemble_argument_collection() for name in each.names}
    for key in keys:
        if key.replace("_", "-") not in names:
            known = _suggestion(key, names)
            where = f"{within}{'.'.join(words.split())}"
            raise _wrong(
                f"{path}: unknown key {key} in [{where}]{known}",
                f"`fencepost {words} --help` shows the options",
            )


def take_profile(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments without `--profile NAME`, which every command takes, and the name."""
    left, name, words = list[str](), None, iter(arguments)
    for word in words:
        option, sign, given = word.partition("=")
        if word == "--":
            return [*left, word, *words], name
        if option != f"--{PROFILE}":
            left.append(word)
            continue
        if name is not None:
            raise _wrong("--profile is given twice")
        name = given if sign else next(words, "")
        if not name or name.startswith("-"):
            raise _wrong("--profile needs the name of a profile")
    return left, name


def _suggestion(name: str, possible: Iterable[str]) -> str:
    from fencepost.protocol.suggestions import suggestion  # only errors need it

    return suggestion(name, sorted(possible))


def _wrong(what: str, then: str = "") -> CommandFailed:
    return WrongUsage(what, then=then or THEN)


def _profiles_in(path: Path, found: object) -> dict[str, dict[str, Any]]:
    if not isinstance(found, dict):
        raise _wrong(f"{path}: {PROFILE} is a value; a profile is a table, [{PROFILE}.NAME]")
    profiles = cast("dict[str, Any]", found)
    for name, profile in profiles.items():
        if not isinstance(profile, dict):
            raise _wrong(
                f"{path}: {PROFILE}.{name} is a value, not a profile; a profile is a table, [{PROFILE}.NAME]"
            )
    return profiles


def _named(path: Path, profiles: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in profiles:
        known = (
            f"its profiles are {', '.join(profiles)}" if profiles else f"write [{PROFILE}.{name}] to make one"
        )
        raise _wrong(f"{path} has no profile {name!r}{_suggestion(name, profiles)}", known)
    return profiles[name]


def _merged(values: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    """The values, overridden by those of a profile; nested tables are merged."""
    merged = dict(values)
    for key, value in profile.items():
        below = merged.get(key, {})
        tables = [cast("dict[str, Any]", each) for each in (below, value) if isinstance(each, dict)]
        merged[key] = _merged(*tables) if len(tables) == len((below, value)) else value
    return merged


def _drop_empty_variables(arguments: ArgumentCollection) -> None:
    for argument in arguments:
        argument.tokens[:] = [
            token for token in argument.tokens if token.value or token.source != ENVIRONMENT
        ]


def _drop_environment(arguments: ArgumentCollection, profile: dict[str, Any]) -> None:
    """Drop the environment's values of the options that a profile set, if --profile named it."""
    for argument in arguments:
        if any(name.lstrip("-") in profile for name in argument.names if name.lstrip("-") in SHARED):
            argument.tokens[:] = [token for token in argument.tokens if token.source != ENVIRONMENT]


def config_path() -> Path | None:
    """The file that FENCEPOST_CONFIG names, or the user's own if there is one."""
    if named := variable(environment.CONFIG):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(home, "fencepost", "config.toml")
    # os.path.exists: a directory that belongs to another user, after `su` or `setpriv`, has no file for us.
    return path if os.path.exists(path) else None


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
