"""`--html` and `--beside`: pages of runs, of findings, and of two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.application import run
from tests.cli.failing_seeds import failing_with
from tests.lab.reading import runs_in

Output = pytest.CaptureFixture[str]


def only_run_in(page: Path) -> dict[str, Any]:
    """The document of a page of one run."""
    runs = runs_in(page)
    (document,) = runs["documents"]
    assert runs["divergence"] is None
    return document


def pages_named(capsys: Output) -> list[str]:
    found = (line.partition(" page:")[2].strip() for line in capsys.readouterr().out.splitlines())
    return [name for name in found if name]


def test_every_run_has_its_page_and_names_it(capsys: Output, tmp_path: Path) -> None:
    page = tmp_path / "late.html"
    for _ in range(2):  # a second time over the same files
        assert run(["run", "late_end_txn", "--html", str(page)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late-2.html", "late.html"]
    assert pages_named(capsys) == [str(page), str(tmp_path / "late-2.html")] * 2
    first, second = only_run_in(page), only_run_in(tmp_path / "late-2.html")
    assert [each["settings"]["transaction_version"] for each in (first, second)] == [0, 2]
    assert [each["rule"] for each in first["broken"]] == ["G1a"]
    assert second["broken"] == []


def test_a_page_is_written_over_pages_alone(capsys: Output, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text("<!doctype html><title>mine</title>")
    shrink = f"shrink --seed {failing_with('fencing')} --break fencing"
    for command in ("run late_end_txn", "fuzz --seeds 1", "explore", shrink):
        assert run([*command.split(), "--html", str(other)]) == 2
        assert "is not a page of a run; refusing to overwrite it" in capsys.readouterr().err
    assert run(["run", "late_end_txn", "--html", str(tmp_path / "none" / "late.html")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert other.read_text() == "<!doctype html><title>mine</title>"


# --- side by side -------------------------------------------------------------------------------------------


def test_a_changed_run_that_is_a_variant_stands_beside_with_its_expectations(
    capsys: Output, tmp_path: Path
) -> None:
    page = tmp_path / "late.html"
    assert run(["run", "late_end_txn", "--html", str(page), "--beside", "transaction_version=2"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["late.html"], "the variant itself is not changed"
    assert pages_named(capsys) == [str(page)]
    runs = runs_in(page)
    left, right = runs["documents"]
    assert (left["title"], right["title"]) == ("late EndTxn", "late EndTxn (transaction_version 2)")
    assert right["passed"]
    assert "holds G1a" in right["expected"]
    at, other = runs["divergence"]
    assert left["steps"][at]["text"] != right["steps"][other]["text"]
    assert left["steps"][at - 1]["text"] == right["steps"][other - 1]["text"]


BESIDE: list[tuple[str, str, list[str]]] = [
    ("duplicate_after_lost_ack", "broken=dedup", ["duplicate", "I3 unique sequence"]),
    ("hanging_transaction", "partition_verification=true", []),
    ("marker_twice", "without_fixes=idempotent_marker_retry", []),
]


@pytest.mark.parametrize(("name", "change", "broken"), BESIDE, ids=[change for _, change, _ in BESIDE])
def test_any_setting_can_be_changed(name: str, change: str, broken: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["run", name, "--variant", "1", "--html", str(page), "--beside", change]) == 0
    left, right = runs_in(page)["documents"]
    changed = {key for key, value in left["settings"].items() if right["settings"][key] != value}
    assert changed == {change.partition("=")[0]}
    assert {each["rule"] for each in right["broken"]} >= set(broken)


def test_a_changed_run_that_is_no_variant_expects_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    change = ["--beside", "transaction_version=0", "--beside", "broken=fencing"]
    assert run(["run", "zombie_fencing", "--variant", "1", "--html", str(page), *change]) == 0
    _, right = runs_in(page)["documents"]
    assert right["title"].endswith("(transaction_version 0, broken fencing)")
    assert right["expected"] == []
    assert right["settings"]["broken"] == ["fencing"]


REFUSED: list[tuple[str, list[str], str]] = [
    ("transaction_version=2", [], "--beside applies to pages only"),
    ("transaction_version=3", ["--html"], "'transaction_version=3' is not a valid change"),
    ("speed=3", ["--html"], "'speed=3' is not a valid change"),
    ("partition_verification=maybe", ["--html"], "is not a valid change"),
    ("broken=everything", ["--html"], "there is no 'everything' (possible: dedup, fencing"),
    ("without_fixes=any", ["--html"], "there is no 'any' (possible: "),
    ("sync=all", ["--html"], "is not a valid change"),
    ("partition_verification=true", ["--html"], "changes nothing in these runs"),
]


@pytest.mark.parametrize(("change", "html", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_change_is_checked_before_anything_runs(
    capsys: Output, tmp_path: Path, change: str, html: list[str], words: str
) -> None:
    page = tmp_path / "page.html"
    given = [each for option in html for each in (option, str(page))]
    assert run(["run", "late_end_txn", "--beside", change, *given]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert len(told.err.splitlines()) == 2
    assert told.out == ""
    assert not page.exists()


# --- findings -----------------------------------------------------------------------------------------------


def test_a_seed_that_fails_has_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["fuzz", "--cores", "1", "--break", "fencing", "--html", "found.html"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == pages_named(capsys) == ["found.html"]
    document = only_run_in(tmp_path / "found.html")
    assert document["settings"]["broken"] == ["fencing"]
    assert len(document["broken"]) == 1
    assert document["source"] == "simulation"


def test_an_explored_trace_has_its_page(tmp_path: Path, capsys: Output) -> None:
    page = tmp_path / "trace.html"
    assert run(["explore", "--transaction-version", "0", "--html", str(page)]) == 1
    assert pages_named(capsys) == [str(page)]
    document = only_run_in(page)
    assert [each["rule"] for each in document["broken"]] == ["G1a"]
    page.unlink()
    assert run(["explore", "--html", str(page)]) == 0
    assert not page.exists(), "nothing was found"


def test_a_shrunk_run_has_its_page(tmp_path: Path, capsys: Output) -> None:
    small, page = tmp_path / "small.toml", tmp_path / "small.html"
    seed = ["--seed", str(failing_with("fencing")), "--break", "fencing", "--budget", "3000"]
    assert run(["shrink", *seed, "--output", str(small), "--html", str(page)]) == 0
    assert pages_named(capsys) == [str(page)]
    document = only_run_in(page)
    assert document["settings"]["broken"] == ["fencing"]
    assert len(document["broken"]) == 1


@pytest.mark.parametrize(
    "command", ["run bad.toml", "fuzz --cores 1 --break fencing", "explore --transaction-version 0"]
)
def test_the_files_of_a_failure_have_a_page(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text(
        'name = "bad"\n[[producer]]\nname = "p"\nscript = ["send t-0 a"]\n'
        '[expect]\nvisible = { "t-0" = ["b"] }\n'
    )
    assert run([*command.split(), "--output", "found"]) == 1
    (page,) = Path("found").glob("*.html")
    document = only_run_in(page)
    assert document["problems"] or document["broken"]
