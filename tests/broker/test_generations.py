"""The generations before KIP-890 part 2: their table cell by cell, verification on and off, clients of old on
a newest cluster, and the anomalies that each generation left or ended.
"""

from __future__ import annotations

from typing import Final

import attrs
import pytest

from fencepost.broker.contract import Answered, Received, Reply, ReplyTo
from fencepost.broker.transactions.tables import (
    END_VERSION_0,
    INTRODUCED_ERRORS,
    NEWEST,
    OLDEST,
    TRANSACTION_VERSIONS,
    EndInput,
    client_version_of,
)
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fork
from fencepost.protocol.terms import (
    INT16_MAX,
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorType,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    add_offsets_request,
    add_request,
    body_of,
    end_request,
    identity_of,
    marker_request,
    offset_request,
    produce_request,
    produced,
)
from tests.broker.story import SCAN_MS, SETTINGS, Memory, Story

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
COMPLETE_OF = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}

OLD: Final[dict[type[m.Request], int]] = {
    m.AddPartitionsToTxn: 3,
    m.Produce: 11,
    m.EndTxn: 4,
    m.TxnOffsetCommit: 4,
}


def story_of(version: int, *, verification: bool = True, client: int = 0) -> Story:
    """A cluster of this `transaction.version`, and clients of old or of today."""
    settings = attrs.evolve(
        SETTINGS, transaction_version=TRANSACTION_VERSIONS[version], partition_verification=verification
    )
    return Story(settings=settings, versions={} if client == 2 else OLD)


def add(story: Story, me: Identity, *keys: TopicPartition) -> ErrorCode:
    """A client has the coordinator add partitions; the one error that they all have."""
    reply = story.ask(add_request(me, *(keys or (ORDERS,))))
    if reply.body is None:
        return reply.error
    (error,) = {part.error for part in body_of(reply, m.AddPartitionsToTxnReply).partitions}
    return error


def write(story: Story, me: Identity, value: str, sequence: int, key: TopicPartition = ORDERS) -> ErrorCode:
    """Adds the partition and writes to it, as a client of old does."""
    assert add(story, me, key) is ErrorCode.NONE
    return story.produce(me, value, key=key, sequence=sequence).error


def in_state(state: TransactionState, version: int = 0) -> tuple[Story, Identity]:
    """A story of old whose id is in this state, and its owner. PREPARE_* waits for its markers."""
    story = story_of(version)
    me = story.identity()
    if state is EMPTY:
        return story, me
    write(story, me, "a", 0)
    if state is ONGOING:
        return story, me
    result = COMMIT if state in (PREPARE_COMMIT, COMPLETE_COMMIT) else ABORT
    if state in COMPLETE_OF.values():
        assert story.end(me, result).error is ErrorCode.NONE
        return story, me
    story.offer(end_request(me, result))
    while story.states()[-1] is not state:
        assert story.work()
    return story, me


# --- which generation serves a request -------------------------------------------------------------------


def test_the_version_of_a_request_says_which_generation_serves_it() -> None:
    for request, version in OLD.items():
        assert client_version_of(request, version).transaction_version is OLDEST
        assert client_version_of(request, version + 1).transaction_version is NEWEST
    assert [generation.number for generation in TRANSACTION_VERSIONS.values()] == [0, 1, 2]
    assert [generation.renews_identity for generation in TRANSACTION_VERSIONS.values()] == [
        False,
        False,
        True,
    ]


