"""`fencepost user`, and where the other commands find their security settings."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker.access.files import parse_users
from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.cli.errors import WRONG_USAGE, CommandFailed
from fencepost.cli.options import security_of
from fencepost.protocol.scram import Credential, SaslFailed, check_plain, make_credential, plain_message
from tests.cli.processes import PATIENCE_S, started

Output = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def give(patch: pytest.MonkeyPatch, line: str) -> None:
    patch.setattr(sys, "stdin", io.StringIO(line))


def test_users_are_added_changed_and_removed(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    for name, password in (("alice", "first"), ("bob", "other"), ("alice", "second")):
        give(monkeypatch, f"{password}\n")
        assert run(["user", "add", str(file), name]) == 0
    assert "Changed the password of alice" in capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600, "others must not read it"
    users = parse_users(file.read_text(), "users.toml")
    assert check_plain(plain_message("alice", "second"), users) == "alice"
    assert check_plain(plain_message("bob", "other"), users) == "bob"
    with pytest.raises(SaslFailed):
        check_plain(plain_message("alice", "first"), users)
    assert run(["user", "remove", str(file), "alice"]) == 0
    assert parse_users(file.read_text(), "users.toml").credentials.keys() == {"bob"}
    assert run(["user", "remove", str(file), "alice"]) == 1
    assert "has no user alice" in capsys.readouterr().err
    assert run(["user", "remove", str(file.with_name("nowhere.toml")), "alice"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == ["users.toml"], "nothing is left beside it"


def test_no_user_is_lost_when_two_are_added_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started("user", "add", str(file), "bob") as other:
        given = other.stdin
        assert given is not None

        def slow_credential(*arguments: Any) -> Credential:
            """Between reading and replacing the file: the other command gets its password."""
            given.write("other\n")
            given.flush()
            with suppress(subprocess.TimeoutExpired):  # it waits for its turn
                other.wait(3)
            return make_credential(*arguments)

        monkeypatch.setattr("fencepost.cli.user.make_credential", slow_credential)
        give(monkeypatch, "first\n")
        assert run(["user", "add", str(file), "alice"]) == 0
        assert other.wait(PATIENCE_S) == 0
    assert parse_users(file.read_text(), "users.toml").credentials.keys() == {"alice", "bob"}


@pytest.mark.parametrize("command", ["add", "remove"])
def test_a_file_in_the_data_directory_of_a_broker_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, command: str
) -> None:
    """The command and the broker would wait for the same lock."""
    with Broker(str(tmp_path)):
        file = tmp_path / "users.toml"
        file.touch()
        give(monkeypatch, "secret\n")
        assert run(["user", command, str(file), "alice"]) == 2
        assert "choose another directory for the user file" in capsys.readouterr().err
        assert file.read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("a,b", "x\n", "is not a valid user name"),
        ("alice", "", "standard input is empty, so there is no password"),
        ("alice", "\n", "the password is empty"),
        ("alice", "a\0b", "printed"),
    ],
)
def test_a_bad_name_or_password_writes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, name: str, password: str, words: str
) -> None:
    give(monkeypatch, password)
    assert run(["user", "add", str(file), name]) != 0
    assert words in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff", "the user file {file} is not a text file"),
        (b"junk", "{file}: not TOML"),
        (b"[[acl]]", "{file}: this is an ACL file"),
    ],
)
def test_a_file_that_is_not_a_user_file_is_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, text: bytes, words: str
) -> None:
    file.write_bytes(text)
    for command in ("add", "remove"):
        give(monkeypatch, "x\n")
        assert run(["user", command, str(file), "alice"]) == WRONG_USAGE
        assert words.format(file=file) in capsys.readouterr().err
    assert file.read_bytes() == text


@pytest.mark.parametrize(
    ("option", "text", "words", "advice"),
    [
        ("--users", None, "cannot read --users {file}: No such file", "`fencepost user add FILE NAME`"),
        ("--users", b"\xff", "--users {file} is not a text file", "`fencepost user add FILE NAME`"),
        ("--users", b"[[acl]]", "{file}: this is an ACL file, not a user file", "pass it with --acls"),
        ("--users", b"iterations = 4096", "{file}: not a complete user file", "`fencepost user add`"),
        ("--users", b"-----BEGIN", "{file}: not TOML", "`fencepost user add`"),
        ("--acls", None, "cannot read --acls {file}: No such file", "`fencepost help access`"),
        ("--acls", b"[users]", "{file}: this is a user file, not an ACL file", "pass it with --users"),
        ("--acls", b"x = ", "{file}: not TOML", "`fencepost help access`"),
    ],
)
def test_a_broker_says_what_is_wrong_with_its_files(
    file: Path, capsys: Output, option: str, text: bytes | None, words: str, advice: str
) -> None:
    if text is not None:
        file.write_bytes(text)
    assert run(["serve", "--memory", option, str(file)]) == WRONG_USAGE
    said = capsys.readouterr().err
    assert words.format(file=file) in said
    assert advice in said


def test_a_broker_keeps_its_data_in_one_place(tmp_path: Path, capsys: Output) -> None:
    assert run(["serve", "--memory", str(tmp_path)]) == WRONG_USAGE
    said = capsys.readouterr().err
    assert f"both in memory and in {tmp_path}" in said
    assert "leave out --memory" in said


def test_a_file_of_settings_that_is_missing_is_named_before_a_broker_is_looked_for(
    file: Path, capsys: Output
) -> None:
    command = ["topic", "list", "--bootstrap-server", "127.0.0.1:1", "--command-config", str(file)]
    assert run(command) == WRONG_USAGE
    said = capsys.readouterr().err
    assert f"cannot read --command-config {file}: No such file" in said
    assert "`fencepost help access`" in said


def test_the_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "alice.toml"
    config.write_text('security_protocol = "SASL_SSL"\nsasl_plain_username = "alice"\n')
    monkeypatch.setenv("FENCEPOST_SASL_PLAIN_PASSWORD", "secret")
    monkeypatch.setenv("FENCEPOST_SSL_CHECK_HOSTNAME", "false")
    assert security_of(config) == {
        "security_protocol": "SASL_SSL",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("password = 1", "unknown setting 'password'; did you mean \"sasl_plain_password\"?"),
        ("x = ", "not TOML"),
        ('security_protocol = "TLS"', "security_protocol must be"),
        ('security_protocol = "SASL_SSL"', "needs sasl_plain_username"),
    ],
)
def test_a_wrong_file_of_settings_is_explained(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "alice.toml"
    config.write_text(text)
    with pytest.raises(CommandFailed, match=words) as found:
        security_of(config)
    assert found.value.code == WRONG_USAGE


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("FENCEPOST_SECURITY_PROTOCOL", "TLS", "security_protocol must be"),
        ("FENCEPOST_SSL_CHECK_HOSTNAME", "off", "ssl_check_hostname must be true or false, not 'off'"),
    ],
)
def test_a_wrong_variable_is_named(
    key: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "alice.toml"
    config.write_text('sasl_mechanism = "PLAIN"\n')
    monkeypatch.setenv(key, value)
    for file, places in ((None, key), (config, f"{config} or {key}")):
        with pytest.raises(CommandFailed, match=words) as found:
            security_of(file)
        assert found.value.code == WRONG_USAGE
        assert found.value.then.startswith(f"correct {places};")


def test_a_file_of_authorities_that_is_missing_names_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "alice.toml"
    config.write_text('security_protocol = "SSL"\nssl_cafile = "nowhere.pem"\n')
    with pytest.raises(CommandFailed, match=r"ssl_cafile nowhere\.pem: No such file") as in_file:
        security_of(config)
    assert in_file.value.code == WRONG_USAGE
    assert in_file.value.then.startswith(f"correct {config};")
    monkeypatch.setenv("FENCEPOST_SSL_CAFILE", "elsewhere.pem")
    with pytest.raises(CommandFailed, match=r"ssl_cafile elsewhere\.pem: No such file") as in_variable:
        security_of(config)
    assert in_variable.value.then.startswith(f"correct {config} or FENCEPOST_SSL_CAFILE;")


def test_the_file_is_looked_at_before_a_password_is_asked_for(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["user", "add", str(tmp_path), "alice"]) == WRONG_USAGE
    assert f"cannot read the user file {tmp_path}: Is a directory" in capsys.readouterr().err
