"""`fencepost topic create|list|describe|alter|delete|delete-records`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter, validators

from fencepost.check.findings import counted
from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.likely_names import NameKind, suggesting
from fencepost.cli.options import (
    LOCAL,
    AsJson,
    ClusterOptions,
    Configs,
    InPartition,
    described_topic,
    is_offset,
    partitions_of,
    settings_in,
)
from fencepost.cli.output import Columns, print_done, print_entry, print_json, print_rows, row_of
from fencepost.cli.positions import range_of, unreadable
from fencepost.client.admin import TopicDescription
from fencepost.client.errors import RequestFailed
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import HIGH_WATERMARK, INT32_MAX, INTERNAL_TOPICS, NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from fencepost.client.shells.sync import Admin

TopicName = Annotated[str, Parameter(help="The topic.")]
COUNT = validators.Number(gte=1, lte=INT32_MAX)
EXAMPLE = "max.message.bytes=65536"
LISTED: Columns[TopicDescription] = (
    ("topic", "TOPIC", lambda topic: topic.topic),
    ("partitions", "PARTITIONS", lambda topic: len(topic.leaders)),
    ("internal", "INTERNAL", lambda topic: topic.is_internal),
)

CONFIGS: Columns[m.DescribedConfig] = (
    ("name", "SETTING", lambda config: config.name),
    ("value", "VALUE", lambda config: config.value),
    ("source", "SOURCE", lambda config: config.source.name.lower()),
)


class PartitionLine(NamedTuple):
    """One partition of a described topic. None: its leader refuses to be read."""

    number: int
    leader: int
    leader_epoch: int
    log_start_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    open_transactions: int | None


PARTITIONS: Columns[PartitionLine] = (
    ("partition", "PARTITION", lambda line: line.number),
    ("leader", "LEADER", lambda line: line.leader),
    ("leader_epoch", "LEADER-EPOCH", lambda line: line.leader_epoch),
    ("log_start_offset", "LOG-START-OFFSET", lambda line: line.log_start_offset),
    ("last_stable_offset", "LAST-STABLE-OFFSET", lambda line: line.last_stable_offset),
    ("high_watermark", "HIGH-WATERMARK", lambda line: line.high_watermark),
    ("open_transactions", "OPEN-TRANSACTIONS", lambda line: line.open_transactions),
)


def create_topic(
    name: str,
    /,
    *,
    partitions: Annotated[int, Parameter(alias="-p", validator=COUNT)] = 1,
    config: Configs = (),
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    Parameters
    ----------
    name
        The name: up to 249 ASCII letters, digits, '.', '_' and '-'.
    partitions
        Number of partitions; it can grow later, but never shrink.
    config
        A setting of the topic as name=value, under its name in Kafka, such as cleanup.policy=compact,
        retention.ms or max.message.bytes; `fencepost help compaction` lists them. Repeatable.
    """
    _refuse_internal(name, "created")
    configs = settings_in("--config", config, example=EXAMPLE)
    with cluster.connect() as admin:
        admin.create_topic(name, partitions=partitions, configs=configs)
    print_done(
        f"Created {name} with {counted(partitions, 'partition')}.",
        {"topic": name, "partitions": partitions, "configs": configs},
        as_json=as_json,
    )


def _refuse_internal(name: str, what: str) -> None:
    if name in INTERNAL_TOPICS:
        raise WrongUsage(
            f"{name} is an internal topic and cannot be {what}",
            then="the broker creates its internal topics when it needs them",
        )


