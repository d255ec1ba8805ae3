"""Pages that are one file: they need nothing else, are small, and nothing of a run becomes markup."""

import base64
import gzip
import hashlib
import json
import random
import re
import string
from functools import cache
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest

from fencepost.bundled import bundled_scenarios
from fencepost.cli.scenario_files import chosen, files_of
from fencepost.lab.document import RunDocument
from fencepost.lab.pages import SERVED_ONLY, STATIC, VENDORED, file_page, served_page
from fencepost.lab.recordings import record
from fencepost.simulation import scenario
from fencepost.simulator.scenarios.model import cases

BYTES_MAX = 1_000_000
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \"'& \u2028 {runs} {style}"


@cache
def late_end_txn() -> tuple[RunDocument, RunDocument]:
    [story] = chosen(files_of(("late_end_txn",)), None)
    old, new = (record(each.case) for each in story)
    return old, new


@attrs.define
class Elements(HTMLParser):
    """The elements of a page, and the text in each script and style."""

    found: list[tuple[str, dict[str, str | None]]] = attrs.Factory(list[tuple[str, dict[str, str | None]]])
    texts: list[tuple[str, dict[str, str | None], str]] = attrs.Factory(
        list[tuple[str, dict[str, str | None], str]]
    )
    is_open: bool = False

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.is_open = True

    def handle_endtag(self, tag: str) -> None:
        self.is_open = False

    def handle_data(self, data: str) -> None:
        if self.is_open and self.found[-1][0] in {"script", "style", "title"}:
            self.texts.append((*self.found[-1], data))


def elements(page: str) -> Elements:
    parser = Elements()
    parser.feed(page)
    return parser


def text_of(page: str, tag: str, **attributes: str) -> str:
    wanted = attributes.items()
    return "".join(text for name, has, text in elements(page).texts if name == tag and wanted <= has.items())


def runs_of(page: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text_of(page, "script", id="runs"))))


def policy_of(page: str) -> dict[str, list[str]]:
    [policy] = [
        has["content"] or "" for tag, has in elements(page).found if tag == "meta" and "http-equiv" in has
    ]
    return {name: sources for name, *sources in (part.split() for part in policy.split(";"))}


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_a_page_holds_its_documents_and_the_step_where_they_diverge() -> None:
    old, new = late_end_txn()
    page = file_page([old, new], divergence=(3, 3))
    assert runs_of(page) == {"documents": [old, new], "divergence": [3, 3]}
    assert text_of(page, "title") == "late EndTxn | late EndTxn (transaction_version 2)"


def test_the_same_documents_give_the_same_bytes() -> None:
    assert file_page(late_end_txn()) == file_page(late_end_txn())


def test_a_page_names_nothing_outside_of_itself() -> None:
    page = file_page(late_end_txn())
    addresses = [
        address
        for _, has in elements(page).found
        for name, address in has.items()
        if name in {"src", "href", "action", "data", "poster"} and address is not None
    ]
    assert addresses == ["data:,"]
    assert "url(http" not in page
    assert "@import" not in page


def test_the_import_map_of_a_page_has_every_module_but_those_of_the_server() -> None:
    written = text_of(file_page(late_end_txn()), "script", type="importmap")
    imports: dict[str, str] = json.loads(written)["imports"]
    own = {f"lab/{path.name}" for path in STATIC.glob("*.js") if path.name not in SERVED_ONLY}
    assert set(imports) == own | set(VENDORED)
    for name, address in imports.items():
        path = STATIC / VENDORED.get(name, name.removeprefix("lab/"))
        kind, _, packed = address.partition(";base64,")
        assert kind == "data:text/javascript"
        assert base64.b64decode(packed) == path.read_bytes()


def test_modules_import_only_what_the_map_has() -> None:
    known = {f"lab/{path.name}" for path in STATIC.glob("*.js")} | set(VENDORED)
    asked = {
        name
        for path in STATIC.glob("*.js")
        for name in re.findall(r'(?:from|import)\s*\(?\s*"([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert asked - {f"lab/{name}" for name in SERVED_ONLY} <= known
    assert asked


@pytest.mark.parametrize("is_served", [False, True], ids=["file", "served"])
def test_the_policy_allows_the_scripts_and_styles_of_the_page_by_hash_and_no_other(
    *, is_served: bool
) -> None:
    page = served_page({"mode": "lab"}) if is_served else file_page(late_end_txn())
    policy = policy_of(page)
    scripts = {hash_of(text_of(page, "script", type=kind)) for kind in ("importmap", "module")}
    assert policy["default-src"] == ["'none'"]
    assert set(policy["script-src"]) == scripts | ({"'self'"} if is_served else {"data:"})
    assert policy["style-src"] == [hash_of(text_of(page, "style"))]
    assert policy.get("connect-src") == (["'self'"] if is_served else None)
    assert "unsafe" not in str(policy)


def test_names_with_markup_stay_text() -> None:
    old, _ = late_end_txn()
    hostile: RunDocument = {**old, "title": HOSTILE, "lesson": HOSTILE}
    page = file_page([hostile])
    scripts = [has.get("type") for tag, has in elements(page).found if tag == "script"]
    assert scripts == ["importmap", "application/json", "text/plain", "module"]
    assert not any(tag == "img" for tag, _ in elements(page).found)
    assert runs_of(page)["documents"][0]["lesson"] == HOSTILE
    served = served_page({"mode": "lab", "name": HOSTILE})
    assert json.loads(text_of(served, "script", id="boot"))["name"] == HOSTILE
    assert [tag for tag, _ in elements(served).found].count("script") == 3


@pytest.mark.parametrize("name", sorted(set(bundled_scenarios())))
def test_a_page_of_every_bundled_scenario_is_small(name: str) -> None:
    for each in (each for story in chosen(files_of((name,)), None) for each in story):
        page = file_page([record(each.case)])
        assert len(page.encode()) < BYTES_MAX
        assert runs_of(page)["documents"][0]["steps"]


def test_long_values_do_not_make_a_page_large() -> None:
    chance = random.Random(1)
    values = ["".join(chance.choices(string.ascii_letters, k=400_000)) for _ in range(2)]
    values.append(values[0][:-1] + "!")
    lines = [f"send t-0 {value}" for value in values]
    story = scenario("long values", "").producer("p", *lines, "flush").scenario()
    [case] = cases(story)
    document = record(case)
    assert len(file_page([document])) < BYTES_MAX
    shown = [batch["values"] for batch in document["batches"]]
    assert len({text for texts in shown for text in texts}) == 3, "values that differ have different words"


def test_vendored_modules_are_what_their_checksums_say() -> None:
    vendor = STATIC / "vendor"
    lines = (vendor / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert sums == {name: hashlib.sha256((vendor / name).read_bytes()).hexdigest() for name in sums}
    files = {path.name for path in vendor.iterdir()} - {"SHA256SUMS", "README.md"}
    assert files == set(sums)
