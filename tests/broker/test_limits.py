"""Limits: what is too large is refused before it is decided, and the refusal leaves no trace."""

from __future__ import annotations

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker import limits
from fencepost.broker.limits import GROUP_MEMBERS, TRANSACTIONAL_ID
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.handlers import PARTITION_SIZE_MAX, RECORD_RESERVE, RECORD_REST_MAX
from fencepost.journal.segments import BATCH_SIZE_MAX
from fencepost.protocol import messages as m
from fencepost.protocol.batches import HEADER_SIZE, MAGIC_COLUMNS, MAGIC_KAFKA, build_batch, read_header
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FRAME_SIZE_MAX
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.metadata_log import (
    ClusterRecord,
    PartitionCreated,
    TopicConfigured,
    TopicCreated,
    cluster_batch,
)
from fencepost.protocol.offsets_log import read_group_batch
from fencepost.protocol.records import build_data_batch, check_records, read_columns
from fencepost.protocol.terms import (
    INT32_MAX,
    INT64_MAX,
    METADATA_PARTITION,
    TOPIC_NAME_LENGTH_MAX,
    ConfigOperation,
    GroupState,
    TopicPartition,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord, transaction_batch
from tests.broker.group_story import GROUP, GroupStory, join_request, protocols, sync_request
from tests.broker.requests import (
    COMMIT,
    NOON,
    ORDERS,
    OTHERS,
    Identity,
    add_request,
    body_of,
    init_request,
    offset_request,
    offset_to_commit,
    plain_offset_request,
    produce_batches,
    produced,
)
from tests.broker.story import SETTINGS, LogEntry, Story, offsets_log_of, transaction_log_of

SMALL = attrs.evolve(SETTINGS, message_max_bytes=1_000)
TOO_LARGE = ErrorCode.UNKNOWN_SERVER_ERROR  # what Apache Kafka 4.3.1 answers
WIDE = 100  # partitions: their offsets do not fit into one batch of 1,000 bytes


def state_of(story: Story, key: TopicPartition) -> tuple[object, int]:
    """What a request must not have changed: the state, and the number of batches in the log."""
    return story.host.node.state_of(key), len(story.log(key))


def test_every_batch_that_a_frame_can_carry_is_one_that_recovery_reads() -> None:
    assert FRAME_SIZE_MAX < BATCH_SIZE_MAX
    assert SMALL.message_max_bytes < NodeSettings().message_max_bytes < FRAME_SIZE_MAX


# --- offsets ---------------------------------------------------------------------------------------------


def many_offsets(request: m.OffsetCommit, count: int) -> m.OffsetCommit:
    return attrs.evolve(request, offsets=(offset_to_commit(ORDERS, 9),) * count)


def test_a_commit_that_makes_a_large_batch_is_refused_and_changes_nothing() -> None:
    story = Story()
    story.ask(plain_offset_request("g" * 200, {ORDERS: 5}))
    log = offsets_log_of("g" * 200)
    before = state_of(story, log)
    reply = story.ask(many_offsets(plain_offset_request("g" * 200, {ORDERS: 9}), 4_400))
    assert {part.error for part in body_of(reply, m.OffsetCommitReply).partitions} == {TOO_LARGE}
    assert state_of(story, log) == before
    story.restart()
    assert story.offset("g" * 200).offset == 5


def test_an_unknown_partition_is_told_apart_from_a_large_batch() -> None:
    story = Story(settings=SMALL)
    request = plain_offset_request("g", {TopicPartition("ghost", 0): 1})
    large = tuple(offset_to_commit(key, 9, metadata="x" * 900) for key in (ORDERS, OTHERS))
    reply = story.ask(attrs.evolve(request, offsets=request.offsets + large))
    errors = [part.error for part in body_of(reply, m.OffsetCommitReply).partitions]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOO_LARGE, TOO_LARGE]


def test_the_transaction_goes_on_after_offsets_that_were_too_large() -> None:
    story = Story(settings=SMALL)
    me = story.identity()
    request = offset_request(me, "g", {ORDERS: 9})
    large = tuple(offset_to_commit(key, 9, metadata="x" * 900) for key in (ORDERS, OTHERS))
    reply = story.ask(attrs.evolve(request, offsets=large))
    assert {part.error for part in body_of(reply, m.TxnOffsetCommitReply).partitions} == {TOO_LARGE}
    assert story.commit_offset(me, "g", 7) is ErrorCode.NONE
    story.ended(me, COMMIT)
    assert story.offset("g").offset == 7


# --- deleting what is large ------------------------------------------------------------------------------


