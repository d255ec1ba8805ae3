"""The tree of commands, and the one place that turns an error into a sentence and an exit code.

Rule: 0 success, 1 failure or something found, 2 wrong usage, 3 no broker, 130 and 143 for signals.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Sequence
from io import BufferedWriter, FileIO, RawIOBase, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final, NoReturn, cast, get_args

import attrs
from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
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
from fencepost.cli.commands import COMMANDS
from fencepost.cli.config_file import COMMAND_LINE, ConfigFile, take_profile
from fencepost.cli.errors import MUST_NOT_BE_EMPTY, OK, STDOUT, WRONG_USAGE, CommandFailed, complain, report
from fencepost.cli.help_text import UsageFormatter, print_options
from fencepost.cli.interruptions import Stopped
from fencepost.client.kafka_options import instead_of
from fencepost.protocol.errors import FencepostError

ROOT = "Kafka-style exactly-once messaging: a broker, a client, and tools that look inside the log."
EPILOGUE = """
Exit codes: 0 success, 1 failure or something found, 2 wrong usage, 3 no broker, 130 Ctrl-C, 143 SIGTERM.

FENCEPOST_BOOTSTRAP_SERVER, ~/.config/fencepost/config.toml and its profiles (--profile NAME, with any
command) save typing; `fencepost help cli` describes them.
"""


def _is_utf_8(text: str) -> bool:
    """Whether the bytes of an argument are UTF-8. Python represents each other byte as half of a surrogate
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


def _exact(kind: Any, tokens: Sequence[Token]) -> object:
    """The value of an option. cyclopts would round 1.5 to a whole number (2.0 is one), and take an empty
    path, which comes from an unset variable of the shell, for the current directory.
    """
    kinds = {kind, *get_args(kind)}  # of int | None and of tuple[int, ...], too
    if Path in kinds and any(not token.value for token in tokens):
        raise ValueError(MUST_NOT_BE_EMPTY)
    if int in kinds:
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
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(
            negative_iterable=(), show_default=_shown_default, converter=_exact, validator=_check_encoding
        ),
        group_parameters=Group("Options", help_formatter=print_options),
        config=ConfigFile(frozenset(COMMANDS), profile),
    )
    root.help_formatter = UsageFormatter(root)
    groups = {"": root}
    for words, command in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if not command.place:
            groups[name] = App(name=name, help=command.help)
            root.command(groups[name])
            continue
        examples = "Examples:\n\n" + "  \n".join(f"`{example}`" for example in command.examples)
        groups[group].command(command.place, name=name, help=command.help, help_epilogue=examples)
        if command.alias:
            groups[group].command(command.place, name=command.alias, show=False)
    return root


def _unknown_option(problem: UnknownOptionError, chain: Sequence[str]) -> str:
    """The error for an option that a command does not have, and what to use instead."""
    from fencepost.protocol.suggestions import either, likely  # only this error needs it

    option = (problem.token.keyword or problem.token.value).partition("=")[0]
    word = option.lstrip("-")
    arguments, command = problem.argument_collection, " ".join(chain)
    names = [name for argument in arguments for name in argument.names]
    instead = instead_of(word).in_command
    # An answer that begins with another option is for the commands that have it.
    if instead and (not instead.startswith("--") or instead.split()[0] in names):
        return f"{command} has no option --{word}: {instead}"
    is_named = any(each.field_info.kind is inspect.Parameter.POSITIONAL_ONLY for each in arguments)
    if is_named and chain[:1] == (word,):
        return f"{command} has no option --{word}: the name is an argument"
    near = likely(option, names, likeness_min=OPTION_LIKENESS_MIN)
    meant = dict.fromkeys([*near, *(name for name in names if near and f"-{word}" in name)])
    return f"{command} has no option {option}" + (f"; did you mean {either(meant)}?" if meant else "")


def _unused(problem: UnusedCliTokensError, app: App, chain: Sequence[str]) -> str:
    """The error for words after the last argument of a command."""
    taken = [each.name.lstrip("-").upper() for each in _arguments_of(app, chain) if each.index is not None]
    extra = problem.unused_tokens or ()
    takes = f"takes only {' and '.join(taken)}" if taken else "takes no arguments"
    unexpected = "unexpected argument" if len(extra) == 1 else "unexpected arguments"
    return f"{' '.join(chain)} {takes}; {unexpected}: {' '.join(extra)}"


def _arguments_of(app: App, chain: Sequence[str]) -> ArgumentCollection:
    command = app
    for word in chain:
        command = command[word]
    return command.assemble_argument_collection()


