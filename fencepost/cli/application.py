"""The tree of commands, and the one place that turns an error into a sentence and an exit code.

Rule: 0 success, 1 failure or something found, 2 wrong usage, 3 no broker, 130 and 143 for signals.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import BufferedWriter, FileIO, RawIOBase, TextIOWrapper
from types import FrameType
from typing import Any, BinaryIO, Final, NoReturn, cast

import attrs
from cyclopts import (
    App,
    Argument,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
    convert,
)

from fencepost import __version__
from fencepost.cli.config_file import COMMAND_LINE, ConfigFile, take_profile
from fencepost.cli.errors import INTERRUPTED, OK, WRONG_USAGE, CommandFailed, Stopped, complain, report
from fencepost.cli.examples import EXAMPLES
from fencepost.cli.help_text import UsageFormatter, print_options
from fencepost.client.kafka_options import instead_of
from fencepost.protocol.errors import FencepostError

ROOT = "Kafka-style exactly-once messaging: a broker, a client, and tools that look inside the log."
EPILOGUE = """
Exit codes: 0 success, 1 failure or something found, 2 wrong usage, 3 no broker, 130 Ctrl-C, 143 SIGTERM.

FENCEPOST_BOOTSTRAP_SERVER, ~/.config/fencepost/config.toml and its profiles (--profile NAME, with any
command) save typing; `fencepost help cli` describes them.
"""

# Each command: its words, where its function is (None for a group of commands), and its help: one sentence
# for the list of commands and, after an empty line, more for the help of the command itself. The help stands
# here and not in the docstring of the function because the list must not import the commands.
COMMANDS = (
    (
        "serve",
        "fencepost.cli.serve:serve",
        """Run a broker until Ctrl-C or SIGTERM.

        When the broker is ready, it prints three lines: its address, an upper bound on the memory that
        clients can make it use, and both as JSON. With --fault, it also prints which faults wait, and for
        which clients.
        """,
    ),
    (
        "status",
        "fencepost.cli.status:status",
        """Show the health of a broker: version, partitions, transactions, disks.

        The exit code is 1 if something is wrong: partitions that are not served, late or hanging
        transactions, or a disk that failed in the last five minutes.
        """,
    ),
    (
        "top",
        "fencepost.cli.top:top",
        """Show the current load of a broker: topic and request rates, and open transactions.

        The display refreshes until Ctrl-C. RECORDS/S counts the records that producers and coordinators
        write, but not markers; LSO-LAG is the number of offsets that read_committed cannot read yet.
        """,
    ),
    ("user", None, "Add users to the user file of a broker, or remove them."),
    (
        "user add",
        "fencepost.cli.user:add_user",
        """Add a user to a user file, or change a user's password.

        The command asks for the password, or reads it from standard input. The file holds SCRAM credentials,
        from which the password cannot be computed.
        """,
    ),
    ("user remove", "fencepost.cli.user:remove_user", "Remove a user from a user file."),
    ("fault", None, "Add faults to a running broker, for tests; list, end and remove them."),
    (
        "fault add",
        "fencepost.cli.fault:add_faults",
        """Add faults to a running broker.

        A fault is "when POINT do ACTION [until POINT] [every N times] [at most N times]"; `fencepost help
        faults` lists the points and actions. A client is named by its client id, `broker` is the
        broker, and * matches any client or the broker. `#2` means the second time that the point is reached.
        """,
    ),
    (
        "fault list",
        "fencepost.cli.fault:list_faults",
        """List the faults of a broker.

        STRUCK counts how often a fault struck, REACHED how often its point was reached while it
        could strike. LASTS is yes while its effect, such as a pause, has not ended.
        """,
    ),
    (
        "fault wait",
        "fencepost.cli.fault:wait_for_faults",
        """Wait until faults have struck.

        The exit code is 1 if a fault has not struck in time; the output then shows similar points that were
        reached.
        """,
    ),
    (
        "fault end",
        "fencepost.cli.fault:end_faults",
        "Undo what faults did: release messages, resume the broker, repair its disk.",
    ),
    (
        "fault remove",
        "fencepost.cli.fault:remove_faults",
        "Undo what faults did, and remove them from the broker.",
    ),
    ("topic", None, "Create, list, describe, alter and delete topics; delete records."),
    ("topic create", "fencepost.cli.topic:create_topic", "Create a topic."),
    ("topic list", "fencepost.cli.topic:list_topics", "List topics."),
    (
        "topic describe",
        "fencepost.cli.topic:describe_topic",
        """Show the settings of a topic, and its partitions with offsets and open transactions.

        LAST-STABLE-OFFSET is where read_committed stops; HIGH-WATERMARK is where read_uncommitted stops.
        """,
    ),
    (
        "topic alter",
        "fencepost.cli.topic:alter_topic",
        """Change settings of a topic, or add partitions.

        If one setting change is refused, no setting is changed. Changes take effect at once.
        """,
    ),
    ("topic delete", "fencepost.cli.topic:delete_topic", "Delete a topic and all its records."),
    (
        "topic delete-records",
        "fencepost.cli.topic:delete_records",
        """Delete the records of a partition before an offset.

        The remaining records keep their offsets.
        """,
    ),
    ("group", None, "List, describe and delete consumer groups; reset and delete their offsets."),
    ("group list", "fencepost.cli.group:list_groups", "List consumer groups."),
    (
        "group describe",
        "fencepost.cli.group:describe_group",
        """Show the members, offsets and lag of a group.

        LAG is the log end offset minus the committed offset. It counts markers and aborted records too.
        """,
    ),
    ("group delete", "fencepost.cli.group:delete_group", "Delete an empty group and its offsets."),
    (
        "group reset-offsets",
        "fencepost.cli.reset_offsets:reset_offsets",
        """Change the committed offsets of a group that has no members.

        The command prints the new offsets, and commits them only with --execute.
        An offset outside the range of a log is replaced by the nearest offset inside it, as in Kafka. Give
        the partitions with --topic or --all-topics, and
        one target: --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration or --shift-by.
        """,
    ),
    (
        "group delete-offsets",
        "fencepost.cli.group:delete_offsets",
        "Delete the offsets of a group for a topic.",
    ),
    (
        "produce",
        "fencepost.cli.produce:produce",
        """Write lines of text, JSON or CSV, or whole files, as records.

        Each line is a value, or a key and a value separated by a tab. With --format the command reads what
        `fencepost consume` writes in that format. The command reports what it has written even if it
        fails or Ctrl-C ends it; an open transaction is then aborted.
        """,
    ),
    (
        "consume",
        "fencepost.cli.consume:consume",
        """Print records as lines of text, JSON or CSV, or in a format of your own.

        Each line is a value, or a key and a value separated by a tab. The command stops at the current end of
        the topic, unless --follow is given; a read_committed reader stops before the first open transaction.
        """,
    ),
    ("transactions", None, "List and describe transactions; find and abort hanging ones."),
    ("transactions list", "fencepost.cli.transactions:list_transactions", "List transactional ids."),
    (
        "transactions describe",
        "fencepost.cli.transactions:describe_transaction",
        "Show one transactional id.",
    ),
    (
        "transactions describe-producers",
        "fencepost.cli.transactions:describe_producers",
        "Show the producer state of a partition.",
    ),
    (
        "transactions find-hanging",
        "fencepost.cli.transactions:find_hanging",
        """Find hanging transactions: open, but unknown to every coordinator.

        They block read_committed readers until `fencepost transactions abort` ends them.
        """,
    ),
    (
        "transactions late",
        "fencepost.cli.transactions:find_late",
        """Show partitions whose oldest open transaction is more than five minutes past the maximum timeout.

        Kafka reports the number of these partitions as the metric PartitionsWithLateTransactionsCount. The
        metric is above 0 when transactions hang, or when coordinators are slow to end them.
        """,
    ),
    (
        "transactions abort",
        "fencepost.cli.transactions:abort_transaction",
        """Abort a hanging transaction in one partition.

        It writes an ABORT marker to the partition without asking the coordinator.
        """,
    ),
    (
        "transactions force-terminate",
        "fencepost.cli.transactions:force_terminate_transaction",
        "Fence the producer of a transactional id and abort its open transaction.",
    ),
    (
        "dump",
        "fencepost.cli.dump:dump",
        """Describe the contents of a log file or data directory.

        It shows batches, markers, transactions, committed offsets, indexes and snapshots. The broker may be
        running or stopped.
        """,
    ),
    (
        "check",
        "fencepost.cli.check:check",
        """Check every file of a data directory. The broker must be stopped.

        The check verifies the batches and sequences of each log, and compares indexes, snapshots and
        manifests with the log, and the transaction log with the markers. A problem is a broken guarantee
        (exit code 1). A note is a leftover that the next start repairs, or a change that an administrator
        made.
        """,
    ),
    (
        "audit",
        "fencepost.cli.audit:audit",
        """Look for broken guarantees in the logs, with Spark. The broker may be running or stopped.

        The audit finds duplicates and gaps in sequences, records written with fenced epochs, markers that
        contradict the coordinator or each other, transactions that hang or are overdue, a last stable offset
        that does not move, and damage. With --acks it also finds acknowledged records that are missing; with
        --input, --output and --by it compares the input topic of an application with its output topic. The
        exit code is 1 if it finds a problem. It needs PySpark and Java: pip install 'fencepost[spark,java]'.
        """,
    ),
    (
        "export",
        "fencepost.cli.export:export",
        """Copy each committed record to Parquet files exactly once, with Spark. The broker may be running.

        Each export adds a directory with the records committed since the last one; manifest.json, next to the
        directories, lists the offsets. If an export is killed, the next one repeats it. It needs PySpark
        and Java: pip install 'fencepost[spark,java]'.
        """,
    ),
    (
        "repair",
        "fencepost.cli.repair:repair",
        """List the damage in a data directory; repair it with --write. The broker must be stopped.

        A repair keeps every intact batch at its offset, aborts transactions whose outcome is lost, sets the
        damaged originals aside, and writes a report to the directory. Without --write nothing is changed,
        and the exit code is 1 if there is damage.
        """,
    ),
    (
        "fuzz",
        "fencepost.cli.fuzz:fuzz",
        """Run random simulated clusters until one violates a rule.

        Each seed determines its own nodes, clients and faults; the real broker and real clients run in
        virtual time. If a rule is violated, the exit code is 1, and the output says how to replay and how to
        shrink that seed. Known anomalies of Apache Kafka are counted by name and are not violations. In
        transaction versions 0 and 1, a run also ends at the first anomaly of that version; the search
        continues with the next seed.
        """,
    ),
    (
        "shrink",
        "fencepost.cli.shrink:shrink",
        """Reduce a failing run to a small scenario.

        Ctrl-C ends the search and writes the smallest scenario found so far.
        """,
    ),
    (
        "run",
        "fencepost.cli.run:run",
        """Run scenarios: scripted clients, nodes and faults.

        A scenario is a TOML file with the participants, the faults and the expected outcome. The exit code
        is 1 if a scenario does not meet its expectations, or if --for ends the command before
        every scenario has run.
        """,
    ),
    (
        "explore",
        "fencepost.cli.explore:explore",
        """Check every reachable state of a small cluster.

        The cluster consists of the real broker and real producers. Each producer runs its transactions one
        after the other. A transaction writes one record to every partition, and then commits or aborts; the
        search explores both. The exit code is 1 if a violation is found or if the search ends before it has
        checked all states.
        """,
    ),
    (
        "lab",
        "fencepost.cli.lab:lab",
        """Serve a web page for watching runs, stepping through them and adding faults to them.

        The page has the bundled scenarios with their lessons, and an editor for others. A click on a message,
        a node or a client adds a fault, and the scenario runs again.
        The server listens on the loopback interface only. The command needs Starlette and Hypercorn:
        pip install 'fencepost[lab]'.
        """,
    ),
    (
        "help",
        "fencepost.cli.help:print_page",
        """Print a page of the documentation, or list the pages.

        The pages are part of the package, so they describe this version.
        """,
    ),
    (
        "demo",
        "fencepost.cli.demo:demo",
        "Run a transactional pipeline on real data, kill it repeatedly, and check the result.",
    ),
    (
        "--install-completion",
        "fencepost.cli.completion:install_completion",
        """Install shell completion of commands and options.

        The Tab key then completes them in new shells. The command writes to the startup file of bash or zsh.
        """,
    ),
)


ALIASES = (("transactions force-terminate", "forceTerminateTransaction"),)
"""Further names of commands: those of Kafka's tools, where ours differ."""


