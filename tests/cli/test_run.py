"""`fencepost run`: what it says of stories that come out as they should, of others, and of bad files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from rich.cells import cell_len

from fencepost.bundled import bundled_scenarios
from fencepost.cli import table
from fencepost.cli.application import run

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
    assert "2 of 2 runs of one scenario met the expectations" in out


def test_two_scenarios_of_one_name_are_told_apart(capsys: Output, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(bundled_scenarios()["late_marker"].read_text(encoding="utf-8"))
    assert run(["run", str(mine), "late_marker", "late_marker", "zombie_fencing"]) == 0
    out = capsys.readouterr().out
    assert f"pass  late marker [{mine}]  (" in out
    assert out.count("pass  late marker [late_marker]  (") == 2
    assert "pass  zombie fencing  (" in out


def test_json_ends_with_the_counts(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), "--json"]) == 0
    first, _, last = json_lines(capsys.readouterr().out)
    assert first["expected"] == ["reaches node 1 receives Produce #2", "t-0 shows [a]"]
    assert first["reached"] == ["node 1 receives Produce #2"]
    assert first["struck"] == ["drop (node 1 sends Produce reply to p)"]
    assert first["passed"]
    assert (last["scenarios"], last["runs"], last["passed"], last["failed"]) == (1, 2, 2, 0)


def test_a_story_that_breaks_a_rule_shows_how(capsys: Output) -> None:
    assert run(["run", "late_end_txn", "--text"]) == 0
    out = capsys.readouterr().out
    assert "KAFKA-17754, found by Jepsen in 2024." in " ".join(out.split())
    (told,) = [line for line in out.splitlines() if line.startswith("      broken: ")]
    assert told.startswith("      broken:   G1a: ")
    evidence = told.removeprefix("      broken:   ")
    assert f"✗ {evidence[:40]}" in out
    assert run(["run", "late_end_txn", "--json"]) == 0
    first, second, _ = json_lines(capsys.readouterr().out)
    assert (first["broken"], first["evidence"]) == (["G1a"], [evidence])
    assert (second["broken"], second["evidence"]) == ([], [])


def test_verdicts_are_coloured_on_a_terminal(
    capsys: Output, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    story.write_text(STORY.replace('sync = "all"', 'sync = "all", visible = { "t-0" = ["b"] }'))
    assert run(["run", str(story)]) == 1
    out = capsys.readouterr().out
    assert "\x1b[32mpass\x1b[0m  lost acknowledgement\n" in out
    assert "\x1b[31mFAIL\x1b[0m  lost acknowledgement (sync all)\n" in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["run", str(story)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_many_stories_are_a_line_each(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), str(story), str(story)]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == ["pass  lost acknowledgement  (2 runs)"] * 3
    assert summary.startswith("6 of 6 runs of 3 scenarios met the expectations")
    assert run(["run", str(story), str(story), str(story), "--verbose"]) == 0
    assert capsys.readouterr().out.count("struck:   drop") == 6


def test_what_fails_is_told_in_full_and_again_at_the_end(capsys: Output, story: Path) -> None:
    other = story.with_name("other.toml")
    story_of_its_own = STORY.replace('"lost acknowledgement"', '"other"')
    other.write_text(story_of_its_own.replace('sync = "all"', 'sync = "all", visible = { "t-0" = ["b"] }'))
    assert run(["run", str(story), str(other), str(story)]) == 1
    *lines, again, summary = capsys.readouterr().out.splitlines()
    problem = "t-0 shows [a] to read_committed, not [b]"
    assert lines[:3] == ["pass  lost acknowledgement  (2 runs)", "FAIL  other (sync all)", f"      {problem}"]
    assert f"      show:     fencepost run {other} --variant 2 --text" in lines
    assert lines[-2:] == ["pass  other  (1 of 2 runs)", "pass  lost acknowledgement  (2 runs)"]
    assert again == f"FAIL  other (sync all): {problem}"
    assert summary.startswith("5 of 6 runs of 3 scenarios met the expectations")


@pytest.mark.parametrize("option", ["--text", "--list"])
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_in_a_scenario_can_drive_a_terminal(
    capsys: Output, tmp_path: Path, option: str, count: int
) -> None:
    odd = r"a\u001b[2J"
    text = f'''name = "{odd}"\nlesson = "{odd}"\n[[producer]]\nname = "{odd}"\nscript = ["send t-0 {odd}"]
    [expect]\nvisible = {{ "t-0" = ["{odd}"] }}
    also_with = [{{ sync = "all", visible = {{ "t-0" = ["b"] }} }}]'''
    for number in range(count):
        tmp_path.joinpath(f"{number}.toml").write_text(text)
    run(["run", str(tmp_path), option])
    out = capsys.readouterr().out
    assert r"\x1b[2J" in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert run(["run", str(tmp_path), "--text", "--only", "q"]) == 2
    err = capsys.readouterr().err
    assert r"its lanes are a\x1b[2J" in err
    assert all(line.isprintable() for line in err.split("\n"))


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
    ("not UTF-8", b"\xff\xfe", "is not UTF-8: invalid start byte (byte 0)\n"),
    ("no key", b"[acl]", "(possible: expect, cluster, name, lesson, choices, producer, "),
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


def test_a_directory_stands_for_the_scenarios_in_it(capsys: Output, story: Path) -> None:
    (story.parent / "more").mkdir()
    story.with_name("more").joinpath("other.toml").write_text(STORY)
    assert run(["run", str(story.parent)]) == 0
    assert "4 of 4 runs of 2 scenarios met the expectations" in capsys.readouterr().out
    story.unlink()
    story.with_name("more").joinpath("other.toml").unlink()
    assert run(["run", str(story.parent)]) == 2
    assert "has no scenario in it" in capsys.readouterr().err


def test_a_bundled_scenario_goes_by_its_name(capsys: Output) -> None:
    assert run(["run", "zombie_fencing", "lost_sequence.toml"]) == 0
    assert "of 2 scenarios met the expectations" in capsys.readouterr().out
    assert run(["run", "zombi_fencing"]) == 2
    told = capsys.readouterr().err
    assert "there is no scenario zombi_fencing, bundled or in a file" in told
    assert "did you mean zombie_fencing? `fencepost run --list` shows the bundled scenarios" in told


@pytest.mark.parametrize("command", ["run", "shrink"])
def test_an_empty_name_is_not_the_current_directory(command: str, capsys: Output) -> None:
    assert run([command, ""]) == 2
    assert "the name of a scenario is empty\n" in capsys.readouterr().err


def test_a_file_wins_over_a_name(capsys: Output, story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(story.parent)
    story.rename("zombie_fencing")
    assert run(["run", "zombie_fencing"]) == 0
    assert "pass  lost acknowledgement" in capsys.readouterr().out


def test_the_stories_come_in_the_order_of_the_course() -> None:
    course = re.findall(r"^fencepost run (\w+)", Path("docs/course.md").read_text(), re.MULTILINE)
    told = list(dict.fromkeys(course))
    assert [name for name in bundled_scenarios() if name in told] == told


def test_without_a_file_the_bundled_scenarios_are_run(capsys: Output) -> None:
    paths = list(bundled_scenarios().values())
    stories = [path.name for path in paths if path.parent.name != "found"]
    found = [path.name for path in paths if path.parent.name == "found"]
    assert [path.name for path in paths] == [*stories, *sorted(found)]
    assert {*stories} == {path.name for path in Path("scenarios").glob("*.toml")}
    assert "late_end_txn.toml" in stories
    assert "lost_sequence.toml" in found
    assert run(["run", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(bundled_scenarios())
    (late,) = [line for line in lines if line.startswith("late_end_txn ")]
    assert late.endswith(
        "ends the next transaction of its producer and commits records that the client aborts, unless each "
        "transaction has its own epoch. (2 runs)"
    )


def test_on_a_narrow_terminal_a_lesson_is_below_its_scenario(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.run.terminal_width", lambda: 40)
    assert run(["run", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 40
    assert "late_end_txn" in lines


def test_a_list_of_one_scenario_shows_its_variants(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["variant  title", "      1  -", "      2  sync all"]
    assert run(["run", str(story), "--list", "--json"]) == 0
    (told,) = json_lines(capsys.readouterr().out)
    assert (told["name"], told["runs"], told["file"]) == ("lost acknowledgement", 2, str(story))
    assert told["variants"][1] == {"number": 2, "title": "sync all"}


@pytest.mark.parametrize("variant", ["2", "SYNC", "acknowledgement (sync all)"])
def test_one_variant_is_run_by_number_or_text(capsys: Output, story: Path, variant: str) -> None:
    assert run(["run", str(story), "--variant", variant, "--json"]) == 0
    first, last = json_lines(capsys.readouterr().out)
    assert (first["scenario"], last["runs"]) == ("lost acknowledgement (sync all)", 1)


@pytest.mark.parametrize("variant", ["0", "3", "sync none"])
def test_a_variant_that_there_is_not_lists_those_that_there_are(
    capsys: Output, story: Path, variant: str
) -> None:
    assert run(["run", str(story), "--variant", variant]) == 2
    told = capsys.readouterr().err
    assert f"{story} has no variant {variant!r}" in told
    assert f"its variants are: 1 (plain); 2 sync all (`fencepost run {story} --list`)" in told


def test_the_table_is_as_wide_as_asked(capsys: Output, story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def widest(*options: str) -> int:
        assert run(["run", str(story), "--variant", "1", "--text", *options]) == 0
        table = capsys.readouterr().out.partition("pass  ")[0]
        return max(map(cell_len, table.splitlines()))

    monkeypatch.delenv("COLUMNS", raising=False)
    assert 70 < widest("--width", "80") <= 80
    assert widest() > 80
    monkeypatch.setenv("COLUMNS", "72")
    assert widest() <= 72
    assert run(["run", str(story), "--text", "--width", "20"]) == 2


def test_a_table_in_ascii(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), "--variant", "1", "--text", "--ascii"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "?" not in out
    assert "-->" in out


def test_what_to_show_is_checked_before_anything_runs(capsys: Output, story: Path, tmp_path: Path) -> None:
    refused = [
        (["--text", "--json"], "both write to standard output"),
        (["--slide"], "--slide applies to pictures only"),
        (["--from", "3"], "apply to tables and pictures only"),
        (["--text", "--from", "999"], "the run has no message 999: its messages are 1 to "),
        (["--text", "--until", "soon"], "'soon' is not a step"),
        (["--text", "--from", "9 s", "--until", "3"], "has nothing between 9 s and 3"),
        (["--text", "--only", "p,q"], "no lane 'q'; its lanes are p, node 1, log t-0"),
    ]
    for options, words in refused:
        assert run(["run", str(story), *options]) == 2, options
        told = capsys.readouterr()
        assert words in told.err
        assert told.out == ""
        assert len(told.err.splitlines()) == 2


def test_a_part_that_one_of_the_runs_lacks_is_found_before_any_is_shown(capsys: Output) -> None:
    """In the first run message 9 arrives after message 20 was sent, in the second one before."""
    part = ("--text", "--from", "20", "--until", "9")
    assert run(["run", "late_end_txn", "--variant", "1", *part]) == 0
    assert capsys.readouterr().out != ""
    assert run(["run", "late_end_txn", *part]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "the run has nothing between 20 and 9\n" in told.err


def test_pictures_that_stop_early_are_named_too(tmp_path: Path, capsys: Output) -> None:
    assert run(["run", "late_end_txn", "--until", "3ms", "--svg", str(tmp_path / "s.svg")]) == 0
    assert f"      pictures: {tmp_path}/s.svg, {tmp_path}/s-2.svg\n" in capsys.readouterr().out


def test_slides_are_numbered_and_have_the_size_of_a_screen(
    story: Path, tmp_path: Path, capsys: Output
) -> None:
    assert run(["run", str(story), "--svg", str(tmp_path / "s.svg"), "--slide", "--scale", "0.5"]) == 0
    pages = sorted(path.name for path in tmp_path.glob("*.svg"))
    named = re.findall(r"[\w-]+\.svg", capsys.readouterr().out)
    assert sorted(named) == pages, "the output names every file"
    assert pages[:2] == ["s-2.svg", "s-3.svg"]
    for page in pages:
        assert 'width="960" height="540"' in (tmp_path / page).read_text()


# --- what is left for CI ------------------------------------------------------------------------------------


def test_a_failing_run_leaves_its_files_and_a_report(capsys: Output, story: Path, tmp_path: Path) -> None:
    story.write_text(STORY.replace('sync = "all"', 'sync = "all", visible = { "t-0" = ["b"] }'))
    place, report = tmp_path / "failed" / "runs", tmp_path / "report.xml"
    for _ in range(2):  # a second time over the same files
        assert run(["run", str(story), "--output", str(place), "--junit", str(report)]) == 1
    files = "story-2.toml,story-2.html,story-2.svg,story-2.txt,story-2.json"
    assert f"files:  {place}/{{{files}}}" in capsys.readouterr().out
    assert sorted(path.suffix for path in place.iterdir()) == [".html", ".json", ".svg", ".toml", ".txt"]
    problem = "t-0 shows [a] to read_committed, not [b]"
    assert json.loads((place / "story-2.json").read_text())["problems"] == [problem]
    assert fromstring((place / "story-2.svg").read_text()).tag.endswith("svg")
    assert "LOST" in (place / "story-2.txt").read_text()
    assert run(["run", str(place / "story-2.toml")]) == 1
    assert f"FAIL  lost acknowledgement\n      {problem}" in capsys.readouterr().out
    suites = fromstring(report.read_text())
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")
    passed, failed = suites.iter("testcase")
    assert (passed.get("classname"), passed.get("name")) == ("lost acknowledgement", "lost acknowledgement")
    assert passed.find("failure") is None
    assert [each.get("message") for each in failed] == [problem]
    assert "struck:   drop" in (failed[0].text or "")


def test_files_of_others_are_kept(capsys: Output, story: Path, tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("mine")
    assert run(["run", str(story), "--junit", str(other)]) == 2
    assert run(["run", str(story), "--output", str(other)]) == 2
    told = capsys.readouterr().err
    assert "is not a JUnit report; refusing to overwrite it" in told
    assert f"cannot make the directory {other}: File exists" in told
    assert other.read_text() == "mine"


def test_runs_that_had_no_time_are_a_failure(capsys: Output, story: Path) -> None:
    assert run(["run", str(story), "--for", "0s"]) == 1
    assert "--for was reached; 2 of 2 runs did not begin." in capsys.readouterr().out
    assert run(["run", str(story), "--for", "1h30m"]) == 0
    assert run(["run", str(story), "--for", "soon"]) == 2
    assert "'soon' is not a time such as 500ms, 90s or 1h30m" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("option", "name", "right"),
    [("--svg", "a.html", ".svg"), ("--html", "a.svg", ".html"), ("--junit", "a.toml", ".xml")],
)
def test_a_name_that_promises_another_kind_of_file_is_refused(
    option: str, name: str, right: str, capsys: Output, story: Path, tmp_path: Path
) -> None:
    assert run(["run", str(story), option, str(tmp_path / name)]) == 2
    what, then = capsys.readouterr().err.splitlines()
    assert f"{option} writes a" in what
    assert f"{name} ends in .{name.partition('.')[2]}" in what
    assert then == f"  give a name that ends in {right}"
    assert not (tmp_path / name).exists()


def test_a_directory_with_other_files_is_named(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'app'\n")
    assert run(["run", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"fencepost: not every *.toml file in {tmp_path} is a scenario: ")
    assert "pyproject.toml" in told
    assert told.endswith("give a directory that has only scenarios, or give the files themselves\n")
