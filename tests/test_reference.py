"""The API reference explains everything that is public, and its site is built without a warning."""

# How a parameter is explained: its method's docstring names it in backquotes, or it means the same wherever
# it occurs. Then its sentence is in `public.WORDS`, and the pages show it below each signature that has it.
# So no docstring has to say that `topic` is the name of a topic.

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Final

import attrs
import pytest

from tools.docs import public, reference

ROOT = Path(__file__).resolve().parent.parent
PLAIN: Final = frozenset({
    "Any", "Callable", "None", "Literal", "True", "False", "Path", "PathLike", "Unpack", "Self", "Iterable",
    "Sequence", "Mapping", "Awaitable", "Exception", "AssertionError", "AbstractContextManager",
    "AbstractAsyncContextManager",
})  # fmt: skip


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


@pytest.fixture(scope="module")
def text(pages: dict[str, str]) -> str:
    return "\n".join(pages.values())


# --- completeness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", public.entries())
def test_every_part_of_a_public_name_is_explained(name: str) -> None:
    assert public.gaps(name, public.entries()[name]) == []


def test_every_public_name_has_one_entry() -> None:
    shown = Counter(name for _, _, names in reference.PAGES.values() for name in names)
    assert shown == Counter(public.entries().keys())


def test_every_type_in_a_signature_is_public_or_explained(text: str) -> None:
    signatures = re.sub(r"'[^']*'", "", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    used = set(re.findall(r"(?<![.\w])_?[A-Z]\w*", signatures))
    assert used - PLAIN - public.TYPES.keys() - public.entries().keys() == set()
    assert public.TYPES.keys() - used == set(), "types that no signature has"


def test_every_shared_word_is_shown(text: str) -> None:
    for name, sentence in public.WORDS.items():
        assert f"* `{name}`: {sentence}\n" in text, name


# --- what the check finds -----------------------------------------------------------------------------------


def _incomplete(topic: str, colour: str, shape: str) -> None:
    """Paints a `shape`."""


class _Unexplained:
    """A class."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def weight(self) -> int:
        return self.size

    def grow(self, by: int) -> None:
        """Grows."""
        self.size += by


@attrs.frozen(kw_only=True)
class _Value:
    """A value: `left`."""

    left: int
    right: int
    below: int
    """How far below."""


class _Colour(Enum):
    """A colour."""

    RED = 1
    GREEN = 2
    """Go."""


class _Silent(Exception):
    pass


def test_an_unexplained_parameter_is_found() -> None:
    assert public.gaps("paint", _incomplete) == ["paint(colour)"]


def test_each_unexplained_part_of_a_class_is_found() -> None:
    assert public.gaps("Thing", _Unexplained) == ["Thing.size", "Thing.grow(by)", "Thing.weight"]


def test_unexplained_fields_members_and_errors_are_found() -> None:
    assert public.gaps("Value", _Value) == ["Value.right"]
    assert public.gaps("Colour", _Colour) == ["Colour.RED"]
    assert public.gaps("Silent", _Silent) == ["Silent"]


# --- the pages ----------------------------------------------------------------------------------------------


def test_the_methods_of_both_shells_are_shown_with_their_text(pages: dict[str, str]) -> None:
    assert "### Producer.commit_transaction\n" in pages["producer.md"]
    assert "\npoll(timeout_ms: Milliseconds = 1000) -> list[ConsumedBatch]\n" in pages["consumer.md"]
    assert "\nawait poll(timeout_ms: Milliseconds = 1000) -> list[ConsumedBatch]\n" in pages["consumer.md"]


def test_a_docstring_becomes_a_list_of_parameters_and_errors(pages: dict[str, str]) -> None:
    page = pages["producer.md"]
    entry = page[page.index("### Producer.put\n") : page.index("### Producer.send\n")]
    assert "\n* `topic`: the name of a topic.\n* `value`: " in entry
    assert "\n* `headers`: pairs of a name and bytes or None.\n* `on_delivery`: called once" in entry
    assert "\n\nBufferFull, RecordTooLarge or UnknownTopic when the record is not accepted." in entry


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    reference.main(tmp_path / "pages")
    settings = (ROOT / "mkdocs.yml").read_text().replace("build/reference/", "")
    (tmp_path / "mkdocs.yml").write_text(settings)
    build = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commit_transaction" in (tmp_path / "site" / "producer.html").read_text()
