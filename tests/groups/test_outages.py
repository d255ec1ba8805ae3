"""A group whose processes and broker are killed, frozen and struck by faults copies every record once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fencepost import Record
from tests.groups import outages


@pytest.mark.thorough
def test_every_number_is_copied_once(tmp_path: Path) -> None:
    outcome = outages.run(tmp_path, Random(1), count=20)
    assert (outcome.lost, outcome.twice, outcome.wrong) == (0, 0, 0), (tmp_path / "errors").read_text()
    assert sum(outcome.outages.values()) == 20
    assert outcome.outages.keys() == outages.KINDS.keys()


def test_what_is_lost_or_there_twice_or_wrong_is_counted() -> None:
    squares = [b"0", b"1", b"5", b"16", b"16"]
    found = [
        Record("out", 0, offset, 0, b"%d" % number, square, None)
        for offset, (number, square) in enumerate(zip((0, 1, 2, 4, 4), squares, strict=True))
    ]
    outcome = outages.judged(found, 5, {})
    assert (outcome.lost, outcome.twice, outcome.wrong) == (1, 1, 1)
