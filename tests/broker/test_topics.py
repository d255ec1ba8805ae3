"""The controller's part: topics, leader epochs that rise with every start, and producer ids granted once."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest

from fencepost.broker.cluster.controller import PRODUCER_ID_BLOCK_SIZE, Controller, apply
from fencepost.broker.cluster.topics import create_topics
from fencepost.broker.contract import NOBODY as NO_ONE
from fencepost.broker.log_config import parse_config
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageError
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fork, log_state
from fencepost.protocol.metadata_log import BrokerRegistered
from fencepost.protocol.terms import (
    BROKERS_DEFAULT,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    METADATA_PARTITION,
    NO_OFFSET,
    NO_TOPIC_ID,
    TOPIC_NAME_LENGTH_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tests.broker.cluster import CONTROLLER, Cluster
from tests.broker.disks import keeps_nothing, story_of_a_forgotten_topic
from tests.broker.requests import (
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    batch,
    body_of,
    init_request,
    plain_offset_request,
    produce_batches,
    produce_request,
    produced,
)
from tests.broker.story import SETTINGS, Story, offsets_log_of


def create(name: str, partitions: int = 1) -> m.CreateTopics:
    return m.CreateTopics(topics=(m.CreateTopic(topic=name, partition_count=partitions),))


def created(story: Story, name: str, partitions: int = 1) -> ErrorCode:
    (answer,) = body_of(story.ask(create(name, partitions)), m.CreateTopicsReply).topics
    return answer.error


def deleted(story: Story, *names: str) -> list[ErrorCode]:
    body = body_of(story.ask(m.DeleteTopics(topics=names)), m.DeleteTopicsReply)
    return [answer.error for answer in body.topics]


def grown(story: Story, *wanted: tuple[str, int], validate_only: bool = False) -> list[ErrorCode]:
    topics = tuple(m.NewPartitions(topic=name, count=count) for name, count in wanted)
    reply = story.ask(m.CreatePartitions(topics=topics, validate_only=validate_only))
    return [answer.error for answer in body_of(reply, m.CreatePartitionsReply).topics]


def test_coordinators_stay_where_they_are_when_the_number_of_partitions_is_set_anew() -> None:
    story = Story()
    names = [f"pay-{number}" for number in range(5)]
    owners = {name: story.identity(name) for name in names}
    for name, owner in owners.items():
        story.commit_offset(owner, f"readers of {name}", 7, name)
        story.ended(owner, COMMIT, name)
    story.settings = attrs.evolve(
        SETTINGS, transaction_state_log_num_partitions=5, offsets_topic_num_partitions=5
    )
    story.restart()
    assert [story.offset(f"readers of {name}").offset for name in names] == [7] * 5
    assert [story.identity(name).producer_id for name in names] == [
        owner.producer_id for owner in owners.values()
    ]


# --- topics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * (TOPIC_NAME_LENGTH_MAX + 1)])
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    story = Story()
    assert created(story, name) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert created(story, "x" * TOPIC_NAME_LENGTH_MAX) is ErrorCode.NONE


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_neither_made_nor_deleted_by_clients(name: str) -> None:
    """One that is there is an existing topic to scripts that make what is missing."""
    story, refused = Story(), ErrorCode.INVALID_TOPIC_EXCEPTION
    is_there = name in {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC}
    assert created(story, name) is (ErrorCode.TOPIC_ALREADY_EXISTS if is_there else refused)
    assert deleted(story, name) == [refused]


@pytest.mark.parametrize("count", [-2, 0])
def test_a_topic_has_some_partitions(count: int) -> None:
    assert created(Story(), "more", count) is ErrorCode.INVALID_PARTITIONS


def configured(story: Story, name: str, value: str | None) -> ErrorCode:
    config = m.TopicConfig(name=name, value=value)
    request = m.CreateTopics(topics=(m.CreateTopic(topic="small", partition_count=1, configs=(config,)),))
    (answer,) = body_of(story.ask(request), m.CreateTopicsReply).topics
    return answer.error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "many"),
        ("max.message.bytes", "2147483648"),
        ("max.message.bytes", "9" * 5_000),
        ("flush.ms", "1"),
        ("cleanup.policy", "forget"),
        ("segment.bytes", "1000"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("retention.ms", "1" + " " * 32_767),
        ("cleanup.policy", "delete," * 5_000 + "delete"),
    ],
)
def test_a_setting_that_is_not_there_is_refused(name: str, value: str | None) -> None:
    assert configured(Story(), name, value) is ErrorCode.INVALID_CONFIG


def test_the_longest_value_of_a_setting_is_accepted() -> None:
    assert configured(Story(), "retention.ms", "1" + " " * 32_766) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("nope", "1", "a topic has no such setting; it has cleanup.policy, .*, min.insync.replicas"),
        ("retention.mss", "1", "a topic has no such setting; did you mean retention.ms\\?"),
        ("flush.ms", "1", "it must be 9223372036854775807: the broker's --sync says when"),
        ("retention.ms", "-2", "it must be an integer from -1 to 9223372036854775807"),
        ("min.cleanable.dirty.ratio", "half", "it must be a number from 0 to 1"),
        ("cleanup.policy", "forget", "it must be delete, compact, both separated by a comma, or empty"),
    ],
)
def test_a_refused_setting_says_what_it_must_be(name: str, value: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_config(name, value)


def test_a_topic_has_a_limit_of_its_own_also_after_a_restart() -> None:
    story = Story()
    assert configured(story, "max.message.bytes", "200") is ErrorCode.NONE
    small = TopicPartition("small", 0)
    for _ in range(2):
        assert story.produce(NOBODY, "x" * 200, key=small, name=None).error is ErrorCode.MESSAGE_TOO_LARGE
        assert story.produce(NOBODY, "x", key=small, name=None).error is ErrorCode.NONE
        assert story.produce(NOBODY, "x" * 200, name=None).error is ErrorCode.NONE
        story.restart()


def test_a_topic_grows_and_its_new_partitions_take_records() -> None:
    story = Story()
    assert created(story, "small") is ErrorCode.NONE
    assert grown(story, ("small", 3), validate_only=True) == [ErrorCode.NONE]
    assert len(story.host.node.cluster.topics["small"].leaders) == 1
    assert grown(story, ("small", 3)) == [ErrorCode.NONE]
    last = TopicPartition("small", 2)
    for number in range(2):
        assert story.produce(NOBODY, f"x{number}", key=last, name=None).error is ErrorCode.NONE
        story.check_recovery()
        story.restart()
    assert [entry.header.base_offset for entry in story.log(last)] == [0, 1]


@pytest.mark.parametrize(
    ("wanted", "errors"),
    [
        ([("orders", 1)], [ErrorCode.INVALID_PARTITIONS]),
        ([("orders", 0)], [ErrorCode.INVALID_PARTITIONS]),
        ([("orders", -1)], [ErrorCode.INVALID_PARTITIONS]),
        ([("absent", 2)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([("a/b", 2)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([("orders", 20), ("orders", 30)], [ErrorCode.INVALID_REQUEST]),
        ([("absent", 2), ("orders", 20)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]),
        ([(CONSUMER_OFFSETS_TOPIC, 99)], [ErrorCode.INVALID_TOPIC_EXCEPTION]),
        ([("orders", 10_500)], [ErrorCode.POLICY_VIOLATION]),
        ([("orders", 2**31 - 1)], [ErrorCode.POLICY_VIOLATION]),
    ],
)
def test_a_topic_grows_or_stays_as_it_is(wanted: list[tuple[str, int]], errors: list[ErrorCode]) -> None:
    assert grown(Story(), *wanted) == errors


def test_a_topic_has_as_many_partitions_as_the_broker_says_if_nobody_else_does() -> None:
    story = Story(settings=attrs.evolve(SETTINGS, num_partitions=3))
    (answer,) = body_of(story.ask(create("wide", BROKERS_DEFAULT)), m.CreateTopicsReply).topics
    assert answer.partition_count == 3
    assert sorted(story.host.node.cluster.topics["wide"].leaders) == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "factor", "assigned", "error"),
    [
        (-1, -1, {0: (1,)}, ErrorCode.NONE),
        (-1, -1, {1: (1,), 0: (1,)}, ErrorCode.NONE),
        (1, -1, {0: (1,)}, ErrorCode.INVALID_REQUEST),
        (-1, 1, {0: (1,)}, ErrorCode.INVALID_REQUEST),
        (-1, -1, {1: (1,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {-1: (1,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: ()}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: (2,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: (1,), 1: (-1,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: (1, 1)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, 1, {}, ErrorCode.NONE),
        (3, 2, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (3, 0, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_topic_is_laid_out_as_its_request_says(
    count: int, factor: int, assigned: dict[int, tuple[int, ...]], error: ErrorCode
) -> None:
    """The errors are those of Apache Kafka 4.3.1."""
    story = Story(settings=attrs.evolve(SETTINGS, num_partitions=7))
    wanted = m.CreateTopic(
        topic="laid-out",
        partition_count=count,
        replication_factor=factor,
        assignments=tuple(
            m.ReplicaAssignment(partition=number, node_ids=ids) for number, ids in assigned.items()
        ),
    )
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(wanted,))), m.CreateTopicsReply).topics
    assert answer.error is error
    if error is ErrorCode.NONE:
        expected = len(assigned) or count
        assert answer.partition_count == expected
        assert sorted(story.host.node.cluster.topics["laid-out"].leaders) == list(range(expected))


def test_partitions_are_on_the_nodes_that_their_request_names() -> None:
    cluster = Cluster()
    assignments = tuple(
        m.ReplicaAssignment(partition=number, node_ids=(node_id,)) for number, node_id in enumerate((2, 2, 1))
    )
    wanted = m.CreateTopic(topic="placed", partition_count=BROKERS_DEFAULT, assignments=assignments)
    cluster.ask(CONTROLLER, m.CreateTopics(topics=(wanted,)))
    more = m.NewPartitions(topic="placed", count=5, assignments=((3,), (2,)))
    cluster.ask(CONTROLLER, m.CreatePartitions(topics=(more,), validate_only=False))
    cluster.run()
    assert [cluster.leader(TopicPartition("placed", number)) for number in range(5)] == [2, 2, 1, 3, 2]


def test_a_topic_is_tried_and_not_created() -> None:
    story = Story()
    wanted = tuple(m.CreateTopic(topic=name, partition_count=1) for name in ("new", "orders"))
    reply = story.ask(m.CreateTopics(topics=wanted, validate_only=True))
    answers = body_of(reply, m.CreateTopicsReply).topics
    assert [answer.error for answer in answers] == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert "new" not in story.host.node.cluster.topics


def test_each_topic_of_a_request_has_its_own_answer() -> None:
    story = Story()
    wanted = ("new", "orders", "new", "bad name")
    request = m.CreateTopics(topics=tuple(m.CreateTopic(topic=name, partition_count=1) for name in wanted))
    answers = body_of(story.ask(request), m.CreateTopicsReply).topics
    assert [answer.error for answer in answers] == [
        ErrorCode.INVALID_REQUEST,  # named twice: Kafka creates neither
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert created(story, "new") is ErrorCode.NONE
    assert deleted(story, "new", "ghost", "new") == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert created(story, "new") is ErrorCode.TOPIC_ALREADY_EXISTS


def test_two_topics_do_not_differ_in_dots_and_underscores_alone() -> None:
    story = Story()
    assert created(story, "a.b_c") is ErrorCode.NONE
    assert created(story, "a_b.c") is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert created(story, "a.b_c") is ErrorCode.TOPIC_ALREADY_EXISTS
    assert created(story, CONSUMER_OFFSETS_TOPIC.replace("_", ".")) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert deleted(story, "a.b_c") == [ErrorCode.NONE]
    assert created(story, "a_b.c") is ErrorCode.NONE


def test_a_topic_that_looks_like_an_internal_one_does_not_keep_it_from_being_made() -> None:
    state = Controller()
    node = m.NodeAddress(node_id=1, host="here", port=1)
    apply(state, [BrokerRegistered(1, broker_epoch=0, host=node.host, port=node.port)])
    for name, internal in ((CONSUMER_OFFSETS_TOPIC.replace("_", "."), False), (CONSUMER_OFFSETS_TOPIC, True)):
        apply(state, create_topics(state, create(name), to=NO_ONE, now=0, internal=internal).entries)
    assert len(state.topics) == 2


def test_metadata_names_what_there_is() -> None:
    story = Story()
    everything = body_of(story.ask(m.Metadata(topics=None)), m.MetadataReply).topics
    assert [(topic.topic, len(topic.partitions), topic.is_internal) for topic in everything] == [
        (CONSUMER_OFFSETS_TOPIC, 2, True),
        (TRANSACTION_STATE_TOPIC, 2, True),
        ("orders", 2, False),
    ]
    missing = {"ghost": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "g host": ErrorCode.INVALID_TOPIC_EXCEPTION}
    for name, error in missing.items():
        (ghost,) = body_of(story.ask(m.Metadata(topics=(name,))), m.MetadataReply).topics
        assert (ghost.error, ghost.partitions) == (error, ())


def test_a_topic_has_an_id_that_no_topic_has_again() -> None:
    story = Story()
    story.restart()
    ids: list[bytes] = []
    for _ in range(3):
        (made,) = body_of(story.ask(create("new")), m.CreateTopicsReply).topics
        (described,) = body_of(story.ask(m.Metadata(topics=("new",))), m.MetadataReply).topics
        story.restart()
        (gone,) = body_of(story.ask(m.DeleteTopics(topics=("new",))), m.DeleteTopicsReply).topics
        assert made.topic_id == described.topic_id == gone.topic_id != NO_TOPIC_ID
        ids.append(made.topic_id)
    (ghost,) = body_of(story.ask(m.Metadata(topics=("new",))), m.MetadataReply).topics
    assert ghost.topic_id == NO_TOPIC_ID
    assert len(set(ids)) == len(ids)


# --- deletion ----------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_and_its_name_free() -> None:
    story = Story()
    story.produce(NOBODY, "old", name=None)
    assert deleted(story, "orders") == [ErrorCode.NONE]
    assert story.produce(NOBODY, "x", name=None).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert created(story, "orders", 2) is ErrorCode.NONE
    assert story.visible(isolation_level=UNCOMMITTED) == ""
    assert story.produce(NOBODY, "new", name=None).base_offset == 0
    story.restart()
    assert story.visible(isolation_level=UNCOMMITTED) == "new"


def test_a_deletion_that_a_kill_interrupted_is_finished_by_the_next_start() -> None:
    """At every place between the request and the answer: the records come back whole, or never again."""
    outcomes = set[str]()
    for place in range(100):
        story = Story()
        story.restart()
        story.produce(NOBODY, "old", name=None)
        to = story.offer(m.DeleteTopics(topics=("orders",)))
        for _ in range(place):
            story.work()
        is_done = to in story.replies
        story.restart()
        if "orders" in story.host.node.cluster.topics:
            outcomes.add("kept")
            assert story.visible(isolation_level=UNCOMMITTED) == "old"
        else:
            outcomes.add("deleted")
            story.create("orders", 2)
            assert story.visible(isolation_level=UNCOMMITTED) == ""
            assert story.produce(NOBODY, "new", name=None).base_offset == 0
        if is_done:
            break
    assert outcomes == {"kept", "deleted"}


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_topic_that_is_deleted_and_made_again_at_once_never_shows_its_old_records(
    policy: SyncPolicy,
) -> None:
    for place in range(40):
        story = Story(policy=policy)
        story.restart()
        story.produce(NOBODY, "old", name=None)
        topic_id = story.host.node.cluster.topics["orders"].topic_id
        story.offer(m.DeleteTopics(topics=("orders",)))
        again = story.offer(create("orders", 2))
        for _ in range(place):
            if not story.work():
                story.sync()
        story.restart()
        made = False
        if again in story.replies:
            error = body_of(story.replies[again], m.CreateTopicsReply).topics[0].error
            made = error is ErrorCode.NONE
            assert made or error is ErrorCode.TOPIC_ALREADY_EXISTS
        topic = story.host.node.cluster.topics.get("orders")
        assert topic is not None or not made
        is_old = topic is not None and topic.topic_id == topic_id
        names = {key.topic for key in story.host.directory.partitions()}
        assert ("orders" in names) <= (topic is not None)
        if topic is not None:
            assert story.visible(isolation_level=UNCOMMITTED) == ("old" if is_old else "")


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_deleted_name_is_free_while_others_change_the_metadata(policy: SyncPolicy) -> None:
    story = Story(policy=policy)
    story.create("other")
    story.produce(NOBODY, "old", name=None)
    assert deleted(story, "orders") == [ErrorCode.NONE]
    story.offer(m.DeleteTopics(topics=("other",)))
    story.run()  # no sync: under most policies, that deletion is not durable yet
    again = story.offer(create("orders", 2))
    not_yet = story.offer(create("other", 1))
    story.settle()
    made, others = (body_of(story.replies[to], m.CreateTopicsReply).topics[0] for to in (again, not_yet))
    assert made.error is ErrorCode.NONE
    is_over = policy is SyncPolicy.NONE
    assert others.error is (ErrorCode.NONE if is_over else ErrorCode.TOPIC_ALREADY_EXISTS)
    assert story.visible(isolation_level=UNCOMMITTED) == ""


def topic_id(story: Story, name: str) -> bytes:
    (topic,) = body_of(story.ask(m.Metadata(topics=(name,))), m.MetadataReply).topics
    return topic.topic_id


def produced_by_id(story: Story, words: str, topic: bytes, *, sequence: int = 0) -> ErrorCode:
    """The result of a batch of an idempotent producer for the topic with this id."""
    request = produce_batches(
        {ORDERS: batch(Identity(7, 0), words, sequence=sequence, transactional=False)},
        name=None,
        topic_ids={"orders": topic},
    )
    return produced(story.ask(request))[ORDERS].error


def test_a_late_batch_for_a_deleted_topic_does_not_enter_the_next_topic_of_its_name() -> None:
    """Its sequences went with the deleted topic, so nothing else tells it from a new batch (KIP-516)."""
    story = Story()
    old = topic_id(story, "orders")
    assert produced_by_id(story, "a", old) is ErrorCode.NONE
    assert deleted(story, "orders") == [ErrorCode.NONE]
    assert produced_by_id(story, "a", old) is ErrorCode.UNKNOWN_TOPIC_ID
    assert created(story, "orders", 2) is ErrorCode.NONE
    assert produced_by_id(story, "a", old) is ErrorCode.UNKNOWN_TOPIC_ID
    story.restart()
    assert produced_by_id(story, "a", old) is ErrorCode.UNKNOWN_TOPIC_ID
    assert story.visible(isolation_level=UNCOMMITTED) == ""
    assert produced_by_id(story, "b", topic_id(story, "orders"), sequence=1) is ErrorCode.NONE
    assert story.visible(isolation_level=UNCOMMITTED) == "b"


def test_a_batch_for_the_id_of_another_topic_is_refused() -> None:
    """A client may write to the topics whose names it may write to: the id alone does not admit it."""
    story = Story(topics={"orders": 1, "secret": 1})
    assert produced_by_id(story, "a", topic_id(story, "secret")) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_deleted_inside_a_transaction_does_not_keep_it_from_ending() -> None:
    story = Story(topics={"orders": 2, "others": 1})
    me = story.identity()
    story.produce(me, "a")
    story.produce(me, "b", key=TopicPartition("others", 0))
    assert deleted(story, "others") == [ErrorCode.NONE]
    heir = story.ended(me, COMMIT)
    assert story.visible() == "a"
    assert story.transaction().partitions == ()
    story.produce(heir, "c")
    story.ended(heir, COMMIT)
    assert story.visible() == "a c"


def test_a_topic_deleted_while_its_marker_is_on_its_way_does_not_keep_the_transaction_from_ending() -> None:
    for place in range(30):
        story = Story(topics={"orders": 2, "others": 1})
        me = story.identity()
        story.produce(me, "a")
        story.produce(me, "b", key=TopicPartition("others", 0))
        story.offer(m.DeleteTopics(topics=("others",)))
        for _ in range(place):
            story.work()
        story.ended(me, COMMIT)
        assert story.visible() == "a"


def test_what_is_left_of_a_topic_that_the_metadata_log_forgot_is_not_the_new_topic_of_its_name() -> None:
    storage = SimulatedStorage(keeps_nothing)
    story = story_of_a_forgotten_topic(storage)
    story.create("orders", 2)
    assert story.visible(isolation_level=UNCOMMITTED) == ""
    assert "moved them to orders-0~1" in story.host.troubles[0].text
    assert b"old" in (storage.read_file("orders-0~1/00000000000000000000.log") or b"")
    story.restart()
    assert story.visible(isolation_level=UNCOMMITTED) == ""


def test_a_partition_whose_leader_epochs_the_metadata_log_forgot_is_led_all_the_same() -> None:
    storage = SimulatedStorage(lambda limit: 0)
    story = Story(storage=storage)
    story.host.directory.journal(METADATA_PARTITION).sync()
    for _ in range(3):
        story.restart()
    story.produce(NOBODY, "old", name=None)
    story.host.directory.journal(ORDERS).sync()
    storage.lose_power()
    story.start()
    story.settle()
    assert story.visible(isolation_level=UNCOMMITTED) == "old"
    assert story.partition().leader_epoch >= 3


# --- leader epochs -------------------------------------------------------------------------------------


def test_every_start_raises_every_leader_epoch() -> None:
    story = Story()
    story.produce(NOBODY, "a", name=None)
    epochs = {key: log.partition.leader_epoch for key, log in story.host.node.logs.items()}
    for start in range(1, 4):
        story.restart()
        now = {key: log.partition.leader_epoch for key, log in story.host.node.logs.items()}
        assert now == {key: epoch + start for key, epoch in epochs.items()}
    story.produce(NOBODY, "b", name=None)
    assert [entry.header.leader_epoch for entry in story.log()] == [0, 3]
    assert story.host.directory.journal(METADATA_PARTITION).leader_epoch == epochs[METADATA_PARTITION] + 3


# --- producer ids ----------------------------------------------------------------------------------------


def granted(story: Story, count: int) -> list[int]:
    asked = [story.offer(init_request(None)) for _ in range(count)]
    story.settle()
    replies = [story.replies.pop(to) for to in asked]
    assert {reply.error for reply in replies} <= {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    return [reply.body.producer_id for reply in replies if isinstance(reply.body, m.InitProducerIdReply)]


def test_no_producer_id_is_ever_granted_twice() -> None:
    story = Story()
    ids: list[int] = []
    for _ in range(4):
        for _ in range(30):
            ids += granted(story, 100)
        story.restart()
    assert len(ids) == len(set(ids)) == 4 * 30 * 100
    assert ids == sorted(ids)
    assert all(b - a < PRODUCER_ID_BLOCK_SIZE * 3 for a, b in pairwise(ids))


def test_a_burst_that_uses_up_a_block_is_told_to_ask_again() -> None:
    """The next block is on its way; nobody waits inside the broker."""
    story = Story()
    ids = granted(story, 3 * PRODUCER_ID_BLOCK_SIZE)
    assert PRODUCER_ID_BLOCK_SIZE <= len(ids) < 3 * PRODUCER_ID_BLOCK_SIZE
    assert len(granted(story, 10)) == 10


def test_a_producer_id_is_durable_before_it_is_granted() -> None:
    story = Story(policy=SyncPolicy.COMMIT)
    ids = granted(story, 1)
    assert ids
    assert story.host.node.cluster.next_producer_id >= max(ids)
    assert story.partition(METADATA_PARTITION).high_watermark == (
        story.partition(METADATA_PARTITION).log_end_offset
    )


# --- the core alone ----------------------------------------------------------------------------------------


def test_deciding_changes_nothing() -> None:
    state = Controller()
    apply(state, [BrokerRegistered(1, broker_epoch=0, host="node", port=1)])
    before = log_state(state)
    decision = create_topics(state, create("a", 3), to=NO_ONE, now=0)
    assert log_state(state) == before
    copied = fork(state)
    apply(state, decision.entries)
    assert log_state(copied) == before != log_state(state)
    assert log_state(fork(state)) == log_state(state)
    assert state.leader(TopicPartition("a", 2)) is not None
    assert state.leader(TopicPartition("a", 3)) is None


def test_pipelined_requests_find_the_topic_made_just_before() -> None:
    story = Story()
    made = story.offer(create("late"))
    story.settle()
    assert made in story.replies
    late = TopicPartition("late", 0)
    first = story.offer(create("later"))
    data = story.offer(produce_request(NOBODY, {TopicPartition("later", 0): "x"}, name=None))
    story.settle()
    assert {first, data} <= story.replies.keys()
    assert story.partition(late).log_end_offset == 0
    assert story.visible(ORDERS) == ""


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    """Or a consumer of the next topic of that name would skip its first records (OffsetMetadataManager)."""
    story = Story()
    me = story.identity()
    story.commit_offset(me, "readers", 3)
    story.ended(me, COMMIT)
    other = story.identity("other")
    story.commit_offset(other, "waiters", 5, "other")  # stays pending
    story.settle()
    assert story.offset("readers").offset == 3
    assert deleted(story, ORDERS.topic) == [ErrorCode.NONE]
    assert created(story, ORDERS.topic) is ErrorCode.NONE
    story.ended(other, COMMIT, "other")
    story.settle()
    assert [story.offset(group).offset for group in ("readers", "waiters")] == [NO_OFFSET, NO_OFFSET]
    story.check_recovery()


@pytest.mark.parametrize("is_created_again", [False, True])
def test_offsets_of_a_topic_that_was_deleted_while_their_log_had_no_leader_are_forgotten(
    is_created_again: bool,
) -> None:
    """And those of the next topic of that name are kept, whatever happens to their log."""
    story = Story()
    story.ask(plain_offset_request("readers", {ORDERS: 3, OTHERS: 3}))
    other = story.identity("other")
    story.commit_offset(other, "readers", 5, "other")  # stays pending
    log = offsets_log_of("readers")
    story.host.lose(log, StorageError("planted"))
    story.run()
    story.offer(m.DeleteTopics(topics=(ORDERS.topic,)))
    story.run()
    if is_created_again:
        story.offer(create(ORDERS.topic, 2))
        story.run()
    assert log not in story.host.node.logs, "nobody has led it in between"
    story.settle()
    story.ended(other, COMMIT, "other")
    assert story.offset("readers").offset == NO_OFFSET
    if is_created_again:
        story.ask(plain_offset_request("readers", {ORDERS: 7}))
        story.restart()
        assert story.offset("readers").offset == 7
    story.check_recovery()


def test_offsets_of_a_topic_that_was_deleted_just_before_a_kill_are_forgotten_at_the_next_start() -> None:
    for stop_after in range(30):
        story = Story()
        me = story.identity()
        story.commit_offset(me, "readers", 3)
        story.ended(me, COMMIT)
        story.settle()
        story.offer(m.DeleteTopics(topics=(ORDERS.topic,)))
        for _ in range(stop_after):
            story.work()
        story.kill()
        story.restart()
        story.settle()
        is_there = created(story, ORDERS.topic) is ErrorCode.TOPIC_ALREADY_EXISTS
        assert story.offset("readers").offset == (3 if is_there else NO_OFFSET), f"after {stop_after} things"
