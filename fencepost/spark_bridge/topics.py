"""Which partitions of a cluster the options choose.

Rule: a partition exists from its creation on, not from its first record on. A topic that nobody has written
to has no files, and is not an error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence

from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import ReadOptions


def choose_partitions(
    existing: Sequence[TopicPartition], options: ReadOptions, where: str
) -> list[TopicPartition]:
    """Returns the partitions that the options name, sorted; UnusableOption if one of them does not exist.

    With failOnDataLoss=false it warns of those instead: their topic may have been deleted.
    """
    if options.assign is not None:
        wanted = sorted({*options.assign} & {*existing})
    elif options.subscribe is not None:
        wanted = [partition for partition in existing if partition.topic in options.subscribe]
    else:
        wanted = _matching(existing, options.subscribe_pattern or ".*")
    missing = missing_from(existing, options)
    if missing:
        message = f"{where} does not hold {', '.join(missing)}; {_alternatives(existing, options)}"
        if options.fail_on_data_loss:
            raise UnusableOption(message)
        warnings.warn(message, stacklevel=2)
    return wanted


def missing_from(existing: Sequence[TopicPartition], options: ReadOptions) -> list[str]:
    """The partitions, or the topics, that the options name and that do not exist."""
    if options.assign is not None:
        return [str(partition) for partition in sorted({*options.assign} - {*existing})]
    named = {partition.topic for partition in existing}
    return [topic for topic in options.subscribe or () if topic not in named]


def _alternatives(existing: Sequence[TopicPartition], options: ReadOptions) -> str:
    """What can be named instead: the partitions of the assigned topics, or the topics that programs write to
    if none has any.
    """
    assigned = {partition.topic for partition in options.assign or ()}
    if partitions := [str(partition) for partition in existing if partition.topic in assigned]:
        return f"the partitions there are {', '.join(partitions)}"
    topics = sorted({partition.topic for partition in existing} - INTERNAL_TOPICS)
    return f"its topics are {', '.join(topics)}" if topics else "it has no topics yet"


def _matching(existing: Iterable[TopicPartition], pattern: str) -> list[TopicPartition]:
    """As in Spark's Kafka source, the whole name must match; an internal topic must be named literally."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise UnusableOption(
            f"option subscribePattern {pattern} is not a regular expression: {problem}"
        ) from None
    return [
        p
        for p in existing
        if compiled.fullmatch(p.topic) and (p.topic not in INTERNAL_TOPICS or p.topic == pattern)
    ]
