"""`fencepost lab --bootstrap-server` in a browser: a real broker that clients use and that is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Page, expect

from fencepost import Broker, BrokerProcess, Producer
from fencepost.lab.pages import STATIC
from tests.lab.browser.accessibility import violations
from tests.lab.browser.driving import RunPage
from tests.lab.lab_process import LabProcess, lab
from tests.topics import create_topic

pytestmark = pytest.mark.thorough


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that lets itself be followed, with a topic."""
    with BrokerProcess(tmp_path / "data", options=("--follow",)) as broker:
        create_topic(broker.address, "orders")
        yield broker


@pytest.fixture
def server(broker: BrokerProcess) -> Iterator[LabProcess]:
    with lab("--bootstrap-server", broker.address) as server:
        yield server


def pay(broker: BrokerProcess, *values: bytes, client_id: str = "shop") -> None:
    with Producer(broker.address, transactional_id="pay", client_id=client_id) as producer:
        producer.init_transactions()
        for value in values:
            with producer.transaction():
                producer.send("orders", value, partition=0)


def test_a_broker_is_followed_through_a_kill(page: Page, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", options=("--follow",)) as broker,
        lab("--bootstrap-server", broker.address) as shown,
    ):
        create_topic(broker.address, "orders")
        with Producer(broker.address, transactional_id="till", client_id="till") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"first")
        run = RunPage.at(page, shown.address)
        run.sees("panel-coordinator", "till", "Complete Commit")
        run.sees("panel-logs", "first")
        assert run.read_committed("orders-0") == ["first"]
        broker.kill()
        expect(run.by("live-status")).to_have_class(re.compile("waiting"))
        broker.start()
        expect(run.by("live-status")).to_have_class(re.compile("following"))
        with Producer(broker.address, client_id="p") as producer:
            producer.send("orders", b"second").result()
        run.sees("panel-logs", "second")
        run.click("back")  # from now on the page stays where the reader is
        at = run.by("step-counter").inner_text().split(" of ")[0]
        with Producer(broker.address, client_id="p") as producer:
            producer.send("orders", b"third").result()
        run.sees("step-counter", at)
        run.click("jump-to-live")
        run.sees("panel-logs", "third")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=cast("Any", scheme), reduced_motion="reduce")
            assert violations(page) == []
        page.goto("about:blank")  # before its server ends


def test_a_broker_that_nobody_has_used_yet_shows_no_empty_panel(server: LabProcess, page: Page) -> None:
    run = RunPage.at(page, server.address)
    run.sees("panel-logs", "No log has a record yet.")
    run.sees("panel-coordinator", "This run has no transactions yet.")
    for panel in ("panel-readers", "panel-leader"):
        run.sees(panel, "nothing yet")


def test_the_end_of_a_process_and_its_restart_are_steps(
    broker: BrokerProcess, server: LabProcess, page: Page
) -> None:
    pay(broker, b"apple")
    run = RunPage.at(page, server.address)
    run.sees("live-status", f"following {broker.address}")
    run.sees("panel-readers", "apple")
    pay(broker, b"banana")
    run.sees("panel-readers", "banana")
    run.sees("panel-coordinator", "pay")
    broker.kill()
    run.sees("live-status", f"waiting for {broker.address}: no broker answers there")
    broker.restart()
    run.sees("live-status", f"following {broker.address}")
    pay(broker, b"cherry")
    run.sees("panel-readers", "cherry")
    run.press("Shift+F")
    run.sees("why", "restart")
    run.press("Shift+F")
    run.sees("why", "down: the process has ended")


def test_a_long_run_stops_growing_while_a_reader_looks_at_earlier_steps(
    broker: BrokerProcess, server: LabProcess, page: Page
) -> None:
    code = (STATIC / "live.js").read_text(encoding="utf-8").replace("STEPS_MAX = 20000", "STEPS_MAX = 60")
    page.route("**/live.js", lambda route: route.fulfill(body=code, content_type="text/javascript"))
    pay(broker, b"apple", b"banana")
    run = RunPage.at(page, server.address)
    run.sees("panel-readers", "banana")
    run.click("first")
    pay(broker, *[b"%d" % number for number in range(10)])
    run.sees("live-status", "jump to live to go on")
    run.is_at(0)
    run.click("jump-to-live")
    pay(broker, b"cherry")
    run.sees("panel-readers", "cherry")
    run.sees("live-status", f"following {broker.address}")


def test_names_with_markup_stay_text(broker: BrokerProcess, server: LabProcess, page: Page) -> None:
    name = "<img src=x onerror=alert(1)>"
    pay(broker, b"<script>alert(1)</script>", client_id=name)
    run = RunPage.at(page, server.address)
    head = page.get_by_title(name, exact=True)
    expect(head).to_be_visible()
    expect(head).to_contain_text("<img src=x o")  # cut in its middle
    run.sees("panel-readers", "<script>alert(1)</script>")
    assert violations(page) == []


def test_a_broker_that_does_not_let_itself_be_followed_is_explained(page: Page) -> None:
    with Broker() as broker, lab("--bootstrap-server", broker.address) as server:
        page.goto(server.address)
        status = page.get_by_test_id("live-status")
        expect(status).to_contain_text("stop it and start it again with --follow")
        assert violations(page) == []
        page.goto("about:blank")  # before its server ends
