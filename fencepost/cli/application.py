"""The tree of commands, and the one place that turns an error into a sentence and an exit code.

Rule: 0 success, 1 failure or a difference found, 2 wrong usage, 3 no broker, 130 and 143 for signals.
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

# A help text is one sentence for the list of commands and, after an empty line, more for the help of the
# command. It stands here and not in the docstring of the command because the list must not import the
# commands.

SIMULATOR = (
    (
        "fencepost.cli.fuzz:fuzz",
        "fuzz",
        """Run random simulated clusters until an invariant fails.

        Each seed draws its own nodes, clients and faults; the real broker and real clients run in virtual
        time. If an invariant fails, the exit code is 1, and the output says how to replay and how to shrink
        that seed. A known anomaly of an older transaction version ends its run; it is counted by name and is
        not a violation.
        """,
    ),
    (
        "fencepost.cli.shrink:shrink",
        "shrink",
        """Reduce a failing run to a small scenario.

        Ctrl-C ends the search and writes the smallest scenario found so far.
        """,
    ),
    (
        "fencepost.cli.run:run",
        "run",
        """Run scenarios: scripted clients, nodes and faults.

        A scenario is a TOML file with the participants, the faults and the expected outcome. The
        exit code is 1 if a scenario does not meet its expectations.
        """,
    ),
    (
        "fencepost.cli.explore:explore",
        "explore",
        """Check every reachable state of a small cluster.

        The cluster consists of the real broker and real producers. Each producer runs its transactions one
        after the other, writes one record to every partition, and then commits or aborts; both are explored.
        The exit code is 1 if a violation is found or if the search ends before it has checked all states.
        """,
    ),
)

TOPICS = (
    ("fencepost.cli.topic:create_topic", "create", "Create a topic."),
    ("fencepost.cli.topic:list_topics", "list", "List topics."),
    (
        "fencepost.cli.topic:describe_topic",
        "describe",
        """Show the partitions of a topic with offsets and open transactions.

        STABLE END is the last stable offset, where read_committed stops. END is the high watermark.
        """,
    ),
    ("fencepost.cli.topic:delete_topic", "delete", "Delete a topic and all its records."),
    (
        "fencepost.cli.topic:delete_records",
        "delete-records",
        """Delete the records of a partition before an offset.

        The remaining records keep their offsets.
        """,
    ),
)

GROUPS = (
    ("fencepost.cli.group:list_groups", "list", "List consumer groups."),
    (
        "fencepost.cli.group:describe_group",
        "describe",
        """Show the members, offsets and lag of a group.

        LAG is the log end offset minus the committed offset. It counts markers and aborted records too.
        """,
    ),
    ("fencepost.cli.group:delete_group", "delete", "Delete an empty group and its offsets."),
    ("fencepost.cli.group:delete_offsets", "delete-offsets", "Delete the offsets of a group for a topic."),
)

TRANSACTIONS = (
    ("fencepost.cli.transactions:list_transactions", "list", "List transactional ids."),
    ("fencepost.cli.transactions:describe_transaction", "describe", "Show one transactional id."),
    (
        "fencepost.cli.transactions:describe_producers",
        "describe-producers",
        "Show the producer state of a partition.",
    ),
    (
        "fencepost.cli.transactions:find_hanging",
        "find-hanging",
        """Find hanging transactions: open, but unknown to every coordinator.

        They block read_committed readers until `fencepost transactions abort` ends them.
        """,
    ),
    (
        "fencepost.cli.transactions:find_late",
        "late",
        """Show partitions whose oldest open transaction is past its maximum timeout.

        Their number is Kafka's metric PartitionsWithLateTransactionsCount. It is above 0 when transactions
        hang, or when coordinators are too slow to end them.
        """,
    ),
    (
        "fencepost.cli.transactions:abort_transaction",
        "abort",
        """Abort a hanging transaction in one partition.

        It writes an ABORT marker to the partition; no coordinator takes part.
        """,
    ),
    (
        "fencepost.cli.transactions:force_terminate_transaction",
        "forceTerminateTransaction",
        "Fence the producer of a transactional id and abort its open transaction.",
    ),
)


ROOT = """Kafka-style exactly-once messaging: a broker, a client, and tools that look inside the log.

