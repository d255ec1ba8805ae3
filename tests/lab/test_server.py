"""The lab's server over a real socket: who may ask, what is refused, and what it costs at most."""

from __future__ import annotations

from collections.abc import Iterator
from socket import create_connection

import pytest

from fencepost.lab.server import NO_TOKEN, NO_TOKEN_HEADER, TOKEN_HEADER
from tests.lab.lab_process import PATIENCE_S, LabProcess, lab


@pytest.fixture(scope="module")
def page() -> Iterator[LabProcess]:
    """One lab for many questions."""
    with lab() as running:
        yield running


def test_the_page_and_its_files_need_the_token(page: LabProcess) -> None:
    opened = page.ask(f"/?token={page.token}", headers={"x-fencepost-token": None})
    assert opened.status == 200
    assert b'"mode":"lab"' in opened.body
    module = page.ask(f"/{page.token}/static/run.js", headers={"x-fencepost-token": None})
    assert module.status == 200
    assert module.headers["content-type"].startswith("text/javascript")


REFUSED = [
    ("/", {"x-fencepost-token": None}, 401),
    ("/?token=wrong", {"x-fencepost-token": None}, 403),
    ("/static/run.js", {"x-fencepost-token": None}, 401),
    ("/wrong/static/run.js", {"x-fencepost-token": None}, 403),
    ("/api/scenarios", {"x-fencepost-token": None}, 401),
    ("/api/scenarios", {"x-fencepost-token": "wrong"}, 403),
    ("/api/scenarios", {"host": "lab.attacker.example"}, 403),
    ("/api/scenarios", {"host": "127.0.0.1:1"}, 403),
    ("/api/scenarios", {"origin": "http://attacker.example"}, 403),
    ("/api/scenarios", {"origin": "null"}, 403),
    ("/api/scenarios", {"sec-fetch-site": "cross-site"}, 403),
    ("/api/scenarios", {"sec-fetch-site": "same-site"}, 403),
]


@pytest.mark.parametrize(("path", "headers", "status"), REFUSED, ids=str)
def test_nobody_else_is_answered(
    page: LabProcess, path: str, headers: dict[str, str | None], status: int
) -> None:
    refused = page.ask(path, headers=headers)
    assert refused.status == status
    assert page.token.encode() not in refused.body
    assert refused.body


def test_a_program_learns_where_the_token_belongs(page: LabProcess) -> None:
    headers = {"x-fencepost-token": None}
    assert f"<p>{NO_TOKEN}</p>" in page.ask("/", headers=headers).body.decode()
    for path in (f"/api/scenarios?token={page.token}", "/api/scenarios"):
        assert page.ask(path, headers=headers).error == NO_TOKEN_HEADER
    assert page.ask("/api/vocabulary", headers={TOKEN_HEADER: page.token, **headers}).status == 200


def test_the_page_itself_is_answered(page: LabProcess) -> None:
    for origin in (f"http://{page.host}", f"http://localhost:{page.host.partition(':')[2]}"):
        assert (
            page.ask("/api/vocabulary", headers={"origin": origin, "sec-fetch-site": "same-origin"}).status
            == 200
        )


def test_every_answer_tells_browsers_to_be_careful(page: LabProcess) -> None:
    for path in (f"/?token={page.token}", "/api/vocabulary", "/", "/api/nothing"):
        token = None if path == "/" else page.token
        headers = page.ask(path, headers={"x-fencepost-token": token}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_a_large_request_is_refused(page: LabProcess) -> None:
    assert page.ask("/api/check", {"text": "#" * (1 << 20)}).status == 413
    assert page.answer("/api/check", {"text": "#" * 1_000})["ok"] is False


def test_what_is_no_request_is_refused(page: LabProcess) -> None:
    assert page.ask("/api/play", b"{").status == 400
    assert page.ask("/api/play", b"[]").status == 400
    assert page.ask("/api/play", b"[" * 100_000).status == 400
    assert page.ask("/api/play", {"\ud800": 1}).status == 400  # half of a surrogate pair
    assert page.ask("/api/play", {"scenario": "../../etc/passwd"}).status == 404
    assert page.ask("/api/play", {"scenario": "late_end_txn", "fault": []}).status == 422
    assert page.ask("/api/nothing").status == 404
    assert page.ask("/api/play").status == 405


def test_a_page_that_is_closed_in_the_middle_of_a_request_is_no_error() -> None:
    with lab() as running:
        host, port = running.host.split(":")
        head = f"POST /api/check HTTP/1.1\r\nhost: {running.host}\r\nx-fencepost-token: {running.token}\r\n"
        with create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}content-length: 100\r\n\r\n".encode())
        assert running.ask("/api/live").status == 404
        running.process.terminate()
        assert running.process.communicate(timeout=PATIENCE_S)[1] == ""


def test_nothing_speaks_over_a_websocket(page: LabProcess) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    key = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert page.ask("/api/play", method="GET", headers={**upgrade, **key}).status == 403


def test_markup_is_only_ever_data(page: LabProcess) -> None:
    evil = "<script>alert(1)</script>"
    text = f'name = "{evil}"\n[[producer]]\nname = "p"\nscript = ["send t-0 {evil}"]\n'
    answer = page.ask("/api/play", {"text": text})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["document"]["title"] == evil
    assert answer.json["document"]["batches"][0]["values"] == [evil]
    for path in (f"/{evil}", f"/api/searches/{evil}", f"/?token={evil}"):
        refused = page.ask(path.replace("<", "%3C"))
        assert refused.status in (403, 404)
        assert b"<script>" not in refused.body


@pytest.mark.thorough
def test_every_bundled_scenario_is_listed_and_plays(page: LabProcess) -> None:
    stories = page.answer("/api/scenarios")
    assert len(stories) > 20
    for story in stories:
        assert story["lesson"]
        for variant in story["variants"]:
            run = page.play(story["name"], variant=variant["number"])
            assert run["document"]["passed"] is True, (story["name"], variant)
            assert run["document"]["steps"]
