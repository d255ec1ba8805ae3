"""What Apache Kafka answered: in the recorded conversations, and to what was asked later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.recordings import ASKED, OTHER_CLUSTERS, RECORDED, V2_CLIENT_V2
from tests.oracle.report import areas_of, play_in_memory


def _areas() -> Iterator[Any]:
    """Each file and area. In one area, tens of thousands of requests use up the epochs, so it is thorough;
    `make test` has it for the newest cluster and client.
    """
    for path in (*RECORDED, *ASKED, *OTHER_CLUSTERS):
        for area in areas_of(path):
            is_long = area == "init_producer_id" and path in RECORDED and path != V2_CLIENT_V2
            yield pytest.param(
                path, area, marks=[pytest.mark.thorough] if is_long else [], id=f"{path.stem}-{area}"
            )


@pytest.mark.parametrize(("path", "area"), list(_areas()))
def test_fencepost_answers_as_kafka_did(path: Path, area: str) -> None:
    played = play_in_memory(path, area)
    assert played.asked, f"{path.name} has no answers in {area}"
    assert not played.differences, "\n".join(difference.text for difference in played.differences)
