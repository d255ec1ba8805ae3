"""What Apache Kafka answered: an older client of the newest cluster."""

from __future__ import annotations

import pytest

from tests.oracle.recordings import V2_CLIENT_V0, areas_to_check, check_area


@pytest.mark.parametrize("area", areas_to_check(V2_CLIENT_V0))
def test_fencepost_answers_as_kafka_did(area: str) -> None:
    check_area(V2_CLIENT_V0, area)