Exit codes: 0 success, 1 failure or a difference found, 2 wrong usage, 3 no broker, 130 Ctrl-C, 143 SIGTERM.
"""

SERVE = """Run a broker until Ctrl-C or SIGTERM.

When the broker is ready, it prints two lines: its address as text, then the same as JSON.
"""

PRODUCE = """Write lines of text as records.

Each line is a value, or a key, a tab and a value.
"""

CONSUME = """Print records as lines of text.

Each line is a value, or a key, a tab and a value. It stops at the current end of the topic; see --follow.
"""

DUMP = """Describe the contents of a log file or data directory.

It shows batches, markers, transactions, committed offsets, indexes and snapshots. The broker of the log may
be running or stopped.
"""

CHECK = """Check every file of a data directory, while no broker uses it.

It compares batches, sequences, indexes, snapshots, manifests, and the transaction log with the markers. A
problem is a broken guarantee (exit code 1). A note is a leftover that the next start repairs, or a change
that an administrator made.
"""


def _shown_default(value: object) -> str | None:
    """The default as the help shows it; None where the default is to do nothing."""
    if value is None or value is False or value == ():
        return None
    return "a tab" if value == "\t" else str(value)


def _with_commands(app: App, commands: Iterable[tuple[str, str, str]]) -> App:
    """Adds commands to the app: each is an import path, a name and a line of help."""
    for place, name, text in commands:
        app.command(place, name=name, help=text)
    return app


def application() -> App:
    """The app with every command by its import path, so that only the invoked command is imported."""
    app = App(
        name="fencepost",
        help=ROOT,
        version=__version__,
        default_parameter=Parameter(negative_iterable=(), show_default=_shown_default),
    )
    app.command("fencepost.cli.serve:serve", name="serve", help=SERVE)
    topics = App(name="topic", help="Create, list, describe and delete topics; delete records.")
    app.command(_with_commands(topics, TOPICS))
    groups = App(name="group", help="List, describe and delete consumer groups and their offsets.")
    app.command(_with_commands(groups, GROUPS))
    app.command("fencepost.cli.produce:produce", name="produce", help=PRODUCE)
    app.command("fencepost.cli.consume:consume", name="consume", help=CONSUME)
    transactions = App(
        name="transactions", help="List and describe transactions; find and abort hanging ones."
    )
    app.command(_with_commands(transactions, TRANSACTIONS))
    app.command("fencepost.cli.dump:dump", name="dump", help=DUMP)
    app.command("fencepost.cli.check:check", name="check", help=CHECK)
    _with_commands(app, SIMULATOR)
    app.command(
        "fencepost.cli.demo:demo",
        name="demo",
        help="Run a transactional pipeline on real data, kill it repeatedly, and check the result.",
    )
    return app


def _others_of(problem: CycloptsError) -> str:
    """Further options whose names contain the unknown word, besides the one that cyclopts suggests."""
    if not isinstance(problem, UnknownOptionError):
        return ""
    word = (problem.token.keyword or problem.token.value).lstrip("-").partition("=")[0]
    names = [name for argument in problem.argument_collection for name in argument.names]
    others = [name for name in names if word and f"-{word}" in name and f"{name}?" not in str(problem)]
    return f" Or {', '.join(others)}?" if others and "Did you mean" in str(problem) else ""


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. No expected error shows a traceback."""
    try:
        code = application()(
            list(arguments), result_action="return_value", exit_on_error=False, print_error=False
        )
        sys.stdout.flush()
    except CycloptsError as problem:
        print(
            f"fencepost: {problem}{_others_of(problem)}\n"
            f"  `{' '.join(('fencepost', *(problem.command_chain or ())))} --help` shows the usage",
            file=sys.stderr,
        )
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Stopped as stopped:
        return stopped.code
    except BrokenPipeError:
        # The reader of the pipe has exited (`fencepost consume t | head`). With stdout redirected, Python's
        # flush at exit does not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (FencepostError, OSError, ExceptionGroup) as problem:
        return report(problem)
    return code if isinstance(code, int) else OK


def run_as_process(arguments: Sequence[str]) -> int:
    """Runs one command as the whole process: SIGTERM unwinds it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _on_terminate)
    return run(arguments)


def _on_terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(signal.SIGTERM)
