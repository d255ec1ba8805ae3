"""A bug in a handler: one request is refused, and the broker goes on with a state that equals its logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, get_args

import attrs
import pytest

from fencepost.broker import dispatch
from fencepost.broker.cluster import controller
from fencepost.broker.contract import Answered, BecomeLeader, Durable
from fencepost.broker.groups import consumer_handlers
from fencepost.broker.groups import handlers as group_handlers
from fencepost.broker.host import MetadataLost
from fencepost.broker.memory import FETCHES_MAX
from fencepost.broker.node import Node
from fencepost.broker.partitions import fetch, partition
from fencepost.broker.purgatory import InFlight, InFlightMarkers
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions import handlers, markers
from fencepost.broker.transactions.state import Transactions
from fencepost.journal.journal import Journal
from fencepost.journal.storage import StorageError
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint
from fencepost.protocol.frames import encode_request
from fencepost.protocol.terms import METADATA_PARTITION, ConfigOperation, TopicPartition, TransactionState
from tests.broker.group_story import join_request
from tests.broker.requests import (
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    body_of,
    end_request,
    fetch_request,
    fetched,
    init_request,
    produce_request,
    produced,
)
from tests.broker.story import Story
from tests.broker.test_consumer_groups import beat_request
from tests.broker.wire import serving

LIST = m.ListGroups(states=())
GROW = m.CreatePartitions(topics=(m.NewPartitions(topic="orders", count=3),), validate_only=False)


class Bug(Exception):
    """What no code expects."""


def bug(*_: object, **__: object) -> NoReturn:
    raise Bug("planted")


class ContainedStory(Story):
    """A host that contains failures, as that of a server."""

    def start(self) -> None:
        super().start()
        self.host.contains_failures = True
        self.host.node.contain = self.host._contain  # pyright: ignore[reportPrivateUsage] - as the host itself


@pytest.fixture
def story() -> ContainedStory:
    return ContainedStory()


def plant(monkeypatch: pytest.MonkeyPatch, kind: type[m.Request]) -> None:
    monkeypatch.setitem(dispatch.REQUESTS, kind, bug)


def after(handler: Callable[..., None]) -> Callable[..., NoReturn]:
    """The handler, and then the bug: everything that it did is half of the work."""

    def handle(*args: Any) -> NoReturn:
        handler(*args)
        raise Bug("planted")

    return handle


def test_without_the_barrier_a_bug_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations and tests want to see it."""
    plant(monkeypatch, m.ListGroups)
    with pytest.raises(Bug):
        Story().ask(LIST)