def list_topics(*, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """List all topics, including internal ones."""
    with cluster.connect() as admin:
        topics = sorted(admin.list_topics(), key=lambda topic: (topic.is_internal, topic.topic))
    print_rows(LISTED, topics, as_json=as_json)


def describe_topic(name: TopicName, /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """Show the partitions of a topic (leaders, offsets, open transactions) and its settings."""
    with cluster.connect() as admin:
        described = described_topic(admin, name)
        partitions = [TopicPartition(name, number) for number in range(len(described.leaders))]
        has, refusals = range_of(admin, partitions, "read_committed")
        configs = admin.describe_topic_configs(name)
        producers = {partition: admin.describe_producers(partition) for partition in has.starts}
    rows = [
        PartitionLine(
            number=partition.partition,
            leader=described.leaders[partition.partition],
            leader_epoch=described.leader_epochs[partition.partition],
            log_start_offset=has.starts.get(partition),
            last_stable_offset=has.stable_ends.get(partition),
            high_watermark=has.ends.get(partition),
            open_transactions=_open_in(producers.get(partition)),
        )
        for partition in partitions
    ]
    _print_topic(described, rows, configs, as_json=as_json)
    if refusals:
        raise unreadable(refusals)


def _open_in(producers: Iterable[m.ProducerDescription] | None) -> int | None:
    """The number of open transactions."""
    return None if producers is None else sum(each.open_since_offset != NO_OFFSET for each in producers)


def _print_topic(
    described: TopicDescription,
    rows: Sequence[PartitionLine],
    configs: Sequence[m.DescribedConfig],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                **row_of(LISTED, described),
                "partitions": [row_of(PARTITIONS, row) for row in rows],
                "configs": [row_of(CONFIGS, config) for config in configs],
            }
        )
        return
    print_entry(LISTED, described, as_json=False)
    print()
    print_rows(PARTITIONS, rows, as_json=False)
    print()
    print_rows(CONFIGS, configs, as_json=False)


def alter_topic(
    name: TopicName,
    /,
    *,
    config: Configs = (),
    delete_config: tuple[str, ...] = (),
    partitions: Annotated[int | None, Parameter(alias="-p", validator=COUNT)] = None,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic, or add partitions.

    Parameters
    ----------
    config
        A setting as name=value; `fencepost help compaction` lists them. Repeatable.
    delete_config
        A setting to remove from the topic, so that the broker's value applies again. Repeatable.
    partitions
        The new number of partitions, larger than before. New records of a key may then go to another
        partition than its older records.
    """
    changes: dict[str, str | None] = {
        **settings_in("--config", config, example=EXAMPLE),
        **dict.fromkeys(delete_config),
    }
    if len(changes) < len(config) + len(delete_config):
        raise WrongUsage("topic alter changes the same setting twice", then="give each setting once")
    if not (changes or partitions):
        raise WrongUsage(
            "topic alter needs --config, --delete-config or --partitions",
            then="for example: fencepost topic alter orders --config retention.ms=3600000",
        )
    with cluster.connect() as admin, suggesting(admin, NameKind.TOPICS, name):
        if delete_config:
            _check_settings(admin, name, delete_config)
        if changes:
            admin.alter_topic_configs(name, changes)
            changed = f"Changed {counted(len(changes), 'setting')} of {name}."
            print_done(changed, {"topic": name, "configs": changes}, as_json=as_json)
        if partitions is not None:
            admin.create_partitions(name, partitions)
            grown = f"{name} now has {counted(partitions, 'partition')}."
            print_done(grown, {"topic": name, "partitions": partitions}, as_json=as_json)


def _check_settings(admin: Admin, topic: str, given: tuple[str, ...]) -> None:
    """As in Kafka, the broker says nothing if a setting is removed that no topic has."""
    known = [config.name for config in admin.describe_topic_configs(topic)]
    if unknown := set(given).difference(known):
        from fencepost.protocol.suggestions import suggestion  # only this error needs it

        name = min(unknown)
        raise CommandFailed(
            f"--delete-config: a topic has no setting {name or repr(name)}{suggestion(name, known)}",
            then=f"`fencepost topic describe {topic}` shows its settings",
        )


def delete_topic(name: TopicName, /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """Delete a topic and all its records."""
    _refuse_internal(name, "deleted")
    with cluster.connect() as admin, suggesting(admin, NameKind.TOPICS, name):
        admin.delete_topic(name)
    print_done(f"Deleted {name}.", {"topic": name}, as_json=as_json)


def delete_records(
    name: TopicName,
    /,
    *,
    partition: InPartition,
    before: str,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Delete the records of a partition before an offset. The remaining records keep their offsets.

    Parameters
    ----------
    partition
        The partition of that topic.
    before
        The first offset to keep; `end` deletes all current records.
    """
    if before != "end" and not is_offset(before):
        raise WrongUsage(
            f"--before {before or repr(before)} is not an offset",
            then="give the first offset to keep, or `end` to delete all records",
        )
    offset = HIGH_WATERMARK if before == "end" else int(before)
    with cluster.connect() as admin:
        [where] = partitions_of(admin, name, [partition])
        try:
            start = admin.delete_records({where: offset})[where]
        except RequestFailed as problem:
            if problem.error is ErrorCode.POLICY_VIOLATION:
                raise CommandFailed(
                    f"topic {name} is compacted, so its oldest records may hold the last values of keys "
                    f"({problem.error.name})",
                    then="with cleanup.policy=compact,delete it is allowed (`fencepost help compaction`)",
                ) from problem
            if problem.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            first, end = admin.beginning_offsets([where])[where], admin.end_offsets([where])[where]
            raise CommandFailed(
                f"--before {offset} is not between {first}, where {where} starts, and {end}, where it ends",
                then="give the first offset to keep, or `end` to delete all records",
            ) from problem
    print_done(
        f"{where} now starts at offset {start}.",
        {"topic": name, "partition": partition, "log_start_offset": start},
        as_json=as_json,
    )
