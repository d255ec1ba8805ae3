"""What clients saw of topics that were deleted and created again, as the black box may judge it.

Rule: the judge believes only the times at which the deletion was requested and the new topic was known to
all nodes. An operation belongs to the old topic if it ended before the one, and to the new topic if it began
after the other; in between, it may belong to either.
"""

# Theory of operation. The judge knows a topic by its name, and so do clients. So it gets the history of the
# last topic of the name alone:
#
#            last deletion requested     new topic known to all
#     ───────────────┼─────────────────────────────┼──────────────────▶
#     ended: dropped │      may be read or not     │ begun: as it is
#
# A dropped write that is read after all is a phantom: no client wrote it to this topic. A write that may be
# read or not is an operation of its own, since the rest of its transaction must be read without it. Of what
# was read, only the last reader's part counts: other readers may return later what they fetched before. If
# the run ended in between, as one with damaged disks may, nothing of what was read counts.

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Write


def of_the_last_topics(
    operations: Sequence[ClientOperation],
    fleeting: Collection[TopicPartition],
    *,
    deleted_at: int,
    created_at: float,
    last_reader: str,
) -> list[ClientOperation]:
    """The same history, in which the partitions in `fleeting` are those of the last topics of their names."""
    return [
        part
        for operation in operations
        for part in (
            [operation]
            if operation.process == last_reader and operation.invoked_at > created_at
            else _divided(operation, fleeting, deleted_at=deleted_at, created_at=created_at)
        )
    ]


def _divided(
    operation: ClientOperation, fleeting: Collection[TopicPartition], *, deleted_at: int, created_at: float
) -> Iterator[ClientOperation]:
    """An operation with its writes to the last topics, without what it read or wrote there before, and each
    write that may belong to either.
    """
    is_new = operation.invoked_at > created_at
    yield operation._replace(
        actions=tuple(
            action
            for action in operation.actions
            if action.partition not in fleeting or (is_new and isinstance(action, Write))
        )
    )
    # A request may arrive after its retry was acknowledged. The id in it keeps it out of the new topic.
    if is_new or operation.completed_at < deleted_at:
        return
    is_over = operation.outcome is OperationOutcome.FAIL
    for action in operation.actions:
        if isinstance(action, Write) and action.partition in fleeting:
            yield operation._replace(
                outcome=OperationOutcome.FAIL if is_over else OperationOutcome.INFO,
                actions=(action._replace(offset=None),),
            )
