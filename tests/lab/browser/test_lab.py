"""`fencepost lab` in a browser: scenarios, what if, undo, save, the editor, and searches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from fencepost.cli.application import run as fencepost
from fencepost.simulator.scenarios.files import scenario_of
from tests.lab.browser.accessibility import violations
from tests.lab.browser.complaints import Complaints
from tests.lab.browser.driving import RunPage, obeyed_signs
from tests.lab.lab_process import LabProcess, lab

pytestmark = pytest.mark.thorough

LOST_ACK = "duplicate_after_lost_ack"


@pytest.fixture(scope="module")
def server() -> Iterator[LabProcess]:
    """One lab for all tests of this file; it keeps nothing of what a page asked."""
    with lab() as server:
        yield server


@pytest.fixture
def run(page: Page, server: LabProcess) -> RunPage:
    """The lab's page with the scenario of the lost acknowledgement."""
    run = RunPage.at(page, server.address)
    page.locator(f"[data-scenario={LOST_ACK}]").click()
    is_idle(run)
    expect(page.get_by_role("heading", name="duplicate after a lost acknowledgement").first).to_be_visible()
    return run


def is_idle(run: RunPage) -> None:
    """Waits until nothing is being played."""
    expect(run.page.locator("#lab-panel")).to_have_attribute("aria-busy", "false")


def seen(run: RunPage) -> list[str]:
    """What read_committed readers see of t-0 in the end."""
    run.click("last")
    return [value.partition(" ")[0] for value in run.read_committed("t-0")]


def choose_message(run: RunPage, words: str) -> None:
    """Clicks a message of the picture."""
    run.page.locator(".picture [data-message]").filter(has_text=words).first.click()
    expect(run.by("whatif-menu")).to_be_visible()


# --- what if ------------------------------------------------------------------------------------------------


def test_a_dropped_acknowledgement_is_a_duplicate_only_without_dedup(run: RunPage) -> None:
    run.click("first")
    choose_message(run, "Produce NONE @1")
    run.click("whatif-drop")
    expect(run.by("faults")).to_contain_text("when node 1 sends Produce reply to p")
    is_idle(run)
    run.sees("outcome", "Every rule holds, as before.")
    assert seen(run) == ["a", "b"]
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    assert seen(run) == ["a", "a", "b", "b"]
    run.click("next-violation")
    run.sees("why", "I3 unique sequence")
    run.click("undo")
    run.sees("outcome", "Every rule holds, as before.")
    assert seen(run) == ["a", "b"]
    run.click("undo")
    expect(run.by("outcome")).to_have_count(0)
    expect(run.by("undo")).to_be_disabled()
    run.click("redo", "redo")
    run.sees("outcome", "now breaks duplicate")
    run.click("beside")
    expect(run.by("panel-space-time")).to_have_count(2)
    assert violations(run.page) == []


def test_a_changed_run_is_saved_as_a_scenario_that_runs(run: RunPage, tmp_path: Path) -> None:
    run.click("tab-whatif")
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    run.click("save")
    expect(run.by("saved-text")).to_contain_text("dedup")
    with run.page.expect_download() as download:
        run.click("download")
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    scenario = scenario_of(saved.read_text(), str(saved))
    assert scenario.cluster.broken == ("dedup",)
    assert fencepost(["run", str(saved)]) == 0


def test_a_node_crashes_where_the_page_stands(run: RunPage) -> None:
    run.by("scrub").fill("12")
    run.is_at(12)
    run.page.locator("[data-participant='node 1']").click()
    expect(run.by("whatif-menu")).to_be_visible()
    run.click("whatif-crash")
    expect(run.by("faults")).to_contain_text("do crash node 1 until after 300 ms")
    is_idle(run)
    run.sees("outcome", "What changed")
    expect(run.by("moments").first).to_contain_text("crash")
    expect(run.by("problem")).to_have_count(0)