def wide_group(name: str = "g") -> Story:
    """A group with more offsets than one batch of tombstones holds."""
    story = Story(settings=SMALL, topics={"orders": 2, "wide": WIDE})
    for number in range(WIDE):
        story.ask(plain_offset_request(name, {TopicPartition("wide", number): 1}))
    return story


def tombstones(entries: list[LogEntry]) -> list[tuple[int, int]]:
    """(offsets, groups) that each batch forgets."""
    found: list[tuple[int, int]] = []
    for header, batch in entries:
        records = read_group_batch(batch, header)
        offsets = [key for key, record in records.offsets if record is None]
        groups = [key for key, record in records.groups if record is None]
        found.append((len(offsets), len(groups)))
    return [pair for pair in found if pair != (0, 0)]


def test_a_group_with_many_offsets_is_deleted_in_several_batches_and_the_group_last() -> None:
    story = wide_group()
    body = body_of(story.ask(m.DeleteGroups(groups=("g",))), m.DeleteGroupsReply)
    assert [group.error for group in body.groups] == [ErrorCode.NONE]
    written = tombstones(story.log(offsets_log_of("g")))
    assert sum(offsets for offsets, _ in written) == WIDE
    assert [groups for _, groups in written] == [0] * (len(written) - 1) + [1]
    assert len(written) > 1
    assert all(len(entry.batch) <= SMALL.message_max_bytes for entry in story.log(offsets_log_of("g")))
    story.restart()
    assert body_of(story.ask(m.ListGroups(states=())), m.ListGroupsReply).groups == ()


def test_a_kill_between_the_batches_leaves_a_group_that_can_be_deleted_again() -> None:
    story = wide_group()
    log = offsets_log_of("g")
    before = len(story.log(log))
    story.offer(m.DeleteGroups(groups=("g",)))
    while len(story.log(log)) < before + 2:
        assert story.work()
    story.restart()
    offsets = body_of(
        story.ask(m.OffsetFetch(group_id="g", require_stable=False, partitions=None)), m.OffsetFetchReply
    ).offsets
    assert 0 < len(offsets) < WIDE
    body = body_of(story.ask(m.DeleteGroups(groups=("g",))), m.DeleteGroupsReply)
    assert [group.error for group in body.groups] == [ErrorCode.NONE]
    assert body_of(story.ask(m.ListGroups(states=())), m.ListGroupsReply).groups == ()


def test_the_offsets_of_a_large_deleted_topic_are_forgotten() -> None:
    story = wide_group()
    story.ask(m.DeleteTopics(topics=("wide",)))
    story.settle()
    request = m.OffsetFetch(group_id="g", require_stable=False, partitions=None)
    assert body_of(story.ask(request), m.OffsetFetchReply).offsets == ()


# --- groups ----------------------------------------------------------------------------------------------