def test_a_request_that_meets_a_bug_is_refused_and_changes_nothing(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    before = fingerprint(story.host.node)
    with monkeypatch.context() as planted:
        plant(planted, m.ListGroups)
        for _ in range(10):
            assert story.ask(LIST).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert fingerprint(story.host.node) == before
    assert body_of(story.ask(LIST), m.ListGroupsReply).groups == ()
    texts, causes, _ = zip(*story.host.troubles, strict=True)
    assert len(set(causes)) == 1, "one cause, which the server prints once"
    assert "ListGroups(states=(), types=())" in texts[0]
    assert "Bug: planted" in texts[0]


def test_what_a_request_entered_before_the_bug_is_read_again_from_the_log(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug strikes at the second partition of a Produce; the first one has entered its batch."""
    me = story.identity(), "pay"
    story.produce(me[0], "a")
    story.produce(me[0], "x", key=OTHERS)
    apply = partition.apply

    def buggy(state: partition.Partition, header: BatchHeader, batch: Any) -> Any:
        if state.key == OTHERS:
            raise Bug("planted")
        return apply(state, header, batch)

    again = produce_request(me[0], {ORDERS: "b", OTHERS: "y"}, sequence=1)
    with monkeypatch.context() as planted:
        planted.setattr(partition, "apply", buggy)
        to = story.offer(again)
        story.run()
        assert story.replies.pop(to).error is ErrorCode.UNKNOWN_SERVER_ERROR
    story.settle()
    assert (story.visible(ORDERS, UNCOMMITTED), story.visible(OTHERS, UNCOMMITTED)) == ("a", "x")
    assert {part.error for part in produced(story.ask(again)).values()} == {ErrorCode.NONE}
    story.ended(me[0], COMMIT)
    assert (story.visible(ORDERS), story.visible(OTHERS)) == ("a b", "x y")
    assert story.check_recovery() > 0


def test_a_bug_after_the_controller_decided_leaves_the_topics_as_they_were(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    request = m.CreateTopics(topics=(m.CreateTopic(topic="late", partition_count=1),))
    with monkeypatch.context() as planted:
        handler = dispatch.REQUESTS[m.CreateTopics]
        planted.setitem(dispatch.REQUESTS, m.CreateTopics, after(handler))
        assert story.ask(request).error is ErrorCode.UNKNOWN_SERVER_ERROR
    names = [topic.topic for topic in body_of(story.ask(m.Metadata(topics=None)), m.MetadataReply).topics]
    assert "orders" in names
    assert "late" not in names
    assert story.visible() == "a"
    story.create("late")
    assert story.produce(NOBODY, "b", name=None).base_offset == 1
    assert story.check_recovery() > 0
    story.restart()
    assert METADATA_PARTITION in story.host.node.logs
    assert story.visible() == "a b"


def set_request(topic: str, name: str, value: str) -> m.IncrementalAlterConfigs:
    change = m.ConfigChange(name=name, operation=ConfigOperation.SET, value=value)
    return m.IncrementalAlterConfigs(
        topics=(m.TopicConfigChanges(topic=topic, changes=(change,)),), validate_only=False
    )


def test_changes_that_wait_to_be_durable_outlive_a_bug_in_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their records are in the log, which is read again; so the node obeys them without a restart."""
    story = ContainedStory(policy=SyncPolicy.COMMIT, topics={"orders": 2, "gone": 2, "kept": 1})
    gone, kept, new = (TopicPartition(name, 0) for name in ("gone", "kept", "new"))
    for key in (ORDERS, gone, kept):
        story.produce(NOBODY, "a", key=key, name=None)
    waiting = [
        story.offer(m.CreateTopics(topics=(m.CreateTopic(topic="new", partition_count=2),))),
        story.offer(m.DeleteTopics(topics=("gone",))),
        story.offer(set_request("kept", "segment.bytes", "1048576")),
    ]
    story.run()
    assert not story.replies.keys() & set(waiting)
    led = story.partition(ORDERS)
    with monkeypatch.context() as planted:
        handler = dispatch.REQUESTS[m.CreatePartitions]
        planted.setitem(dispatch.REQUESTS, m.CreatePartitions, after(handler))
        assert story.ask(GROW).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert story.partition(ORDERS) is led, "what was led before is not read again"
    assert story.produce(NOBODY, "b", key=new, name=None).base_offset == 0
    assert story.host.directory.journal(kept).settings.segment_bytes == 1_048_576
    assert not story.host.directory.has(gone)
    assert story.check_recovery() > 0


def test_what_became_durable_when_a_bug_hit_the_controller_is_obeyed_once(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug strikes after a change was released, and before this node has obeyed it."""
    is_planted = True

    def buggy(node: Node, arrived: Durable, now: int) -> None:
        nonlocal is_planted
        node.became_durable(arrived, now)
        if is_planted and arrived.partition == METADATA_PARTITION:
            is_planted = False
            raise Bug("planted")

    led: list[BecomeLeader] = []
    story.host.watch = lambda arrived, _: led.append(arrived) if isinstance(arrived, BecomeLeader) else None
    monkeypatch.setitem(dispatch.INPUTS, Durable, buggy)
    story.create("late")
    assert [order.partition for order in led] == [METADATA_PARTITION, TopicPartition("late", 0)]


def test_a_log_that_waits_for_an_election_is_not_led_under_its_old_epoch(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    epoch = story.partition().leader_epoch
    story.host.lose(ORDERS, StorageError("planted"))
    story.run()
    with monkeypatch.context() as planted:
        handler = dispatch.REQUESTS[m.CreatePartitions]
        planted.setitem(dispatch.REQUESTS, m.CreatePartitions, after(handler))
        to = story.offer(GROW)
        story.run()
        assert story.replies[to].error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ORDERS not in story.host.node.logs
    story.wait(10_000)
    assert story.partition().leader_epoch == epoch + 1
    assert story.visible() == "a"


def test_a_bug_while_a_log_start_moves_is_answered(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a b", name=None)
    epoch = story.partition().leader_epoch
    part = m.DeleteRecordsPartition(topic="orders", partition=0, offset=1)
    request = m.DeleteRecords(timeout_ms=1_000, partitions=(part,))
    with monkeypatch.context() as planted:
        planted.setattr(Journal, "move_log_start", bug)
        (refused,) = body_of(story.ask(request), m.DeleteRecordsReply).partitions
        assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR
    story.settle()
    assert story.partition().leader_epoch == epoch + 1
    (moved,) = body_of(story.ask(request), m.DeleteRecordsReply).partitions
    assert (moved.error, moved.low_watermark) == (ErrorCode.NONE, 1)


def test_a_bug_in_one_deadline_does_not_hold_up_the_others(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = list(dispatch.TICKS)
    monkeypatch.setattr(dispatch, "TICKS", (bug, *ticks))
    to = story.offer(attrs.evolve(fetch_request(ORDERS), max_wait_ms=500, min_bytes=1))
    story.wait(1_000)
    assert fetched(story.replies[to]).records == b""


@pytest.mark.parametrize(("module", "name"), [(markers, "send_due_markers"), (fetch, "wake_readers")])
def test_a_bug_in_follow_up_work_does_not_undo_the_request(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    me = story.identity()
    story.produce(me, "a")
    waits = story.offer(attrs.evolve(fetch_request(ORDERS), max_wait_ms=60_000, min_bytes=1))
    story.run()
    with monkeypatch.context() as planted:
        planted.setattr(module, name, bug)
        story.ended(me, COMMIT)
        story.run()
    story.ask(LIST)  # any step does what was left undone
    assert story.visible() == "a"
    assert fetched(story.ask(fetch_request(ORDERS))).records
    story.wait(60_000)
    assert waits in story.replies


def test_a_bug_while_batches_become_durable_costs_its_partition_its_leader(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    epoch = story.partition().leader_epoch

    def buggy(node: Node, arrived: Durable, now: int) -> None:
        if arrived.partition == ORDERS:
            raise Bug("planted")
        node.became_durable(arrived, now)

    with monkeypatch.context() as planted:
        planted.setitem(dispatch.INPUTS, Durable, buggy)
        to = story.offer(produce_request(NOBODY, {ORDERS: "b"}, name=None))
        story.run()
        assert produced(story.replies[to])[ORDERS].error is ErrorCode.KAFKA_STORAGE_ERROR
    story.settle()
    assert story.partition().leader_epoch == epoch + 1
    assert story.visible() == "a b"
    assert story.check_recovery() > 0


def test_every_kind_of_request_in_flight_has_a_handler_for_its_answer() -> None:
    assert set(dispatch.ANSWERS) == set(get_args(InFlight))


def test_an_answer_whose_handler_fails_is_followed_by_an_error(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the markers are sent again, as after a broken connection."""
    me = story.identity()
    story.produce(me, "a")
    take_marker_answers = markers.take_marker_answers
    failures = 0

    def buggy(node: Node, in_flight: Any, answer: Answered, now: int) -> None:
        nonlocal failures
        if answer.body is not None and failures < 2:
            failures += 1
            raise Bug("planted")
        take_marker_answers(node, in_flight, answer, now)

    monkeypatch.setitem(dispatch.ANSWERS, InFlightMarkers, buggy)
    story.ended(me, COMMIT)
    story.wait(10_000)
    assert failures == 2
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.visible() == "a"


def test_an_answer_that_no_path_can_handle_is_dropped(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = story.identity()
    story.produce(me, "a")
    monkeypatch.setitem(dispatch.ANSWERS, InFlightMarkers, bug)
    story.ended(me, COMMIT)
    story.wait(10_000)
    assert not [why for why in story.host.node.in_flight.values() if isinstance(why, InFlightMarkers)]


def test_a_block_of_producer_ids_is_asked_for_again(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = init_request(None)
    story.ask(request)
    ids = story.host.node.producer_ids
    ids.next_id, ids.next_block = ids.end - 1, None
    take = Node.take_producer_ids

    def buggy(node: Node, block: m.AllocateProducerIdsReply | None) -> None:
        if block is not None:
            raise Bug("planted")
        take(node, block)

    with monkeypatch.context() as planted:
        planted.setattr(Node, "take_producer_ids", buggy)
        for _ in range(3):
            story.ask(request)
    story.ask(request)
    assert story.ask(request).error is ErrorCode.NONE


def test_one_timeout_that_cannot_be_handled_does_not_hold_up_the_others(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        story.produce(story.identity(name), "x", name=name)
    abort = handlers.decide_timeout

    def buggy(state: Transactions, name: str, **options: Any) -> Any:
        if name == "a":
            raise Bug("planted")
        return abort(state, name, **options)

    monkeypatch.setattr(handlers, "decide_timeout", buggy)
    story.wait(600_000)
    ended = [story.states(name)[-1] is TransactionState.COMPLETE_ABORT for name in names]
    assert ended == [False, True, True, True]


def join_classic(story: Story, group: str) -> m.Request:
    return join_request(instance="member", group=group)


def join_consumers(story: Story, group: str) -> m.Request:
    beat = beat_request("member", 0, topics=("orders",), owned=(), story=story, timeout_ms=10_000)
    return attrs.evolve(beat, group_id=group)


@pytest.mark.parametrize(
    ("join", "module", "name"),
    [(join_classic, group_handlers, "_carry_out"), (join_consumers, consumer_handlers, "remove_members")],
)
def test_a_group_whose_deadline_cannot_be_handled_waits_for_that_of_another(
    story: ContainedStory,
    monkeypatch: pytest.MonkeyPatch,
    join: Callable[[Story, str], m.Request],
    module: Any,
    name: str,
) -> None:
    """Otherwise it would be tried again at once, for as long as the clock shows the same time."""
    handled: list[int] = []

    def buggy(*_: object) -> NoReturn:
        handled.append(story.now)
        raise Bug("planted")

    joined = [story.offer(join(story, "a"))]
    story.wait(10)
    joined.append(story.offer(join(story, "b")))
    story.settle()
    assert [story.replies.pop(to).error for to in joined] == [ErrorCode.NONE, ErrorCode.NONE]
    monkeypatch.setattr(module, name, buggy)
    story.wait(60_000)
    first, *others = handled
    assert others[:2] == [first + 10, first + 10]
    assert len(handled) < 20


def test_a_metadata_log_that_cannot_be_applied_stops_the_broker(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it again would fail again, forever."""
    monkeypatch.setattr(controller, "apply", bug)
    with pytest.raises(MetadataLost, match="cannot be read: planted"):
        story.create("late")


@pytest.mark.trio
async def test_a_request_is_answered_once_though_its_answer_also_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler of EndTxn fails after it has decided: its reply waits for the record, which is dropped."""
    handler = dispatch.VERSIONED_REQUESTS[m.EndTxn]
    async with serving(contains_failures=True) as (_, wires):
        wire = await wires.open()
        await wire.prepare()
        me = await wire.identity()
        await wire.ask_until_done(produce_request(me, {ORDERS: "a"}))
        with monkeypatch.context() as planted:
            planted.setitem(dispatch.VERSIONED_REQUESTS, m.EndTxn, after(handler))
            assert (await wire.ask(end_request(me, COMMIT))).error is ErrorCode.UNKNOWN_SERVER_ERROR
        await wire.ask(LIST)
        assert wire.arrived == {}, "a second answer came"


@pytest.mark.trio
async def test_a_connection_is_read_from_after_its_fetches_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(contains_failures=True) as (_, wires):
        wire = await wires.open()
        await wire.prepare()
        with monkeypatch.context() as planted:
            planted.setattr(fetch, "complete_fetch", bug)
            for _ in range(2 * FETCHES_MAX):
                reply = await wire.ask(fetch_request(ORDERS))
                assert reply.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert fetched(await wire.ask(fetch_request(ORDERS))).error is ErrorCode.NONE


@pytest.mark.trio
async def test_a_correlation_id_is_used_once_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    waiting = attrs.evolve(fetch_request(ORDERS), max_wait_ms=60_000, min_bytes=1)
    async with serving() as (_, wires):
        wire = await wires.open()
        await wire.prepare()
        await wire.stream.send_all(b"".join(encode_request(waiting, correlation_id=7)) * 2)
        assert await wire.is_closed_by_peer()
    assert "correlation id 7 is in use: an earlier request with it has no reply" in caplog.text


@pytest.mark.trio
async def test_other_clients_of_a_server_do_not_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(contains_failures=True) as (_, wires):
        one, other = await wires.open(), await wires.open()
        await one.prepare()
        plant(monkeypatch, m.ListGroups)
        for number in range(10):
            assert (await one.ask(LIST)).error is ErrorCode.UNKNOWN_SERVER_ERROR
            reply = await other.ask(produce_request(NOBODY, {ORDERS: f"{number}"}, name=None))
            assert produced(reply)[ORDERS].base_offset == number
    assert caplog.text.count("Bug: planted") == 1


def test_a_bug_while_bytes_are_read_is_an_error_for_that_reader(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    with monkeypatch.context() as planted:
        planted.setattr(fetch, "complete_fetch", bug)
        assert story.ask(fetch_request(ORDERS)).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert story.visible() == "a"


def test_a_bug_while_a_batch_is_written_costs_its_partition_its_leader(
    story: ContainedStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.produce(NOBODY, "a", name=None)
    epoch = story.partition().leader_epoch
    with monkeypatch.context() as planted:
        planted.setattr(Journal, "append", bug)
        to = story.offer(produce_request(NOBODY, {ORDERS: "b"}, name=None))
        story.run()
        assert produced(story.replies[to])[ORDERS].error is ErrorCode.KAFKA_STORAGE_ERROR
    story.settle()
    assert story.partition().leader_epoch == epoch + 1
    assert story.visible() == "a"
