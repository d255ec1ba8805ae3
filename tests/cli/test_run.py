"""`fencepost run`: what it says of stories that come out as they should, of others, and of bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.application import run
from fencepost.cli.run import shipped

Output = pytest.CaptureFixture[str]

STORY = """
name = "lost acknowledgement"

[[producer]]
name = "p"
script = ["send t-0 a"]

[[fault]]
when = "node 1 sends Produce reply to p"
do = "drop"

[expect]
reaches = ["node 1 receives Produce #2"]
visible = { "t-0" = ["a"] }
also_with = [{ sync = "all" }]
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.toml"
    path.write_text(STORY)
    return path


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_run_is_told_and_counted(capsys: Output, story: Path) -> None:
    assert run(["run", str(story)]) == 0
    out = capsys.readouterr().out
    assert "pass  lost acknowledgement\n" in out
    assert "pass  lost acknowledgement (sync all)\n" in out
    assert "struck:   drop (node 1 sends Produce reply to p)" in out
    assert "2 of 2 runs of one scenario met their expectations" in out


def test_json_ends_with_the_counts(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), "--json"]) == 0
    first, _, last = json_lines(capsys.readouterr().out)
    assert first["expected"] == ["reaches node 1 receives Produce #2", "t-0 shows [a]"]
    assert first["reached"] == ["node 1 receives Produce #2"]
    assert first["struck"] == ["drop (node 1 sends Produce reply to p)"]
    assert first["passed"]
    assert (last["scenarios"], last["runs"], last["passed"], last["failed"]) == (1, 2, 2, 0)


def test_a_story_that_breaks_a_rule_shows_how(capsys: Output) -> None:
    path = next(path for path in shipped() if path.name == "late_end_txn.toml")
    assert run(["run", str(path), "--text"]) == 0
    out = capsys.readouterr().out
    assert "\nKAFKA-17754, found by Jepsen in 2024." in out
    (told,) = [line for line in out.splitlines() if line.startswith("      broken: ")]
    assert told.startswith("      broken:   G1a: ")
    evidence = told.removeprefix("      broken:   ")
    assert f"✗ {evidence[:40]}" in out
    assert run(["run", str(path), "--json"]) == 0
    first, second, _ = json_lines(capsys.readouterr().out)
    assert (first["broken"], first["evidence"]) == (["G1a"], [evidence])
    assert (second["broken"], second["evidence"]) == ([], [])


def test_many_stories_are_a_line_each(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), str(story), str(story)]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == ["pass  lost acknowledgement  (2 runs)"] * 3
    assert summary.startswith("6 of 6 runs of 3 scenarios met their expectations")
    assert run(["run", str(story), str(story), str(story), "--verbose"]) == 0
    assert capsys.readouterr().out.count("struck:   drop") == 6


def test_what_fails_is_told_in_full_and_again_at_the_end(capsys: Output, story: Path) -> None:
    other = story.with_name("other.toml")
    other.write_text(STORY.replace('sync = "all"', 'sync = "all", visible = { "t-0" = ["b"] }'))
    assert run(["run", str(story), str(other), str(story)]) == 1
    *lines, again, summary = capsys.readouterr().out.splitlines()
    problem = "t-0 shows [a] to read_committed, not [b]"
    assert lines[:3] == [
        "pass  lost acknowledgement  (2 runs)",
        "FAIL  lost acknowledgement (sync all)",
        f"      {problem}",
    ]
    assert f"      show:     fencepost run {other} --text" in lines
    assert lines[-2:] == ["pass  lost acknowledgement  (1 of 2 runs)", "pass  lost acknowledgement  (2 runs)"]
    assert again == f"FAIL  lost acknowledgement (sync all): {problem}"
    assert summary.startswith("5 of 6 runs of 3 scenarios met their expectations")


def test_a_story_that_comes_out_otherwise_fails(capsys: Output, story: Path) -> None:
    story.write_text(STORY.replace('["a"] }', '["b"] }'))
    assert run(["run", str(story), "--json"]) == 1
    first, _, last = json_lines(capsys.readouterr().out)
    assert first["problems"] == ["t-0 shows [a] to read_committed, not [b]"]
    assert last["failed"] == 2


def test_what_happened_is_printed_and_drawn(capsys: Output, story: Path, tmp_path: Path) -> None:
    assert run(["run", str(story), "--text", "--svg", str(tmp_path / "story.svg")]) == 0
    out = capsys.readouterr().out
    assert "Produce t-0 a 0/0" in out
    assert "⚡ network: drop" in out
    assert "(sync all)" in (tmp_path / "story-2.svg").read_text()
    assert (tmp_path / "story.svg").read_text().startswith("<svg")


BAD: list[tuple[str, bytes | None, str]] = [
    ("no file", None, "no such file"),
    ("not UTF-8", b"\xff\xfe", "is not UTF-8"),
    ("not TOML", b"name = ", "is not TOML"),
    ("no story", b'name = "s"\n[[fault]]\nwhen = "p ends"\ndo = "hold"', 'there is no "p"'),
]


@pytest.mark.parametrize(("content", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_file_is_told_in_two_lines(
    capsys: Output, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    assert run(["run", str(path)]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 2


def test_a_directory_is_no_story(capsys: Output, tmp_path: Path) -> None:
    assert run(["run", str(tmp_path)]) == 2
    assert f"fencepost run {tmp_path}/*.toml" in capsys.readouterr().err


def test_without_a_file_the_shipped_stories_are_played() -> None:
    stories = [path.name for path in shipped() if path.parent.name != "found"]
    found = [path.name for path in shipped() if path.parent.name == "found"]
    assert [path.name for path in shipped()] == [*sorted(stories), *sorted(found)]
    assert "late_end_txn.toml" in stories
    assert "lost_sequence.toml" in found


def test_a_picture_goes_where_it_can_and_over_pictures_alone(capsys: Output, story: Path) -> None:
    before, picture = story.read_bytes(), story.with_suffix(".svg")
    table: list[tuple[Path, str]] = [
        (story, "is not an SVG picture; refusing to overwrite it"),
        (story.parent / "nowhere" / "p.svg", "p.svg: No such file or directory"),
    ]
    for target, words in table:
        assert run(["run", str(story), "--svg", str(target)]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert "with --svg" in told.err
        assert told.out == ""
    assert story.read_bytes() == before
    for _ in range(2):
        assert run(["run", str(story), "--svg", str(picture)]) == 0
    assert "<svg" in picture.read_text()
    assert run(["run", str(story), "--svg", "/dev/full"]) == 1
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err