def test_a_change_leaves_the_reader_at_the_step(run: RunPage) -> None:
    run.by("scrub").fill("5")
    run.is_at(5)
    run.click("tab-whatif")
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    is_idle(run)
    run.is_at(5)
    run.click("undo")
    expect(run.by("outcome")).to_have_count(0)
    run.is_at(5)


def test_a_transaction_that_was_chosen_is_no_filter_of_a_run_that_has_none_of_its_name(
    page: Page, server: LabProcess
) -> None:
    run = RunPage.at(page, f"{server.address}#scenario=zombie_fencing")
    run.by("filter").select_option("app")
    page.locator("[data-scenario=late_offsets]").click()
    is_idle(run)
    expect(run.by("filter")).to_have_value("")
    run.click("first", "forward")
    run.is_at(1)


# --- the editor ---------------------------------------------------------------------------------------------


def test_the_editor_says_what_is_wrong_and_runs_what_is_right(
    run: RunPage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.click("tab-editor")
    editor = run.by("editor")
    expect(editor).to_have_value(re.compile("lost acknowledgement"))
    text = editor.input_value()
    bad = tmp_path / "bad.toml"
    bad.write_text(text.replace('do = "drop"', 'do = "drip"'))
    editor.fill(bad.read_text())
    expect(run.by("run-text")).to_be_disabled()
    assert fencepost(["run", str(bad)]) == 2
    told = capsys.readouterr().err.splitlines()[0].removeprefix("fencepost: ").removeprefix(str(bad))
    run.sees("editor-error", told.lstrip(": ").partition(":")[2].strip() or told)
    editor.fill(text.replace("send t-0 b", "send t-0 other"))
    run.sees("editor-error", "This is a scenario")
    run.click("run-text")
    is_idle(run)
    assert seen(run) == ["a", "other"]
    assert violations(run.page) == []


def test_the_editor_completes_words_of_the_grammar(run: RunPage) -> None:
    run.click("tab-editor")
    editor = run.by("editor")
    editor.fill('name = "x"\n[[fault]]\nwhen = "p sends EndTxn"\ndo = "dr')
    run.press("Control+Space")
    expect(run.by("completions")).to_contain_text("drop")
    run.by("completions").get_by_role("option", name=re.compile("^drop")).first.click()
    expect(editor).to_have_value(re.compile('do = "drop'))


def test_text_that_was_not_run_is_there_after_a_reload_and_marked(run: RunPage, page: Page) -> None:
    run.click("tab-editor")
    expect(run.by("not-run")).to_have_count(0)
    editor = run.by("editor")
    changed = editor.input_value().replace("send t-0 b", "send t-0 other")
    editor.fill(changed)
    run.sees("not-run", "Not run yet", "duplicate after a lost acknowledgement")
    run.sees("tab-editor", "not run")
    editor.press("Escape")  # the completions
    assert violations(page) == []
    page.reload()
    expect(editor).to_have_value(changed)
    run.sees("not-run", "Not run yet")
    run.click("run-text")
    is_idle(run)
    assert seen(run) == ["a", "other"]
    expect(run.by("not-run")).to_have_count(0)
    expect(run.by("tab-editor")).to_have_text("Editor")
    editor.fill("name =")
    run.click("discard")
    expect(editor).to_have_value(changed)
    page.reload()
    expect(run.by("tab-editor")).to_have_text("Editor")


def test_markup_in_a_scenario_stays_text(run: RunPage) -> None:
    evil = "<img src=x onerror=console.error(1)>"
    run.click("tab-editor")
    run.by("editor").fill(
        f'name = "{evil}"\nlesson = "{evil}"\n[[producer]]\nname = "p"\nscript = ["send t-0 {"<b>"}"]\n'
    )
    run.sees("editor-error", evil)
    run.click("run-text")
    is_idle(run)
    assert seen(run) == ["<b>"]
    expect(run.page.get_by_role("heading", name=evil).first).to_be_visible()
    assert run.evaluate("document.querySelectorAll('img').length") == 0


def test_a_client_whose_name_turns_a_line_around_is_struck_by_a_fault(run: RunPage) -> None:
    """The fault names it as the scenario does, and the page shows what would turn the line around."""
    run.click("tab-editor")
    turned = "a\u202eb"
    text = f'name = "turned"\n[[producer]]\nname = "{turned}"\nscript = ["send t-0 x"]\n'
    run.by("editor").fill(text)
    run.sees("editor-error", "This is a scenario")
    run.click("run-text")
    is_idle(run)
    expect(run.by("editor")).to_have_value(text)
    choose_message(run, "Produce NONE @0")
    run.click("whatif-drop")
    expect(run.by("faults")).to_contain_text(r"when node 1 sends Produce reply to a\u202eb")
    is_idle(run)
    run.sees("outcome", "Every rule holds, as before.")
    assert obeyed_signs(run.page) == []
    run.click("beside")
    assert obeyed_signs(run.page) == []


# --- searches -----------------------------------------------------------------------------------------------


def test_fuzz_finds_a_run_and_opens_it(run: RunPage) -> None:
    run.click("tab-search")
    run.by("search-version").select_option("2")
    run.by("search-off-fencing").check()
    run.by("search-seeds").fill("20")
    run.click("search-start")
    expect(run.by("found")).to_contain_text("breaks", timeout=60_000)
    assert violations(run.page) == []
    run.by("open-found").first.click()
    is_idle(run)
    expect(run.by("next-violation")).to_be_enabled()
    run.click("next-violation")
    run.sees("why", "I4")


def test_explore_finds_the_late_commit(run: RunPage) -> None:
    run.click("tab-search")
    run.by("search-explore").check()
    run.by("search-version").select_option("0")
    run.click("search-start")
    expect(run.by("search-progress")).to_contain_text("done", timeout=60_000)
    expect(run.by("found")).to_contain_text("G1a")
    run.by("open-found").first.click()
    run.click("next-violation")
    run.sees("why", "G1a")


# --- the address --------------------------------------------------------------------------------------------


def test_a_page_that_is_loaded_again_shows_the_same_run(run: RunPage, page: Page) -> None:
    run.click("tab-whatif")
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    run.click("first", "forward")
    run.is_at(1)
    page.reload()
    run.is_at(1)
    expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile(r"lost acknowledgement \(changed\)$")
    )
    run.click("tab-whatif")
    expect(run.by("switch-dedup")).not_to_be_checked()
    run.click("beside", "last")
    before = run.by("step-counter").text_content() or ""
    page.reload()
    expect(run.by("step-counter")).to_have_text(before)
    expect(run.by("panel-space-time")).to_have_count(2)


