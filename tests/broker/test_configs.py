"""The settings of topics and nodes: what DescribeConfigs says of them."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.cluster.configs import NODE_CONFIGS
from fencepost.broker.log_config import TOPIC_CONFIGS
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import ASKED_NODE, CONSUMER_OFFSETS_TOPIC, ConfigSource
from tests.broker.requests import body_of
from tests.broker.story import SETTINGS, Story

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
    assert (config.value, config.source) == (config.synonyms[0].value, config.synonyms[0].source)
    return [(each.name, each.value, each.source) for each in config.synonyms]


def test_a_topic_has_all_settings_and_says_whose_they_are() -> None:
    story = Story(settings=attrs.evolve(SETTINGS, log_retention_ms=9_000))
    create(story, "mine", retention_ms="1000", cleanup_policy="compact,delete")
    assert [each.name for each in described(story, "mine").configs] == list(TOPIC_CONFIGS)
    for _ in range(2):
        assert values_of(setting(story, "mine", "retention.ms")) == [
            ("retention.ms", "1000", TOPIC),
            ("log.retention.ms", "9000", BROKER),
            ("log.retention.ms", "604800000", DEFAULT),
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


def test_an_internal_topic_has_the_settings_by_which_it_is_kept() -> None:
    story = Story()
    story.commit_offset(story.identity(), "readers", 1)
    assert setting(story, CONSUMER_OFFSETS_TOPIC, "cleanup.policy").value == "compact"
    assert setting(story, CONSUMER_OFFSETS_TOPIC, "segment.bytes").value == "32768"
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


def test_a_node_does_not_speak_for_another_one() -> None:
    reply = Story().ask(m.DescribeConfigs(topics=(), node_id=SETTINGS.node_id + 1))
    assert reply.error is ErrorCode.INVALID_REQUEST
