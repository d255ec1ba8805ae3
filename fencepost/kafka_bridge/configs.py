"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics and of the broker.

Rule: Kafka's request names resources of several types. Each type is a request of its own here, so that a
right that is missing for one does not refuse the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import attrs

from fencepost.kafka_bridge.exchange import Answer, Exchange, Translated, Values, explained
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import ASKED_NODE, INT32_MAX, ConfigOperation
from fencepost.protocol.wire_protocol import NodeTopics

DEFAULTS_OF_BROKERS: Final = ""  # dynamic settings of all brokers, of which there are none


class ResourceType(IntEnum):
    """The types of resources that have settings here (ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4


class _Result(NamedTuple):
    error: ErrorCode
    because: str = ""
    configs: Sequence[m.DescribedConfig] = ()


def describe_configs(request: Any, _: int) -> Exchange:
    """Describe the settings of topics, and of the broker that is asked."""
    topics = tuple(
        each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC
    )
    brokers = [each.resource_name for each in request.resources if each.resource_type == ResourceType.BROKER]
    node_ids = dict.fromkeys(node_id for name in brokers if (node_id := _node_id(name)) is not None)
    requests = [m.DescribeConfigs(topics=topics, node_id=None)] if topics else []
    requests += [m.DescribeConfigs(topics=(), node_id=node_id) for node_id in node_ids]

    def respond(answers: Sequence[Answer]) -> Values:
        of_topics = _of_topics(topics, answers[0]) if topics else {}
        # The answers are in the order of the requests: all topics in one, then a node in each.
        of_nodes = dict(zip(node_ids, answers[-len(node_ids) :], strict=True)) if node_ids else {}
        shown = _Shown(
            with_synonyms=request.include_synonyms,
            with_meanings=getattr(request, "include_documentation", False),  # KIP-569
        )
        results = [
            {
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                **_error_values(result := _result(each, of_topics, of_nodes)),
                "configs": shown.values(result.configs, each.configuration_keys),
            }
            # Each resource once: a request of a few KB could otherwise ask for an answer of a few GB.
            for each in {
                (each.resource_type, each.resource_name): each for each in request.resources
            }.values()
        ]
        return {"throttle_time": 0, "results": results}

    return Exchange(tuple(requests), respond)


def _node_id(name: str) -> int | None:
    """The node that a resource of type BROKER names, or None if the name is not a number."""
    if name == DEFAULTS_OF_BROKERS:
        return ASKED_NODE
    is_number = name.isascii() and name.isdigit() and len(name) <= len(str(INT32_MAX))
    return int(name) if is_number and int(name) <= INT32_MAX else None


def _of_topics(topics: Collection[str], answer: Answer) -> dict[str, _Result]:
    if answer.body is None:
        return dict.fromkeys(topics, _Result(answer.error))
    return {found.topic: _Result(found.error, found.because, found.configs) for found in answer.body.topics}


def _result(asked: Any, of_topics: dict[str, _Result], of_nodes: dict[int, Answer]) -> _Result:
    if asked.resource_type == ResourceType.TOPIC:
        return of_topics[asked.resource_name]
    if asked.resource_type != ResourceType.BROKER:
        return _Result(ErrorCode.INVALID_REQUEST, _no_settings(asked))
    node_id = _node_id(asked.resource_name)
    if node_id is None:
        return _Result(ErrorCode.INVALID_REQUEST, f"{asked.resource_name:.100} is not the id of a broker")
    return _of_node(asked.resource_name, of_nodes[node_id])


def _of_node(name: str, answer: Answer) -> _Result:
    if answer.error is ErrorCode.INVALID_REQUEST:
        return _Result(answer.error, f"broker {name} has to be asked for its own settings")
    configs = () if answer.body is None or name == DEFAULTS_OF_BROKERS else answer.body.node
    return _Result(answer.error, configs=configs)


def _no_settings(resource: Any) -> str:
    return f"only topics and brokers have settings here, not resources of type {resource.resource_type}"


def _error_values(result: _Result) -> Values:
    return explained(result.error, result.because)


def config_values(config: m.DescribedConfig) -> dict[str, Any]:
    """One setting."""
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.is_read_only,
        "config_source": config.source,
        "is_sensitive": False,
    }


@attrs.frozen(kw_only=True)
class _Shown:
    """The settings in one response. Most topics have the same ones, and theirs are made once."""

    with_synonyms: bool
    with_meanings: bool
    made: dict[tuple[int, tuple[str, ...]], list[Values]] = attrs.Factory(dict[Any, Any])  # by id, and names

    def values(self, configs: Sequence[m.DescribedConfig], names: Sequence[str] | None) -> list[Values]:
        """The settings with these names; without names, all."""
        # By identity, which costs nothing. It is safe, since the answers outlive the response in the making.
        key = (id(configs), tuple(names or ()))
        if key not in self.made:
            self.made[key] = [self._values(config) for config in configs if not names or config.name in names]
        return self.made[key]

    def _values(self, config: m.DescribedConfig) -> Values:
        return {
            **config_values(config),
            "config_type": config.config_type,
            "documentation": config.meaning if self.with_meanings else None,
            "synonyms": [
                {"name": each.name, "value": each.value, "source": each.source}
                for each in (config.synonyms if self.with_synonyms else ())
            ],
        }


# --- changing them ---------------------------------------------------------------------------------------

_OPERATIONS: Final = {operation.value: operation for operation in ConfigOperation}


def incremental_alter_configs(request: Any, _: int) -> Exchange:
    """Change settings of topics. Those of the broker are given to it when it starts."""
    return _altered(request, lambda configs: tuple(map(_change, configs)))


def alter_configs(request: Any, _: int) -> Translated:
    """Replace the settings of topics: those that are not named get their defaults again."""
    return lambda context: _altered(request, _Replacement(context.topics).changes)


def _altered(request: Any, changes_of: Callable[[Sequence[Any]], tuple[m.ConfigChange, ...]]) -> Exchange:
    named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    settled = {
        key: result
        for key, each in resources.items()
        if (result := _settled(each, times_named=named[key])) is not None
    }
    unsettled = [each for key, each in resources.items() if key not in settled]
    topics = tuple(
        m.TopicConfigChanges(topic=each.resource_name, changes=changes_of(each.configs))
        for each in unsettled
        if each.resource_type == ResourceType.TOPIC
    )
    changes = m.IncrementalAlterConfigs(topics=topics, validate_only=request.validate_only)
    brokers = [each.resource_name for each in unsettled if each.resource_type == ResourceType.BROKER]

    def respond(answers: Sequence[Answer]) -> Values:
        results = dict(settled)
        if topics:
            answer, *answers = answers
            results |= _of_changed(topics, answer)
        for name, answer in zip(brokers, answers, strict=True):
            results[ResourceType.BROKER, name] = _of_node(name, answer)
        return {
            "throttle_time": 0,
            "responses": [
                {
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                    **_error_values(results[each.resource_type, each.resource_name]),
                }
                for each in request.resources
            ],
        }

    # A node changes no setting of its own, but it knows which broker it is, and who may ask.
    asked = [m.DescribeConfigs(topics=(), node_id=_node_id(name)) for name in brokers]
    return Exchange((*((changes,) if topics else ()), *asked), respond)


def _of_changed(topics: Sequence[m.TopicConfigChanges], answer: Answer) -> dict[tuple[int, str], _Result]:
    if answer.body is None:
        return {(ResourceType.TOPIC, topic.topic): _Result(answer.error) for topic in topics}
    return {
        (ResourceType.TOPIC, found.topic): _Result(found.error, found.because) for found in answer.body.topics
    }


def _settled(resource: Any, *, times_named: int) -> _Result | None:
    """The result for a resource that the node need not see."""
    because = None
    if times_named > 1:
        because = "each resource must appear at most once"
    elif _deletes_nothing(resource):
        return None
    elif resource.resource_type == ResourceType.BROKER:
        because = "a broker's settings cannot change while it runs"
    elif resource.resource_type != ResourceType.TOPIC:
        because = _no_settings(resource)
    elif not resource.resource_name:
        because = "there are no settings of all topics"
    elif any(_operation(each) not in _OPERATIONS for each in resource.configs):
        because = "the operation on a setting must be SET, DELETE, APPEND or SUBTRACT"
    return None if because is None else _Result(ErrorCode.INVALID_REQUEST, because)


def _deletes_nothing(resource: Any) -> bool:
    """Whether settings of a broker are deleted, of which none was set: kafka-reassign-partitions ends
    throttles so.
    """
    return (
        resource.resource_type == ResourceType.BROKER
        and _node_id(resource.resource_name) is not None
        and all(_operation(each) == ConfigOperation.DELETE.value for each in resource.configs)
    )


def _operation(config: Any) -> int:
    return getattr(config, "config_operation", ConfigOperation.SET.value)  # AlterConfigs has no other


def _change(config: Any) -> m.ConfigChange:
    return m.ConfigChange(name=config.name, operation=_OPERATIONS[_operation(config)], value=config.value)


class _Replacement:
    """The changes after which a topic has some settings, and of all others the defaults."""

    def __init__(self, topics: NodeTopics) -> None:
        delete = ConfigOperation.DELETE
        self._deleted = [
            m.ConfigChange(name=config.name, operation=delete, value=None)
            for config in topics.topic_configs({})
        ]

    def changes(self, configs: Sequence[Any]) -> tuple[m.ConfigChange, ...]:
        named = {each.name for each in configs}
        return (*map(_change, configs), *(each for each in self._deleted if each.name not in named))
