"""How the help of a command looks: its usage line, and the table of its options.

Rule: only the help imports what cyclopts needs to print it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from cyclopts import App, Argument

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from cyclopts.help.specs import ColumnSpec
    from rich.console import Console, ConsoleOptions

NAMES_WIDTH: Final = 30
"""The columns of option names in the help: `--no-partition-verification` fits, which cyclopts would break."""
ANY_OPTIONS: Final = "[OPTIONS]"


def print_options(console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    from cyclopts.help import DefaultFormatter
    from cyclopts.help.specs import NameRenderer, get_default_parameter_columns

    def columns(
        console: Console, options: ConsoleOptions, entries: list[HelpEntry]
    ) -> tuple[ColumnSpec, ...]:
        found = get_default_parameter_columns(console, options, entries)
        wider = {"max_width": NAMES_WIDTH, "renderer": NameRenderer(max_width=NAMES_WIDTH)}
        return tuple(attrs.evolve(each, **wider) if each.header == "Option" else each for each in found)

    DefaultFormatter(column_specs=columns)(console, options, panel)


class UsageFormatter:
    """Prints help as cyclopts does, except the usage line: it names the optional arguments, too, for which
    cyclopts has only `[ARGS]`.
    """

    def __init__(self, root: App) -> None:
        self._root = root

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from cyclopts.help import DefaultFormatter

        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        """`usage` is cyclopts' line: the command, the required options, [OPTIONS], and the arguments."""
        from cyclopts.help import DefaultFormatter

        words = str(usage).split()
        command, depth = self._root, 1
        while depth < len(words) and words[depth] in command:
            command, depth = command[words[depth]], depth + 1
        if command.default_command:
            end = words.index(ANY_OPTIONS) + 1 if ANY_OPTIONS in words else depth
            arguments = command.assemble_argument_collection()
            words[end:] = [_shown(each) for each in arguments if each.index is not None]
        DefaultFormatter().render_usage(console, options, " ".join(words) + "\n")


def _shown(argument: Argument) -> str:
    """An argument in a usage line: [FILES...]."""
    name = argument.name.lstrip("-").upper()
    repeated = f"{name}..." if argument.token_count()[1] else name
    return repeated if argument.required else f"[{repeated}]"
