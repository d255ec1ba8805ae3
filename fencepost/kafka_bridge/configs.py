"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics and of the broker.

Rule: Kafka's request names resources of several types. All topics are one request here and each other
resource is one of its own, so that a right that is missing for one does not refuse the others. The node is
asked even about resources that have no settings here, because it knows the client's rights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import attrs

from fencepost.kafka_bridge.exchange import Answer, Exchange, Translated, Values, explained
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import ASKED_NODE, INT32_MAX, ConfigOperation
from fencepost.protocol.wire_protocol import NodeTopics

DEFAULTS_OF_BROKERS: Final = ""  # dynamic settings of all brokers, of which there are none


class ResourceType(IntEnum):
    """The types of resources (ConfigResource.Type); only topics and brokers have settings here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_TYPE_NAMES: Final = {each.value: each.name for each in ResourceType}


class _Result(NamedTuple):
    error: ErrorCode
    because: str = ""
    configs: Sequence[m.DescribedConfig] = ()


class _Owner(NamedTuple):
    """Whose settings the node is asked about, unless it is a topic: its own or those of a group."""

    node_id: int | None = None
    group_id: str | None = None


def _owner(resource: Any) -> _Owner | None:
    """The owner of a resource that is not a topic; None if no resource has this type."""
    match resource.resource_type:
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            node_id = _node_id(resource.resource_name)
            return _Owner(node_id=ASKED_NODE if node_id is None else node_id)
        case ResourceType.CLIENT_METRICS:
            return _Owner(node_id=ASKED_NODE)  # the cluster's rights are needed for them, too
        case ResourceType.GROUP:
            return _Owner(group_id=resource.resource_name)
        case _:
            return None


def describe_configs(request: Any, _: int) -> Exchange:
    """Describe the settings of topics, and of the broker that is asked."""
    topics = tuple(
        each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC
    )
    owners = dict.fromkeys(owner for each in request.resources if (owner := _owner(each)) is not None)
    requests = [m.DescribeConfigs(topics=topics, node_id=None)] if topics else []
    requests += [m.DescribeConfigs(topics=(), **owner._asdict()) for owner in owners]

    def respond(answers: Sequence[Answer]) -> Values:
        of_topics = _of_topics(topics, answers[0]) if topics else {}
        # The answers are in the order of the requests: all topics in one, then an owner in each.
        of_owners = dict(zip(owners, answers[-len(owners) :], strict=True)) if owners else {}
        shown = _Shown(
            with_synonyms=request.include_synonyms,
            with_meanings=getattr(request, "include_documentation", False),  # KIP-569
        )
        results = [
            {
                **_outcome(each, result := _result(each, of_topics, of_owners)),
                "configs": shown.values(result.configs, each.configuration_keys),
            }
            # Each resource once: a request of a few KB could otherwise ask for an answer of a few GB.
            for each in {_key(each): each for each in request.resources}.values()
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


def _result(asked: Any, of_topics: dict[str, _Result], of_owners: dict[_Owner, Answer]) -> _Result:
    if asked.resource_type == ResourceType.TOPIC:
        return of_topics[asked.resource_name]
    owner = _owner(asked)
    if owner is None:
        return _Result(ErrorCode.INVALID_REQUEST, _no_settings(asked))
    if (refused := _refused(asked, of_owners[owner])) is not None:
        return refused
    has_configs = asked.resource_type == ResourceType.BROKER and asked.resource_name != DEFAULTS_OF_BROKERS
    return _Result(NO_ERROR, configs=of_owners[owner].body.node if has_configs else ())


def _refused(asked: Any, answer: Answer) -> _Result | None:
    """The result for a resource that is not a topic, if the node or its name refuses it."""
    if answer.body is None:
        is_another = answer.error is ErrorCode.INVALID_REQUEST
        because = f"broker {asked.resource_name} has to be asked for its own settings" if is_another else ""
        return _Result(answer.error, because)
    because = _name_problem(asked)
    return None if because is None else _Result(ErrorCode.INVALID_REQUEST, because)


def _name_problem(asked: Any) -> str | None:
    """Why there cannot be a resource of this name that is not a topic."""
    name = asked.resource_name
    if not name:
        is_broker = asked.resource_type == ResourceType.BROKER
        return None if is_broker else "only the resource of all brokers has an empty name"
    is_of_broker = asked.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return f"{name:.100} is not the id of a broker" if is_of_broker and _node_id(name) is None else None


def _no_settings(resource: Any) -> str:
    kind = _TYPE_NAMES.get(resource.resource_type, resource.resource_type)
    return f"only topics and brokers have settings, not resources of the type {kind}"


def _key(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _outcome(resource: Any, result: _Result) -> Values:
    kind, name = _key(resource)
    return {"resource_type": kind, "resource_name": name, **explained(result.error, result.because)}


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
_DELETE: Final = ConfigOperation.DELETE.value


def incremental_alter_configs(request: Any, _: int) -> Exchange:
    """Change settings of topics. Those of the broker are given to it when it starts."""
    return _altered(request, lambda configs: tuple(map(_change, configs)))


def alter_configs(request: Any, _: int) -> Translated:
    """Replace the settings of topics: those that are not named get their defaults again."""
    return lambda context: _altered(
        request, _Replacement(context.topics).changes, unalterable=ResourceType.BROKER_LOGGER
    )


def _altered(
    request: Any,
    changes_of: Callable[[Sequence[Any]], tuple[m.ConfigChange, ...]],
    *,
    unalterable: ResourceType | None = None,
) -> Exchange:
    named = Counter(map(_key, request.resources))
    resources = {_key(each): each for each in request.resources}
    settled = {
        key: result
        for key, each in resources.items()
        if (result := _settled(each, unalterable, times_named=named[key])) is not None
    }
    unsettled = {key: each for key, each in resources.items() if key not in settled}
    topics = tuple(
        m.TopicConfigChanges(topic=each.resource_name, changes=changes_of(each.configs))
        for each in unsettled.values()
        if each.resource_type == ResourceType.TOPIC
    )
    owners = {key: owner for key, each in unsettled.items() if (owner := _owner(each)) is not None}
    validate_only = request.validate_only
    requests = [m.IncrementalAlterConfigs(topics=topics, validate_only=validate_only)] if topics else []
    requests += [
        m.IncrementalAlterConfigs(topics=(), validate_only=validate_only, **owner._asdict())
        for owner in owners.values()
    ]

    def respond(answers: Sequence[Answer]) -> Values:
        results = dict(settled)
        if topics:
            answer, *answers = answers
            results |= _of_changed(topics, answer)
        for key, answer in zip(owners, answers, strict=True):
            results[key] = _of_unchanged(unsettled[key], answer)
        return {
            "throttle_time": 0,
            "responses": [_outcome(each, results[_key(each)]) for each in request.resources],
        }

    return Exchange(tuple(requests), respond)


def _of_changed(topics: Sequence[m.TopicConfigChanges], answer: Answer) -> dict[tuple[int, str], _Result]:
    if answer.body is None:
        return {(ResourceType.TOPIC, topic.topic): _Result(answer.error) for topic in topics}
    return {
        (ResourceType.TOPIC, found.topic): _Result(found.error, found.because) for found in answer.body.topics
    }


def _settled(resource: Any, unalterable: ResourceType | None, *, times_named: int) -> _Result | None:
    """The result for a resource that the node need not see: Kafka looks at this before it looks at rights."""
    because = None
    names = [each.name for each in resource.configs]
    operations = [_operation(each) for each in resource.configs]
    if times_named > 1:
        because = "each resource must appear at most once"
    elif any(operation not in _OPERATIONS for operation in operations):
        because = "the operation on a setting must be SET, DELETE, APPEND or SUBTRACT"
    elif len(set(names)) < len(names):
        because = "each setting must appear at most once"
    elif any(each.value is None and _operation(each) != _DELETE for each in resource.configs):
        because = "only DELETE needs no value"
    elif resource.resource_type == ResourceType.BROKER:
        because = _name_problem(resource)
    elif resource.resource_type == unalterable or (
        resource.resource_type != ResourceType.TOPIC and _owner(resource) is None
    ):
        because = _no_settings(resource)
    return None if because is None else _Result(ErrorCode.INVALID_REQUEST, because)


def _of_unchanged(resource: Any, answer: Answer) -> _Result:
    """The result for a resource whose settings cannot change. None was set, so each can be deleted:
    kafka-reassign-partitions ends throttles so.
    """
    if (refused := _refused(resource, answer)) is not None:
        return refused
    if resource.resource_type == ResourceType.BROKER_LOGGER and resource.configs:
        return _Result(ErrorCode.INVALID_CONFIG, f"the logger {resource.configs[0].name:.100} does not exist")
    if all(_operation(each) == _DELETE for each in resource.configs):
        return _Result(NO_ERROR)
    is_broker = resource.resource_type == ResourceType.BROKER
    because = "a broker's settings cannot change while it runs" if is_broker else _no_settings(resource)
    return _Result(ErrorCode.INVALID_REQUEST, because)


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
        # A request may name 20,000 topics, mostly with the same settings.
        self._others: dict[frozenset[str], tuple[m.ConfigChange, ...]] = {}

    def changes(self, configs: Sequence[Any]) -> tuple[m.ConfigChange, ...]:
        named = frozenset(each.name for each in configs)
        if named not in self._others:
            self._others[named] = tuple(each for each in self._deleted if each.name not in named)
        return (*map(_change, configs), *self._others[named])