def test_an_assignment_that_is_too_large_is_refused_and_the_members_join_again() -> None:
    story = GroupStory(settings=SMALL)
    ids = [story.new_id(), story.new_id()]
    for to in story.all_join(ids):
        story.joined(to)
    leader, follower = story.leader or "", *(each for each in ids if each != story.leader)
    written, generation = len(story.log(offsets_log_of(GROUP))), story.generation
    waiting = story.starts(sync_request(generation, follower))
    reply = story.ask(sync_request(generation, leader, {leader: "x" * 3_000}))
    assert (reply.error, story.replies.pop(waiting).error) == (TOO_LARGE, TOO_LARGE)
    assert story.state is GroupState.PREPARING_REBALANCE
    assert story.beat(generation, follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(story.log(offsets_log_of(GROUP))) == written
    for to in story.all_join(ids):
        story.joined(to)
    story.stabilized(ids)
    assert story.state is GroupState.STABLE


def test_a_static_member_does_not_return_into_a_record_that_is_too_large() -> None:
    story = GroupStory(settings=attrs.evolve(SMALL, message_max_bytes=700))
    story.joined(story.starts(join_request(instance="i")))
    member_id = story.leader or ""
    assert story.synced(story.starts(sync_request(story.generation, member_id, {member_id: "x" * 500})))
    before = state_of(story, offsets_log_of(GROUP)), story.group
    reply = story.ask(join_request(instance="i", supports=protocols("range", said=b"s" * 300)))
    assert reply.error is TOO_LARGE
    assert (state_of(story, offsets_log_of(GROUP)), story.group) == before


def test_the_members_of_a_group_bring_so_many_bytes_and_not_more() -> None:
    """Its record bounds the metadata of the protocol that was chosen, and not that of all others."""
    large = protocols("range", said=b"s" * (GROUP_MEMBERS.value // 8 - 1_500))
    story = GroupStory()
    for number in range(8):
        story.starts(join_request(instance=f"i{number}", supports=large))
    ids = [story.new_id(), story.new_id()]
    before = state_of(story, offsets_log_of(GROUP)), story.group
    for request in (join_request(), join_request(instance="i8"), join_request(instance="i9", supports=large)):
        assert story.ask(request).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    larger = protocols("range", "other", said=b"s" * GROUP_MEMBERS.value)
    assert story.ask(join_request(instance="i0", supports=larger)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (state_of(story, offsets_log_of(GROUP)), story.group) == before
    # Who is in the group may come again, and who leaves makes room.
    assert story.waits(story.starts(join_request(instance="i0", supports=large)))
    assert story.leave(ids[0]) is ErrorCode.NONE
    assert story.new_id()


# --- transactions ----------------------------------------------------------------------------------------


def added(story: Story, who: Identity, *keys: TopicPartition) -> set[ErrorCode]:
    reply = story.ask(add_request(who, *keys))
    if reply.error is not ErrorCode.NONE:
        return {reply.error}
    return {part.error for part in body_of(reply, m.AddPartitionsToTxnReply).partitions}


def test_a_transaction_that_is_too_large_to_grow_can_still_be_ended() -> None:
    story = Story(settings=SMALL, topics={"orders": 2, "wide": 400})
    me, log = story.identity(), transaction_log_of("pay")
    assert added(story, me, *(TopicPartition("wide", number) for number in range(400))) == {TOO_LARGE}
    assert story.transaction().partitions == ()
    results = [added(story, me, TopicPartition("wide", number)) for number in range(400)]
    fit = results.index({TOO_LARGE})
    assert results == [{ErrorCode.NONE}] * fit + [{TOO_LARGE}] * (400 - fit)
    assert len(story.transaction().partitions) == fit > 100
    story.ended(me, COMMIT)
    assert all(len(entry.batch) <= SMALL.message_max_bytes for entry in story.log(log))


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_record_that_is_not_measured_is_never_larger_than_assumed(count: int) -> None:
    names = (f"{number}".zfill(TOPIC_NAME_LENGTH_MAX) for number in range(count))
    record = TransactionRecord(
        producer_id=INT64_MAX,
        previous_producer_id=INT64_MAX,
        next_producer_id=INT64_MAX,
        producer_epoch=1,
        timeout_ms=1,
        state=TransactionState.ONGOING if count else TransactionState.EMPTY,
        partitions=tuple(TopicPartition(name, 1) for name in names),
        update_ms=NOON,
        start_ms=NOON,
        client_version=2,
    )
    batch = transaction_batch("\U0001f4b0" * TRANSACTIONAL_ID.value, record, timestamp=NOON)
    assert len(batch) + RECORD_RESERVE <= RECORD_REST_MAX + PARTITION_SIZE_MAX * count


# --- topics ----------------------------------------------------------------------------------------------


def create(*counts: int) -> m.CreateTopics:
    topics = [m.CreateTopic(topic=f"t{at}", partition_count=count) for at, count in enumerate(counts)]
    return m.CreateTopics(topics=tuple(topics))


@pytest.mark.parametrize("counts", [(10_000,) * 240, (10_001,), (6_000, 6_000), (-5, 10_001), (2**31 - 1,)])
def test_a_request_for_too_many_partitions_is_refused_as_a_whole(counts: tuple[int, ...]) -> None:
    story = Story()
    before = state_of(story, METADATA_PARTITION)
    answers = body_of(story.ask(create(*counts)), m.CreateTopicsReply).topics
    assert {answer.error for answer in answers} == {ErrorCode.POLICY_VIOLATION}
    assert len(answers) == len(counts)
    assert state_of(story, METADATA_PARTITION) == before


def test_a_cluster_has_so_many_partitions_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    there = sum(len(topic.leaders) for topic in story.host.node.cluster.topics.values())
    few = limits.CLUSTER_PARTITIONS._replace(value=there + 3)
    monkeypatch.setattr("fencepost.broker.cluster.topics.CLUSTER_PARTITIONS", few)
    errors = [
        body_of(story.ask(request), m.CreateTopicsReply).topics[0].error for request in (create(4), create(3))
    ]
    assert errors == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]


def test_a_setting_that_is_named_many_times_is_written_once() -> None:
    story = Story()
    configs = tuple(m.TopicConfig(name="max.message.bytes", value=str(value)) for value in range(1_000))
    topic = m.CreateTopic(topic="t", partition_count=1, configs=configs)
    body_of(story.ask(m.CreateTopics(topics=(topic,))), m.CreateTopicsReply)
    assert story.host.node.cluster.topics["t"].configs == {"max.message.bytes": "999"}
    assert story.log(METADATA_PARTITION)[-1].header.record_count == 3


def set_config(topic: str, value: str | None) -> m.IncrementalAlterConfigs:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = m.ConfigChange(name="retention.ms", operation=operation, value=value)
    changes = m.TopicConfigChanges(topic=topic, changes=(change,))
    return m.IncrementalAlterConfigs(topics=(changes,), validate_only=False)


def test_the_settings_of_all_topics_fit_into_a_snapshot_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(topics={"orders": 1, "others": 1})
    few = limits.CLUSTER_CONFIGS._replace(value=1_000)
    monkeypatch.setattr("fencepost.broker.cluster.config_changes.CLUSTER_CONFIGS", few)

    def error_of(topic: str, value: str | None) -> ErrorCode:
        reply = story.ask(set_config(topic, value))
        return body_of(reply, m.IncrementalAlterConfigsReply).topics[0].error

    assert error_of("orders", "9".rjust(900)) is ErrorCode.NONE
    before = state_of(story, METADATA_PARTITION)
    assert error_of("others", "9".rjust(100)) is ErrorCode.POLICY_VIOLATION
    configs = (m.TopicConfig(name="retention.ms", value="9".rjust(100)),)
    topic = m.CreateTopic(topic="t", partition_count=1, configs=configs)
    answers = body_of(story.ask(m.CreateTopics(topics=(topic,))), m.CreateTopicsReply).topics
    assert [answer.error for answer in answers] == [ErrorCode.POLICY_VIOLATION]
    assert state_of(story, METADATA_PARTITION) == before
    assert error_of("orders", None) is ErrorCode.NONE
    assert error_of("others", "9".rjust(900)) is ErrorCode.NONE


def test_the_largest_snapshot_of_the_metadata_is_one_that_recovery_reads() -> None:
    """What a topic, a partition and a setting take, at worst, as often as a cluster may have them."""
    name, topic_id = "t" * TOPIC_NAME_LENGTH_MAX, bytes(16)

    def size_each(*records: ClusterRecord) -> int:
        return len(cluster_batch(records * 20_000, timestamp=NOON)) // 20_000 + 1

    topic = size_each(
        TopicCreated(name, topic_id=topic_id, created_ms=0),
        PartitionCreated(topic_id, partition=INT32_MAX, leader_id=INT32_MAX, leader_epoch=INT32_MAX),
    )
    short = size_each(TopicConfigured("t", name="segment.ms", value="1")) / len("tsegment.ms1")
    wide = size_each(TopicConfigured("t", name="segment.ms", value="1".rjust(900, "\u3000"))) / 900
    settings = int(max(short, wide) * limits.CLUSTER_CONFIGS.value)
    assert topic * limits.CLUSTER_PARTITIONS.value + settings < BATCH_SIZE_MAX // 2


# --- what a request may name -----------------------------------------------------------------------------

LONG = "x" * 250


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (plain_offset_request(LONG, {ORDERS: 1}), ErrorCode.INVALID_GROUP_ID),
        (init_request(LONG), ErrorCode.INVALID_REQUEST),
        (join_request(group=LONG), ErrorCode.INVALID_GROUP_ID),
        (join_request(instance=LONG), ErrorCode.INVALID_REQUEST),
        (m.Metadata(topics=("t",) * 20_001), ErrorCode.INVALID_REQUEST),
        (many_offsets(plain_offset_request("g", {ORDERS: 1}), 20_001), ErrorCode.INVALID_REQUEST),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else type(value).__name__,
)
def test_a_request_that_names_too_much_is_refused_before_anything_is_done(
    request_: m.Request, error: ErrorCode
) -> None:
    story = Story()
    before = [state_of(story, key) for key in story.host.node.logs]
    assert story.ask(request_).error is error
    assert [state_of(story, key) for key in story.host.node.logs] == before


# --- records and their timestamps ------------------------------------------------------------------------


def produced_error(story: Story, records: bytearray) -> ErrorCode:
    before = state_of(story, ORDERS)
    error = produced(story.ask(produce_batches({ORDERS: records}, name=None)))[ORDERS].error
    assert (state_of(story, ORDERS) == before) is (error is not ErrorCode.NONE)
    return error


def column_batch(columns: object, *, count: int = 2) -> bytearray:
    return build_batch(
        msgpack.packb(columns),
        magic=MAGIC_COLUMNS,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=NOON,
    )


V = [b"a", b"b"]
GARBAGE = [
    column_batch([None, None, V, None, None], count=1),
    column_batch([None, None, V, None, None], count=3),
    column_batch([None, None, V, None, None], count=2**31 - 1),
    column_batch([None, None, V, None]),
    column_batch([None, None, V, None, None, None]),
    column_batch([None, None, None, None, None]),
    column_batch([None, None, 2, None, None]),
    column_batch([None, [b"k"], V, None, None]),
    column_batch([None, None, V, [1], None]),
    column_batch([None, None, [7] * 2, None, None]),
    column_batch([None, None, V, None, [None]]),
    column_batch([[0, 2], None, V, None, None]),
    column_batch([None, None, [b"x"] * 20, None, None], count=20_000),
    column_batch(7),
    *(
        build_batch(garbage, magic=magic, record_count=2, last_offset_delta=1, base_timestamp=NOON)
        for magic in (MAGIC_COLUMNS, MAGIC_KAFKA)
        for garbage in (
            b"",
            b"\x99" * 20,
            b"\xc1" * 20,
            b"\xdd" * 9,
            msgpack.packb([None, None, V, None, None]) + b"x",
            msgpack.packb([None, None, V, None, None])[:-1],
            b"\x91" * 5_000,
        )
    ),
    build_batch(
        build_kafka_batch([KafkaRecord(None, b"v")], timestamp=NOON)[HEADER_SIZE:],
        record_count=2,
        last_offset_delta=1,
        base_timestamp=NOON,
    ),
    build_batch(b"x", magic=MAGIC_COLUMNS, attributes=7, base_timestamp=NOON),
]


@pytest.mark.parametrize("records", GARBAGE, ids=lambda records: bytes(records[HEADER_SIZE:][:16]).hex())
def test_records_that_no_reader_could_read_are_refused(records: bytearray) -> None:
    assert produced_error(Story(), records) is ErrorCode.INVALID_RECORD


@given(
    st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=70),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_records_as_producers_build_them_are_accepted(
    values: list[bytes | None], has_keys: bool, has_times: bool, has_headers: bool
) -> None:
    batch = build_data_batch(
        values,
        keys=values if has_keys else None,
        timestamp_deltas=list(range(len(values))) if has_times else None,
        headers=[[("name", value)] for value in values] if has_headers else None,
        base_timestamp=NOON,
    )
    check_records(batch, read_header(batch))
    of_kafka = build_kafka_batch([KafkaRecord(value, value) for value in values], timestamp=NOON)
    check_records(of_kafka, read_header(of_kafka))


@given(st.binary(max_size=64), st.integers(1, 5))
def test_any_bytes_are_columns_or_refused(payload: bytes, count: int) -> None:
    batch = build_batch(
        payload, magic=MAGIC_COLUMNS, record_count=count, last_offset_delta=count - 1, base_timestamp=0
    )
    header = read_header(batch)
    try:
        columns = read_columns(batch, header)
    except ProtocolViolation:
        columns = None
    if columns is not None and columns.offset_deltas is None:
        check_records(batch, header)  # a producer's batch that a reader takes is never refused


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("first", "last", "error"),
    [
        (NOON + HOUR_MS, NOON + HOUR_MS, ErrorCode.NONE),
        (NOON + 2 * HOUR_MS, NOON + 2 * HOUR_MS, ErrorCode.INVALID_TIMESTAMP),
        (NOON, NOON + 2 * HOUR_MS, ErrorCode.INVALID_TIMESTAMP),
        (NOON + 2 * HOUR_MS, NOON, ErrorCode.INVALID_TIMESTAMP),
        (0, 0, ErrorCode.NONE),
        (-1, -1, ErrorCode.NONE),
        (-5, -5, ErrorCode.NONE),
    ],
)
def test_a_batch_is_not_of_the_future(first: int, last: int, error: ErrorCode) -> None:
    batch = build_data_batch([b"a"], base_timestamp=first, max_timestamp=last)
    assert produced_error(Story(), batch) is error


@pytest.mark.parametrize(("age_ms", "error"), [(900, ErrorCode.NONE), (1_100, ErrorCode.INVALID_TIMESTAMP)])
def test_a_batch_is_not_older_than_the_setting_says(age_ms: int, error: ErrorCode) -> None:
    story = Story(settings=attrs.evolve(SETTINGS, log_message_timestamp_before_max_ms=1_000))
    batch = build_data_batch([b"a"], base_timestamp=story.now + 1 - age_ms)
    assert produced_error(story, batch) is error
    assert produced_error(story, build_data_batch([b"a"], base_timestamp=-1)) is ErrorCode.NONE
