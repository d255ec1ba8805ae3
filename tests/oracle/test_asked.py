"""What Apache Kafka answered to directed questions: the order of checks, bounds, members of groups,
and clients of other versions than their cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.recordings import ASKED, OTHER_CLUSTERS, check_area
from tests.oracle.report import areas_of


@pytest.mark.parametrize(
    ("path", "area"), [(path, area) for path in (*ASKED, *OTHER_CLUSTERS) for area in areas_of(path)]
)
def test_fencepost_answers_as_kafka_did(path: Path, area: str) -> None:
    check_area(path, area)
