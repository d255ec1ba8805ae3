"""A story that holds the broker to a rule: a refusal changes nothing.

Rule: what a node believes is compared before and after every request that is refused in the same step.
"""

from __future__ import annotations

from fencepost.broker.contract import NODE, Input, Outcome, Received, Reply
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint
from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    EndTxn,
    Heartbeat,
    InitProducerId,
    JoinGroup,
    SyncGroup,
)
from tests.broker.story import Story


def is_refusal(reply: Reply) -> bool:
    """Whether the reply is an error, as a whole or in each of its parts."""
    parts = getattr(reply.body, "partitions", ())
    return bool(reply.error) or (bool(parts) and all(getattr(part, "error", None) for part in parts))


# The coordinator cannot write the record, or has no producer id yet and asks the controller for some.
UNWRITABLE = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


def changes_by_design(arrived: Received, reply: Reply) -> bool:
    """Errors that do something in Kafka, too: a join makes its group and gives out member ids, a heartbeat
    keeps a session during a rebalance, an id whose record cannot be written stays reserved, and a group whose
    assignment cannot be written rebalances.
    """
    return (
        isinstance(arrived.request, JoinGroup)
        or (isinstance(arrived.request, SyncGroup) and reply.error is ErrorCode.UNKNOWN_SERVER_ERROR)
        or (isinstance(arrived.request, Heartbeat) and reply.error is ErrorCode.REBALANCE_IN_PROGRESS)
        or (
            isinstance(arrived.request, AddPartitionsToTxn | InitProducerId | EndTxn)
            and reply.error in UNWRITABLE
        )
    )


class CarefulStory(Story):
    """A story in which every refusal is looked at."""

    refused: int = 0
    step: tuple[Input, Outcome]  # the last one that was seen

    def work(self) -> bool:
        arrived = self.host.inbox[0] if self.host.inbox and not self.host.to_do else None
        if not isinstance(arrived, Received) or arrived.to.connection == NODE:
            return super().work()
        before = fingerprint(self.host.node)
        worked = super().work()
        seen, outcome = self.step
        assert seen is arrived
        replies = [each for each in outcome.effects if isinstance(each, Reply) and each.to == arrived.to]
        for reply in replies:
            if is_refusal(reply) and not outcome.appends and not changes_by_design(arrived, reply):
                self.refused += 1
                after = fingerprint(self.host.node)
                assert after == before, f"{arrived.request} was refused, and changed the node"
        return worked

    def saw(self, arrived: Input, outcome: Outcome) -> None:
        super().saw(arrived, outcome)
        self.step = (arrived, outcome)
