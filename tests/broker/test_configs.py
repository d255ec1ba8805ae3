"""The settings of topics and nodes: what DescribeConfigs says, and what IncrementalAlterConfigs changes."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.broker_configs import CONNECTION_CONFIGS, NODE_CONFIGS
from fencepost.broker.config_meanings import MEANINGS
from fencepost.broker.expiration import scan_if_due
from fencepost.broker.fixed_configs import FIXED_CONFIGS
from fencepost.broker.limits import REQUEST_PARTITIONS
from fencepost.broker.log_config import SEGMENT_BYTES_MIN, TOPIC_CONFIGS
from fencepost.broker.node import Node
from fencepost.broker.purgatory import Scan
from fencepost.journal.journal import JournalSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import (
    ASKED_NODE,
    CONSUMER_OFFSETS_TOPIC,
    METADATA_PARTITION,
    ConfigOperation,
    ConfigSource,
    TopicPartition,
)
from tests.broker.requests import NOBODY, NOON, ORDERS, body_of, produce_batches, produced
from tests.broker.story import SETTINGS, Story
from tests.journal.test_manifest import calls_of

TOPIC, BROKER, DEFAULT = ConfigSource.TOPIC, ConfigSource.BROKER, ConfigSource.DEFAULT


def create(story: Story, name: str, **configs: str) -> None:
    settings = tuple(m.TopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    wanted = m.CreateTopic(topic=name, partition_count=1, configs=settings)
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(wanted,))), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.NONE, answer


def described(story: Story, topic: str) -> m.TopicConfigs:
    reply = story.ask(m.DescribeConfigs(topics=(topic,), node_id=None))
    (answer,) = body_of(reply, m.DescribeConfigsReply).topics
    return answer


def setting(story: Story, topic: str, name: str) -> m.DescribedConfig:
    (found,) = [each for each in described(story, topic).configs if each.name == name]
    return found


def values_of(config: m.DescribedConfig) -> list[tuple[str, str, ConfigSource]]:
    in_force = config.synonyms[0].value if config.synonyms else config.value
    source = config.synonyms[0].source if config.synonyms else DEFAULT
    assert (config.value, config.source) == (in_force, source)
    return [(each.name, each.value, each.source) for each in config.synonyms]


def test_a_topic_has_all_settings_and_says_whose_they_are() -> None:
    story = Story(settings=attrs.evolve(SETTINGS, log_retention_ms=9_000))
    create(story, "mine", retention_ms="1000", cleanup_policy="compact,delete")
    assert [each.name for each in described(story, "mine").configs] == [*TOPIC_CONFIGS, *FIXED_CONFIGS]
    for _ in range(2):
        assert values_of(setting(story, "mine", "retention.ms")) == [
            ("retention.ms", "1000", TOPIC),
            ("log.retention.ms", "9000", BROKER),
        ]
        assert values_of(setting(story, "mine", "cleanup.policy")) == [
            ("cleanup.policy", "compact,delete", TOPIC),
            ("log.cleanup.policy", "delete", DEFAULT),
        ]
        story.restart()
    assert values_of(setting(story, "orders", "retention.ms"))[0] == ("log.retention.ms", "9000", BROKER)
    assert values_of(setting(story, "orders", "max.message.bytes")) == [
        ("message.max.bytes", "1048588", DEFAULT)
    ]


@pytest.mark.parametrize("name", FIXED_CONFIGS)
def test_a_topic_may_say_what_cannot_be_otherwise(name: str) -> None:
    """Scripts that were written for Kafka say so of the topics that they create."""
    story, fixed = Story(), FIXED_CONFIGS[name]
    create(story, "mine", **{name.replace(".", "_"): fixed.value})
    has_default = fixed.of_broker not in (None, "log.flush.interval.ms", "log.roll.jitter.ms")
    of_broker = [(fixed.of_broker, fixed.value, DEFAULT)] if has_default else []
    for _ in range(2):
        assert values_of(setting(story, "mine", name)) == [(name, fixed.value, TOPIC), *of_broker]
        assert values_of(setting(story, "orders", name)) == of_broker
        story.restart()
    for value in ("", "2", "true", "snappy", "orders"):
        if value != fixed.value:
            answer = alter(story, "mine", (name, SET, value))
            assert answer.error is ErrorCode.INVALID_CONFIG
            assert answer.because.endswith(fixed.because)


@pytest.mark.parametrize(
    ("name", "written", "shown"),
    [
        ("cleanup.policy", " compact ", "compact"),
        ("cleanup.policy", "delete, compact", "delete,compact"),
        ("cleanup.policy", "compact,delete,compact", "compact,delete"),
        ("cleanup.policy", " ", ""),
        ("retention.ms", " 5 ", "5"),
        ("retention.ms", "+05", "5"),
        ("segment.bytes", "\t2097152\n", "2097152"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("retention.ms", "-" + "0" * 5_000 + "1", "-1"),
        ("retention.ms", "\x00٥\x1c", "5"),
        ("max.message.bytes", "１２", "12"),
        ("min.cleanable.dirty.ratio", " 5e-1 ", "0.5"),
        ("min.cleanable.dirty.ratio", "\x1c.5D", "0.5"),
        ("min.cleanable.dirty.ratio", "+0.f", "0.0"),
        ("min.cleanable.dirty.ratio", "1" + "0" * 400 + "e-400", "1.0"),
        ("min.insync.replicas", "+01", "1"),
        ("segment.jitter.ms", "-0", "0"),
        ("preallocate", " False ", "false"),
        ("message.timestamp.type", " CreateTime ", "CreateTime"),
    ],
)
def test_a_value_is_shown_as_it_is_understood(name: str, written: str, shown: str) -> None:
    """As Apache Kafka 4.3.1 shows them."""
    story = Story()
    create(story, "mine", **{name.replace(".", "_"): written})
    assert alter(story, "orders", (name, SET, written)).error is ErrorCode.NONE
    for topic in ("mine", "orders"):
        assert values_of(setting(story, topic, name))[0] == (name, shown, TOPIC)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(("retention.ms", text) for text in ("", "+", "--5", "5_0", "5.0", "0x5", "5L", "\xa05", "5 5")),
        ("retention.ms", "9223372036854775808"),
        ("cleanup.policy", "\xa0delete"),
        *(("min.cleanable.dirty.ratio", text) for text in ("", ".", "1e", "0_1", "0.5_0", "٠.٥", "\xa00.5")),
        *(("min.cleanable.dirty.ratio", text) for text in ("0.5fd", "0.5L", "inf", "nan", "1.1", "1e400")),
    ],
)
def test_what_java_does_not_read_is_no_value(name: str, written: str) -> None:
    """Apache Kafka 4.3.1 refuses them."""
    assert alter(Story(), "orders", (name, SET, written)).error is ErrorCode.INVALID_CONFIG


def test_a_topic_may_accept_other_timestamps_than_the_broker() -> None:
    story = Story()
    create(story, "mine", message_timestamp_after_max_ms="10", message_timestamp_before_max_ms="20")
    mine = TopicPartition("mine", 0)
    errors: list[ErrorCode] = []
    for moved_ms in (-21, -20, 10, 11):
        sent = build_data_batch([b"v"], base_timestamp=story.now + 1 + moved_ms)
        reply = story.ask(produce_batches({mine: sent}, name=None))
        errors += [part.error for part in body_of(reply, m.ProduceReply).partitions]
    assert errors == [
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_TIMESTAMP,
    ]


def test_an_internal_topic_has_the_settings_by_which_it_is_kept() -> None:
    story = Story()
    story.commit_offset(story.identity(), "readers", 1)
    assert setting(story, CONSUMER_OFFSETS_TOPIC, "cleanup.policy").value == "compact"
    assert setting(story, CONSUMER_OFFSETS_TOPIC, "segment.bytes").value == str(
        SETTINGS.offsets_topic_segment_bytes
    )
    assert setting(story, CONSUMER_OFFSETS_TOPIC, "segment.bytes").source is TOPIC


@pytest.mark.parametrize(
    ("name", "error"),
    [("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_a_topic_that_is_not_there_has_no_settings(name: str, error: ErrorCode) -> None:
    answer = described(Story(), name)
    assert (answer.error, answer.configs) == (error, ())


@pytest.mark.parametrize("node_id", [ASKED_NODE, SETTINGS.node_id])
def test_a_node_says_its_settings(node_id: int) -> None:
    story = Story()
    body = body_of(story.ask(m.DescribeConfigs(topics=(), node_id=node_id)), m.DescribeConfigsReply)
    found = {each.name: each for each in body.node}
    assert list(found) == list(NODE_CONFIGS)
    assert found["transaction.partition.verification.enable"].value == "true"
    assert values_of(found["offsets.topic.num.partitions"]) == [
        ("offsets.topic.num.partitions", str(SETTINGS.offsets_topic_num_partitions), BROKER),
        ("offsets.topic.num.partitions", "50", DEFAULT),
    ]
    assert all(each.is_read_only for each in body.node)


def test_each_setting_says_what_it_means() -> None:
    story = Story()
    body = body_of(
        story.ask(m.DescribeConfigs(topics=("orders",), node_id=ASKED_NODE)), m.DescribeConfigsReply
    )
    (topic,) = body.topics
    meanings = {each.name: each.meaning for each in (*body.node, *topic.configs)}
    assert all(text.endswith(".") for text in meanings.values()), meanings
    assert meanings["min.insync.replicas"] == "It is always 1: a partition has one replica."
    of_topic, of_broker = meanings["retention.ms"], meanings["log.retention.ms"]
    assert of_broker == f"{of_topic} A topic can set retention.ms itself."
    unknown = MEANINGS.keys() - {*TOPIC_CONFIGS, *NODE_CONFIGS, *CONNECTION_CONFIGS}
    assert not unknown, "meanings of settings that do not exist"


def test_a_node_that_scans_as_often_as_its_settings_allow_lets_time_pass() -> None:
    intervals = [each for name, each in NODE_CONFIGS.items() if name.endswith(("interval.ms", "backoff.ms"))]
    node = Node(settings=attrs.evolve(SETTINGS, **{each.field: each.lowest for each in intervals}))
    node.scans_at_ms = dict.fromkeys(Scan, NOON)
    scan_if_due(node, NOON)
    assert min(node.scans_at_ms.values()) > NOON


@pytest.mark.parametrize("name", [name for name in NODE_CONFIGS if name.endswith("num.partitions")])
def test_no_setting_allows_more_partitions_than_a_request_creates(name: str) -> None:
    """Internal topics are created whatever the limits of a cluster are."""
    assert NODE_CONFIGS[name].highest == REQUEST_PARTITIONS.value


def test_a_description_without_topics_lists_no_settings_of_topics() -> None:
    """A Kafka client may ask for 20,000 groups at once, and each of them is a request."""
    story = Story()
    of_group = calls_of(lambda: story.ask(m.DescribeConfigs(topics=(), node_id=None, group_id="g")))
    of_topic = calls_of(lambda: story.ask(m.DescribeConfigs(topics=("orders",), node_id=None)))
    assert of_group + len(TOPIC_CONFIGS) < of_topic


def test_a_node_does_not_speak_for_another_one() -> None:
    reply = Story().ask(m.DescribeConfigs(topics=(), node_id=SETTINGS.node_id + 1))
    assert reply.error is ErrorCode.INVALID_REQUEST


# --- changes ---------------------------------------------------------------------------------------------

SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def alter(
    story: Story, topic: str, *changes: tuple[str, ConfigOperation, str | None], validate_only: bool = False
) -> m.TopicError:
    made = tuple(m.ConfigChange(name=name, operation=how, value=value) for name, how, value in changes)
    wanted = m.TopicConfigChanges(topic=topic, changes=made)
    reply = story.ask(m.IncrementalAlterConfigs(topics=(wanted,), validate_only=validate_only))
    (answer,) = body_of(reply, m.IncrementalAlterConfigsReply).topics
    return answer


def test_settings_change_at_once_and_for_good() -> None:
    story = Story()
    create(story, "mine", retention_ms="1000", segment_ms="5")
    answer = alter(
        story,
        "mine",
        ("retention.ms", SET, "77"),
        ("segment.ms", DELETE, None),
        ("segment.bytes", DELETE, None),
    )
    assert answer.error is ErrorCode.NONE
    for _ in range(2):
        assert story.host.node.cluster.topics["mine"].configs == {"retention.ms": "77"}
        assert setting(story, "mine", "segment.ms").source is DEFAULT
        story.check_recovery()
        story.restart()


def test_a_list_grows_and_shrinks() -> None:
    """The values are those that Apache Kafka 4.3.1 shows after the same requests."""
    story = Story()
    steps = [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "nope", "compact"),
        (SUBTRACT, "compact", ""),
        (DELETE, None, "delete"),
        (APPEND, "delete", "delete"),
        (APPEND, ",", "delete"),
        (APPEND, "compact,", "delete,compact"),
        (SUBTRACT, " delete", "delete,compact"),
        (SUBTRACT, ",delete,", "compact"),
        (APPEND, " delete", "compact,delete"),
    ]
    for how, value, expected in steps:
        assert alter(story, "orders", ("cleanup.policy", how, value)).error is ErrorCode.NONE
        assert setting(story, "orders", "cleanup.policy").value == expected
    name = "leader.replication.throttled.replicas"  # always empty
    assert alter(story, "orders", (name, SUBTRACT, "0:1")).error is ErrorCode.NONE
    refused = alter(story, "orders", (name, APPEND, "0:1"))
    assert refused.because.startswith(f"{name}=0:1 cannot be set"), refused


@pytest.mark.parametrize(
    ("topic", "changes", "error"),
    [
        ("orders", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ("orders", [("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ("orders", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ("orders", [("cleanup.policy", APPEND, "nope")], ErrorCode.INVALID_CONFIG),
        ("orders", [("cleanup.policy", APPEND, "")], ErrorCode.INVALID_CONFIG),
        ("orders", [("retention.ms", SET, "1" + " " * 32_767)], ErrorCode.INVALID_CONFIG),
        ("orders", [("message.timestamp.type", SET, "LogAppendTime")], ErrorCode.INVALID_CONFIG),
        ("orders", [("nope", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("orders", [("nope", DELETE, None)], ErrorCode.NONE),
        ("orders", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ("orders", [("retention.ms", SET, "1"), ("nope", SET, "2")], ErrorCode.INVALID_CONFIG),
        (
            "orders",
            [("min.compaction.lag.ms", SET, "2"), ("max.compaction.lag.ms", SET, "1")],
            ErrorCode.INVALID_CONFIG,
        ),
        ("orders", [], ErrorCode.NONE),
        ("absent", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CONSUMER_OFFSETS_TOPIC, [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        # What is wrong with the settings is told first.
        ("absent", [("nope", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("absent", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ("a/b", [("retention.ms", DELETE, None), ("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(
    topic: str, changes: list[tuple[str, ConfigOperation, str | None]], error: ErrorCode
) -> None:
    story = Story()
    assert alter(story, topic, *changes).error is error
    assert story.host.node.cluster.topics["orders"].configs == {}


def test_a_setting_may_not_contradict_one_that_is_there() -> None:
    story = Story()
    for name, value, error in (
        ("max.compaction.lag.ms", " 10 ", ErrorCode.NONE),
        ("min.compaction.lag.ms", "11", ErrorCode.INVALID_CONFIG),
        ("min.compaction.lag.ms", "10", ErrorCode.NONE),
        ("max.compaction.lag.ms", "9", ErrorCode.INVALID_CONFIG),
    ):
        assert alter(story, "orders", (name, SET, value)).error is error
    create = m.CreateTopic(
        topic="new",
        partition_count=1,
        configs=tuple(
            m.TopicConfig(name=f"{which}.compaction.lag.ms", value=value)
            for which, value in (("min", "2"), ("max", "1"))
        ),
    )
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(create,))), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.INVALID_CONFIG


def test_a_change_can_be_tried() -> None:
    story = Story()
    assert alter(story, "orders", ("retention.ms", SET, "1"), validate_only=True).error is ErrorCode.NONE
    assert story.host.node.cluster.topics["orders"].configs == {}


def test_a_topic_that_is_named_twice_stays_as_it_is() -> None:
    story = Story()
    wanted = m.TopicConfigChanges(
        topic="orders", changes=(m.ConfigChange(name="retention.ms", operation=SET, value="1"),)
    )
    reply = story.ask(m.IncrementalAlterConfigs(topics=(wanted, wanted), validate_only=False))
    (answer,) = body_of(reply, m.IncrementalAlterConfigsReply).topics
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert story.host.node.cluster.topics["orders"].configs == {}


def test_the_size_of_a_batch_and_the_need_of_keys_follow_a_change() -> None:
    story = Story()
    alter(story, "orders", ("max.message.bytes", SET, "200"))
    assert story.produce(NOBODY, "x" * 200, name=None).error is ErrorCode.MESSAGE_TOO_LARGE
    alter(story, "orders", ("max.message.bytes", DELETE, None), ("cleanup.policy", SET, "compact"))
    assert story.produce(NOBODY, "x" * 200, name=None).error is ErrorCode.INVALID_RECORD
    alter(story, "orders", ("cleanup.policy", SET, "delete"))
    assert story.produce(NOBODY, "x" * 200, name=None).error is ErrorCode.NONE


def test_retention_and_segments_follow_a_change() -> None:
    story = Story()
    assert story.produce(NOBODY, "x", name=None).error is ErrorCode.NONE
    journal = story.host.directory.journal(ORDERS)
    before = journal.settings
    alter(story, "orders", ("segment.ms", SET, "1"), ("retention.ms", SET, "1"))
    assert journal.settings.segment_ms == 1
    for _ in range(3):
        assert story.produce(NOBODY, "x", name=None).error is ErrorCode.NONE
        story.wait(10)
    story.wait(2 * SETTINGS.log_retention_check_interval_ms)
    assert journal.log_start_offset >= 2
    alter(story, "orders", ("segment.ms", DELETE, None))
    assert journal.settings == before


def test_the_logs_of_a_topic_without_own_settings_follow_the_broker() -> None:
    settings = attrs.evolve(
        SETTINGS, log_cleanup_policy=("compact",), log_segment_bytes=SEGMENT_BYTES_MIN, log_roll_ms=5_000
    )
    story = Story(settings=settings)
    create(story, "mine", cleanup_policy="delete")
    mine = TopicPartition("mine", 0)
    for key, error in ((ORDERS, ErrorCode.INVALID_RECORD), (mine, ErrorCode.NONE)):
        batch = build_data_batch([b"x"], base_timestamp=story.now)
        assert produced(story.ask(produce_batches({key: batch}, name=None)))[key].error is error
    for name, value in (("segment.bytes", str(SEGMENT_BYTES_MIN)), ("segment.ms", "5000")):
        for topic in ("orders", "mine"):
            assert (setting(story, topic, name).value, setting(story, topic, name).source) == (value, BROKER)
    assert values_of(setting(story, "orders", "cleanup.policy")) == [
        ("log.cleanup.policy", "compact", BROKER),
        ("log.cleanup.policy", "delete", DEFAULT),
    ]
    journal = story.host.held[mine].journal
    assert journal.settings == JournalSettings(segment_bytes=SEGMENT_BYTES_MIN, segment_ms=5_000)
    metadata = story.host.held[METADATA_PARTITION].journal
    assert metadata.settings == JournalSettings()


def test_records_without_keys_leave_a_topic_that_becomes_compacted() -> None:
    """As in Apache Kafka, whose cleaner drops a record without a key."""
    story = Story()
    alter(story, "orders", ("segment.ms", SET, "1"), ("min.cleanable.dirty.ratio", SET, "0"))
    for _ in range(3):
        batch = build_data_batch([b"x"], base_timestamp=story.now)
        reply = story.ask(produce_batches({ORDERS: batch}, name=None))
        assert produced(reply)[ORDERS].error is ErrorCode.NONE
        story.wait(10)
    alter(story, "orders", ("cleanup.policy", SET, "compact"))
    story.wait(2 * SETTINGS.log_cleaner_backoff_ms)
    emptied = " | x"
    assert story.written() == emptied
    story.check_recovery()
    story.restart()
    assert story.written() == emptied