def _missing(problem: MissingArgumentError, app: App, arguments: Sequence[str]) -> list[str]:
    """All arguments that the command needs and lacks; cyclopts names one at a time."""
    given = {word.partition("=")[0] for word in arguments}
    missing = [
        argument.name
        for argument in _arguments_of(app, problem.command_chain or ())
        if argument.required
        and argument.field_info.kind is inspect.Parameter.KEYWORD_ONLY
        and given.isdisjoint(argument.names)
    ]
    if not missing and problem.argument is not None and given.isdisjoint(problem.argument.names):
        return [problem.argument.name.lstrip("-").upper()]  # a positional one
    return missing


def _before_command(option: str, chain: Sequence[str]) -> str:
    """The error for an option where a command belongs."""
    from fencepost.protocol.suggestions import question  # only this error needs it

    if option in WITHOUT_COMMAND:
        return f"{option} is given before a word that is not a command"
    if meant := question(option, WITHOUT_COMMAND):
        return f"{option} is not an option of fencepost; {meant}"
    if " ".join((*chain, name := option.lstrip("-"))) in COMMANDS:  # as with kafka-topics.sh
        return f"{name} is a command, not an option; write it without dashes"
    return f"{option} is given before the command; options go after it"


def _usage_error(problem: CycloptsError, app: App, arguments: Sequence[str]) -> str:
    chain = problem.command_chain or ()
    if isinstance(problem, MissingArgumentError):
        missing = _missing(problem, app, arguments)
        if missing:
            return f"{' '.join(chain)} needs {' and '.join(missing)}"
        if problem.keyword is not None:
            return f"{' '.join(chain)}: {problem.keyword} needs a value"
    if isinstance(problem, UnusedCliTokensError):
        return _unused(problem, app, chain)
    if isinstance(problem, UnknownCommandError):
        unknown = arguments[len(chain)]
        if unknown.startswith("-"):
            return _before_command(unknown, chain)
        if instead := instead_of(unknown).in_command:
            return f"there is no command {unknown}: {instead}"
        meant = [words for words in COMMANDS if words.endswith(f" {unknown}")]
        if meant and not chain:  # in a group, its own commands are meant
            return f"there is no command {unknown}; did you mean {' or '.join(meant)}?"
    if isinstance(problem, CoercionError) and problem.argument is not None:
        token, argument = problem.token or problem.argument.tokens[0], problem.argument
        if problem.msg == MUST_NOT_BE_EMPTY:
            return _invalid(token, argument, MUST_NOT_BE_EMPTY)
        if problem.msg is None and problem.target_type is int:
            return _invalid(token, argument, MUST_BE_WHOLE)
    if isinstance(problem, ValidationError) and problem.argument is not None:
        for argument in (problem.argument, *problem.argument.children):
            for token in argument.tokens:
                if not _is_utf_8(token.value):
                    return _invalid(token, argument, MUST_BE_UTF_8)
        if len(problem.argument.tokens) == 1:  # as it was typed
            return _invalid(problem.argument.tokens[0], problem.argument, problem.exception_message)
    return _unknown_option(problem, chain) if isinstance(problem, UnknownOptionError) else str(problem)


def _invalid(token: Token, argument: Argument, wanted: str) -> str:
    name = token.keyword or argument.name.lstrip("-").upper()
    source = "" if token.source in ("", COMMAND_LINE) else f" from {token.source}"
    value = os.fsencode(token.value).decode(errors="backslashreplace")
    return f'Invalid value "{value}" for {name}{source}. {wanted}'


MUST_BE_UTF_8: Final = "Must be UTF-8."
OPTION_LIKENESS_MIN: Final = 0.6  # lower than others: words of options are short, and one letter weighs more
WITHOUT_COMMAND: Final = ("--version", "--help")
MUST_BE_WHOLE: Final = "Must be a whole number."


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; raises what ends it, `Ended`. No expected error shows a
    traceback.
    """
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
    except BrokenPipeError:
        _drop_output()  # the reader of the pipe has exited (`fencepost consume t | head`)
        return OK
    except SystemExit as ended:
        if _is_unread(ended):
            return OK
        raise
    except (FencepostError, OSError, ExceptionGroup) as problem:
        if isinstance(problem, OSError) and problem.filename == STDOUT:
            _drop_output()
        return report(problem)
    except BaseExceptionGroup as several:
        if several.split(_is_unread)[1] is None:  # from tasks of the demo
            return OK
        raise
    return code if isinstance(code, int) else OK


def _is_unread(ended: BaseException) -> bool:
    """Whether this is how rich ends a program whose output nobody reads."""
    return isinstance(ended, SystemExit) and isinstance(ended.__context__, BrokenPipeError)


class _StandardOutput(FileIO):
    """stdout, whose errors name it: a full disk, for example."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            problem.filename = STDOUT
            raise


def _drop_output() -> None:
    """Redirect stdout to /dev/null, so that Python's flush at exit does not fail a second time."""
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
