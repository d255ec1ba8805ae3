"""The tree of commands, and the one place where an error becomes a sentence and an exit code.

Rule: 0 done, 1 failed or a difference found, 2 wrong usage, 3 no broker there, 130 and 143 for signals.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError

from fencepost import __version__
from fencepost.cli.errors import INTERRUPTED, OK, WRONG_USAGE, Stopped, report
from fencepost.protocol.errors import FencepostError

SIMULATOR = (
    ("fencepost.cli.fuzz:fuzz", "fuzz", "Try worlds at random until a rule is broken."),
    ("fencepost.cli.shrink:shrink", "shrink", "Make a run that breaks a rule as small as it can be."),
    ("fencepost.cli.run:run", "run", "Play scenarios: stories of clients, nodes and faults."),
    ("fencepost.cli.explore:explore", "explore", "Look at every state that a small world can come to."),
)

TOPICS = (
    ("fencepost.cli.topic:create_topic", "create", "Create a topic."),
    ("fencepost.cli.topic:list_topics", "list", "List topics."),
    (
        "fencepost.cli.topic:describe_topic",
        "describe",
        "Show the partitions of a topic: offsets and open transactions.",
    ),
    ("fencepost.cli.topic:delete_topic", "delete", "Delete a topic with all its records."),
    (
        "fencepost.cli.topic:delete_records",
        "delete-records",
        "Delete the records of a partition before an offset.",
    ),
)

GROUPS = (
    ("fencepost.cli.group:list_groups", "list", "List consumer groups."),
    ("fencepost.cli.group:describe_group", "describe", "Show a group: members, offsets, how far behind."),
    ("fencepost.cli.group:delete_group", "delete", "Delete a group without members, and its offsets."),
    ("fencepost.cli.group:delete_offsets", "delete-offsets", "Delete a group's offsets of a topic."),
)

TRANSACTIONS = (
    ("fencepost.cli.transactions:list_transactions", "list", "List transactional ids."),
    ("fencepost.cli.transactions:describe_transaction", "describe", "Show one transactional id."),
    (
        "fencepost.cli.transactions:describe_producers",
        "describe-producers",
        "Show the producers that a partition remembers.",
    ),
    (
        "fencepost.cli.transactions:find_hanging",
        "find-hanging",
        "Find open transactions that no coordinator knows.",
    ),
    (
        "fencepost.cli.transactions:find_late",
        "late",
        "Show partitions whose oldest transaction outlived every timeout.",
    ),
    (
        "fencepost.cli.transactions:abort_transaction",
        "abort",
        "Abort a hanging transaction in one partition.",
    ),
    (
        "fencepost.cli.transactions:force_terminate_transaction",
        "forceTerminateTransaction",
        "Fence the producer of a transactional id, and abort what it has open.",
    ),
)


def _shown_default(value: object) -> str | None:
    """A default as the help shows it; None where leaving an option out is the same as not asking for it."""
    if value is None or value is False or value == ():
        return None
    return "a tab" if value == "\t" else str(value)


def _with_commands(app: App, commands: Iterable[tuple[str, str, str]]) -> App:
    """The app with these: where each is, its name, and its line of help."""
    for place, name, text in commands:
        app.command(place, name=name, help=text)
    return app


def application() -> App:
    """Every command by its import path: none is imported before it is asked for."""
    app = App(
        name="fencepost",
        help="Kafka's exactly-once taken apart: a broker, its client, and tools to look inside the log.",
        version=__version__,
        default_parameter=Parameter(negative_iterable=(), show_default=_shown_default),
    )
    app.command("fencepost.cli.serve:serve", name="serve", help="Run a broker.")
    topics = App(name="topic", help="Create, list, describe and delete topics, or records of them.")
    app.command(_with_commands(topics, TOPICS))
    groups = App(name="group", help="Look at consumer groups and their offsets, and delete them.")
    app.command(_with_commands(groups, GROUPS))
    app.command("fencepost.cli.produce:produce", name="produce", help="Write lines as records.")
    app.command("fencepost.cli.consume:consume", name="consume", help="Read records as lines.")
    transactions = App(name="transactions", help="Look at transactions, and abort those that hang.")
    app.command(_with_commands(transactions, TRANSACTIONS))
    app.command(
        "fencepost.cli.dump:dump", name="dump", help="Say in words what lies in a log file or directory."
    )
    app.command(
        "fencepost.cli.check:check", name="check", help="Check every file of a data directory, offline."
    )
    _with_commands(app, SIMULATOR)
    app.command(
        "fencepost.cli.demo:demo",
        name="demo",
        help="A pipeline over real data that is killed again and again.",
    )
    return app


def _others_of(problem: CycloptsError) -> str:
    """Options that hold the word of one that there is not, besides the one that cyclopts suggests."""
    if not isinstance(problem, UnknownOptionError):
        return ""
    word = (problem.token.keyword or problem.token.value).lstrip("-").partition("=")[0]
    names = [name for argument in problem.argument_collection for name in argument.names]
    others = [name for name in names if word and f"-{word}" in name and f"{name}?" not in str(problem)]
    return f" There is {', '.join(others)}, too." if others and "Did you mean" in str(problem) else ""


def run(arguments: Sequence[str]) -> int:
    """Runs one command; the exit code. No expected error shows a traceback."""
    try:
        code = application()(
            list(arguments), result_action="return_value", exit_on_error=False, print_error=False
        )
        sys.stdout.flush()
    except CycloptsError as problem:
        print(
            f"fencepost: {problem}{_others_of(problem)}\n"
            "  fencepost --help lists the commands, and each has its own --help",
            file=sys.stderr,
        )
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Stopped as stopped:
        return stopped.code
    except BrokenPipeError:
        # Whoever read us has seen enough (`fencepost consume t | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (FencepostError, OSError, ExceptionGroup) as problem:
        return report(problem)
    return code if isinstance(code, int) else OK


def run_as_process(arguments: Sequence[str]) -> int:
    """The same where the process is ours: SIGTERM unwinds it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _on_terminate)
    return run(arguments)


def _on_terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(signal.SIGTERM)
