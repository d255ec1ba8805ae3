"""`fencepost repair` over real files: what it says, its exit codes, and that a dry run leaves no trace."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.client.shells.sync import Producer
from tests.cli.log_builder import LOG
from tests.cli.tool import Output
from tests.test_readme import pattern

PAGE = (Path(__file__).parents[2] / "docs" / "repair.md").read_text(encoding="utf-8")


def consumed(data: Path, capsys: Output) -> list[str]:
    with Broker(str(data)) as broker:
        capsys.readouterr()
        assert run(["consume", "payments", "--places", "--bootstrap-server", broker.address]) == 0
    return capsys.readouterr().out.split()


def flip(path: Path, at: int) -> bytes:
    """Flips a byte, and returns the damaged content."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    return bytes(content)


def state_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_whole_directory_needs_no_repair(data: Path, capsys: Output) -> None:
    before = state_of(data)
    for options in ([], ["--write"]):
        capsys.readouterr()
        assert run(["repair", str(data), *options]) == 0
        assert capsys.readouterr().out == "Nothing to repair.\n"
    assert {name: state_of(data)[name] for name in before if not name.endswith(".lock")} == {
        name: content for name, content in before.items() if not name.endswith(".lock")
    }


def test_a_dry_run_tells_and_changes_nothing(data: Path, capsys: Output) -> None:
    flip(data / "payments-0" / LOG, 70)
    before = state_of(data)
    capsys.readouterr()
    assert run(["repair", str(data)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"damaged bytes: payments-0/{LOG}, bytes 0 to ")
    assert "at stake  the records at offset 0 of payments-0" in said
    assert f"`fencepost repair {data} --write` repairs the damage" in said
    assert state_of(data) == before
    assert run(["repair", str(data), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["repaired"], facts["damages"][0]["last_offset"]) == (False, 0)


def test_a_repair_keeps_the_original_and_serves_the_rest(data: Path, capsys: Output) -> None:
    damaged = flip(data / "payments-0" / LOG, 70)
    capsys.readouterr()
    assert run(["repair", str(data), "--write"]) == 0
    said = capsys.readouterr().out
    assert "1 damaged place repaired; `fencepost check` finds 0 problems." in said
    assert (data / "payments-0~1" / LOG).read_bytes() == damaged
    assert (data / "repair~1.txt").read_text() in said
    assert json.loads((data / "repair~1.json").read_text())["set_aside"] == ["payments-0~1"]
    assert run(["repair", str(data)]) == 0
    assert consumed(data, capsys) == ["0:2", "two", "0:4", "three"]
    assert run(["check", str(data)]) == 0
    assert "payments-0~1: files that were set aside" in capsys.readouterr().out


def test_the_page_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker("data") as broker, Producer(broker.address, transactional_id="till-1") as producer:
        run(["topic", "create", "payments", "--bootstrap-server", broker.address])
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send_many("payments", [b"paid"] * 4)
            producer.flush()
            end()
    capsys.readouterr()
    parts = [
        part.partition("\n")
        for block in re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)
        if part.startswith(("dd ", "fencepost "))
    ]
    for command, _, shown in parts[:5]:
        if command.startswith("dd "):
            subprocess.run(command.split(), check=True, capture_output=True)
        else:
            run(command.split()[1:])
            assert re.fullmatch(pattern(shown.splitlines()), said := capsys.readouterr().out), said


def test_a_lost_topic_is_kept_aside_and_comes_back(data: Path, capsys: Output) -> None:
    """As the report and docs/repair.md say."""
    metadata = data / "__cluster_metadata-0" / LOG
    metadata.write_bytes(metadata.read_bytes()[:250])  # of the first records, before the topics
    assert run(["repair", str(data), "--write"]) == 0
    assert f"`fencepost repair {data} --write --adopt payments`" in capsys.readouterr().out
    (data / "payments-0~1").rename(data / "payments-0")
    assert run(["repair", str(data), "--write", "--adopt", "payments"]) == 0
    assert consumed(data, capsys) == ["0:0", "one", "0:2", "two", "0:4", "three"]
    assert run(["check", str(data)]) == 0


def fill_other(data: Path) -> None:
    """A second topic, whose log is repaired before that of `payments`."""
    with Broker(str(data)) as broker, Producer(broker.address) as producer:
        run(["topic", "create", "other", "--bootstrap-server", broker.address])
        producer.send("other", b"one")


def test_a_missing_log_with_a_damaged_log_start(data: Path, capsys: Output) -> None:
    """One repair is enough, and its report has every loss."""
    fill_other(data)
    flip(data / "other-0" / LOG, 70)
    (data / "payments-0" / LOG).unlink()
    (data / "payments-0" / "log-start-offset.json").write_text("{")
    capsys.readouterr()
    assert run(["repair", str(data)]) == 1
    told = capsys.readouterr().out.partition("\n\n")[0]
    assert run(["repair", str(data), "--write"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(told)
    assert "3 damaged places repaired; `fencepost check` finds 0 problems." in said
    assert run(["repair", str(data)]) == 0


def test_a_repair_that_stops_half_way(data: Path, capsys: Output) -> None:
    """Its report has every loss, also of what was repaired by then, and the next repair finishes it."""
    fill_other(data)
    flip(data / "other-0" / LOG, 70)
    flip(data / "payments-0" / LOG, 70)
    obstacle = data / "payments-0" / f"{LOG}.tmp"  # where the new log is written
    obstacle.mkdir()
    capsys.readouterr()
    assert run(["repair", str(data), "--write"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fencepost: the repair stopped halfway: cannot replace {data}/payments-0/{LOG}")
    assert f"{data}/repair~1.txt says what is lost" in said
    assert f"`fencepost repair {data} --write` again" in said
    report = (data / "repair~1.txt").read_text()
    assert "other-0/" in report
    assert "payments-0/" in report
    assert "The repair of 2 damaged places has begun." in report
    assert json.loads((data / "repair~1.json").read_text())["repaired"] is False
    obstacle.rmdir()
    assert run(["repair", str(data), "--write"]) == 0
    assert "1 damaged place repaired" in (data / "repair~2.txt").read_text()
    assert consumed(data, capsys) == ["0:2", "two", "0:4", "three"]


def test_what_cannot_be_repaired(tmp_path: Path, data: Path, capsys: Output) -> None:
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    (strangers / "thesis.txt").touch()
    assert run(["serve", str(strangers), "--port", "0"]) == 2, "as check and repair"
    assert "not a parent or a subdirectory" in capsys.readouterr().err
    for arguments, said in (
        ([str(tmp_path / "nowhere"), "--write"], f"there is no directory {tmp_path / 'nowhere'}: give"),
        ([str(strangers)], "is not a data directory"),
        ([str(data), "--adopt", "payments"], "--adopt payments: the metadata still has this topic\n"),
        ([str(data), "--adopt", "nosuch"], "--adopt nosuch: there is no directory nosuch-0\n"),
    ):
        capsys.readouterr()
        assert run(["repair", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    with Broker(str(data)):
        for options in ([], ["--write"]):
            assert run(["repair", str(data), *options]) == 1
            assert "in use by a broker" in capsys.readouterr().err
