"""The generated sections of docs/cli.md and docs/lab.md: exit codes, short options, keys, every command, and
what `run --step` shows.

Rule: the words are those of the help, and the fields of JSON are those of the snapshots of the tests.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from fencepost.cli.application import application
from fencepost.cli.commands import COMMANDS, Command
from fencepost.cli.errors import EXIT_CODES
from fencepost.cli.step_screen import KEYS, Shown, screen
from fencepost.cli.step_walk import Walk
from fencepost.lab.pages import STATIC
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import variants
from tools.docs import tables

SNAPSHOTS: Final = Path(__file__).resolve().parent.parent.parent / "tests" / "cli" / "snapshots"
JSON_BEGINS: Final = "[pipe, --json]\n"
LATE: Final = 63
"""The step of late_end_txn at which the late commit decides another transaction."""
SCREEN: Final = (110, 28)  # columns and lines


def exit_codes() -> str:
    """The table of exit codes."""
    return tables.markdown_table(
        ("code", "what it means"), [(str(code), text) for code, text in EXIT_CODES.items()]
    )


def short_options() -> str:
    """Each short option, what it stands for, and where."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for words in _commands():
        app = application()
        for word in words.split():
            app = app[word]
        for argument in app.assemble_argument_collection():
            long, *others = argument.names
            for short in (name for name in others if len(name) == len("-x")):
                found[short, long].append(words)
    everywhere = len(_commands()) // 2
    rows = [
        (f"`{short}`", f"`{long}`", "most commands" if len(where) > everywhere else ", ".join(where))
        for (short, long), where in sorted(found.items(), key=lambda item: (item[0][0].lower(), item[0]))
    ]
    return tables.markdown_table(("short", "long", "in"), rows)


def step_keys() -> str:
    """The keys of `fencepost run NAME --step`."""
    return tables.markdown_table(("key", "what it does"), [(", ".join(keys), what) for keys, what in KEYS])


def step_screen() -> str:
    """What `fencepost run late_end_txn --variant 1 --step` shows after the late commit has arrived."""
    ((_, case),) = variants(read_scenario("late_end_txn"), 1)
    walk = Walk(record(case))
    walk.go_to(LATE)
    lines = [line.plain.rstrip() for line in screen(walk, Shown(runs=1), *SCREEN)]
    return "\n".join(("```text", *lines, "```"))


def page_keys() -> str:
    """The keys of the page, from the table in JavaScript by which it acts."""
    table = (STATIC / "keys.js").read_text(encoding="utf-8")
    keys = re.findall(r'shown: "([^"]+)",\s*words: "([^"]+)"', table)
    return tables.markdown_table(("key", "what it does"), keys)


def commands() -> str:
    """A section for each command: what it does, examples, and its JSON."""
    return "\n\n".join(_command(words, command) for words, command in COMMANDS.items() if command.place)


def _commands() -> list[str]:
    return [words for words, command in COMMANDS.items() if command.place]


def _command(words: str, command: Command) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in command.help.strip().split("\n\n")]
    examples = "\n".join(command.examples)
    parts = [f"### fencepost {words}", *paragraphs, f"```console\n{examples}\n```"]
    if fields := _json_fields(words):
        parts.append(f"JSON: {fields}.")
    return "\n\n".join(parts)


def _json_fields(words: str) -> str:
    """The fields of each kind of object that a command prints with --json."""
    file = SNAPSHOTS / f"{words.strip('-').replace(' ', '-')}.txt"
    if not file.exists():
        return ""
    shown = file.read_text(encoding="utf-8").partition(JSON_BEGINS)[2]
    kinds: dict[tuple[str, ...], None] = {}
    for line in shown.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            kinds[tuple(found)] = None
    return "; or ".join(", ".join(f"`{name}`" for name in names) for names in kinds)
