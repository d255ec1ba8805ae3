"""What all commands have in common: examples, --json, short options, help at 80 columns, exit codes."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cyclopts import App
from rich.console import Console

from fencepost.broker.embedded import Broker
from fencepost.cli.application import application, run
from fencepost.cli.commands import COMMANDS
from fencepost.cli.config_file import take_profile
from fencepost.cli.options import DEFAULT
from fencepost.client.security import SecuritySettings

WORDS: Final = tuple(words for words, command in COMMANDS.items() if command.place)

WITHOUT_JSON: Final = {
    "serve": "its last ready line is always JSON",
    "lab": "its last ready line is always JSON",
    "help": "it prints pages",
}

# One letter has one meaning; the words that share it mean the same thing of one topic or of several.
MEANS: Final = {
    "-b": {"--bootstrap-server"},
    "-c": {"--config"},
    "-f": {"--format"},
    "-F": {"--follow"},
    "-g": {"--group"},
    "-H": {"--header"},
    "-J": {"--json"},
    "-k": {"--key"},
    "-K": {"--separator"},
    "-n": {"--max"},
    "-o": {"--from"},
    "-p": {"--partition", "--partitions"},
    "-t": {"--topic"},
    "-z": {"--compression"},
}


def app_of(words: str) -> App:
    app = application()
    for word in words.split():
        app = app[word]
    return app


def options_of(words: str) -> list[tuple[str, ...]]:
    """The names of each option of a command."""
    arguments = app_of(words).assemble_argument_collection()
    return [argument.names for argument in arguments if argument.show and argument.names]


@pytest.mark.parametrize("words", WORDS)
def test_every_command_has_examples_that_it_understands(words: str) -> None:
    assert COMMANDS[words].examples, "add an example"
    for example in COMMANDS[words].examples:
        commands = [shlex.split(called.partition(" < ")[0]) for called in example.split(" | ")]
        assert ["fencepost", *words.split()] in [called[: len(words.split()) + 1] for called in commands]
        for called in commands:
            application().parse_args(called[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("words", WORDS)
def test_every_command_that_prints_something_has_json(words: str) -> None:
    has_json = any("--json" in names for names in options_of(words))
    assert has_json != (words in WITHOUT_JSON)


def test_a_short_option_means_one_thing() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for words in WORDS:
        for names in options_of(words):
            for short in (name for name in names if re.fullmatch("-.", name)):
                found[short].add(next(name for name in names if name.startswith("--")))
    assert dict(found) == MEANS


@pytest.mark.parametrize("words", ["", *COMMANDS])
def test_the_help_fits_80_columns_and_breaks_no_word(words: str) -> None:
    shown = io.StringIO()
    app = app_of(words)
    app.help_print(console=Console(file=shown, width=80, force_terminal=False))
    text = shown.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    seen = set(re.findall(r"(?<![\w-])--?[\w-]+", text))
    missing = [name for names in (options_of(words) if words in WORDS else []) for name in names]
    assert not [name for name in missing if name.startswith("-") and name not in seen]


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("serve", "[OPTIONS] [DIRECTORY]"),
        ("produce", "[OPTIONS] TOPIC [FILES...]"),
        ("fault add", "[OPTIONS] FAULT..."),
        ("transactions abort", "--topic STR --partition INT [OPTIONS]"),
        ("fault", "COMMAND"),
        ("help", "[PAGE]"),
    ],
)
def test_the_usage_names_the_arguments(words: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"Usage: fencepost {words} {usage}"


def test_a_default_time_is_shown_as_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "--help"]) == 0
    assert "[default: 10s]" in capsys.readouterr().out


# --- exit codes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        run(["topic", "create", "orders", "-b", broker.address])
        yield broker.address


MISSING_TOPIC: Final = (
    "consume nope",
    "produce nope",
    "topic describe nope",
    "topic delete nope",
    "topic alter nope -p 3",
    "topic delete-records nope -p 0 --before end",
    "group delete-offsets g -t nope",
    "transactions describe-producers -t nope -p 0",
    "transactions find-hanging -t nope",
    "transactions abort -t nope -p 0 --start-offset 0",
)
MISSING_PARTITION: Final = (
    "consume orders -p 7",
    "produce orders -p 7",
    "topic delete-records orders -p 7 --before end",
    "group delete-offsets g -t orders -p 7",
    "transactions describe-producers -t orders -p 7",
    "transactions find-hanging -t orders -p 7",
    "transactions abort -t orders -p 7 --start-offset 0",
)


@pytest.mark.parametrize("command", [*MISSING_TOPIC, *MISSING_PARTITION])
def test_what_the_broker_does_not_have_is_a_failure(
    command: str, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run([*command.split(), "-b", address]) == 1
    what = "nope" if command in MISSING_TOPIC else "topic orders has no partition 7"
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("--vers", "--vers is not an option of fencepost; did you mean --version?"),
        ("-b there:1 topic list", "-b is given before the command; options go after it"),
        ("topic --json list", "--json is given before the command; options go after it"),
        ("topic --create --topic t", "create is a command, not an option; write it without dashes"),
        ("transactions --find-hanging", "find-hanging is a command, not an option; write it without dashes"),
        ("topic delete a b c", "topic delete takes only NAME; unexpected arguments: b c\n"),
        ("user add f n x", "user add takes only FILE and NAME; unexpected argument: x\n"),
        ("consume a b", "consume takes only TOPIC; unexpected argument: b\n"),
        ("lab NAME", "lab takes no arguments; unexpected argument: NAME\n"),
        ("run --html", "run: --html needs a value\n"),
        ("consume t --isolatoin x", "consume has no option --isolatoin; did you mean --isolation?\n"),
        ("consume t --parti 0", "consume has no option --parti; did you mean --partition?\n"),
        ("run --xyzzy", "run has no option --xyzzy\n"),
        (
            "group reset-offsets g --to-late",
            "group reset-offsets has no option --to-late; did you mean --to-latest?\n",
        ),
        ("user add f n --jsob", "did you mean --json?"),
        ("run --ver", "run has no option --ver; did you mean --verbose?\n"),
        ("topic alter t --confi a=b", "did you mean --config, --delete-config or --command-config?\n"),
        ("nope", 'Unknown command "nope"'),
    ],
)
def test_words_in_the_wrong_place_are_named(
    command: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (
            "topic create t --partitions two",
            'Invalid value "two" for --partitions. Must be a whole number.\n',
        ),
        ("topic create t -p=", 'Invalid value "" for -p. Must be a whole number.\n'),
        (
            "topic create t --partitions 1.5",
            'Invalid value "1.5" for --partitions. Must be a whole number.\n',
        ),
        ("consume t --partition 0.5", 'Invalid value "0.5" for --partition. Must be a whole number.\n'),
        ("run --text --width 80.5", 'Invalid value "80.5" for --width. Must be a whole number.\n'),
        ("produce t -p 0.5", 'Invalid value "0.5" for -p. Must be a whole number.\n'),
        ("lab --time-limit 0", 'Invalid value "0" for --time-limit. Must be > 0.\n'),
        ("topic create t -c=", "--config '' is not name=value\n"),
        ("topic delete-records t -p 0 --before=", "--before '' is not an offset\n"),
        ("lab --bootstrap-server=", "--bootstrap-server '' is not host:port, with a port from 1 to 65535\n"),
        ("group reset-offsets g -t t --by-duration P", "'P' is not a time such as 500ms"),
        ("fault remove 1..5", 'Invalid value "1..5" for FAULT_ID. Must be a whole number.\n'),
        ("fault remove 1.5", 'Invalid value "1.5" for FAULT_ID. Must be a whole number.\n'),
        ("fault remove all", 'Invalid value "all" for FAULT_ID. Must be a whole number.\n'),
        ("top --interval 25h", 'Invalid value "25h" for --interval. Must be more than 0 and at most 24h.\n'),
        ("top --interval 0", 'Invalid value "0" for --interval. Must be more than 0 and at most 24h.\n'),
        ("serve --memory --port 99999", 'Invalid value "99999" for --port. Must be <= 65535.\n'),
    ],
)
def test_what_is_no_number_is_told_without_the_types_of_python(
    command: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("topic create {}", "NAME"),
        ("topic create t --config retention.ms={}", "--config"),
        ("topic describe {}", "NAME"),
        ("produce {}", "TOPIC"),
        ("produce orders --transactional-id {}", "--transactional-id"),
        ("produce orders --header a={}", "--header"),
        ("consume orders -g {}", "-g"),
        ("group describe {}", "NAME"),
        ("transactions describe --transactional-id {}", "--transactional-id"),
    ],
)
def test_what_is_not_utf_8_is_named(
    command: str, name: str, address: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", address)
    assert run(command.format(os.fsdecode(b"\xff")).split()) == 2
    said = capsys.readouterr().err
    assert f"for {name}. Must be UTF-8." in said
    assert r"\xff" in said


def test_the_name_of_a_file_need_not_be_utf_8() -> None:
    arguments = ["check", os.fsdecode(b"\xff")]
    application().parse_args(arguments, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    "command",
    ["produce orders {}", "dump {}", "check {}", "repair {}", "run {}", "shrink {}", "user remove {} alice"],
)
def test_a_file_that_does_not_exist_is_wrong_usage(
    command: str, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", address)
    assert run(command.format(tmp_path / "nowhere").split()) == 2
    said = capsys.readouterr().err
    assert "nowhere" in said
    assert "Errno" not in said


# --- several brokers, the environment and the configuration file --------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FENCEPOST_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("FENCEPOST_BOOTSTRAP_SERVER", raising=False)
    return tmp_path / "config.toml"


def test_one_of_several_brokers_has_to_answer(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "-b", f"127.0.0.1:1,{address}"]) == 0
    assert run(["topic", "list", "-b", "127.0.0.1:1,127.0.0.1:2"]) == 3
    assert re.search(r"127.0.0.1:1: .*; 127.0.0.1:2: ", capsys.readouterr().err)
    assert run(["topic", "list", "-b", f"{address},here"]) == 2


@pytest.mark.parametrize(
    ("variable", "file", "followed"),
    [
        ("127.0.0.1:1", 'bootstrap-server = "127.0.0.1:2"', None),
        ("127.0.0.1:1", '[lab]\nbootstrap-server = "127.0.0.1:3"', "127.0.0.1:3"),
    ],
)
def test_the_lab_follows_a_broker_only_if_it_is_told_to(
    variable: str, file: str, followed: str | None, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person whose shell names a broker for every command still wants to run scenarios."""
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", variable)
    config.write_text(f"{file}\n")
    _, bound, _ = application().parse_args(["lab"], exit_on_error=False, print_error=False)
    assert bound.arguments.get("bootstrap") == followed
    _, bound, _ = application().parse_args(["lab", "-b", "a:1"], exit_on_error=False, print_error=False)
    assert bound.arguments["bootstrap"] == "a:1"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    config: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('bootstrap-server = "127.0.0.1:1"\n')
    assert run(["topic", "list"]) == 3
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", address)
    assert run(["topic", "list"]) == 0
    assert run(["topic", "list", "-b", "127.0.0.1:1"]) == 3
    monkeypatch.delenv("FENCEPOST_BOOTSTRAP_SERVER")
    config.write_text(f'bootstrap-server = "{address}"\n[topic.create]\npartitions = 3\n')
    assert run(["topic", "create", "wide"]) == 0
    assert run(["topic", "create", "narrow", "-p", "1"]) == 0
    assert run(["consume", "wide", "-p", "2"]) == 0
    assert run(["consume", "narrow", "-p", "2"]) == 1
    assert run(["check", str(config.parent / "nowhere")]) == 2, (
        "a command without a broker ignores the address"
    )


