"""I8 and the end of I14: when everything is well again, everything comes to its end.

Rule: asked when faults are over and clients have nothing more to do; whatever is still open then will be open
for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.broker.purgatory import AskedForNews, Log
from fencepost.protocol.terms import TransactionState
from fencepost.simulator.judges.step_rules import CONVERGENCE, TIMEOUT
from fencepost.simulator.judges.transaction_record import DECISIONS, TransactionBook
from fencepost.simulator.judges.violation import Violation
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World


def judge_convergence(world: World, transactions: TransactionBook) -> None:
    """A healed run is over: raises what is still going on."""
    for name, record in transactions.latest.items():
        if record.state in DECISIONS:
            raise Violation(CONVERGENCE.name, f"{name} is still {record.state.title}")
        if record.state is TransactionState.ONGOING:
            raise Violation(TIMEOUT.name, f"{name} is still open, since {record.start_ms} ms")
    for node in world.nodes:
        for problem in _unsettled(node):
            raise Violation(CONVERGENCE.name, f"{node.participant}: {problem}")


def is_settled(world: World, transactions: TransactionBook) -> bool:
    """Whether the same would find nothing."""
    decided = (TransactionState.ONGOING, *DECISIONS)
    return not any(record.state in decided for record in transactions.latest.values()) and not any(
        problem for node in world.nodes for problem in _unsettled(node)
    )


def _unsettled(node: SimulatedNode) -> Iterator[str]:
    if node.host is None:
        yield "is down"
        return
    core = node.host.node
    for key, log in core.logs.items():
        yield from (f"{key}: {problem}" for problem in _open_in(log))
    if core.gatherings:
        yield f"{len(core.gatherings)} answers lack a part"
    if core.marker_retries or core.reelections:
        yield f"retries are planned: {[*core.marker_retries, *core.reelections]}"
    unanswered = [why for why in core.asked.values() if not isinstance(why, AskedForNews)]
    if unanswered:
        yield f"waits for an answer: {unanswered[0]}"


def _open_in(log: Log) -> Iterator[str]:
    state = log.partition
    if log.waiting:
        yield f"{len(log.waiting)} answers wait for offset {log.waiting[0][0]}"
    if state.open_transactions:
        yield f"transactions are open: {dict(state.open_transactions)}"
    if state.last_stable_offset != state.log_end_offset:
        yield f"LSO {state.last_stable_offset}, log end {state.log_end_offset}"
