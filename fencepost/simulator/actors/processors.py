"""Processors: they consume, transform and produce, with the offsets in the transaction.

Rule: a processor commits what it read only together with what it wrote.
"""

#     processor           exactly once from end to end: what it reads, writes and commits is one transaction
#     group_processor     the same while partitions change hands between members (KIP-447)
#
# A processor that loses its id, or its partitions, ends or begins again from the committed offsets, as a
# program would. `settled` is how far copies are known to be committed, by group: once it has reached
# the ends of the inputs, the run has nothing to wait for. It only rises, and says nothing about whether a
# copy is right: that is for the judges to say.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors.clients import AttemptedTransaction, Receiver, Sender, polls_of
from fencepost.simulator.actors.workloads import Membership, Runner, end, own
from fencepost.simulator.judges.operations import Action, OperationOutcome, Poll, PositionSet
from fencepost.simulator.world.processes import Script

INPUT: Final = "in"
OUTPUT: Final = "out"
GROUP: Final = "copiers"
MARK: Final = b"@"
TAKING_BACK_MS: Final = (1_000, 300, 50)  # before a processor that was fenced takes its id back
TAKEN_BACK: Final = "copier took its id back"
OFFSETS_ALONE_PERMILLE: Final = 150  # of the transactions of a member that committed
# A poll of a member. One that was given partitions which are copied already has no records to wait for.
MEMBER_POLLS_MS: Final = 1_000
AWAY_MS: Final = (20, 200, 1_000)  # between leaving a group and joining it again
REBALANCED: Final = "rebalance in a transaction"


def transform(value: bytes) -> bytes:
    """The value that a processor writes for a value that it read."""
    return value.upper()


@attrs.define(eq=False)
class Copies:
    """What the processors of a run have copied. `settled` is how far copies are known to be committed: the
    offsets by group and input. `written` are all copies, committed or not: for each partition and unique
    value, the value that an application would have written.
    """

    settled: defaultdict[str, dict[TopicPartition, int]] = attrs.Factory(
        lambda: defaultdict[str, dict[TopicPartition, int]](dict)
    )
    written: dict[tuple[TopicPartition, bytes], bytes] = attrs.Factory(
        dict[tuple[TopicPartition, bytes], bytes]
    )

    def settle(self, group: str, to: Mapping[TopicPartition, int]) -> None:
        """The copies of a group are committed up to these offsets of its inputs."""
        settled = self.settled[group]
        for where, offset in to.items():
            settled[where] = max(offset, settled.get(where, 0))

    def is_settled(self, group: str, where: TopicPartition, end: int) -> bool:
        """Whether a group has copied an input up to the offset `end`."""
        return self.settled[group].get(where, 0) >= end

    def plain(self, where: TopicPartition, value: bytes) -> bytes:
        """A value of a partition as an application would have written it."""
        return self.written.get((where, value), value)

    def marked(self, target: TopicPartition, value: bytes, runner: Runner, at: int) -> bytes:
        """A copy with a mark of who made it and when. An aborted copy is made again, and each value must be
        unique.
        """
        who, number = runner.process.participant.encode(), len(runner.transactions)
        marked = b"%s%s%s.%d.%d" % (value, MARK, who, number, at)
        self.written[target, marked] = value
        return marked


def processor(
    runner: Runner,
    inputs: tuple[TopicPartition, ...],
    copies: Copies,
    *,
    output: str = OUTPUT,
    group: str = GROUP,
    lives: int = 1,
) -> Script[None]:
    """Copies its inputs to the topic `output`, partition by partition, with the offsets in the transaction,
    until it is killed or another process takes its id; with more `lives` it takes the id back. `copies` are
    those of all processes of the run.
    """
    for life in range(lives):
        if life:
            yield runner.choices.one_of(TAKING_BACK_MS)
            runner.world.marks[TAKEN_BACK] += 1
        made = yield from own(runner)
        if made is not None:
            yield from _copy(runner, made, inputs, copies, output=output, group=group)
            runner.world.marks["copier given up"] += 1


