"""The judgement of one run by its clients: what they saw, and what was copied.

Rule: no broker's memory counts. Only in a damaged cluster the files say what could be read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors.processors import transform
from fencepost.simulator.judges.black_box import check, exactly_once
from fencepost.simulator.judges.compaction import LastReader, check_compacted
from fencepost.simulator.judges.recreated_topics import of_the_last_topics
from fencepost.simulator.judges.rules import Anomaly
from fencepost.simulator.run_spec import Task

if TYPE_CHECKING:
    from fencepost.simulator.run import Run


def judge_clients(run: Run) -> Iterator[Anomaly]:
    """Every anomaly in what clients saw and in what was copied; `exercised` counts what was looked at."""
    operations, finally_read, cleanup = run.operations, run.read_to_their_end(), run.spec.cleanup
    if run.spec.fleeting and run.recreations:
        last = run.recreations[-1]
        operations = of_the_last_topics(
            operations,
            run.spec.fleeting,
            deleted_at=last.deleted_at,
            created_at=last.created_at,
            last_reader=run.spec.final.name,
        )
    compacted = () if cleanup is None else run.spec.partitions
    verdict = check(operations, finally_read=finally_read, compacted=compacted)
    run.exercised.update(verdict.exercised)
    yield from verdict.anomalies
    if cleanup is not None:
        last_reader = LastReader(
            name=run.spec.final.name, to_the_end=finally_read, begun_at=run.read_from, ended_at=run.world.now
        )
        verdict = check_compacted(operations, cleanup, compacted, last_reader)
        run.exercised.update(verdict.exercised)
        yield from verdict.anomalies
    results = _results(run)
    if results:
        targets = dict.fromkeys(target for each in results.values() for target in each)
        read, visible, copies = run.finally_read(), run.visible(), run.copies.written
        copied = exactly_once(
            {where: visible.get(where, []) for where in results},
            # Without records that producers write there: they are not copies, and the rules above judge them.
            {
                where: [copies[where, value] for value in read.get(where, []) if (where, value) in copies]
                for where in targets
            },
            lambda where, value: [(target, transform(value)) for target in results[where]],
        )
        run.exercised.update(copied.exercised)
        yield from copied.anomalies


def _results(run: Run) -> dict[TopicPartition, list[TopicPartition]]:
    """The partitions to which each input is copied, one for each group that copies it. In a damaged
    cluster, only those can be judged whose inputs were copied, and read with the copies to the end.
    """
    # Rivals and members of one group make one copy.
    copies = dict.fromkeys(
        (role.group, where, TopicPartition(role.writes, where.partition))
        for role in run.spec.roles
        if role.task is Task.COPY
        for where in role.reads
    )
    unknown: set[TopicPartition] = set()
    if run.damage.is_detected:
        read = frozenset(run.read_to_their_end())
        unknown = {
            target
            for group, where, target in copies
            if not read.issuperset((where, target))
            or not run.copies.is_settled(group, where, run.end_of(where))
        }
    results: dict[TopicPartition, list[TopicPartition]] = {}
    for _, where, target in copies:
        if target not in unknown:
            results.setdefault(where, []).append(target)
    return results