def test_the_list_opens_at_the_scenario_of_the_address(page: Page, server: LabProcess) -> None:
    RunPage.at(page, f"{server.address}#scenario=zombie_coordinator")
    expect(page.locator(".scenarios .lesson-text")).to_be_in_viewport(ratio=0.9)


def test_an_address_of_another_run_opens_that_run(run: RunPage, page: Page) -> None:
    run.evaluate("location.hash = 'scenario=late_end_txn&variant=2&step=7'")
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^late EndTxn"))
    run.is_at(7)
    run.evaluate("location.hash = 'step=9'")
    run.is_at(9)
    expect(page).to_have_url(re.compile("scenario=late_end_txn"))
    page.go_back()
    run.is_at(7)


def test_the_buttons_of_the_browser_go_from_run_to_run(run: RunPage, page: Page) -> None:
    """And each run is at the step at which it was left, also where the other one has fewer."""
    page.locator("[data-scenario=late_end_txn]").click()
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("late EndTxn")
    run.by("scrub").fill("110")
    run.is_at(110)
    page.locator(f"[data-scenario={LOST_ACK}]").click()
    expect(heading).to_have_text(re.compile("lost acknowledgement"))
    assert int((run.by("step-counter").text_content() or "").split()[3][:2]) < 110
    page.go_back()
    expect(heading).to_have_text("late EndTxn")
    run.is_at(110)
    page.go_forward()
    expect(heading).to_have_text(re.compile("lost acknowledgement"))
    expect(page).to_have_url(re.compile(f"scenario={LOST_ACK}$"))


