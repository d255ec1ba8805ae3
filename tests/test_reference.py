"""The API reference is complete, and its site is built without a warning."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import fencepost
from tools.docs import reference

ROOT = Path(__file__).resolve().parent.parent


def test_every_public_name_has_an_entry_with_a_sentence() -> None:
    text = "\n".join(reference.pages().values())
    for name in fencepost.__all__:
        assert text.count(f"## {name}\n") == 1, name
        assert (getattr(fencepost, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("name", reference.PAGES["clients"][2])
def test_every_parameter_of_a_client_is_explained(name: str) -> None:
    constructor = getattr(fencepost, name).__init__
    unexplained = [
        each
        for each in signature(constructor).parameters
        if each != "self" and f"`{each}`" not in constructor.__doc__
    ]
    assert unexplained == []


def test_every_error_says_what_it_means() -> None:
    for name in dir(fencepost):
        found = getattr(fencepost, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert "__doc__" in vars(found), name


def test_the_methods_of_both_shells_are_shown_with_their_text() -> None:
    page = reference.pages()["clients.md"]
    for heading in (
        "Producer.commit_transaction",
        "AsyncConsumer.poll",
        "Admin.create_topic",
        "Producer.send",
    ):
        assert f"### {heading}\n" in page
    assert "poll(timeout_ms: Milliseconds = 1000) -> list[ConsumedBatch]" in page


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    reference.main(tmp_path / "pages")
    settings = (ROOT / "mkdocs.yml").read_text().replace("build/reference/", "")
    (tmp_path / "mkdocs.yml").write_text(settings)
    build = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commit_transaction" in (tmp_path / "site" / "clients.html").read_text()
