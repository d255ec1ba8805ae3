"""An error about a misspelt name names the likely one, if there is one."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from tests.cli.tool import Output


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A broker with a topic, a group, and a transactional id."""
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic("orders")
        with Producer(broker.address, transactional_id="till-1") as producer:
            producer.init_transactions()
        with Consumer(broker.address, group_id="billing") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            consumer.commit({TopicPartition("orders", 0): 0})
        yield broker.address


MISSPELT: Final = {
    "consume ordrs": "orders",
    "produce ordrs": "orders",
    "topic describe ordrs": "orders",
    "topic delete ordrs": "orders",
    "topic alter ordrs -p 3": "orders",
    "topic alter ordrs -c retention.ms=1": "orders",
    "topic delete-records ordrs -p 0 --before end": "orders",
    "group delete-offsets billing -t ordrs": "orders",
    "group reset-offsets billing -t ordrs --to-latest": "orders",
    "transactions describe-producers -t ordrs -p 0": "orders",
    "transactions find-hanging -t ordrs": "orders",
    "transactions find-hanging -t ordrs -p 0": "orders",
    "transactions abort -t ordrs -p 0 --start-offset 0": "orders",
    "group describe biling": "billing",
    "group delete biling": "billing",
    "group delete-offsets biling -t orders": "billing",
    "group reset-offsets biling --all-topics --to-latest": "billing",
    "transactions describe till1": "till-1",
    "transactions force-terminate till1": "till-1",
}


@pytest.mark.parametrize("command", MISSPELT)
def test_a_name_that_the_broker_does_not_have(
    command: str, address: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run([*command.split(), "-b", address]) == 1
    what, then = capsys.readouterr().err.splitlines()
    assert "does not exist" in what
    assert what.endswith(f'; did you mean "{MISSPELT[command]}"?')
    assert then


def test_a_group_that_would_be_created(address: str, capsys: Output) -> None:
    assert run(["group", "reset-offsets", "biling", "-t", "orders", "--to-latest", "-b", address]) == 0
    assert '--execute creates it; did you mean "billing"?' in capsys.readouterr().err


def test_a_name_like_no_other(address: str, capsys: Output) -> None:
    assert run(["topic", "describe", "payments", "-b", address]) == 1
    assert "did you mean" not in capsys.readouterr().err


def test_without_the_right_to_list_names_the_error_stays(
    address: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Admin) -> list[object]:
        raise RequestFailed("Metadata: not allowed", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    monkeypatch.setattr(Admin, "list_topics", refuse)
    assert run(["topic", "describe", "ordrs", "-b", address]) == 1
    assert capsys.readouterr().err.startswith("fencepost: topic 'ordrs' does not exist (UNKNOWN_TOPIC")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("check daat", "data"),
        ("repair daat", "data"),
        ("audit daat", "data"),
        ("dump daat", "data"),
        ("dump data/paymens-0", "data/payments-0"),
        ("export daat lake --to parquet --topic payments", "data"),
        ("user remove user.toml alice", "users.toml"),
        ("serve new --users user.toml", "users.toml"),
        ("topic list --command-config user.toml", "users.toml"),
        ("run user.toml", "users.toml"),
        ("audit data --acks user.toml", "users.toml"),
        ("run ./user.toml", "users.toml"),
    ],
)
def test_a_path_that_does_not_exist(
    command: str, meant: str, data: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    Path("users.toml").touch()
    Path("dart").mkdir()  # its name is as near, but it is not a data directory
    capsys.readouterr()
    assert run(command.split()) == 2
    assert f"\n  did you mean {meant}?" in capsys.readouterr().err


def test_equally_near_paths_are_all_named(
    data: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    shutil.copytree(data, "date")
    capsys.readouterr()
    assert run(["check", "datq"]) == 2
    assert "\n  did you mean data or date?" in capsys.readouterr().err


def test_a_file_of_a_scenario_that_is_misspelt_is_named_once(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("payments.toml").touch()
    assert run(["run", "paymets.toml"]) == 2
    assert "\n  did you mean payments.toml? `fencepost run --list` shows" in capsys.readouterr().err


def test_a_file_of_records_that_does_not_exist(address: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "lines.tsv").touch()
    assert run(["produce", "orders", str(tmp_path / "line.tsv"), "-b", address]) == 2
    assert capsys.readouterr().err.endswith(f"\n  did you mean {tmp_path / 'lines.tsv'}?\n")


def test_a_setting_that_no_topic_has(address: str, capsys: Output) -> None:
    assert run(["topic", "alter", "orders", "--delete-config", "retention.msec", "-b", address]) == 1
    assert 'a topic has no setting retention.msec; did you mean "retention.ms"?' in capsys.readouterr().err


def test_a_user_that_the_file_does_not_have(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "users.toml")
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert run(["user", "add", file, "alice"]) == 0
    assert run(["user", "remove", file, "alcie"]) == 1
    assert 'has no user alcie; did you mean "alice"?' in capsys.readouterr().err
