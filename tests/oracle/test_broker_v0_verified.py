"""What Apache Kafka answered: a cluster before KIP-890 part 2, with partition verification."""

from __future__ import annotations

import pytest

from tests.oracle.recordings import V0_VERIFIED, areas_to_check, check_area


@pytest.mark.parametrize("area", areas_to_check(V0_VERIFIED))
def test_fencepost_answers_as_kafka_did(area: str) -> None:
    check_area(V0_VERIFIED, area)
