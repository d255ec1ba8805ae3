"""How a repair ends the transactions whose markers or records are lost, and what producers meet after it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import StorageError, directory_name
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import FindCoordinator
from fencepost.protocol.terms import METADATA_PARTITION, CoordinatorType, TopicPartition, TransactionState
from fencepost.repair.perform import perform
from fencepost.repair.plan import Plan
from fencepost.repair.planner import make_plan
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    add_request,
    identity_of,
    init_request,
)
from tests.broker.story import SETTINGS, Memory, Story, offsets_log_of, transaction_log_of
from tests.broker.test_every_byte import DamagedStory, contents, disk_with, fill
from tests.broker.test_generations import OLD
from tests.repair.judging import goes_on, judged, seen_by_readers

TILL = transaction_log_of("pay")


def log_file(key: TopicPartition) -> str:
    return f"{directory_name(key)}/{file_name(0, LOG)}"


def damage(storage: Memory, key: TopicPartition, *offsets: int) -> None:
    """Flip the last byte of the batches with these base offsets."""
    data = bytearray(storage.read_file(log_file(key)) or b"")
    for at, header in walk(bytes(data)):
        if header.base_offset in offsets:
            data[at + header.size - 1] ^= 1
    storage.replace(log_file(key), data, durable=True)


def repaired(story: Story) -> tuple[Plan, DamagedStory]:
    """The plan of a repair of what the story left, and the broker after it."""
    storage = story.storage
    assert isinstance(storage, Memory)
    plan = make_plan(storage)
    perform(storage, plan)
    assert make_plan(storage).damages == []
    return plan, DamagedStory.over(storage)


def results(plan: Plan) -> list[tuple[str, str, bool]]:
    return [
        (str(each.partition), each.result.name, each.is_proven) for log in plan.logs for each in log.settled
    ]


def stopped(tell: Callable[[Story], None], *, version: int = 2) -> tuple[Story, Memory]:
    """A story that is told and stopped; its storage."""
    storage = Memory()
    settings = attrs.evolve(SETTINGS, transaction_version=TRANSACTION_VERSIONS[version])
    story = Story(storage=storage, settings=settings, versions={} if version == 2 else OLD)
    tell(story)
    story.settle()
    story.host.stop()
    return story, storage


def commit_then_abort(story: Story) -> None:
    """In orders-0: a b COMMIT c ABORT; in orders-1: x COMMIT."""
    me = story.identity()
    story.produce(me, "a b")
    story.produce(me, "x", key=OTHERS)
    me = story.ended(me, COMMIT)
    story.produce(me, "c")
    story.ended(me, ABORT)


def test_a_lost_commit_is_written_again() -> None:
    """Without its marker, the next one would abort it."""
    story, storage = stopped(commit_then_abort)
    damage(storage, ORDERS, 2)
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "COMMIT", True)]
    assert after.visible() == "a b"
    assert after.written() == "a b | commit 0/1 | c | abort 0/2"
    assert goes_on(after)


def test_a_lost_abort_is_written_again() -> None:
    """Without its marker, the next one would commit it."""

    def tell(story: Story) -> None:
        me = story.identity()
        story.produce(me, "a")
        me = story.ended(me, ABORT)
        story.produce(me, "b")
        story.ended(me, COMMIT)

    story, storage = stopped(tell)
    damage(storage, ORDERS, 1)
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "ABORT", True)]
    assert (after.visible(), after.visible(isolation_level=UNCOMMITTED)) == ("b", "a b")


def test_a_marker_elsewhere_proves_a_decision() -> None:
    story, storage = stopped(commit_then_abort)
    damage(storage, ORDERS, 2)
    decisions = [number for number, state in enumerate(story.states()) if state.name.endswith("COMMIT")]
    damage(storage, TILL, *decisions)
    plan, after = repaired(story)
    assert ("orders-0", "COMMIT", True) in results(plan)
    assert (after.visible(), after.visible(OTHERS)) == ("a b", "x")


def test_what_nothing_proves_is_aborted_and_told() -> None:
    story, storage = stopped(commit_then_abort)
    damage(storage, ORDERS, 2)
    damage(storage, OTHERS, 1)
    damage(storage, TILL, *range(len(story.states())))
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "ABORT", False), ("orders-1", "ABORT", False)]
    assert [note for note in plan.notes if "orders-0" in note and "the transaction is aborted" in note]
    assert (after.visible(), after.visible(OTHERS)) == ("", "")
    assert goes_on(after)


@pytest.mark.parametrize("version", [0, 1])
def test_a_shared_epoch_proves_nothing(version: int) -> None:
    """Before KIP-890 part 2 the marker that follows may be that of a later transaction."""

    def tell(story: Story) -> None:
        me = story.identity()
        for value, result in (("a", ABORT), ("b", COMMIT)):
            story.ask(add_request(me, ORDERS))
            story.produce(me, value, sequence=0 if value == "a" else 1)
            story.end(me, result)

    story, storage = stopped(tell, version=version)
    assert story.written() == "a | abort 0/0 | b | commit 0/0"
    damage(storage, ORDERS, 1)
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "ABORT", False)]
    assert after.visible() == "b"


def three_open(story: Story) -> dict[str, Identity]:
    """In orders-0: one two three, each of a transaction that is open."""
    producers = {name: story.identity(name) for name in ("one", "two", "three")}
    for name, who in producers.items():
        story.ask(add_request(who, ORDERS, name=name))
        story.produce(who, name, name=name)
    return producers


def three_at_once(story: Story) -> None:
    """In orders-0: one two three; COMMIT of the first; plain; COMMIT of the others."""
    producers = three_open(story)
    story.end(producers.pop("one"), COMMIT, "one")
    story.produce(identity_of(story.ask(init_request(None))), "plain", name=None)
    for name, who in producers.items():
        story.end(who, COMMIT, name)


@pytest.mark.parametrize("version", [0, 1])
def test_a_lost_marker_costs_no_intact_batch(version: int) -> None:
    """One transaction must have ended there, so no other did."""
    story, storage = stopped(three_at_once, version=version)
    assert story.visible() == "one two three plain"
    damage(storage, ORDERS, 3)
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "ABORT", False)]
    assert after.visible() == "two three plain"


@pytest.mark.parametrize("version", [0, 1])
def test_transactions_that_find_no_offset_are_aborted_by_their_next_marker(version: int) -> None:
    """Any of three may have ended where one batch of the size of a marker was; the other batches stay."""

    def tell(story: Story) -> None:
        producers = three_open(story)
        plain = identity_of(story.ask(init_request(None)))
        story.produce(plain, "x" * 16, name=None)
        story.produce(plain, "plain", sequence=1, name=None)
        for name, who in producers.items():
            story.end(who, COMMIT, name)

    story, storage = stopped(tell, version=version)
    damage(storage, ORDERS, 3)
    plan, after = repaired(story)
    assert results(plan) == 3 * [("orders-0", "ABORT", False)]
    assert after.visible() == "plain"
    assert after.visible(isolation_level=UNCOMMITTED) == "one two three plain"


def test_an_open_transaction_goes_on() -> None:
    """The damaged batch is surely no marker, so the transaction is ended by its producer."""

    def tell(story: Story) -> None:
        me = story.identity()
        story.produce(me, "a")
        story.produce(NOBODY, "plain and long enough", name=None)
        story.produce(me, "b", sequence=1)

    story, storage = stopped(tell)
    damage(storage, ORDERS, 1)
    plan, after = repaired(story)
    assert results(plan) == []
    assert after.visible() == ""
    after.ended(Identity(0, 0), COMMIT)
    assert after.visible() == "a b"


def test_a_stale_id_is_forgotten() -> None:
    """Its producer may not go on, and a new one gets another producer id."""
    story, storage = stopped(commit_then_abort)
    last = len(story.states()) - 1
    damage(storage, TILL, last - 1, last)  # PREPARE_ABORT and COMPLETE_ABORT
    plan, after = repaired(story)
    assert [note for note in plan.notes if note.startswith("transactional id 'pay'")]
    assert after.end(Identity(0, 1), ABORT).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert after.identity().producer_id > 0
    assert after.visible() == "a b"


def test_an_undecided_transaction_of_a_lost_log_does_not_hang() -> None:
    def tell(story: Story) -> None:
        story.produce(story.identity(), "open")
        story.produce(NOBODY, "after", name=None)

    story, storage = stopped(tell)
    damage(storage, TILL, *range(len(story.states())))
    plan, after = repaired(story)
    assert results(plan) == [("orders-0", "ABORT", False)]
    assert after.visible() == "after"


def test_a_producer_does_not_go_on_over_lost_batches() -> None:
    """Neither as if nothing was lost, nor with a duplicate."""

    def tell(story: Story) -> None:
        me = identity_of(story.ask(init_request(None)))
        for sequence, value in enumerate(("a", "b", "c")):
            story.produce(me, value, sequence=sequence, name=None)

    story, storage = stopped(tell)
    damage(storage, ORDERS, 2)
    _, after = repaired(story)
    me = Identity(0, 0)
    assert after.produce(me, "d", sequence=3, name=None).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert after.produce(me, "b", sequence=1, name=None).base_offset == 1, "a duplicate"
    assert after.produce(me, "c", sequence=2, name=None).base_offset == 3, "it is not there any more"
    assert after.visible(isolation_level=UNCOMMITTED) == "a b c"


def test_no_producer_id_is_granted_twice() -> None:
    story, storage = stopped(commit_then_abort)
    allocated = 1  # the batch after the registration
    damage(storage, METADATA_PARTITION, allocated)
    _, after = repaired(story)
    assert identity_of(after.ask(init_request(None))).producer_id >= 1_000


def epochs_of(story: Story) -> dict[TopicPartition, int]:
    return {
        key: log.partition.leader_epoch
        for key, log in story.host.node.logs.items()
        if key != METADATA_PARTITION
    }


@pytest.mark.parametrize("is_gone", [False, True])
def test_no_leader_epoch_is_given_twice(*, is_gone: bool) -> None:
    """Lost are the elections of three starts, under which nothing was written, or all of the metadata."""
    story, storage = stopped(commit_then_abort)
    end, given = story.host.node.logs[METADATA_PARTITION].partition.log_end_offset, epochs_of(story)
    for _ in range(3):
        story.start()
        story.settle()
        given = epochs_of(story)
        story.host.stop()
    if is_gone:
        for name in storage.files(str(METADATA_PARTITION)):
            storage.remove(f"{METADATA_PARTITION}/{name}")
    else:
        headers = [header for _, header in walk(storage.read_file(log_file(METADATA_PARTITION)) or b"")]
        damage(
            storage, METADATA_PARTITION, *[each.base_offset for each in headers if each.base_offset >= end]
        )
    perform(storage, make_plan(storage, adopt=frozenset({"orders"})))
    after = DamagedStory.over(storage)
    again = epochs_of(after)
    assert {ORDERS, TILL} <= again.keys()
    assert all(again[key] > given[key] for key in again)
    assert goes_on(after)


def test_a_lost_offset_is_an_older_offset() -> None:
    def tell(story: Story) -> None:
        me = story.identity()
        for offset in (3, 5):
            story.commit_offset(me, "group", offset)
            me = story.ended(me, COMMIT)

    story, storage = stopped(tell)
    damage(storage, offsets_log_of("group"), 2)
    plan, after = repaired(story)
    assert [each.stake for each in plan.damages] == [
        "offsets that groups committed there: the groups continue at older offsets and repeat records: group"
    ]
    assert after.offset("group").offset == 3


def test_coordinators_topics_come_back_without_their_metadata() -> None:
    _, storage = stopped(commit_then_abort)
    storage.remove(log_file(METADATA_PARTITION))
    storage.remove(f"{METADATA_PARTITION}/checkpoint.json")
    storage.remove(f"{METADATA_PARTITION}/manifest.json")
    perform(storage, make_plan(storage, adopt=frozenset({"orders"})))
    after = DamagedStory.over(storage)
    after.ask(FindCoordinator(kind=CoordinatorType.TRANSACTION, key="pay"))
    assert after.states()[-1] is TransactionState.COMPLETE_ABORT
    assert after.visible() == "a b"
    assert goes_on(after)


class Dying(Memory):
    """A disk whose process dies at its n-th write."""

    writes_left = 10_000

    def replace(self, path: str, data: bytes | bytearray | memoryview, *, durable: bool) -> None:
        self._count()
        super().replace(path, data, durable=durable)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def _count(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise StorageError("the process died")


def test_an_interrupted_repair_is_started_again() -> None:
    """Killed at each of its writes: what is served then is right, and a second repair finishes it."""
    _, storage = stopped(commit_then_abort)
    whole = seen_by_readers(DamagedStory.over(disk_with(contents(storage))))
    damage(storage, ORDERS, 2)
    damage(storage, TILL, 3)
    files = contents(storage)
    for number in range(1_000):
        disk = Dying()
        fill(disk, files)
        disk.writes_left = number
        plan = make_plan(disk)
        try:
            perform(disk, plan)
        except StorageError:
            disk.writes_left = 10_000
            second = make_plan(disk)
            perform(disk, second)
            plan.damages.extend(second.damages)
            assert judged(plan, seen_by_readers(DamagedStory.over(disk)), whole) == [], number
            continue
        assert number > 10
        return
    raise AssertionError("the repair never ends")