def test_the_file_of_the_user_is_read(
    config: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del config
    monkeypatch.delenv("FENCEPOST_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "fencepost" / "config.toml"
    file.parent.mkdir()
    file.write_text(f'bootstrap-server = "{address}"')
    assert run(["topic", "list"]) == 0
    file.unlink()
    assert address != DEFAULT
    assert run(["topic", "list", "-b", address]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "bootstrap = 'a:1'",
            "unknown key bootstrap: outside the tables of commands, only bootstrap-server and command-config",
        ),
        ("[topics]\npartitions = 3", '[topics] is not a command; did you mean "topic"?'),
        ("[topic.make]\npartitions = 3", "[topic.make] is not a command"),
        ("[topic.list]\npartitions = 3", "unknown key partitions in [topic.list]"),
        ("[topic.create]\npartition = 3", "unknown key partition in [topic.create]; did you mean"),
        (
            "[topic]\nbootstrap-server = 'a:1'",
            "unknown key topic.bootstrap-server: [topic] is a group of commands, each of which has",
        ),
        ("bootstrap-server = 7", "7 is not host:port"),
        ("bootstrap-server", "is not TOML"),
        (None, "cannot read the configuration file"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    config: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        config.write_text(text)
    assert run(["topic", "list"]) == 2
    assert said in capsys.readouterr().err


PROFILES: Final = """
    bootstrap-server = "127.0.0.1:1"
    topic.create.partitions = 2
    [profile.here]
    bootstrap-server = "{address}"
    topic.create.partitions = 3
    [profile.wide.topic.create]
    partitions = 5
    """


def test_a_profile_stands_over_the_rest_of_the_file(
    config: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(PROFILES.format(address=address))
    assert run(["topic", "list"]) == 3
    assert run(["topic", "create", "three", "--profile", "here"]) == 0
    assert run(["--profile=here", "consume", "three", "-p", "2"]) == 0
    assert run(["--profile", "here", "consume", "three", "-p", "3"]) == 1
    assert run(["topic", "create", "five", "--profile", "wide", "-b", address]) == 0
    monkeypatch.setenv("FENCEPOST_PROFILE", "here")
    assert run(["consume", "five", "-p", "4"]) == 0
    assert run(["topic", "list", "--profile", "wide"]) == 3, "the option wins over the variable"
    assert run(["topic", "list", "-b", "127.0.0.1:1"]) == 3, "the command line wins over a profile"


def test_only_a_profile_of_the_command_line_wins_over_the_environment(
    config: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(PROFILES.format(address=address))
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert run(["topic", "list", "--profile", "here"]) == 0
    monkeypatch.setenv("FENCEPOST_PROFILE", "here")
    assert run(["topic", "list"]) == 3


@pytest.mark.parametrize(("given", "code"), [("here", 2), ("127.0.0.1:1", 3)])
def test_an_error_names_the_place_of_the_address(
    config: Path, given: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str) -> str:
        assert run(["topic", "list", *words]) == code
        return capsys.readouterr().err

    file, profile = f'bootstrap-server = "{given}"\n', f'[profile.test]\nbootstrap-server = "{given}"\n'
    config.write_text(file)
    assert f"bootstrap-server of {config}" in said()
    config.write_text(f'bootstrap-server = "127.0.0.1:2"\n{profile}')
    assert f"bootstrap-server of profile test in {config}" in said("--profile", "test")
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVER", given)
    of_variable = said()
    assert "FENCEPOST_BOOTSTRAP_SERVER" in of_variable
    assert ("--bootstrap-server" in of_variable) is (code == 3), "only the advice names an option"
    assert f"of profile test in {config}" in said("--profile", "test"), "it wins over the environment"
    written = said("-b", given)
    assert "--bootstrap-server" in written
    assert "FENCEPOST_BOOTSTRAP_SERVER" not in written


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("[profile.test]", ["--profile", "tets"], "has no profile 'tets'; did you mean"),
        ("[profile.test]\n[profile.production]", ["--profile", "x"], "its profiles are test, production"),
        ("", ["--profile", "test"], "write [profile.test] to make one"),
        ("", ["--profile"], "--profile needs the name of a profile"),
        ("", ["--profile", "--json"], "--profile needs the name of a profile"),
        ("[profile.a]\n[profile.b]", ["--profile", "a", "--profile=b"], "--profile is given twice"),
        ("profile = 'a'", [], "profile is a value"),
        ("[profile]\nbootstrap-server = 'a:1'", [], "profile.bootstrap-server is a value, not a profile"),
        (
            "[profile.a]\nbootstrap = 'a:1'",
            [],
            "unknown key profile.a.bootstrap: outside the tables of commands, only",
        ),
        ("[profile.a.consume]\nisolat = 3", [], "unknown key isolat in [profile.a.consume]"),
        ("[profile.a.topic.make]\npartitions = 3", [], "[profile.a.topic.make] is not a command"),
        (
            "[profile.a.topic]\npartitions = 3",
            [],
            "unknown key profile.a.topic.partitions: [profile.a.topic]",
        ),
    ],
)
def test_a_mistake_with_profiles_is_named(
    config: Path, text: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(text)
    assert run(["topic", "list", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_profile_without_a_file_is_an_error(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del config
    monkeypatch.delenv("FENCEPOST_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(["topic", "list", "--profile", "test"]) == 2
    assert "profile 'test' does not exist: there is no configuration file" in capsys.readouterr().err


def test_what_follows_two_dashes_is_no_option() -> None:
    assert take_profile(["produce", "--", "--profile", "x"]) == (["produce", "--", "--profile", "x"], None)


def test_the_page_about_a_mistake_can_be_read(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the configuration file and of variables refer to it."""
    config.write_text("bootstrap-server")
    monkeypatch.setenv("FENCEPOST_CONIFG", "mine.toml")
    assert run(["topic", "list"]) == 2
    assert run(["help", "cli"]) == 0


VARIABLES: Final = ("BOOTSTRAP_SERVER", "COMMAND_CONFIG", "CONFIG", "PROFILE")


@pytest.mark.parametrize("name", [*VARIABLES, *(name.upper() for name in SecuritySettings.__annotations__)])
def test_an_empty_variable_is_not_set(
    name: str, config: Path, address: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also where the configuration file has another value."""
    config.write_text(f'bootstrap-server = "{address}"\n')
    words = ["-b", address] if name == "CONFIG" else []
    monkeypatch.setenv(f"FENCEPOST_{name}", "")
    assert run(["topic", "list", *words]) == 0


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FENCEPOST_BOOTSTRAP_SERVERS", "FENCEPOST_BOOTSTRAP_SERVER"),
        ("FENCEPOST_COMMAND_CONFG", "FENCEPOST_COMMAND_CONFIG"),
        ("FENCEPOST_CONIFG", "FENCEPOST_CONFIG"),
        ("FENCEPOST_PROFLIE", "FENCEPOST_PROFILE"),
        ("FENCEPOST_SASL_USERNAME", "FENCEPOST_SASL_PLAIN_USERNAME"),
        ("FENCEPOST_SSL_CA_FILE", "FENCEPOST_SSL_CAFILE"),
        ("FENCEPOST_SECURITY_PROTOCL", "FENCEPOST_SECURITY_PROTOCOL"),
        ("FENCEPOST_SSL_VERIFY", None),
    ],
)
def test_a_misspelt_variable_is_named(
    name: str, meant: str | None, address: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(name, "")
    assert run(["topic", "list", "-b", address]) == 0
    monkeypatch.setenv(name, "x")
    assert run(["topic", "list", "-b", address]) == 2
    what, then = capsys.readouterr().err.splitlines()
    assert f"the environment variable {name} is not one" in what
    assert then.startswith(f"  did you mean {meant}? " if meant else "  `fencepost help cli`")


@pytest.mark.parametrize(
    "name", ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_KAFKA", "PORT", "PORT_9092_TCP_ADDR", "BROWSER"]
)
def test_a_variable_of_something_else_is_left_alone(
    name: str, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets most of these for a service that is called fencepost."""
    monkeypatch.setenv(f"FENCEPOST_{name}", "10.0.0.1")
    assert run(["topic", "list", "-b", address]) == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["--install-completion", "--shell", shell]) == 0
    path = Path(capsys.readouterr().out.removeprefix("Wrote ").partition(". It")[0])
    assert path.is_relative_to(tmp_path)
    assert "--bootstrap-server" in path.read_text()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["serve"], "DIRECTORY"),
        (["dump"], "PATH"),
        (["repair", "--write"], "DIRECTORY"),
        (["export", "data"], "TARGET"),
        (["produce", "t", "a.txt"], "FILES"),
        (["fuzz", "--output"], "--output"),
        (["run", "zombie_fencing", "--svg"], "--svg"),
        (["run", "zombie_fencing", "--html"], "--html"),
        (["topic", "list", "--command-config"], "--command-config"),
        (["run", "zombie_fencing", "--variant"], "--variant"),
        (["run", "zombie_fencing", "--text", "--from"], "--from"),
        (["run", "zombie_fencing", "--text", "--until"], "--until"),
        (["run", "zombie_fencing", "--text", "--only"], "--only"),
        (["consume", "t", "--from"], "--from"),
        (["consume", "t", "-o"], "-o"),
        (["consume", "t", "--until"], "--until"),
        (["audit", "data", "--output", "t", "--by", "key", "--input"], "--input"),
        (["audit", "data", "--output"], "--output"),
        (["audit", "data", "--by"], "--by"),
        (["audit", "data", "--master"], "--master"),
        (["export", "data", "lake", "--master"], "--master"),
        (["export", "data", "lake", "--topic"], "--topic"),
        (["dump", "data", "--topic"], "--topic"),
        (["serve", "--memory", "--metrics-port", "0", "--metrics-host"], "--metrics-host"),
        (["serve", "--memory", "--insecure", "--port", "0", "--host"], "--host"),
        (["serve", "--memory", "--without-fix"], "--without-fix"),
        (["fuzz", "--without-fix"], "--without-fix"),
    ],
)
def test_an_empty_value_is_not_a_missing_option(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shell variable that is not set."""
    assert run([*words, ""]) == 2
    assert f'Invalid value "" for {name}. Must not be empty.' in capsys.readouterr().err


TIMES = (
    "run --for",
    "fuzz --for",
    "explore --for",
    "lab --time-limit",
    "fault wait --timeout",
    "top --interval",
)


@pytest.mark.parametrize("words", [*TIMES, "group reset-offsets g -t t --by-duration"])
def test_a_negative_time_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words.split(), "-1s"]) == 2
    option = words.rsplit(maxsplit=1)[-1]
    assert f"for {option}: '-1s' is not a time such as 500ms, 90s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("0.5", 0.5), (".5", 0.5), ("30s", 30), ("500ms", 0.5), ("1h30m", 5400)]
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    """Without one, it is in seconds."""
    for words in TIMES:
        _, bound, _ = application().parse_args([*words.split(), text])
        assert seconds in bound.arguments.values()


@pytest.mark.parametrize("words", ["transactions describe", "transactions force-terminate"])
def test_an_empty_id_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words.split(), ""]) == 2
    assert "--transactional-id must have 1 to 249 characters, not 0" in capsys.readouterr().err
