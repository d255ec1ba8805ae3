"""The transactions that no coordinator will end, and the transactional ids whose last state may be lost."""

from __future__ import annotations

from fencepost.protocol.transaction_log import transaction_batch
from fencepost.repair.inventory import Inventory
from fencepost.repair.outcomes import Settled, marker_of, settle_open
from fencepost.repair.plan import Plan


def end_hanging_transactions(inventory: Inventory, plan: Plan) -> None:
    """Append the markers of these transactions, and forget these ids: their producers initialise again, under
    new producer ids, which fences every older one. Nothing is done if no log has lost anything.
    """
    logs = inventory.logs.values()
    is_cut = any(each.log.torn is not None and each.log.is_altered for each in logs)
    if not is_cut and not any(each.log.lost() for each in logs):
        return
    for each in logs:
        for settled in settle_open(each.log, each.model, inventory.evidence):
            each.appended.append(marker_of(settled, each.model))
            each.settled.append(settled)
        plan.notes += map(_in_words, each.settled)
    for name, partition in sorted(inventory.stale_ids.items()):
        home = inventory.logs[partition]
        timestamp = max(0, home.model.newest_timestamp)
        home.appended.append(transaction_batch(name, None, timestamp=timestamp))
        plan.notes.append(
            f"transactional id {name!r}: its last state may be lost, so it is forgotten; its producers "
            "have to initialise again"
        )


def _in_words(settled: Settled) -> str:
    partition, producer_id, epoch, first_offset, result, is_proven, _, name = settled
    who = (
        f"producer {producer_id}, epoch {epoch}"
        if name is None
        else f"{name!r} (producer {producer_id}, epoch {epoch})"
    )
    what = f"{partition}: the marker of a transaction of {who}, open since offset {first_offset}, is lost"
    if is_proven:
        return f"{what}; the decision was {result.name}, so this marker is written again"
    return f"{what}, and its outcome may be lost with it; the transaction is aborted"