@pytest.mark.parametrize(
    ("asked", "because"),
    [
        ("scenario=none", "there is no bundled scenario"),
        ("scenario=late_end_txn&variant=99", "has no variant 99"),
        ("scenario=late_end_txn&variant=two", "variant is two, which is not JSON"),
        ("text=no", "scenario is not TOML"),
        ("text=a&faults=0", "faults must be a list of texts"),
    ],
)
def test_an_address_that_cannot_be_played_says_so(
    page: Page, server: LabProcess, complaints: Complaints, asked: str, because: str
) -> None:
    run = RunPage.at(page, f"{server.address}#{asked}&step=9999")
    run.sees("problem", "What this address asks for cannot be played", because)
    expect(page.locator("[data-scenario][aria-current=true]")).to_have_count(1)
    complaints.found.clear()  # the browser's own words about the refusal


# --- a lab that is slow, or gone ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        ({}, "The lab does not answer. Is `fencepost lab` still running?"),
        ({"status": 500, "body": "Internal Server Error"}, "The lab answered 500, but not in full."),
    ],
)
def test_a_page_that_cannot_open_says_what_to_do(
    page: Page, server: LabProcess, complaints: Complaints, answer: dict[str, Any], because: str
) -> None:
    page.route("**/api/scenarios", lambda route: route.fulfill(**answer) if answer else route.abort())
    page.goto(server.address)
    expect(page.get_by_role("alert")).to_contain_text(because)
    expect(page.get_by_role("main")).to_contain_text("Load it again.")
    assert violations(page) == []
    complaints.expect("Failed to load resource")
    complaints.expect(f"uncaught: {because}")


def test_a_page_says_that_it_is_loading_until_its_run_is_there(page: Page, server: LabProcess) -> None:
    held = held_plays(page)
    with page.expect_request("**/api/play"):
        page.goto(server.address)
    expect(page.get_by_role("main")).to_contain_text("Loading the run")
    held.pop().continue_()
    expect(page.get_by_test_id("step-counter")).to_be_visible()
    expect(page.get_by_text("Loading the run")).to_have_count(0)


def test_a_scenario_that_takes_long_is_said_to_be_played(run: RunPage, page: Page) -> None:
    held = held_plays(page)
    with page.expect_request("**/api/play"):
        page.locator("[data-scenario=late_end_txn]").click()
    run.sees("busy", "Playing the scenario")
    held.pop().continue_()
    is_idle(run)
    expect(run.by("busy")).to_be_empty()


def test_what_cannot_be_played_is_not_what_the_page_says_it_shows(
    run: RunPage, page: Page, complaints: Complaints
) -> None:
    """The list, the address, the faults and the switches are those of the run that is still shown."""
    refused: dict[str, Any] = {"status": 422, "json": {"error": "that took too long"}}
    page.route("**/api/play", lambda route: route.fulfill(**refused))
    page.route("**/api/compare", lambda route: route.fulfill(**refused))
    page.locator("[data-scenario=late_end_txn]").click()
    run.sees("problem", "that took too long")
    expect(page.locator("[data-scenario][aria-current=true]")).to_have_attribute("data-scenario", LOST_ACK)
    expect(page).to_have_url(re.compile(f"scenario={LOST_ACK}"))
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("lost acknowledgement"))
    page.get_by_role("button", name="Dismiss").click()
    run.click("tab-whatif")
    run.by("switch-dedup").click()
    run.sees("problem", "that took too long")
    expect(run.by("switch-dedup")).to_be_checked()
    expect(run.by("undo")).to_be_disabled()
    expect(run.by("tab-whatif")).to_have_text("What if")
    assert "broken" not in page.url
    page.unroute_all()
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    expect(run.by("problem")).to_have_count(0)
    complaints.expect("Failed to load resource")
    complaints.expect("Failed to load resource")


