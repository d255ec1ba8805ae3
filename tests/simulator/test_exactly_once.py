"""The output is what the inputs give: as often as they give it, where they give it, and nothing else."""

from __future__ import annotations

import pytest

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.black_box import exactly_once

IN = TopicPartition("in", 0)
OUT = TopicPartition("out", 0)
ASIDE = TopicPartition("out", 1)


def shout(_partition: TopicPartition, value: bytes) -> list[tuple[TopicPartition, bytes]]:
    """Odd ones out: nothing for silence, two for an echo."""
    return [(OUT, value.upper())] * {b"silence": 0, b"echo": 2}.get(value, 1)


CASES: list[tuple[list[bytes], dict[TopicPartition, list[bytes]], list[str]]] = [
    ([], {}, []),
    ([b"a", b"b"], {OUT: [b"B", b"A"]}, []),
    ([b"a", b"a"], {OUT: [b"A", b"A"]}, []),
    ([b"silence", b"echo"], {OUT: [b"ECHO", b"ECHO"]}, []),
    ([b"a", b"b"], {OUT: [b"A"]}, ['missing-output: "B" is 0 times in out-0, not 1']),
    ([b"a", b"a"], {OUT: [b"A"]}, ['missing-output: "A" is 1 times in out-0, not 2']),
    ([b"a"], {OUT: [b"A", b"A"]}, ['doubled-output: "A" is 2 times in out-0, not 1']),
    ([], {OUT: [b"A"]}, ['foreign-output: "A" is in out-0, and no input produces it']),
    (
        [b"a"],
        {ASIDE: [b"A"]},
        [
            'missing-output: "A" is 0 times in out-0, not 1',
            'foreign-output: "A" is in out-1, and no input produces it',
        ],
    ),
]


@pytest.mark.parametrize(("inputs", "outputs", "wrong"), CASES)
def test_exactly_once(
    inputs: list[bytes], outputs: dict[TopicPartition, list[bytes]], wrong: list[str]
) -> None:
    verdict = exactly_once({IN: inputs}, outputs, shout)
    assert [str(anomaly) for anomaly in verdict.anomalies] == wrong
    assert verdict.exercised["foreign-output"] == sum(map(len, outputs.values()))
