"""`fencepost dump` on any bytes: whatever a file of a log holds is told in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.cli.dump import facts_of_file, in_words
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.journal.segments import INDEX_KINDS, LOG, SNAPSHOT, file_name

FILES = [MANIFEST_FILE, *(file_name(0, kind) for kind in (LOG, SNAPSHOT, *INDEX_KINDS))]


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("garbage") / "orders-0"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("name", FILES)
@given(data=st.binary(max_size=200))
@example(data=b"\xb5\xff")
@example(data=b"3")
@example(data=b"{}")
@example(data=b"[" * 100_000)
@example(data=b"\x7f" * 12)  # a moment beyond the calendar, in a time index
def test_any_bytes_are_told(partition: Path, name: str, data: bytes) -> None:
    file = partition / name
    file.write_bytes(data)
    for fact in facts_of_file(file, records=True):
        assert in_words(fact).strip()
        assert json.loads(json.dumps(fact))["file"] == name
