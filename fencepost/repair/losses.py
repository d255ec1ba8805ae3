"""What is lost of the logs: logs whose files are gone, lost ranges, and markers in the place of lost ones."""

from __future__ import annotations

from typing import Final

from fencepost.check.scan import sizes_of
from fencepost.journal.storage import StorageReader
from fencepost.log_model.transactions import decisions_of
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.repair.expected_logs import expected_log
from fencepost.repair.inventory import Inventory
from fencepost.repair.outcomes import model_of, settle_lost
from fencepost.repair.plan import DamageReport, LogPlan, Plan
from fencepost.repair.salvage import LossKind, LostRange, SalvagedLog

# What is at stake in an internal topic, and what the repair does.
_STAKES: Final = {
    CLUSTER_METADATA_TOPIC: (
        "topics that were created or deleted there, leader epochs, and blocks of producer ids",
        "ids and epochs are skipped, so none is given out twice",
    ),
    TRANSACTION_STATE_TOPIC: (
        "states and decisions of transactional ids",
        "transactions without a known outcome are aborted; ids whose last state may be lost are forgotten",
    ),
    CONSUMER_OFFSETS_TOPIC: (
        "offsets that groups committed there: the groups continue at older offsets and repeat records",
        "all other offsets and groups",
    ),
}


def find_missing_logs(storage: StorageReader, inventory: Inventory, plan: Plan) -> None:
    """Partitions whose log is gone: something says that they had one. Others never had a record."""
    coordinators = inventory.coordinators
    decided = decisions_of(coordinators.histories)
    for partition, leadership in sorted(inventory.cluster.leaders.items()):
        if sizes_of(storage, str(partition)):
            continue
        since = inventory.cluster.topics[leadership.topic_id].created_ms
        decisions = [each for here in decided.get(partition, {}).values() for each in here]
        markers = sum(each.is_complete and each.decided_ms >= since for each in decisions)
        bounds = expected_log(storage, partition, inventory.closed.get(str(partition))).bounds
        end = max(markers, bounds.start, bounds.promised)
        if partition in inventory.vanished or end:
            # At least one offset, so that the log says that something is lost.
            end = max(coordinators.committed.get(partition, 0), end, 1)
            begin_again(inventory, plan, partition, end)


def begin_again(inventory: Inventory, plan: Plan, partition: TopicPartition, end: int) -> None:
    """Plan a new log in the place of one that is gone; all offsets before `end` are lost."""
    log = SalvagedLog(partition)
    lost = LostRange(LossKind.MISSING_PARTITION, 0, end, str(partition), 0, 0, "its files are gone")
    if end:
        log.lose(lost, to=None)
    else:
        stakes = (f"all records of {partition}", "the log begins again, empty")
        stake, saved = _STAKES.get(partition.topic, stakes)
        plan.damages.append(DamageReport(lost.file, lost.kind.value, lost.because, stake=stake, saved=saved))
    new, known = LogPlan(log, is_new=True), inventory.logs.get(partition)
    if known is not None:
        # The journal refuses the new log as well if its log start is damaged.
        new.start_offset, new.log_start = known.start_offset, known.log_start
    inventory.logs[partition] = new


def settle_losses(inventory: Inventory, plan: Plan) -> None:
    """Put markers in the place of lost ones, and report what each log has lost."""
    for each in inventory.logs.values():
        log = each.log
        if log.lost():
            if log.partition.topic == CONSUMER_OFFSETS_TOPIC or log.partition.topic not in INTERNAL_TOPICS:
                each.settled = settle_lost(log, inventory.evidence)
            each.model = model_of(log)
        for lost in log.lost():
            _report_lost(plan, log.partition, lost, names=_names_at_stake(inventory, log.partition))
        _report_rest(plan, log)


def _names_at_stake(inventory: Inventory, partition: TopicPartition) -> list[str]:
    """The groups of a partition, and the transactional ids whose last state may be lost there."""
    stale = [name for name, key in inventory.stale_ids.items() if key == partition]
    return [*sorted(inventory.coordinators.groups.get(partition, ())), *sorted(stale)]


def _report_lost(plan: Plan, partition: TopicPartition, lost: LostRange, *, names: list[str]) -> None:
    if lost.kind is LossKind.MISSING_PARTITION:
        stake = f"all records of {partition}: at least those at offsets {lost.start} to {lost.end - 1}"
        saved = f"its next record gets offset {lost.end}"
        stake, saved = _STAKES.get(partition.topic, (stake, saved))
        plan.damages.append(DamageReport(lost.file, lost.kind.value, lost.because, stake=stake, saved=saved))
        return
    span = (lost.first_byte, lost.end_byte) if lost.end_byte > lost.first_byte else None
    last = lost.end - 1
    if lost.end == lost.start:
        offsets, stake, saved = None, "nothing", "all batches"
    else:
        where = f"offset {last}" if lost.start == last else f"offsets {lost.start} to {last}"
        stake = f"the records at {where} of {partition}"
        saved = "all other records keep their offsets; no records are left at the offsets at stake"
        stake, saved = _STAKES.get(partition.topic, (stake, saved))
        offsets = (lost.start, last)
        if names:
            stake += f": {', '.join(names)}"
    plan.damages.append(
        DamageReport(
            lost.file, lost.kind.value, lost.because, stake=stake, saved=saved, offsets=offsets, span=span
        )
    )


def _report_rest(plan: Plan, log: SalvagedLog) -> None:
    """What a log had that no record needs."""
    for text in log.corrected:
        because = "the checksum does not cover it"
        plan.damages.append(
            DamageReport(text, "damaged header", because, stake="nothing", saved="it is corrected")
        )
    for file in log.replaced:
        plan.notes.append(f"{file}: a cleaned segment has taken its place, and the next start removes it")
    for file in log.unsynced:
        plan.notes.append(
            f"{file}: the log ends before it, and nothing promised to keep it; the next start removes it"
        )
    for file, because in log.strays.items():
        stake = "its batches are in another file, or are lost"
        plan.damages.append(
            DamageReport(file, "misplaced segment", because, stake=stake, saved="it is set aside")
        )
    if log.torn is not None and not log.is_altered:
        plan.notes.append(
            f"{log.torn.file}: bytes {log.torn.first_byte} to {log.torn.end_byte - 1} are a torn tail, "
            "as a crash leaves it; the next start cuts it off"
        )


def cut_tails(inventory: Inventory) -> None:
    """Cut torn tails off, and what follows them. A start would do so as well, but until then `check` has a
    note about them.
    """
    if not any(plan.is_needed for plan in inventory.logs.values()):
        return
    for log in [plan.log for plan in inventory.logs.values()]:
        log.strays |= dict.fromkeys(log.unsynced, "the log ends before it")
        if log.torn is not None:
            log.segments[-1].is_altered = True
