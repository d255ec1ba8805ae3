"""Exactly once from end to end: what stands in the output is what the inputs give, each as often as it
should.

Rule: only multisets are compared; order and offsets are the black box's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.anomalies import (
    DOUBLED_OUTPUT,
    FOREIGN_OUTPUT,
    MISSING_OUTPUT,
    Anomaly,
    Rule,
    Verdict,
)

Values = Mapping[TopicPartition, Iterable[bytes]]
Transform = Callable[[TopicPartition, bytes], Iterable[tuple[TopicPartition, bytes]]]


def exactly_once(inputs: Values, outputs: Values, transform: Transform) -> Verdict:
    """Compares what was read at read_committed, by partition, with what `transform` makes of every input.

    Results need not be unique. Where a retry marks its values to keep them unique, the mark must be off by
    here.
    """
    due = Counter(
        result
        for partition, values in inputs.items()
        for value in values
        for result in transform(partition, value)
    )
    found = Counter((partition, value) for partition, values in outputs.items() for value in values)
    sometimes = {
        MISSING_OUTPUT.name: due.total(),
        DOUBLED_OUTPUT.name: due.total(),
        FOREIGN_OUTPUT.name: found.total(),
    }
    return Verdict(tuple(_differences(due, found)), sometimes=sometimes)


def _differences(
    due: Counter[tuple[TopicPartition, bytes]], found: Counter[tuple[TopicPartition, bytes]]
) -> Iterator[Anomaly]:
    for (partition, value), count in due.items():
        there = found[partition, value]
        if there != count:
            rule: Rule = MISSING_OUTPUT if there < count else DOUBLED_OUTPUT
            text = f"{value!r} stands {there} times in {partition}, not {count}"
            yield Anomaly(rule, text=text, partition=partition)
    for partition, value in found:
        if (partition, value) not in due:
            text = f"{value!r} stands in {partition} and is nothing that the inputs give"
            yield Anomaly(FOREIGN_OUTPUT, text=text, partition=partition)