# --- the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("given", [EndInput.COMMIT, EndInput.ABORT])
@pytest.mark.parametrize("state", TransactionState)
def test_each_cell_of_the_old_table_is_what_an_old_end_meets(
    state: TransactionState, given: EndInput, version: int
) -> None:
    """On whatever cluster: it is the request that says what its sender knows."""
    assert set(END_VERSION_0[state]) == {EndInput.COMMIT, EndInput.ABORT}
    story, me = in_state(state, version)
    cell = END_VERSION_0[state][given]
    reply = story.end(me, COMMIT if given is EndInput.COMMIT else ABORT)
    target = state if isinstance(cell, ErrorCode) else cell
    assert reply.error is (cell if isinstance(cell, ErrorCode) else ErrorCode.NONE)
    assert story.states()[-1] is COMPLETE_OF.get(target, target)
    assert story.records()[-1].producer_epoch == me.producer_epoch
    if reply.error is ErrorCode.NONE:
        assert identity_of(reply) == NOBODY, "an older client is not told who it is"


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_markers_carry_the_epoch_of_their_transaction_and_sequences_run_on(result: TransactionResult) -> None:
    story = story_of(0)
    me = story.identity()
    for number in range(2):
        assert write(story, me, "abc"[number], number) is ErrorCode.NONE
        story.end(me, result)
    word = result.name.lower()
    marker = f"{word} {me.producer_id}/{me.producer_epoch}"
    assert story.written() == f"a | {marker} | b | {marker}"
    assert write(story, me, "z", 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert story.visible() == ("a b" if result is COMMIT else "")


def test_an_end_of_another_is_refused_also_while_markers_are_written() -> None:
    for state in (ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT):
        story, me = in_state(state)
        for who, error in (
            (me._replace(producer_epoch=me.producer_epoch + 1), ErrorCode.PRODUCER_FENCED),
            (me._replace(producer_id=me.producer_id + 7), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ):
            to = story.offer(end_request(who, COMMIT))
            while to not in story.replies:
                assert story.work()
            assert story.replies.pop(to).error is error, state


# --- the coordinator's own aborts ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_timeout_raises_the_epoch_and_fences_the_owner(version: int) -> None:
    story, me = in_state(ONGOING, version)
    story.wait(60_000 + 2 * SCAN_MS)
    assert story.states()[-1] is COMPLETE_ABORT
    assert story.written() == f"a | abort {me.producer_id}/{me.producer_epoch + 1}"
    assert story.end(me, COMMIT).error is ErrorCode.PRODUCER_FENCED
    assert story.end(me, ABORT).error is ErrorCode.PRODUCER_FENCED
    assert story.produce(me, "late", sequence=1).error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_fence_raises_the_epoch_twice() -> None:
    """Once for the markers, once for the heir; the fenced owner is known by nothing any more."""
    story, me = in_state(ONGOING)
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.records()[-1].producer_epoch == me.producer_epoch + 1
    assert story.init(expected=me).error is ErrorCode.PRODUCER_FENCED
    assert identity_of(story.init()) == me._replace(producer_epoch=me.producer_epoch + 2)


def test_the_last_epoch_serves_any_number_of_transactions() -> None:
    story = story_of(0)
    first = story.identity()
    me = story.age(LAST_GRANTED_EPOCH)
    for number in range(3):
        write(story, me, "x", number)
        assert story.end(me, COMMIT).error is ErrorCode.NONE
    write(story, me, "y", 3)
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.records()[-1].producer_epoch == INT16_MAX, "the one that is held back for fencing"
    heir = identity_of(story.init())
    assert heir.producer_epoch == 0
    assert heir.producer_id > first.producer_id
    assert story.visible() == "x x x"


@pytest.mark.parametrize(("version", "survives"), [(0, False), (1, True), (2, True)])
def test_before_version_1_a_rotation_is_forgotten_with_its_coordinator(
    version: int, *, survives: bool
) -> None:
    """Who asks again because the answer was lost is known by the id before; the log holds that, or not."""
    story = story_of(version)
    story.identity()
    me = story.age(LAST_GRANTED_EPOCH)
    heir = identity_of(story.init(expected=me))
    assert story.records()[-1].previous_producer_id == (me.producer_id if survives else NO_PRODUCER_ID)
    write(story, heir, "x", 0)
    twin = fork(story.coordinator())
    assert twin.other_ids == ({} if survives else {"pay": (me.producer_id, NO_PRODUCER_ID)})
    assert story.check_recovery()
    story.restart()
    known = ErrorCode.CONCURRENT_TRANSACTIONS  # it may go on as soon as what is open is aborted
    assert story.init(expected=me).error is (known if survives else ErrorCode.PRODUCER_FENCED)


def test_while_its_coordinator_lives_a_rotation_is_known() -> None:
    story = story_of(0)
    story.identity()
    me = story.age(LAST_GRANTED_EPOCH)
    heir = identity_of(story.init(expected=me))
    assert identity_of(story.init(expected=me)) == heir


# --- Produce without being added ---------------------------------------------------------------------------


def refusal(story: Story, part: m.ProducedPartition) -> ErrorCode:
    assert story.written() == "", "nothing entered the log"
    return part.error


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_partition_that_was_not_added_is_refused_to_a_client_of_old(version: int) -> None:
    story = story_of(version)
    me = story.identity()
    assert add(story, me, OTHERS) is ErrorCode.NONE
    assert refusal(story, story.produce(me, "a")) is ErrorCode.TRANSACTION_ABORTABLE
    assert add(story, me, ORDERS) is ErrorCode.NONE
    assert story.produce(me, "a").error is ErrorCode.NONE
    assert story.produce(me, "b", sequence=1).error is ErrorCode.NONE, "once open, nobody asks again"


@pytest.mark.parametrize(
    ("client", "error"), [(0, ErrorCode.NOT_ENOUGH_REPLICAS), (2, ErrorCode.CONCURRENT_TRANSACTIONS)]
)
def test_while_markers_are_written_each_client_is_told_in_its_own_words(
    client: int, error: ErrorCode
) -> None:
    """Both come again; older ones know CONCURRENT_TRANSACTIONS from the coordinator alone."""
    story, me = in_state(PREPARE_COMMIT, 2)
    story.versions = {} if client == 2 else OLD
    to = story.offer(produce_request(me, {OTHERS: "b"}))
    while to not in story.replies:
        assert story.work()
    assert produced(story.replies.pop(to))[OTHERS].error is error


def test_without_verification_nobody_asks() -> None:
    story = story_of(0, verification=False)
    me = story.identity()
    assert story.produce(me, "a").error is ErrorCode.NONE
    assert story.commit_offset(me, "readers", 5) is ErrorCode.NONE
    assert story.transaction().state is EMPTY, "the coordinator knows of nothing"
    assert story.partition().last_stable_offset == 0


def test_a_client_of_today_is_told_that_the_cluster_is_too_old() -> None:
    for verification in (True, False):
        story = story_of(0, verification=verification, client=2)
        me = story.identity()
        assert refusal(story, story.produce(me, "a")) is ErrorCode.UNSUPPORTED_VERSION
    story = story_of(0, client=2)
    assert story.commit_offset(story.identity(), "readers", 5) is ErrorCode.UNSUPPORTED_VERSION


def test_what_the_log_cannot_say_leaves_the_id_busy_until_its_coordinator_moves() -> None:
    story = story_of(0, client=2)
    me = story.identity()
    refusal(story, story.produce(me, "a"))
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    story.kill()
    story.restart()
    assert story.identity().producer_epoch == me.producer_epoch + 1


def test_an_end_that_the_log_cannot_say_leaves_the_id_busy_too() -> None:
    """In version 2 an abort without a transaction is written, too."""
    story = story_of(0, client=2)
    assert story.end(story.identity(), ABORT).error is ErrorCode.UNSUPPORTED_VERSION
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_client_of_today_is_served_by_a_cluster_whose_log_can_say_it() -> None:
    """On a cluster of version 1, every end that it asks for raises the epoch."""
    story = story_of(1, client=2)
    me = story.identity()
    assert story.produce(me, "a").error is ErrorCode.NONE
    assert identity_of(story.end(me, COMMIT)).producer_epoch == me.producer_epoch + 1


@pytest.mark.parametrize("kind", INTRODUCED_ERRORS, ids=lambda kind: kind.__name__)
def test_an_older_client_is_told_an_error_that_it_knows(kind: type[m.Request]) -> None:
    introduced = INTRODUCED_ERRORS[kind]
    for version in (introduced.known_from - 1, introduced.known_from):
        expected = introduced.instead if version < introduced.known_from else introduced.error
        assert client_version_of(kind, version).downgrade(introduced.error) is expected
        assert (
            client_version_of(kind, version).downgrade(ErrorCode.NOT_COORDINATOR) is ErrorCode.NOT_COORDINATOR
        )


def test_a_fenced_producer_of_old_is_told_in_old_words() -> None:
    for version, error in ((3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)):
        story = Story(settings=SETTINGS, versions={m.InitProducerId: version})
        me = story.identity()
        story.identity()
        story.identity()
        assert story.init(expected=me).error is error


def test_offsets_of_a_group_that_was_not_added_are_refused() -> None:
    story = story_of(0)
    me = story.identity()
    assert story.commit_offset(me, "readers", 5) is ErrorCode.TRANSACTION_ABORTABLE
    added = add_offsets_request(me, "readers")
    assert story.ask(added).error is ErrorCode.NONE
    assert story.commit_offset(me, "readers", 5) is ErrorCode.NONE
    assert story.offset("readers").offset == -1
    assert story.end(me, COMMIT).error is ErrorCode.NONE
    assert story.offset("readers").offset == 5


def test_a_transaction_with_offsets_ends_before_any_group_has_a_coordinator() -> None:
    """A client of old may die between AddOffsetsToTxn and FindCoordinator, which creates
    `__consumer_offsets`.
    """
    story = Story.over(Memory())
    story.ask(m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key="pay"))
    me = story.identity()
    added = add_offsets_request(me, "readers")
    assert story.ask(added).error is ErrorCode.NONE
    story.end(me, ABORT)
    assert story.transaction().state is COMPLETE_ABORT


def test_a_client_of_old_may_begin_at_any_sequence_where_nothing_is_known_of_it() -> None:
    """Its sequences run on over transactions, and retention may have taken what was before (KIP-360)."""
    story = story_of(0)
    me = story.identity()
    assert write(story, me, "a", 17) is ErrorCode.NONE
    today = story_of(2, client=2)
    assert today.produce(today.identity(), "a", sequence=17).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# --- clients of old on a newest cluster, and their change to today's ---------------------------------------


def test_a_client_of_old_keeps_its_epoch_on_a_newest_cluster() -> None:
    story = story_of(2)
    me = story.identity()
    write(story, me, "a", 0)
    story.end(me, COMMIT)
    write(story, me, "b", 1)
    story.end(me, ABORT)
    assert [record.client_version for record in story.records()] == [0] * len(story.records())
    number, epoch = me
    assert story.written() == f"a | commit {number}/{epoch} | b | abort {number}/{epoch}"
    assert story.visible() == "a"


def test_a_newest_cluster_fences_a_client_of_old_by_markers_of_today() -> None:
    story, me = in_state(ONGOING, 2)
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    fenced = story.records()[-1]
    assert (fenced.producer_epoch, fenced.client_version) == (me.producer_epoch + 1, 2)
    assert story.end(me, COMMIT).error is ErrorCode.PRODUCER_FENCED, "it speaks a generation without retries"


def test_a_client_is_upgraded_between_two_transactions() -> None:
    story = story_of(2)
    me = story.identity()
    write(story, me, "a", 0)
    story.end(me, COMMIT)
    story.versions = {}
    assert story.produce(me, "b", sequence=1).error is ErrorCode.NONE, (
        "the same epoch, so the sequence runs on"
    )
    heir = story.ended(me, COMMIT)
    assert heir == me._replace(producer_epoch=me.producer_epoch + 1)
    assert story.produce(heir, "c").error is ErrorCode.NONE
    story.ended(heir, ABORT)
    assert story.visible() == "a b"


# --- the anomalies that the generations were made for ------------------------------------------------------


def late_end(version: int, result: TransactionResult, late: TransactionResult) -> tuple[Story, Reply]:
    """The first try of an end is held up; its retry ends T1, and T2 is half written when the first comes."""
    story = story_of(version, client=version)
    me = heir = story.identity()

    def put(who: Identity, value: str, sequence: int, key: TopicPartition) -> None:
        if version < 2:
            assert add(story, who, key) is ErrorCode.NONE
        assert story.produce(who, value, key=key, sequence=sequence).error is ErrorCode.NONE

    put(me, "one", 0, ORDERS)
    ended = story.end(me, late)
    if version == 2:
        heir = identity_of(ended)
    put(heir, "two", 1 if version < 2 else 0, ORDERS)
    reply = story.end(me, late)
    put(heir, "more", 0, OTHERS)
    assert story.end(heir, result).error is ErrorCode.NONE
    return story, reply


def test_a_late_commit_tears_the_next_transaction_apart() -> None:
    """KAFKA-17754 (Jepsen, 2024): T2 is aborted, and half of it is read all the same."""
    story, reply = late_end(0, ABORT, late=COMMIT)
    assert reply.error is ErrorCode.NONE
    assert (story.visible(), story.visible(OTHERS)) == ("one two", "")


def test_a_late_abort_loses_half_of_the_next_transaction() -> None:
    story, reply = late_end(0, COMMIT, late=ABORT)
    assert reply.error is ErrorCode.NONE
    assert (story.visible(), story.visible(OTHERS)) == ("", "more")


@pytest.mark.parametrize(
    ("result", "late", "seen"), [(ABORT, COMMIT, ("one", "")), (COMMIT, ABORT, ("two", "more"))]
)
def test_an_epoch_per_transaction_fences_the_late_end(
    result: TransactionResult, late: TransactionResult, seen: tuple[str, str]
) -> None:
    story, reply = late_end(2, result, late)
    assert reply.error is ErrorCode.PRODUCER_FENCED
    assert (story.visible(), story.visible(OTHERS)) == seen


def late_produce(version: int, *, verification: bool) -> tuple[Story, ErrorCode]:
    """A batch is held up, its transaction is given up and aborted, and then it arrives (KAFKA-14402)."""
    story = story_of(version, verification=verification, client=version)
    me = story.identity()
    if version < 2:
        assert add(story, me) is ErrorCode.NONE
    assert story.end(me, ABORT).error is ErrorCode.NONE
    return story, story.produce(me, "late").error


def test_without_verification_a_late_batch_hangs() -> None:
    story, error = late_produce(0, verification=False)
    assert error is ErrorCode.NONE
    heir = story.identity("other")
    write_other = story.ask(add_request(heir, ORDERS, name="other"))
    assert write_other.error is ErrorCode.NONE
    assert story.produce(heir, "after", name="other").error is ErrorCode.NONE
    assert story.end(heir, COMMIT, "other").error is ErrorCode.NONE
    story.wait(24 * 3_600_000)
    assert story.visible(isolation_level=UNCOMMITTED) == "late after"
    assert story.visible() == "", "no reader of committed data comes past it, and nobody will ever end it"
    assert story.transaction().state is COMPLETE_ABORT


def test_with_verification_a_late_batch_is_refused() -> None:
    story, error = late_produce(0, verification=True)
    assert error is ErrorCode.TRANSACTION_ABORTABLE
    assert story.visible(isolation_level=UNCOMMITTED) == ""


def test_with_an_epoch_per_transaction_a_late_batch_is_fenced() -> None:
    _, error = late_produce(2, verification=False)
    assert error is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("version", "error", "seen"), [(0, ErrorCode.NONE, "late"), (2, ErrorCode.INVALID_PRODUCER_EPOCH, "")]
)
def test_a_late_batch_joins_the_next_transaction_unless_epochs_differ(
    version: int, error: ErrorCode, seen: str
) -> None:
    """Verification alone does not help: by then the partition is in a transaction again."""
    story = story_of(version, client=version)
    me = heir = story.identity()
    if version < 2:
        add(story, me)
        story.end(me, ABORT)
        add(story, me)
    else:
        heir = story.ended(me, ABORT)
    assert story.produce(me, "late").error is error
    assert story.end(heir, COMMIT).error is (ErrorCode.NONE if version < 2 else ErrorCode.INVALID_TXN_STATE)
    assert story.visible() == seen


