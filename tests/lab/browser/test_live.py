"""`fencepost lab --broker` in a browser: a real broker while clients use it, and while it is killed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from playwright.sync_api import Page, expect

from fencepost import Admin, BrokerProcess, Producer
from tests.lab.browser.accessibility import violations
from tests.lab.browser.driving import RunPage
from tests.lab.lab_process import lab


def test_a_broker_is_followed_through_a_kill(page: Page, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", options=("--follow",)) as broker,
        lab("--broker", broker.address) as shown,
    ):
        with Admin(broker.address) as admin:
            admin.create_topic("orders")
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
