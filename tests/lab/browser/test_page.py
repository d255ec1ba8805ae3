"""The page of a run in a browser: steps, jumps, filter, keys, links, looks, print, two runs side by side."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from fencepost.lab.comparison import compare
from fencepost.lab.document import RunDocument
from fencepost.lab.recordings import record
from fencepost.simulator.scenarios.builder import scenario
from fencepost.simulator.scenarios.model import cases
from tests.lab.browser.accessibility import violations
from tests.lab.browser.driving import RunPage, document_of, flagged, obeyed_signs

FLAGS: Final = ("fault", "refusal", "marker", "violation")


@cache
def late(variant: int = 1) -> RunDocument:
    """The run whose second commit is late: variant 1 in version 0, variant 2 in version 2."""
    return document_of("late_end_txn", variant)


@pytest.fixture
def run(page: Page, tmp_path: Path) -> RunPage:
    """The page of that run, at its first step."""
    return RunPage.opened(page, tmp_path, [late()], link="step=0")


def step_of(words: str) -> int:
    """The first step of that run with these words."""
    return next(number for number, step in enumerate(late()["steps"]) if words in step["text"])


# --- through a run ------------------------------------------------------------------------------------------


def test_steps_forward_and_back_show_the_state_after_each(run: RunPage) -> None:
    run.is_at(0)
    expect(run.by("back")).to_be_disabled()
    run.click("forward", "forward")
    run.is_at(2)
    run.sees("why", late()["steps"][2]["text"])
    run.click("back")
    run.is_at(1)
    run.click("last")
    run.is_at(len(late()["steps"]) - 1)
    expect(run.by("forward")).to_be_disabled()
    run.click("first")
    run.is_at(0)


def test_a_run_plays_until_it_is_paused(run: RunPage) -> None:
    run.by("speed").select_option("100")
    run.click("play")
    run.is_at(len(late()["steps"]) - 1)
    expect(run.by("play")).to_be_visible()  # at its end, it pauses itself
    run.by("speed").select_option("1")
    run.click("play")
    run.is_at(0)  # from the start again
    run.click("pause")
    expect(run.by("play")).to_be_visible()


def test_the_slider_goes_to_any_step(run: RunPage) -> None:
    scrub = run.by("scrub")
    scrub.fill("40")
    run.is_at(40)
    scrub.focus()
    run.press("ArrowRight")
    run.is_at(41)
    run.press("Home")
    run.is_at(0)


@pytest.mark.parametrize("flag", FLAGS)
def test_jumps_go_from_one_to_the_next(run: RunPage, flag: str) -> None:
    numbers = flagged(late(), flag)
    assert numbers, f"no step of this run is a {flag}"
    for number in numbers:
        run.click(f"next-{flag}")
        run.is_at(number)
    run.press(flag[0])  # after the last comes the first
    run.is_at(numbers[0])
    run.press(f"Shift+{flag[0].upper()}")
    run.is_at(numbers[-1])


def test_a_click_on_a_row_selects_its_step(run: RunPage) -> None:
    picture = run.by("panel-space-time").locator("svg.picture")
    picture.click(position={"x": 200, "y": 22 * 5 + 10})
    expect(run.by("step-counter")).to_have_text(re.compile("^step [3-7] of "))


def test_a_step_has_a_link_and_the_address_follows(page: Page, tmp_path: Path) -> None:
    run = RunPage.opened(page, tmp_path, [late()], link="step=42")
    run.is_at(42)
    run.click("forward")
    run.is_at(43)
    expect(page).to_have_url(re.compile("#step=43$"))
    run.evaluate("location.hash = 'step=7'")
    run.is_at(7)


KEYS = [
    ("ArrowRight", 31), ("ArrowLeft", 29), ("PageDown", 50), ("PageUp", 10), ("Home", 0),
    ("End", len(late()["steps"]) - 1),
]  # fmt: skip


def test_keys_move_through_a_run(run: RunPage) -> None:
    for key, goal in KEYS:
        run.evaluate("location.hash = 'step=30'")
        run.is_at(30)
        run.press(key)
        run.is_at(goal)
    run.press("?")
    expect(run.by("help-dialog")).to_be_visible()
    run.press("ArrowLeft")  # the dialog has the keys now
    run.is_at(len(late()["steps"]) - 1)
    run.press("Escape")
    expect(run.by("help-dialog")).to_be_hidden()


# --- what the panels say ------------------------------------------------------------------------------------


def test_panels_show_logs_states_and_readers_after_the_late_commit(run: RunPage) -> None:
    at = step_of(", late: ") + 1
    run.by("scrub").fill(str(at))
    run.is_at(at)
    run.sees("panel-logs", "LSO 2", "HW 3", "Prepare Commit")
    run.sees("panel-coordinator", "app", "t-0")
    run.sees("panel-leader", "open from 2")
    run.sees("panel-readers", "read_committed", "waits at 2", "next offset 3")
    run.click("next-violation")
    run.sees("why", "G1a")


def test_the_transaction_log_has_a_record_for_each_change_and_none_for_an_acknowledged_marker(
    page: Page, tmp_path: Path
) -> None:
    run = RunPage.opened(page, tmp_path, [document_of("zombie_coordinator")])
    run.click("last")
    said = [" ".join(each.split()) for each in page.locator(".said li").all_inner_texts()]
    assert said[-2:] == ["Prepare Commit 1000/1 {t-0, t-1, t-2}", "Complete Commit 1000/1"]
    assert len(set(said)) == len(said)


def test_the_latest_transaction_is_named_also_while_another_is_shown(page: Page, tmp_path: Path) -> None:
    run = RunPage.opened(page, tmp_path, [document_of("rebalance_in_a_transaction")])
    run.click("last")
    choice = run.by("panel-coordinator").get_by_role("combobox", name="transaction")
    latest = choice.get_by_role("option").first
    before = latest.text_content() or ""
    other = next(name for name in ("first", "second") if name not in before)
    choice.select_option(other)
    run.sees("panel-coordinator", f"transaction{other}")
    expect(latest).to_have_text(before)


def test_columns_without_room_say_once_what_they_are(page: Page, tmp_path: Path) -> None:
    """A client and a transactional id may have the same name."""
    page.set_viewport_size({"width": 1366, "height": 768})
    run = RunPage.opened(page, tmp_path, [document_of("rebalance_in_a_transaction")])
    assert page.locator(".head.kind").all_inner_texts() == ["txn", "log"]
    page.goto("about:blank")
    RunPage.opened(page, tmp_path, [late()])
    assert page.locator(".head.txn, .head.log").all_inner_texts() == ["txn app", "log t-0"]
    expect(run.page.locator(".head.kind")).to_have_count(0)


def test_the_moment_that_is_shown_is_in_sight(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    run = RunPage.opened(page, tmp_path, [document_of("zombie_fencing")])
    current = page.locator(".moment[aria-current]")
    expect(current).to_be_in_viewport(ratio=0.99)
    run.click("first", "next-refusal")
    run.press("Shift+f")
    expect(current).to_be_in_viewport(ratio=0.99)


@pytest.mark.parametrize("width", [1280, 1100, 1000, 800, 360])
def test_the_word_of_a_moment_is_whole_and_apart_from_its_time(
    page: Page, tmp_path: Path, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    run = RunPage.opened(page, tmp_path, [document_of("replaced_member", 3)])
    assert page.locator(".moment").count() == 6
    assert run.tight_moments() == []


def test_the_filter_shows_one_transactional_id(page: Page, tmp_path: Path) -> None:
    document = document_of("commit_beats_timeout")
    ids = [each["transactional_id"] for each in document["producers"] if each["transactional_id"]]
    run = RunPage.opened(page, tmp_path, [document], link="step=0")
    run.by("filter").select_option(ids[0])
    run.click("first")
    shown: list[int] = []
    for _ in range(6):
        text = run.by("step-counter").inner_text()
        shown.append(int(text.split()[1]))
        run.click("forward")
    assert all(ids[0] in document["steps"][number].get("transactions", ids) for number in shown[1:])
    assert shown == sorted(set(shown))


# --- many logs ----------------------------------------------------------------------------------------------

OUTSIDE: Final = """panel => {
  const row = document.querySelector(`[data-testid=${panel}] [data-latest]`);
  const [inner, outer] = [row, row.closest("[data-crowded]")].map((each) => each.getBoundingClientRect());
  return Math.max(outer.top - inner.top, inner.bottom - outer.bottom, 0);
}"""
PLACES: Final = """() => [...document.querySelectorAll(".strip, .sight, .leader tbody")]
  .filter((each) => !each.dataset.latest).slice(0, 3).map((each) => each.getBoundingClientRect().top)"""


@cache
def crowd() -> RunDocument:
    """A transaction that writes to forty partitions, one after the other."""
    sends = [f"send t-{number} v{number}" for number in range(40)]
    story = scenario("many logs").cluster(topics={"t": 40})
    story = story.producer("p", "init", "begin", *sends, "commit", transactional_id="app")
    [case] = cases(story.scenario())
    return record(case)


def append_to(partition: str) -> int:
    """The step at which that run appends to a partition."""
    found = [each["appended"] for each in crowd()["batches"] if each["partition"] == partition]
    return found[0]


def test_the_log_that_changes_is_in_sight_and_the_others_stay_where_they_are(
    page: Page, tmp_path: Path
) -> None:
    run = RunPage.opened(page, tmp_path, [crowd()], link=f"step={append_to('t-20')}")
    before = run.evaluate(PLACES)
    for number in (20, 39, 25, 30):
        run.evaluate(f"location.hash = 'step={append_to(f't-{number}')}'")
        run.is_at(append_to(f"t-{number}"))
        expect(page.locator(".strip[data-latest] h3")).to_contain_text(f"t-{number}")
        expect(page.locator(".strip[data-latest]")).to_be_in_viewport(ratio=0.99)
        for panel in ("panel-logs", "panel-readers", "panel-leader"):
            assert page.evaluate(OUTSIDE, panel) < 1, f"{panel} at t-{number}"
        run.sees("panel-space-time", f"[t-{number} 0 v{number}]")
    assert run.evaluate(PLACES) == before
    run.click("last")
    expect(page.locator(".strip[data-latest]")).to_contain_text("Complete Commit")
    expect(page.locator(".strip[data-latest]")).to_be_in_viewport(ratio=0.99)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_many_logs_are_accessible(page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=cast("Any", scheme), reduced_motion="reduce")
    RunPage.opened(page, tmp_path, [crowd(), crowd()], link=f"step={append_to('t-20')}")
    assert violations(page) == []


def test_many_logs_are_printed_to_the_last(page: Page, tmp_path: Path) -> None:
    run = RunPage.opened(page, tmp_path, [crowd()])
    page.emulate_media(media="print")
    cut = "(it) => it.scrollHeight > it.clientHeight + 1"
    assert run.evaluate(f"[...document.querySelectorAll('[data-crowded]')].filter({cut}).length") == 0


# --- looks --------------------------------------------------------------------------------------------------


def test_zoom_theme_and_type_change_the_picture(run: RunPage) -> None:
    def type_size() -> float:
        return float(
            run.evaluate("parseFloat(getComputedStyle(document.querySelector('svg.picture')).fontSize)")
        )

    usual = type_size()
    run.press("+")
    page = run.page
    page.wait_for_function(
        "usual => parseFloat(getComputedStyle(document.querySelector('svg.picture')).fontSize) > usual",
        arg=usual,
    )
    run.press("-")
    page.wait_for_function(
        "usual => parseFloat(getComputedStyle(document.querySelector('svg.picture')).fontSize) === usual",
        arg=usual,
    )
    light = run.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "light => getComputedStyle(document.documentElement).backgroundColor !== light", arg=light
    )
    run.click("theme")  # of automatic, light and dark, the next
    page.wait_for_function(
        "light => getComputedStyle(document.documentElement).backgroundColor === light", arg=light
    )


@pytest.mark.parametrize("kept", ["garbage", '{"large": 1}', "null"])
def test_a_look_that_cannot_be_read_is_the_usual_one(page: Page, tmp_path: Path, kept: str) -> None:
    """Anything may stand in the storage of a browser: another program may have written it."""
    page.add_init_script(
        f"for (const name of ['theme', 'large', 'zoom']) localStorage.setItem('fencepost.' + name, {kept!r})"
    )
    run = RunPage.opened(page, tmp_path, [late()], link="step=3")
    run.is_at(3)


def test_a_printed_page_has_every_step(run: RunPage) -> None:
    last = late()["steps"][-1]["note"].split()[0]
    drawn = run.by("panel-space-time").locator("svg.picture")
    run.page.emulate_media(media="print")
    expect(drawn).to_contain_text(last)
    expect(run.by("scrub")).to_be_hidden()
    assert len(run.page.pdf()) > 10_000


def test_a_printed_page_has_the_lesson_and_the_moments_in_full(page: Page, tmp_path: Path) -> None:
    RunPage.opened(page, tmp_path, [late()])
    page.set_viewport_size({"width": 718, "height": 1000})  # of paper
    page.emulate_media(media="print")
    cut = "(it) => it.scrollWidth > it.clientWidth + 1 || it.scrollHeight > it.clientHeight + 1"
    parts = "document.querySelectorAll('.moments, .moment .note, .lesson summary')"
    assert page.evaluate(f"[...{parts}].filter({cut}).map((it) => it.textContent)") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sides", [1, 2])
def test_a_page_is_accessible(page: Page, tmp_path: Path, scheme: str, sides: int) -> None:
    page.emulate_media(color_scheme=cast("Any", scheme), reduced_motion="reduce")
    documents = [late(1), late(2)][:sides]
    run = RunPage.opened(page, tmp_path, documents, divergence=(5, 5) if sides == 2 else None, link="step=60")
    assert violations(page) == []
    run.press("?")
    expect(run.by("help-dialog")).to_be_visible()
    assert violations(page) == []


# --- two runs -----------------------------------------------------------------------------------------------


def test_two_runs_are_in_step_until_they_diverge(page: Page, tmp_path: Path) -> None:
    both = compare(late(1), late(2))
    assert both["divergence"] is not None
    left, right = both["divergence"]
    run = RunPage.opened(page, tmp_path, [late(1), late(2)], divergence=(left, right), link="step=0,0")
    run.is_at(0, 0)
    run.sees("divergence", "Both runs are the same so far.")
    run.press("d")
    run.is_at(left, right)
    run.sees("divergence", "Here the runs diverge.")
    expect(page.get_by_text("the runs diverge here").first).to_be_visible()
    expect(page.get_by_text("the runs diverge here")).to_have_count(2)
    run.click("last")
    assert run.read_committed("t-0") == ["a", "b breaks a rule", "c"]
    assert run.read_committed("t-0", side=1) == ["a", "c"]
    expect(page.get_by_text("breaks G1a").first).to_be_visible()
    expect(page.get_by_text("no rule broken").first).to_be_visible()


# --- names --------------------------------------------------------------------------------------------------

EVIL: Final = "<img src=x onerror=\"console.error('run')\"><script>console.error('run')</script>&amp;"


def test_names_with_markup_stay_text(page: Page, tmp_path: Path) -> None:
    """What ran would have complained to the console."""
    document = cast("dict[str, Any]", {**late()})
    document["title"], document["lesson"] = EVIL, EVIL
    document["broken"] = [{**each, "text": EVIL, "rule": EVIL} for each in document["broken"]]
    document["steps"] = [{**step, "text": EVIL, "note": EVIL} for step in document["steps"]]
    document["batches"] = [{**batch, "values": [EVIL], "text": EVIL} for batch in document["batches"]]
    document["messages"] = [{**each, "label": EVIL, "because": EVIL} for each in document["messages"]]
    run = RunPage.opened(page, tmp_path, [cast("RunDocument", document)], link="step=0")
    for flag in FLAGS:
        run.press(flag[0])
    run.click("last")
    run.sees("why", EVIL)
    assert page.title() == EVIL
    assert run.evaluate("document.querySelectorAll('img, main script').length") == 0


def test_signs_that_turn_a_line_around_are_shown_and_not_obeyed(page: Page, tmp_path: Path) -> None:
    turned = "a\u202eb\u2066c\u200b\x1bd"
    story = scenario(turned).producer(
        turned, "init", "begin", f"send t-0 {turned}", "commit", transactional_id=turned
    )
    [case] = cases(story.scenario())
    run = RunPage.opened(page, tmp_path, [record(case)])
    seen = r"a\u202eb\u2066c\u200b\x1bd"
    for panel in ("panel-logs", "panel-readers", "panel-coordinator", "panel-leader", "why"):
        run.sees(panel, seen)
    assert page.title() == seen
    assert page.locator(".head.lane").first.get_attribute("title") == seen
    for step in ("first", "last"):
        run.click(step)
        assert obeyed_signs(page) == []
    run.by("filter").select_option(turned)
    expect(run.by("filter").locator("option:checked")).to_have_text(f"txn {seen}")


def test_signs_that_join_letters_are_left_alone(page: Page, tmp_path: Path) -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    [case] = cases(scenario("a family").producer("p", f"send t-0 {family}").scenario())
    run = RunPage.opened(page, tmp_path, [record(case)])
    run.click("last")
    assert run.read_committed("t-0") == [family]


def test_long_names_stay_in_their_places(page: Page, tmp_path: Path) -> None:
    long = "an-id-with-a-long-name-" * 4
    scripts = [("init", "begin", f"send t-0 {number}", "commit") for number in range(2)]
    story = scenario("long names")
    for number, script in enumerate(scripts):
        story = story.producer(f"{long}{number}", *script, transactional_id=f"{long}{number}")
    [case] = cases(story.scenario())
    page.set_viewport_size({"width": 360, "height": 700})
    run = RunPage.opened(page, tmp_path, [record(case)])
    assert run.evaluate("document.documentElement.scrollWidth") < 370  # the word at a pointer may stand out
    run.click("first")
    edges = "['.head.time', '.head.lane'].map((it) => document.querySelector(it).getBoundingClientRect())"
    assert run.evaluate(f"(([time, lane]) => lane.left - time.right)({edges})") >= -1
    heads = page.locator(".head.lane").all_text_contents()
    assert len(set(heads)) == len(heads)
    cut = (
        "[...document.querySelectorAll('.head.lane')].filter((it) => it.scrollWidth > it.clientWidth).length"
    )
    assert run.evaluate(cut) == 0
    run.click("last")
    assert "an-id-w… CompleteCommit" in run.evaluate("document.querySelector('.picture').textContent")
    page.set_viewport_size({"width": 1280, "height": 800})
    table = "document.querySelector('.leader .table')"
    assert run.evaluate(f"{table}.scrollWidth - {table}.clientWidth") == 0


BROKEN_WORDS: Final = """() => [...document.querySelectorAll(".head")].flatMap((head) => [...head.childNodes])
  .filter((part) => part.nodeType === Node.TEXT_NODE).filter((part) => {
    const place = document.createRange();
    place.selectNode(part);
    const across = getComputedStyle(part.parentElement).writingMode === "horizontal-tb" ? "top" : "left";
    return new Set([...place.getClientRects()].map((line) => Math.round(line[across]))).size > 1;
  }).map((part) => part.nodeValue)"""


@pytest.mark.parametrize("width", [360, 900, 1366])
def test_names_above_columns_break_after_their_words(page: Page, tmp_path: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    topics = [
        f"{word}.europe-{number}" for word in ("incoming", "audit", "stock_levels") for number in range(3)
    ]
    story = scenario("names").cluster(topics=dict.fromkeys(topics, 1))
    for number, name in enumerate(("application-10", "reconciliation", "p")):
        sends = [f"send {topic}-0 {number}" for topic in topics]
        story = story.producer(
            name, "init", "begin", *sends, "commit", transactional_id=f"{name}-of-the-shop"
        )
    [case] = cases(story.scenario())
    run = RunPage.opened(page, tmp_path, [record(case)])
    assert run.evaluate(BROKEN_WORDS) == []
    heads = page.locator(".head.log")
    expect(heads).to_have_count(len(topics))
    tall = run.evaluate(
        "[...document.querySelectorAll('.head')].map((it) => it.scrollHeight - it.clientHeight)"
    )
    assert max(tall) <= 1


def test_a_text_is_cut_where_it_has_no_room_and_never_within_a_sign(page: Page, tmp_path: Path) -> None:
    """A family is one sign for people, and eight letters for JavaScript."""
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    document = cast("dict[str, Any]", {**late()})
    first = step_of("sends")
    document["steps"] = [*document["steps"]]
    document["steps"][first] = {**document["steps"][first], "note": family * 200}
    run = RunPage.opened(page, tmp_path, [cast("RunDocument", document)], link=f"step={first}")
    cut = run.page.locator(".picture text", has_text=family[0]).text_content() or ""
    assert cut == family * cut.count(family) + "…"


def test_what_became_of_a_lost_message_may_reach_across_the_logs(run: RunPage) -> None:
    last = max(flagged(late(), "lost"))
    run.evaluate(f"location.hash = 'step={last}'")
    run.is_at(last)
    lost = run.page.locator(".picture text", has_text="LOST").last
    expect(lost).to_contain_text("nobody waits for it")
    box, sheet = lost.bounding_box(), run.by("panel-space-time").bounding_box()
    assert box is not None
    assert sheet is not None
    assert box["x"] + box["width"] <= sheet["x"] + sheet["width"]


@pytest.mark.parametrize("lane", ["p", "reader"])
def test_a_broken_rule_stands_beside_the_words_of_its_row(page: Page, tmp_path: Path, lane: str) -> None:
    document = cast("dict[str, Any]", {**late()})
    document["participants"] = [*document["participants"], {"name": "reader", "kind": "client"}]
    rule = {"rule": "a-rule-with-a-long-name " * 5, "meaning": "", "text": "", "step": 0}
    first = {**document["steps"][0], "lane": lane, "flags": ["violation"], "note": "reads t-0: a b c"}
    first["at"] = document["steps"][-1]["at"]  # the longest time
    document.update(broken=[rule], steps=[first, *document["steps"][1:]])
    run = RunPage.opened(page, tmp_path, [cast("RunDocument", document)], link="step=0")
    first_row = "...document.querySelector('g.row').querySelectorAll('text')"
    before = "document.querySelector('.times .cross'), document.querySelector('.times text')"
    words, breach, cross, time = run.evaluate(
        f"[{first_row}, {before}].map((it) => it.getBoundingClientRect())"
    )
    assert words["right"] < breach["left"]
    assert cross["right"] < time["left"]


def test_a_page_works_without_the_rest_of_the_world(context: BrowserContext, tmp_path: Path) -> None:
    context.set_offline(True)
    run = RunPage.opened(context.new_page(), tmp_path, [late()])
    run.click("forward")
