"""Topics that the metadata has lost: they are put back into it, or their directories are set aside."""

from __future__ import annotations

from fencepost.protocol.metadata_log import ClusterRecord, cluster_batch
from fencepost.protocol.terms import (
    INTERNAL_TOPICS,
    METADATA_PARTITION,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    TopicPartition,
)
from fencepost.repair import metadata
from fencepost.repair.inventory import Inventory
from fencepost.repair.plan import DamageReport, LogPlan, Plan
from fencepost.repair.salvage import LossKind, SalvagedLog


def adopt_topics(inventory: Inventory, plan: Plan, adopt: frozenset[str]) -> list[ClusterRecord]:
    """Put topics back into the metadata that it has lost: those to `adopt`, and the coordinators' topics.
    Returns the records.
    """
    records: list[ClusterRecord] = []
    for topic, partitions in inventory.lost_topics().items():
        is_needed = topic in INTERNAL_TOPICS and inventory.has_lost_metadata
        logs = [inventory.logs[key] for key in partitions if key in inventory.logs]
        # Without any directory, they may all be waiting under the names that an earlier repair gave them.
        if (topic in adopt and logs) or is_needed:
            count = metadata.partition_count(
                topic, [key.partition for key in partitions], inventory.coordinators.names(topic)
            )
            named = [each.topic_id for each in logs if each.topic_id != NO_TOPIC_ID]
            records += metadata.adopted(
                inventory.cluster,
                topic,
                named[0] if named else metadata.unused_topic_id(inventory.cluster, topic),
                count,
                max((each.last_epoch for each in logs), default=NO_LEADER_EPOCH),
                is_compacted=any(each.is_compacted for each in logs),
            )
            plan.adopted.add(topic)
            plan.notes.append(f"topic {topic}: restored in the metadata; partitions: {count}")
    return records


def renew_metadata(inventory: Inventory, plan: Plan, adopted: list[ClusterRecord]) -> None:
    """Append to the metadata log what makes up for its lost records, and set the directories of lost topics
    aside.
    """
    metadata_plan = inventory.logs.get(METADATA_PARTITION)
    if metadata_plan is None:
        return
    records = list(adopted)
    if inventory.has_lost_metadata:
        records += metadata.raised(
            inventory.cluster,
            metadata_plan.log,
            leader_epochs={
                key: each.last_epoch for key, each in inventory.logs.items() if key != METADATA_PARTITION
            },
            producer_id_max=_producer_id_max(inventory),
        )
        for topic, partitions in inventory.lost_topics().items():
            _set_aside(inventory, plan, topic, partitions)
    # Without a time: a topic counts as created before each decision about it.
    if records:
        metadata_plan.appended.append(cluster_batch(records, timestamp=0))


def _producer_id_max(inventory: Inventory) -> int:
    """The highest producer id that the transaction log names, or that wrote a batch."""
    states = [state for history in inventory.coordinators.histories.values() for state in history]
    named = metadata.producer_ids_of(state.record for state in states)
    return max([named, *[number for each in inventory.logs.values() for number in each.model.producers]])


def _set_aside(inventory: Inventory, plan: Plan, topic: str, partitions: list[TopicPartition]) -> None:
    for key in partitions:
        if key not in inventory.logs:
            because = "its files are gone, and the metadata no longer knows it"
            kind, stake = LossKind.MISSING_PARTITION.value, f"all records of {key}"
            plan.damages.append(DamageReport(str(key), kind, because, stake=stake, saved="nothing"))
            continue
        end = inventory.logs[key].log.end_offset
        plan.aside.append(str(key))
        plan.damages.append(
            DamageReport(
                str(key),
                "lost topic",
                "the metadata no longer knows it",
                stake=f"the records at offsets up to {end - 1} of {key}",
                saved=f"its files are set aside; to get the topic back, rename the directory to {key} and "
                f"run `fencepost repair {plan.location} --write --adopt {topic}`",
            )
        )
        inventory.logs[key] = LogPlan(SalvagedLog(key))
