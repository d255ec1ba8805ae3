"""`fencepost topic create|list|describe|delete`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from fencepost.cli.bootstrap import DEFAULT, AsJson, Bootstrap
from fencepost.cli.printing import print_json, print_table
from fencepost.client.sync import Admin
from fencepost.protocol.terms import IsolationLevel, TopicPartition


def create_topic(
    name: str,
    /,
    *,
    partitions: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1,
    bootstrap: Bootstrap = DEFAULT,
) -> None:
    """Create a topic.

    Parameters
    ----------
    name
        Up to 249 ASCII letters, digits, '.', '_' and '-'.
    partitions
        How many partitions it has, for good.
    """
    with Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=partitions)
    print(f"Created {name} with {partitions} partition{'s' * (partitions != 1)}.")


def list_topics(*, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False) -> None:
    """List topics, internal ones too."""
    with Admin(bootstrap) as admin:
        topics = sorted(admin.list_topics(), key=lambda topic: (topic.is_internal, topic.topic))
    rows = [
        {"topic": topic.topic, "partitions": len(topic.partitions), "internal": topic.is_internal}
        for topic in topics
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("TOPIC", "PARTITIONS", "INTERNAL"), [tuple(row.values()) for row in rows])


def describe_topic(name: str, /, *, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False) -> None:
    """Show the partitions of a topic: leaders, offsets, open transactions.

    The stable end is where read_committed stops: the last stable offset. The end is the high watermark.
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_topic(name)
        partitions = [TopicPartition(name, entry.partition) for entry in described.partitions]
        starts = admin.begin_offsets(partitions)
        stable = admin.end_offsets(partitions, isolation_level=IsolationLevel.READ_COMMITTED)
        ends = admin.end_offsets(partitions, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        producers = admin.describe_producers(partitions)
    rows = [
        {
            "partition": entry.partition,
            "leader": entry.leader_id,
            "leader_epoch": entry.leader_epoch,
            "start": starts[partition],
            "stable_end": stable[partition],
            "end": ends[partition],
            "open_transactions": sum(p.open_since_offset >= 0 for p in producers[partition]),
        }
        for entry, partition in zip(described.partitions, partitions, strict=True)
    ]
    if as_json:
        print_json({"topic": name, "internal": described.is_internal, "partitions": rows})
    else:
        columns = ("PARTITION", "LEADER", "LEADER EPOCH", "START", "STABLE END", "END", "OPEN TRANSACTIONS")
        print_table(columns, [tuple(row.values()) for row in rows])


def delete_topic(name: str, /, *, bootstrap: Bootstrap = DEFAULT) -> None:
    """Delete a topic with all its records."""
    with Admin(bootstrap) as admin:
        admin.delete_topic(name)
    print(f"Deleted {name}.")
