"""DescribeConfigs: the settings of topics and of this node."""

from __future__ import annotations

from fencepost.broker.config_sources import node_configs, topic_configs
from fencepost.broker.contract import Refused, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import ASKED_NODE, METADATA_PARTITION, topic_name_problem


def describe_configs(node: Node, request: m.DescribeConfigs, to: ReplyTo, now: int) -> None:
    """The settings of each topic, and of this node if the request asks for them."""
    if (refused := of_another_node(node, request.node_id)) is not None:
        node.reply(to, refused)
        return
    # Most topics have no settings of their own, and share one list.
    plain = tuple(node.topic_configs({})) if request.topics else ()
    body = m.DescribeConfigsReply(
        topics=tuple(_topic(node, name, plain) for name in dict.fromkeys(request.topics)),
        node=() if request.node_id is None else tuple(node_configs(node.settings)),
    )
    node.after_all((METADATA_PARTITION,), Reply(to, body))


def of_another_node(node: Node, node_id: int | None) -> Refused | None:
    """Why this node does not answer a request about the settings of a node."""
    own_id = node.settings.node_id
    if node_id in (None, ASKED_NODE, own_id):
        return None
    return Refused(ErrorCode.INVALID_REQUEST, f"this is node {own_id}, not {node_id}")


def _topic(node: Node, name: str, plain: tuple[m.DescribedConfig, ...]) -> m.TopicConfigs:
    because = topic_name_problem(name)
    if because is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return m.TopicConfigs(topic=name, error=error, because=because)
    topic = node.cluster.topics.get(name)
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return m.TopicConfigs(topic=name, error=error)
    is_plain = not topic.configs and name not in node.settings.internal_log_configs
    configs = plain if is_plain else tuple(topic_configs(node.settings, node.log_config(name), topic.configs))
    return m.TopicConfigs(topic=name, error=NO_ERROR, configs=configs)