def test_text_that_could_not_be_run_is_still_there_after_a_reload(
    run: RunPage, page: Page, complaints: Complaints
) -> None:
    run.click("tab-editor")
    changed = run.by("editor").input_value().replace("send t-0 b", "send t-0 other")
    run.by("editor").fill(changed)
    run.sees("editor-error", "This is a scenario")
    page.route("**/api/play", lambda route: route.abort())
    run.click("run-text")
    run.sees("problem", "Is `fencepost lab` still running?")
    run.sees("not-run", "Not run yet")
    page.unroute_all()
    page.reload()
    expect(run.by("editor")).to_have_value(changed)
    run.sees("not-run", "Not run yet")
    complaints.expect("Failed to load resource")


def held_plays(page: Page) -> list[Route]:
    """The requests to play a scenario; from now on none of them goes on by itself."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/play", hold)
    return held


def test_a_search_whose_lab_is_gone_has_failed(run: RunPage, page: Page, complaints: Complaints) -> None:
    progress = {"at": 1, "of": 9, "words": "seed 1 of 9"}
    running: dict[str, Any] = {"id": 1, "kind": "fuzz", "state": "running", "error": None, "found": []}
    answers = iter([{**running, "progress": progress}])

    def poll(route: Route) -> None:
        answer = next(answers, None)
        if answer is None:
            route.abort()
        else:
            route.fulfill(json=answer)

    page.route("**/api/searches", lambda route: route.fulfill(status=201, json={"id": 1}))
    page.route("**/api/searches/1", poll)
    run.click("tab-search", "search-start")
    run.sees("search-progress", "fuzz: failed", "seed 1 of 9", "Is `fencepost lab` still running?")
    expect(run.by("search-start")).to_be_enabled()
    complaints.expect("Failed to load resource")


def test_the_bookmark_of_another_lab_is_explained_in_words(
    page: Page, server: LabProcess, complaints: Complaints
) -> None:
    page.goto(f"{server.address}0")
    text = "the token is of another lab: open the address that `fencepost lab` printed"
    expect(page.get_by_role("main")).to_contain_text(text)
    assert violations(page) == []
    complaints.expect("Failed to load resource")


# --- a copy -------------------------------------------------------------------------------------------------


def test_a_copy_with_the_title_of_a_bundled_scenario_is_told_apart(run: RunPage, page: Page) -> None:
    run.click("edit-scenario")
    run.sees("editor-error", "This is a scenario")
    run.click("last", "run-text", "tab-scenarios")
    is_idle(run)
    expect(page.locator(".verdict")).to_contain_text("yours")
    run.sees("own-scenario", "duplicate after a lost acknowledgement", "yours")
    assert violations(page) == []
    page.reload()
    run.sees("own-scenario", "duplicate after a lost acknowledgement", "yours")
    run.click("first")
    page.locator(f"[data-scenario={LOST_ACK}]").click()
    is_idle(run)
    expect(page.locator(".verdict")).not_to_contain_text("yours")
    expect(run.by("own-scenario")).to_have_count(0)


def test_text_that_was_not_run_is_replaced_only_on_demand(run: RunPage, page: Page) -> None:
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if len(asked) == 1:
            dialog.dismiss()
        else:
            dialog.accept()

    page.on("dialog", answer)
    run.click("edit-scenario")
    original = run.by("editor").input_value()
    run.click("tab-scenarios", "edit-scenario")
    assert asked == [], "nothing would be lost"
    run.by("editor").fill('name = "mine"\n')
    run.click("tab-scenarios", "edit-scenario")
    expect(run.by("editor")).to_have_value('name = "mine"\n')
    run.click("tab-scenarios", "edit-scenario")
    expect(run.by("editor")).to_have_value(original)
    assert asked == ["The editor has text that was not run. Replace it?"] * 2


# --- the keyboard and the screen reader ---------------------------------------------------------------------


def test_the_lab_is_driven_with_the_keyboard_alone(run: RunPage, page: Page) -> None:
    run.click("first")
    run.press("Tab")
    while run.evaluate("document.activeElement.role") != "tab":
        run.press("Tab")
    run.press("ArrowRight")  # moves between tabs, not between steps
    expect(run.by("tab-whatif")).to_be_focused()
    run.by("switch-dedup").focus()
    run.press("Space")
    run.sees("outcome", "now breaks duplicate")
    run.is_at(0)
    run.by("tab-whatif").focus()
    run.press("ArrowLeft", "ArrowLeft", "End", "Home", "ArrowRight", "ArrowRight")
    expect(run.by("tab-editor")).to_be_focused()
    expect(run.by("run-text")).to_be_enabled()
    run.press("Tab")
    expect(run.by("run-text")).to_be_focused()


def test_the_first_stop_of_a_keyboard_leads_past_the_list(run: RunPage, page: Page) -> None:
    page.reload()
    expect(run.by("step-counter")).to_be_visible()
    run.press("Tab")
    expect(page.get_by_role("button", name="Skip to the run")).to_be_focused()
    run.press("Enter", "Tab")
    assert run.evaluate("document.activeElement.closest('.side') !== null")


def test_names_say_what_a_button_does(run: RunPage, page: Page) -> None:
    expect(page.get_by_role("button", name="node 1: what if …")).to_be_visible()
    message = run.by("why").get_by_role("button")
    run.press("Home")
    while not message.count():
        run.press("ArrowRight")
    assert message.first.get_attribute("title") == "Go to step 1, 1.200 ms"
    expect(message.first).to_have_text("sent")
    assert page.title() == "duplicate after a lost acknowledgement - Fencepost lab"


def test_a_step_is_said_once(run: RunPage, page: Page) -> None:
    run.press("ArrowRight")
    said = page.locator("output, [role=status], [aria-live=polite]").filter(has_text="tep ")
    expect(said).to_have_count(1)


def test_the_chosen_completion_is_in_sight(run: RunPage, page: Page) -> None:
    run.click("tab-editor")
    run.by("editor").fill('name = "x"\n[[fault]]\nwhen = "')
    run.press("Control+Space", *["ArrowDown"] * 15)
    expect(page.locator("[role=option][aria-selected=true]")).to_be_in_viewport(ratio=0.9)


# --- the page -----------------------------------------------------------------------------------------------


def test_a_printed_lab_shows_the_run_alone(run: RunPage, page: Page) -> None:
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    expect(page.locator(".aside")).to_be_hidden()


def test_moments_beside_the_panel_are_whole(page: Page, server: LabProcess) -> None:
    run = RunPage.at(page, f"{server.address}#scenario=replaced_member&variant=3")
    assert page.locator(".moment").count() == 6
    assert run.tight_moments() == []


def test_moments_that_say_the_same_are_told_apart_by_their_times(page: Page, server: LabProcess) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    RunPage.at(page, f"{server.address}#scenario=coordinator_crash_in_commit&variant=30")
    moments = page.locator(".moment").all_inner_texts()
    assert len(set(moments)) == len(moments) == 6


def test_a_phone_shows_the_run_below_a_list_that_scrolls(run: RunPage, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    run.evaluate("window.scrollTo(0, 0)")
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    assert run.evaluate("document.documentElement.scrollWidth") == 360
    assert run.evaluate("document.querySelector('.aside').offsetWidth") > 340
    run.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    expect(run.by("forward")).to_be_in_viewport()


@pytest.mark.parametrize("tab", ["scenarios", "whatif", "editor", "search"])
def test_every_tab_is_accessible(run: RunPage, tab: str) -> None:
    run.click(f"tab-{tab}")
    for scheme in ("light", "dark"):
        run.page.emulate_media(color_scheme=cast("Any", scheme), reduced_motion="reduce")
        assert violations(run.page) == []