def _copy(
    runner: Runner,
    made: Sender,
    inputs: tuple[TopicPartition, ...],
    copies: Copies,
    *,
    output: str,
    group: str,
) -> Script[None]:
    """Copies from the committed offsets of the group on, until this producer is done."""
    consumer = runner.receiver(group_id=group)
    consumer.assign(inputs)
    machine = consumer.machine
    # The offsets of the group have to be read before anything is: they say where the last owner stopped.
    yield lambda: len(machine.positions) == len(inputs)
    own = dict(machine.positions)  # no other client commits at the same time
    copies.settle(group, own)
    read: list[Action] = [PositionSet(where) for where in inputs]
    while True:
        polls = yield from consumer.poll_some(runner.choices)
        if not polls:
            own = dict(machine.positions)  # only control records and aborted records lay between
            copies.settle(group, own)
            continue
        transaction = made.begin()
        transaction.read += [*read, *polls]
        read = []
        yield from _write_copies(runner, made, transaction, polls, copies, output=output)
        if made.is_usable:
            made.send_offsets(machine.committable, group)
        if not (yield from end(runner, made, transaction)):
            return
        if transaction.outcome is OperationOutcome.OK:
            own = dict(machine.positions)
            copies.settle(group, own)
        else:
            # An abort does not move a consumer back: as in Kafka, that is up to the program.
            consumer.seek(own)
            read = [PositionSet(where) for where in inputs]


def _write_copies(
    runner: Runner,
    made: Sender,
    transaction: AttemptedTransaction,
    polls: Iterable[Poll],
    copies: Copies,
    *,
    output: str,
) -> Script[None]:
    """Writes what was read, transformed, into the same partitions of the output."""
    read_now = [(poll.partition, value) for poll in polls for _, value in poll.records]
    for at, (where, value) in enumerate(read_now):
        target, result = TopicPartition(output, where.partition), transform(copies.plain(where, value))
        copy = copies.marked(target, result, runner, at)
        # The producer failed: `end` aborts what is there.
        if not (yield from made.send(transaction, target, copy)):
            return
        yield from runner.rests()


def group_processor(
    runner: Runner, topics: tuple[str, ...], copies: Copies, *, output: str, membership: Membership
) -> Script[None]:
    """Copies as `processor` does, but the group says which partitions, and the transaction carries the
    membership, so that a member that was replaced cannot commit (KIP-447). It ends when its producer does,
    or when another process takes its instance id.
    """
    if membership.starts_after_ms:
        yield membership.starts_after_ms
    made = yield from own(runner)
    while made is not None:
        consumer = runner.member(membership)
        consumer.subscribe(topics)
        if not (yield from _copy_as_member(runner, made, consumer, copies, output, membership)):
            return
        yield from consumer.leave()
        yield runner.choices.one_of(AWAY_MS)


def _copy_as_member(
    runner: Runner, made: Sender, consumer: Receiver, copies: Copies, output: str, membership: Membership
) -> Script[bool]:
    """Copies until the member leaves (True) or this process is done (False)."""
    machine = consumer.machine
    again: dict[TopicPartition, int] = {}  # where an aborted transaction had begun
    while not consumer.is_fenced:
        polls = polls_of((yield from consumer.poll(MEMBER_POLLS_MS)))
        if not polls:
            copies.settle(membership.group, machine.positions)
            continue
        placed = [*map(PositionSet, consumer.assigned), *(PositionSet(where) for where in again)]
        consumer.assigned.clear()
        transaction = made.begin()
        transaction.read += [*placed, *polls]
        yield from _write_copies(runner, made, transaction, polls, copies, output=output)
        if membership.stalls and runner.choices.happens(membership.stalls):
            # By then the group has gone on without this member, and must refuse its commit (KIP-447).
            yield membership.max_poll_interval_ms + membership.session_timeout_ms
        ends = {poll.partition: machine.committable[poll.partition] for poll in polls}
        offsets = {where: end.offset for where, end in ends.items()}
        if made.is_usable:
            made.send_offsets(ends, machine.group_metadata())
        goes_on = yield from end(runner, made, transaction)
        runner.world.marks[REBALANCED] += not consumer.is_stable
        if not goes_on:
            return False
        again = {}
        if transaction.outcome is OperationOutcome.OK:
            copies.settle(membership.group, offsets)
            if runner.choices.happens(OFFSETS_ALONE_PERMILLE):
                # The same offsets once more, in a transaction without records.
                owned = {where: end for where, end in ends.items() if where in machine.assigned}
                transaction = made.begin()
                made.send_offsets(owned, machine.group_metadata())
                if not (yield from end(runner, made, transaction)):
                    return False
        else:
            for poll in polls:
                again.setdefault(poll.partition, poll.records[0][0])
            consumer.seek({where: at for where, at in again.items() if where in machine.assigned})
        if membership.leaves and runner.choices.happens(membership.leaves):
            return True
    return False
