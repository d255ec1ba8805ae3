"""`fencepost check` over real files: what it says, its exit codes, and that it leaves no trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from tests.cli.log_builder import LOG
from tests.cli.tool import Output


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_good_directory(data: Path, capsys: Output) -> None:
    before = state_of(data)
    capsys.readouterr()
    assert run(["check", str(data)]) == 0
    said = capsys.readouterr().out
    assert "0 problems, 0 notes." in said
    assert state_of(data) == before, "whoever looks leaves no trace"
    assert run(["check", str(data), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts.pop("bytes") > 0
    assert counts.pop("batches") > 5
    assert counts == {"problems": 0, "notes": 0, "partitions": 3, "segments": 3, "transactional_ids": 1}


def test_a_damaged_directory(data: Path, capsys: Output) -> None:
    log = data / "payments-0" / LOG
    content = bytearray(log.read_bytes())
    content[70] ^= 0xFF
    log.write_bytes(content)
    capsys.readouterr()
    assert run(["check", str(data)]) == 1
    first, second, *_, last = capsys.readouterr().out.splitlines()
    place = f"payments-0/{LOG} at offset 0"
    assert first == f"problem  {place}: the checksum of the batch at byte 0 does not match its bytes"
    assert second.strip().startswith("the broker refuses this log, unless these bytes are only a torn")
    assert "1 problem, 0 notes." in last
    assert run(["check", str(data), "--json"]) == 1
    finding, counts = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["severity"], finding["file"], finding["offset"]) == ("problem", f"payments-0/{LOG}", 0)
    assert counts["problems"] == 1


def test_a_partition_that_cannot_be_read_is_a_problem_beside_others(data: Path, capsys: Output) -> None:
    manifest = data / "payments-0" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    (coordinator,) = data.glob(f"__transaction_state-*/{LOG}")
    coordinator.write_bytes(b"")
    capsys.readouterr()
    assert run(["check", str(data), "--json"]) == 1
    *found, _ = map(json.loads, capsys.readouterr().out.splitlines())
    by_file = {each["file"]: each for each in found}
    assert by_file["payments-0"]["what"].startswith(f"cannot read {manifest}: ")
    assert by_file["payments-0"]["means"] == "the rest of it was not checked"
    assert f"{coordinator.parent.name}/manifest.json" in by_file, "the check went on"


def test_notes_alone_are_no_failure(data: Path, capsys: Output) -> None:
    (data / "clean-shutdown.json").unlink()
    with (data / "payments-0" / LOG).open("ab") as log:
        log.write(b"\0" * 10)
    capsys.readouterr()
    assert run(["check", str(data)]) == 0
    assert "0 problems, 1 note." in capsys.readouterr().out


def test_there_is_nothing_to_check(tmp_path: Path, data: Path, capsys: Output) -> None:
    (tmp_path / "strangers").mkdir()
    capsys.readouterr()
    for arguments, said in (
        ([str(tmp_path / "nowhere")], f"there is no directory {tmp_path / 'nowhere'}: give the directory"),
        ([str(tmp_path / "strangers")], "is not a data directory"),
        ([str(data), "--fast"], "--fast"),
    ):
        assert run(["check", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_the_right_directory_may_be_near(
    tmp_path: Path, data: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent of it, and what lies in it, by relative and by absolute paths."""
    assert data == tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    right = {
        "data/payments-0": "data",
        "data/nosuch": "data",
        str(data / "payments-0"): str(data),
        ".": "data",
    }
    for command in ("check", "repair"):
        for given, meant in right.items():
            capsys.readouterr()
            assert run([command, given]) == 2
            assert capsys.readouterr().err.endswith(f"\n  did you mean {meant}?\n"), given
    assert run(["serve", "data/payments-0", "--port", "0"]) == 2
    assert capsys.readouterr().err.endswith("\n  did you mean data?\n")
    shutil.copytree(data, tmp_path / "copy")
    for place, meant in ((data / "payments-0", str(data)), (tmp_path, "copy or data")):
        monkeypatch.chdir(place)
        assert run(["check", "."]) == 2
        assert capsys.readouterr().err.endswith(f"\n  did you mean {meant}?\n")


def test_a_directory_in_use_is_left_alone(data: Path, capsys: Output) -> None:
    with Broker(str(data)):
        capsys.readouterr()
        assert run(["check", str(data)]) == 1, "as `serve` on such a directory"
        said = capsys.readouterr().err
        assert "in use by a broker" in said
        assert "while it runs, use `fencepost status` for its health" in said
        assert "stop it first; nothing was checked\n" in said
    assert run(["check", str(data)]) == 0


@pytest.mark.parametrize("command", ["check", "repair"])
def test_what_is_no_directory_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "/dev/null"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fencepost: /dev/null is not a directory: give the directory that a broker was")


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_uri_is_refused_without_its_credentials(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "s3://me:secret@bucket/data"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fencepost: a URI (s3:) is not a local directory: give the path of a copy; ")
    assert "secret" not in told


@pytest.mark.parametrize("command", ["dump", "serve", "export data"])
def test_a_uri_is_not_taken_for_a_new_local_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command.split(), "s3a+x://me:secret@bucket/data"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fencepost: a URI (s3a+x:) is not a local directory")
    assert "secret" not in told
    assert list(tmp_path.iterdir()) == []


def test_repair_refuses_what_check_could_not_read(data: Path, capsys: Output) -> None:
    index = data / "payments-0" / f"{'0' * 20}.index"
    index.unlink(missing_ok=True)
    index.mkdir()
    capsys.readouterr()
    assert run(["check", str(data)]) == 1
    for words in ([], ["--write"]):
        assert run(["repair", *words, str(data)]) == 1
        assert f"cannot read {index}: " in capsys.readouterr().err
