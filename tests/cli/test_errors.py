"""What commands say of errors that a test would have to wait for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fencepost.cli.application import run
from fencepost.cli.consume import Retries
from fencepost.cli.errors import WRONG_USAGE, CommandFailed, WrongUsage, report
from fencepost.cli.files import read_text
from fencepost.client.errors import (
    ClientError,
    CommitOutcomeUnknown,
    CorruptRecords,
    DeliveryFailed,
    ProducerFenced,
    RequestTimeout,
    TransactionAborted,
)
from fencepost.client.metadata import NOT_A_BROKER
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition

HERE = TopicPartition("fruit", 0)
LOST = {HERE: ErrorCode.NETWORK_EXCEPTION}
DAMAGED = {HERE: ErrorCode.KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (
            RequestTimeout("ListOffsets did not finish in time", ErrorCode.KAFKA_STORAGE_ERROR),
            "fencepost check",
        ),
        (RequestTimeout("ListOffsets did not finish in time"), "try again"),
        (RequestTimeout(f"no broker answered at a:1 ({NOT_A_BROKER})"), "serve --protocol kafka"),
        (CommitOutcomeUnknown("no answer"), "fencepost transactions describe"),
        (CorruptRecords("partition fruit-0 at offset 7: wrong checksum"), "fencepost check"),
        (ProducerFenced("EndTxn: fenced", ErrorCode.PRODUCER_FENCED), "choose another transactional id"),
        (TransactionAborted("the commit was rejected", ErrorCode.INVALID_TXN_STATE), "--records-per-trans"),
        (DeliveryFailed("produce to t-0", ErrorCode.INVALID_PRODUCER_EPOCH), "--records-per-transaction"),
    ],
)
def test_the_advice_fits_what_the_broker_said(
    problem: ClientError, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(problem) == 1
    what, advice = capsys.readouterr().err.splitlines()
    assert problem.because.removeprefix("EndTxn: ") in what
    assert words in advice


def test_the_rights_to_a_file_may_be_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(PermissionError(errno.EACCES, "Permission denied", "orders.tsv")) == WRONG_USAGE
    what, advice = capsys.readouterr().err.splitlines()
    assert what == "fencepost: orders.tsv: Permission denied"
    assert "the rights of the user" in advice


def test_a_file_that_this_user_may_not_read_is_not_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(WrongUsage, match=r"^cannot read --users secret\.toml: Permission denied$") as failed:
        read_text("--users", Path("secret.toml"), then="`fencepost user add` writes a user file")
    assert failed.value.then == "check the path, and the rights of the user of this process"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["produce", "t", "--acks", "all"], "produce has no option --acks: a producer is always idempotent"),
        (
            ["topic", "create", "t", "--replication-factor=3"],
            "topic create has no option --replication-factor: a broker is the only node",
        ),
        (["consume", "t", "--enable-auto-commit"], "--enable-auto-commit: `consume --group` commits"),
        (["consume", "t", "--from-beginning"], "--from-beginning: `consume` starts at the beginning"),
        (["consume", "t", "--max-messages", "3"], "--max-messages: `consume --max` limits"),
        (["produce", "t", "--broker-list=a:1"], "--broker-list: --bootstrap-server names the broker"),
        (["fault", "list", "--broker", "a:1"], "--broker: --bootstrap-server names the broker"),
        (["check", "--broker", "a:1"], "check has no option --broker\n"),
        (["consume", "t", "--timeout-ms", "9"], "--timeout-ms: `consume` stops at the end"),
        (["consume", "t", "--offset=3"], "--offset: `consume --from` takes an offset"),
        (["consume", "t", "--property", "print.key=true"], "--property: a tab separates key and value"),
        (["produce", "t", "--producer.config=f"], "--producer.config: --command-config names a file"),
        (["produce", "t", "--sync"], "--sync: `produce` waits until the broker has acknowledged"),
        (["check", "d", "--bootstrap-server", "a:1"], "--bootstrap-server: this command needs no broker"),
        (
            ["topic", "create", "t", "--if-not-exists"],
            "topic create has no option --if-not-exists: if the topic exists, `topic create` changes nothing",
        ),
        (
            ["topic", "delete", "t", "--if-exists"],
            "topic delete has no option --if-exists: without the topic",
        ),
        (["user", "list"], 'Unknown command "list". Available commands: add, remove.'),
        (["--help", "nope"], "--help is given before a word that is not a command"),
        (["--hlep"], "--hlep is not an option of fencepost; did you mean --help?"),
        (["version"], "there is no command version: `fencepost --version` prints the version"),
        (["kafka-get-offsets.sh"], "there is no command kafka-get-offsets.sh: `fencepost topic describe`"),
        (["delete-records"], "there is no command delete-records; did you mean topic delete-records?"),
        (["list"], "there is no command list; did you mean fault list or topic list or group list or"),
        (["topic", "create", "--topic", "t"], "topic create has no option --topic: the name is an argument"),
        (["group", "describe", "--group=g"], "group describe has no option --group: the name is an argument"),
    ],
)
def test_an_option_of_kafka_is_answered_by_what_happens_instead(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--prot", "1"], 2, "--port"),
        (["serve"], 2, "either a data directory or --memory"),
        (["serve", "here", "--memory"], 2, "both in memory and in here"),
        (["serve", "--memory", "--port", "99999"], 2, "--port"),
        (["serve", "--memory", "--override", "transaction.state.log.segment.bytes=1"], 2, "from 16384 to"),
        (["serve", "--memory", "--without-fix", "luck"], 2, "unknown fix luck; the fixes are group_fencing"),
        (["serve", "--memory", "--host", "0.0.0.0"], 2, "TLS, and users or client certificates, and ACLs"),
        (["serve", "--memory", "--host", "::"], 2, "TLS, and users or client certificates, and ACLs"),
        (["serve", "--memory", "--host", ""], 2, "Must not be empty"),
        (["serve", "--memory", "--host", "0.0.0.0", "--insecure"], 1, "--advertised-listener HOST:PORT"),
        (["serve", "--memory", "--host", "a" * 64], 1, "another host; the option is --host"),
        (["serve", "--memory", "--insecure", "--host", "192.0.2.1"], 1, "another host; the option is --host"),
        (["serve", "--memory", "--fault", "when node 1 crashes do drop"], 2, "a broker cannot see"),
        (["topic", "list", "--bootstrap-server", "nowhere"], 2, "host:port"),
        (["topic", "list", "--bootstrap-server", f"{'a' * 64}:1"], 3, "cannot connect to"),
        (["produce", "fruit", "--records-per-transaction", "5"], 2, "--transactional-id"),
        (["produce", "fruit", "--transactional-id", ""], 2, "must have 1 to 249 characters, not 0"),
        (["produce", "fruit", "--transactional-id", "x" * 250], 2, "--transactional-id must have 1 to 249"),
        (["consume", "fruit", "--group", ""], 2, "--group must have 1 to 249 characters, not 0"),
        (["demo", "--flights", "100", "--kills", "100"], 2, "need at least"),
        (["demo", "--flights", "1"], 2, "--flights"),
        (["dump", "/no/such/directory"], 2, "no such file or directory"),
    ],
)
def test_errors_say_what_to_do_and_how_they_differ(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_an_error_is_reported_once_until_the_partition_can_be_read_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    retries = Retries(None)
    for errors in (LOST, LOST, DAMAGED, {}, {}, LOST):
        retries.note([], errors)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fencepost: ")]
    words = ["the connection was lost", "the log is damaged", "can be read again", "the connection was lost"]
    assert len(said) == len(words)
    assert all(part in line for part, line in zip(words, said, strict=True))


def test_a_follower_does_not_promise_to_outlive_its_topic(capsys: pytest.CaptureFixture[str]) -> None:
    Retries(None).note([], {HERE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert "it also ends if the topic was deleted" in capsys.readouterr().err


def test_a_command_that_does_not_follow_gives_up(capsys: pytest.CaptureFixture[str]) -> None:
    retries = Retries(3)
    retries.note([], DAMAGED)
    retries.note([], DAMAGED)
    with pytest.raises(CommandFailed, match=r"cannot read fruit-0: .*damaged") as failed:
        retries.note([], DAMAGED)
    assert "fencepost check" in failed.value.then
    assert capsys.readouterr().err.count("cannot read") == 1