def test_a_marker_between_the_coordinators_yes_and_the_append_stops_the_batch() -> None:
    """KAFKA-14884, for clients of old: the marker takes the guard along that the batch would have shown."""
    story = story_of(0)
    me = story.identity()
    assert add(story, me) is ErrorCode.NONE
    to = story.offer(produce_request(me, {ORDERS: "late"}))
    while not any(isinstance(arrived, Answered) for arrived in story.host.inbox):
        assert story.work()
    marker = Received(marker_request(me, ABORT, ORDERS, transaction_version=0), to=ReplyTo(9, 1))
    story.host.inbox.appendleft(marker)
    story.settle()
    assert produced(story.replies.pop(to))[ORDERS].error is ErrorCode.INVALID_TXN_STATE
    assert story.written() == f"abort {me.producer_id}/{me.producer_epoch}"


@pytest.mark.parametrize(
    ("is_verified", "error"), [(True, ErrorCode.INVALID_PRODUCER_EPOCH), (False, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_without_verification_the_group_looks_at_the_member_before_the_log_looks_at_the_epoch(
    is_verified: bool, error: ErrorCode
) -> None:
    """Recorded of Kafka 4.3.1: a verification begins with the epoch, and so does an append."""
    story = story_of(0, verification=is_verified)
    old, new = story.identity(), story.identity()
    added = add_offsets_request(new, "readers")
    assert story.ask(added).error is ErrorCode.NONE
    assert story.commit_offset(new, "readers", 7) is ErrorCode.NONE
    stale = attrs.evolve(offset_request(old, "readers", {ORDERS: 8}), generation_id=3, member_id="m")
    reply = body_of(story.ask(stale), m.TxnOffsetCommitReply)
    assert [part.error for part in reply.partitions] == [error]
    assert story.commit_offset(old, "readers", 8) is ErrorCode.INVALID_PRODUCER_EPOCH
    story.ended(new, COMMIT)
    assert story.offset("readers").offset == 7
