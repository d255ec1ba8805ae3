"""Plans a repair, from reading alone: the damage, what is at stake, and what can be saved.

Rule: nothing is written here. The same plan is the report of a dry run and the orders of `perform`.
"""

# Theory of operation
#
#     inventory     every log, batch by batch around its damage (salvage.py), between the bounds that its
#                   small files promise (expected_logs.py), and what the intact records prove
#                   (coordinator_records.py, outcomes.py)
#     lost topics   topics that the metadata has lost are put back into it, or their directories set aside
#     losses        logs that are gone begin again; markers take the place of lost ones
#     wrong files   `fencepost check` says which derived files differ from their log
#     transactions  those that no coordinator will end are ended
#
# Order of `perform`: data first, then __consumer_offsets, __transaction_state and __cluster_metadata. An
# interrupted repair can be run again: it finds the evidence that its remaining steps need.

from __future__ import annotations

from typing import Final

from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    METADATA_PARTITION,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.repair.derived_files import find_wrong_files
from fencepost.repair.hanging_transactions import end_hanging_transactions
from fencepost.repair.inventory import take_inventory
from fencepost.repair.losses import begin_again, cut_tails, find_missing_logs, settle_losses
from fencepost.repair.lost_topics import adopt_topics, renew_metadata
from fencepost.repair.plan import Plan

_ORDER: Final = {CONSUMER_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 2, CLUSTER_METADATA_TOPIC: 3}


def make_plan(storage: StorageReader, *, adopt: frozenset[str] = frozenset()) -> Plan:
    """Read all of a data directory; NotADataDirectory when it is none, MisplacedDirectories when logs are
    under the names of others. `adopt` are topics that the metadata lost and that are put back into it.
    """
    plan = Plan(storage.location)
    inventory = take_inventory(storage, plan)
    if inventory.logs and METADATA_PARTITION not in inventory.logs:
        begin_again(inventory, plan, METADATA_PARTITION, 0)
    adopted = adopt_topics(inventory, plan, adopt)
    inventory.learn_histories()
    find_missing_logs(storage, inventory, plan)
    settle_losses(inventory, plan)
    find_wrong_files(storage, inventory, plan)
    end_hanging_transactions(inventory, plan)
    renew_metadata(inventory, plan, adopted)
    cut_tails(inventory)
    needed = [entry for entry in inventory.logs.items() if entry[1].is_needed]
    plan.logs = [
        log for _, log in sorted(needed, key=lambda entry: (_ORDER.get(entry[0].topic, 0), entry[0]))
    ]
    return plan