def _shown_examples(words: str) -> str:
    """The examples as Markdown, a line for each."""
    return "Examples:\n\n" + "  \n".join(f"`{example}`" for example in EXAMPLES.get(words, ()))


def _is_utf_8(text: str) -> bool:
    """Whether the bytes of an argument are UTF-8. Python keeps each byte that is not as half of a surrogate
    pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_encoding(_type: object, value: object) -> None:
    """Refuses texts that cannot be sent to a broker. The names of files have the type Path, and may hold any
    bytes.
    """
    if attrs.has(type(value)):  # the options that several commands share
        value = attrs.astuple(cast("attrs.AttrsInstance", value), recurse=False)
    if isinstance(value, tuple):
        for each in cast("tuple[object, ...]", value):
            _check_encoding(_type, each)
    elif isinstance(value, str) and not _is_utf_8(value):
        raise ValueError(MUST_BE_UTF_8)


def _shown_default(value: object) -> str | None:
    """The default as the help shows it; None where the default is to do nothing."""
    if value is None or value is False or value == ():
        return None
    return "a tab" if value == "\t" else str(value)


def _unrounded(kind: Any, tokens: Sequence[Token]) -> object:
    """The value of an option. cyclopts would round 1.5 to a whole number; 2.0 is one."""
    if kind in (int, tuple[int, ...]):
        for token in tokens:
            if token.value.partition(".")[2].strip("0"):
                raise CoercionError(token=token, target_type=int)
    return cast("object", convert(kind, tokens))


def application(profile: str | None = None) -> App:
    """The app, which knows each command by its import path, so that only the invoked command is imported.
    `profile`: the value of --profile.
    """
    root = App(
        name="fencepost",
        help=ROOT,
        help_epilogue=EPILOGUE,
        version=__version__,
        default_parameter=Parameter(
            negative_iterable=(), show_default=_shown_default, converter=_unrounded, validator=_check_encoding
        ),
        group_parameters=Group("Options", help_formatter=print_options),
        config=ConfigFile(frozenset(words for words, _, _ in COMMANDS), profile),
    )
    root.help_formatter = UsageFormatter(root)
    groups = {"": root}
    for words, place, text in COMMANDS:
        group, _, name = words.rpartition(" ")
        if place is None:
            groups[name] = App(name=name, help=text)
            root.command(groups[name])
        else:
            groups[group].command(place, name=name, help=text, help_epilogue=_shown_examples(words))
    for words, alias in ALIASES:
        group, _, name = words.rpartition(" ")
        groups[group].command(
            next(place for each, place, _ in COMMANDS if each == words), name=alias, show=False
        )
    return root


def _word(problem: UnknownOptionError) -> str:
    """The unknown option without its dashes and its value."""
    return (problem.token.keyword or problem.token.value).lstrip("-").partition("=")[0]


def _others_of(problem: CycloptsError) -> str:
    """Further options whose names contain the unknown word, besides the one that cyclopts suggests."""
    if not isinstance(problem, UnknownOptionError):
        return ""
    word = _word(problem)
    names = [name for argument in problem.argument_collection for name in argument.names]
    others = [name for name in names if word and f"-{word}" in name and f"{name}?" not in str(problem)]
    return f" Or {', '.join(others)}?" if others and "Did you mean" in str(problem) else ""


def _usage_error(problem: CycloptsError, app: App, arguments: Sequence[str]) -> str:
    """The error in words. cyclopts names one missing option at a time; this names all of them."""
    chain = problem.command_chain or ()
    if isinstance(problem, MissingArgumentError):
        given = {word.partition("=")[0] for word in arguments}
        command = app
        for word in chain:
            command = command[word]
        missing = [
            argument.name
            for argument in command.assemble_argument_collection()
            if argument.required
            and argument.field_info.kind is inspect.Parameter.KEYWORD_ONLY
            and given.isdisjoint(argument.names)
        ]
        if not missing and problem.argument is not None and given.isdisjoint(problem.argument.names):
            missing = [problem.argument.name.lstrip("-").upper()]  # a positional one
        if missing:
            return f"{' '.join(chain)} needs {' and '.join(missing)}"
    if isinstance(problem, UnusedCliTokensError):
        extra = " ".join(problem.unused_tokens or ())
        return f"{' '.join(chain)} has too many arguments: {extra} (quote an argument that contains spaces)"
    if isinstance(problem, UnknownCommandError) and (unknown := arguments[len(chain)]).startswith("-"):
        if meant := get_close_matches(unknown, WITHOUT_COMMAND, 1, 0.75):
            return f"{unknown} is not an option of fencepost; did you mean {meant[0]}?"
        return f"{unknown} is given before the command; options go after it"
    if isinstance(problem, CoercionError) and problem.msg is None and problem.target_type in NUMBERS:
        token, argument = problem.token, problem.argument
        if token is not None and argument is not None:
            return _invalid(token, argument, f"Must be {NUMBERS[problem.target_type]}.")
    if isinstance(problem, ValidationError) and problem.argument is not None:
        for argument in (problem.argument, *problem.argument.children):
            for token in argument.tokens:
                if not _is_utf_8(token.value):
                    return _invalid(token, argument, MUST_BE_UTF_8)
    if isinstance(problem, UnknownOptionError) and (instead := instead_of(_word(problem)).in_command):
        return f"{' '.join(chain)} has no option --{_word(problem)}: {instead}"
    return f"{problem}{_others_of(problem)}"


def _invalid(token: Token, argument: Argument, wanted: str) -> str:
    name = token.keyword or argument.name.lstrip("-").upper()
    source = "" if token.source in ("", COMMAND_LINE) else f" from {token.source}"
    value = os.fsencode(token.value).decode(errors="backslashreplace")
    return f'Invalid value "{value}" for {name}{source}. {wanted}'


STDOUT: Final = "standard output"
MUST_BE_UTF_8: Final = "Must be UTF-8."
WITHOUT_COMMAND: Final = ("--version", "--help")
NUMBERS: Final[dict[type | None, str]] = {int: "a whole number", float: "a number"}


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. No expected error shows a traceback."""
    try:
        arguments, profile = take_profile(arguments)
    except CommandFailed as problem:
        return report(problem)
    app = application(profile)
    try:
        code = app(arguments, result_action="return_value", exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as problem:
        usage = " ".join(("fencepost", *(problem.command_chain or ()), "--help"))
        complain(_usage_error(problem, app, arguments), then=f"`{usage}` shows the usage")
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Stopped as stopped:
        return stopped.code
    except BrokenPipeError:
        _drop_output()  # the reader of the pipe has exited (`fencepost consume t | head`)
        return OK
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich's answer to it, while it prints a help
            return OK
        raise
    except (FencepostError, OSError, ExceptionGroup) as problem:
        if isinstance(problem, OSError) and problem.filename == STDOUT:
            _drop_output()
        return report(problem)
    return code if isinstance(code, int) else OK


class _StandardOutput(FileIO):
    """stdout, whose errors name it: a full disk, for example."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            problem.filename = STDOUT
            raise


def _drop_output() -> None:
    """With stdout redirected, Python's flush at exit does not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_as_process(arguments: Sequence[str]) -> int:
    """Runs one command as the whole process: SIGTERM unwinds it as Ctrl-C does."""
    open_standard_streams()
    signal.signal(signal.SIGTERM, _on_terminate)
    return run(arguments)


def open_standard_streams() -> None:
    """Open /dev/null for the standard streams that the parent has closed (`fencepost status >&-`). Otherwise
    Python has None for them, and the next file or socket that is opened would get what is printed.

    Characters that the encoding of stdout lacks are printed as escapes (\\xff, \\u2713), as on stderr: the
    name of a directory need not be UTF-8, nor the locale.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process
    raw = _StandardOutput(sys.stdout.fileno(), "w", closefd=False)
    is_unbuffered = isinstance(sys.stdout.buffer, RawIOBase)  # PYTHONUNBUFFERED
    sys.stdout = TextIOWrapper(
        cast("BinaryIO", raw) if is_unbuffered else BufferedWriter(raw),
        write_through=is_unbuffered,
        encoding=sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=sys.stdout.isatty(),
    )


def _on_terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(signal.SIGTERM)
