"""Decisions about the settings of topics, of changed ones and of new ones (ConfigurationControlManager).

Rule: what is written is what the topic has from then on, not the change that was requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fencepost.broker.cluster.controller import ClusterDecision, Controller
from fencepost.broker.cluster.per_topic import each_topic, result_for
from fencepost.broker.config_def import DELETE
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.fixed_configs import FixedSetting
from fencepost.broker.limits import CLUSTER_CONFIGS, CONFIG_VALUE, exceeded
from fencepost.broker.log_config import SETTABLE, conflict, parse_config
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.metadata_log import ClusterRecord, TopicConfigured
from fencepost.protocol.terms import INTERNAL_TOPICS, ConfigOperation, ConfigType, topic_name_problem


def alter_configs(state: Controller, request: m.IncrementalAlterConfigs, *, to: ReplyTo) -> ClusterDecision:
    """Change settings of topics; the records that are written are the settings from now on."""
    records: list[ClusterRecord] = []
    answers: list[m.TopicError] = []
    too_large = too_large_configs(state, request)
    for wanted, named_twice in each_topic(request.topics):
        changed = too_large or named_twice or _changed_configs(state, wanted)
        if not isinstance(changed, Refused):
            records += [] if request.validate_only else changed
        answers.append(result_for(wanted.topic, changed if isinstance(changed, Refused) else None))
    reply = Reply(to, m.IncrementalAlterConfigsReply(topics=tuple(answers)))
    return Decision(tuple(records), (reply,))


def _changed_configs(state: Controller, wanted: m.TopicConfigChanges) -> list[TopicConfigured] | Refused:
    """The records of one topic's changes (ConfigurationControlManager.incrementalAlterConfigs)."""
    if len({change.name for change in wanted.changes}) < len(wanted.changes):
        return Refused(ErrorCode.INVALID_REQUEST, "the request changes a setting twice")
    if without := [each.name for each in wanted.changes if each.value is None and _needs_value(each)]:
        return Refused(ErrorCode.INVALID_REQUEST, f"these settings need a value: {', '.join(without)}")
    if (listed := _not_a_list(wanted.changes)) is not None:
        return listed
    if not wanted.topic:
        return Refused(ErrorCode.INVALID_REQUEST, "there are no settings of all topics")
    because = topic_name_problem(wanted.topic)
    if because is None and wanted.topic in INTERNAL_TOPICS:
        because = "internal topics follow the broker's settings and have none of their own"
    if because is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    topic = state.topics.get(wanted.topic)
    before: Mapping[str, str] = {} if topic is None else topic.configs
    records: list[TopicConfigured] = []
    for change in wanted.changes:
        value = _changed_value(before.get(change.name), change)
        if isinstance(value, Refused):
            return value
        if value != before.get(change.name):
            records.append(TopicConfigured(wanted.topic, name=change.name, value=value))
    own = {**before, **{record.name: record.value for record in records}}
    refused = conflict_of({name: value for name, value in own.items() if value is not None})
    if refused is None and topic is None:  # after the settings, as in Kafka
        refused = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.topic!r} does not exist")
    return refused or records


def _not_a_list(changes: Iterable[m.ConfigChange]) -> Refused | None:
    """Why nothing can be added to a setting or removed from it; Kafka checks this before the topic's name."""
    for change in changes:
        setting = SETTABLE.get(change.name)
        is_list = setting is not None and setting.config_type is ConfigType.LIST
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT) and not is_list:
            because = f"{change.name} is not a list: nothing can be added to it or removed from it"
            return Refused(ErrorCode.INVALID_CONFIG, because)
    return None


def _changed_value(own: str | None, change: m.ConfigChange) -> str | Refused | None:
    """The value that a topic's own setting has after the change, None if it then has none."""
    if change.value is None or not _needs_value(change):
        return None
    value = change.value
    if change.operation is not ConfigOperation.SET:
        setting = SETTABLE.get(change.name)
        # A list that the topic does not have yet starts as Kafka's default, whatever the broker's is.
        default = setting.value if isinstance(setting, FixedSetting) else DELETE
        value = _changed_list(default if own is None else own, change.operation, value)
    return config_problem(change.name, value) or value


def _needs_value(change: m.ConfigChange) -> bool:
    return change.operation is not ConfigOperation.DELETE


def _changed_list(old: str, operation: ConfigOperation, value: str) -> str:
    """The list with the entries of `value` added or removed, which Java splits: without the empty entries at
    the end, but an empty text has one.
    """
    parts = [part for part in old.split(",") if part]
    entries = value.rstrip(",").split(",") if value.strip(",") or not value else []
    if operation is ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*parts, *entries]))
    return ",".join(part for part in parts if part not in entries)


def config_problem(name: str, value: str) -> Refused | None:
    """Why a setting cannot have this value."""
    try:
        if len(value) > CONFIG_VALUE.value:
            raise ValueError(f"it has {len(value):,} characters, and the limit is {CONFIG_VALUE.value:,}")
        parse_config(name, value)
    except ValueError as problem:
        because = f"{name:.100}={value:.100} cannot be set: {problem}"
        return Refused(ErrorCode.INVALID_CONFIG, because)
    return None


def conflict_of(configs: Mapping[str, str]) -> Refused | None:
    """Why a topic cannot have these settings together."""
    because = conflict(configs)
    return None if because is None else Refused(ErrorCode.INVALID_CONFIG, because)


def too_large_configs(
    state: Controller, request: m.CreateTopics | m.IncrementalAlterConfigs
) -> Refused | None:
    """Why a request with settings is refused as a whole: a snapshot might then be larger than a batch."""
    wanted = sum(
        _config_size(topic.topic, each.name, each.value)
        for topic in request.topics
        for each in (topic.configs if isinstance(topic, m.CreateTopic) else topic.changes)
        if each.value is not None
    )
    if not wanted:
        return None
    total = wanted + sum(
        _config_size(topic.name, name, value)
        for topic in state.topics.values()
        for name, value in topic.configs.items()
    )
    return exceeded(CLUSTER_CONFIGS, total) if total > CLUSTER_CONFIGS.value else None


def _config_size(topic: str, name: str, value: str) -> int:
    return len(topic) + len(name) + len(value)
