"""The files next to each log that differ from it: they are set aside and built again from the log."""

from __future__ import annotations

from typing import Final

from fencepost.check.directory import check_logs
from fencepost.check.findings import FindingKind, Severity
from fencepost.check.index_files import INDEX_SUFFIXES
from fencepost.check.scan import offset_of
from fencepost.check.snapshot_files import SNAPSHOT_SUFFIX
from fencepost.journal.manifest import CHECKPOINT_FILE, LOG_START_FILE, MANIFEST_FILE
from fencepost.journal.storage import StorageReader
from fencepost.repair.inventory import Inventory
from fencepost.repair.plan import LogPlan, Plan

_DERIVED: Final = (*INDEX_SUFFIXES, SNAPSHOT_SUFFIX, f"/{MANIFEST_FILE}", f"/{CHECKPOINT_FILE}")


def find_wrong_files(storage: StorageReader, inventory: Inventory, plan: Plan) -> None:
    """Files that differ from a log that has no fault itself. StorageError if one cannot be read."""
    plans = {str(key): each for key, each in inventory.logs.items()}
    findings = check_logs(storage)
    if findings.unread:
        raise findings.unread[0]
    for finding in findings.found:
        directory, _, name = finding.file.partition("/")
        log_plan = plans.get(directory)
        if log_plan is None or finding.severity is not Severity.PROBLEM:
            continue
        if not log_plan.believes_manifest and (name == LOG_START_FILE or name.endswith(SNAPSHOT_SUFFIX)):
            continue  # it may only differ from the manifest
        if name == LOG_START_FILE and log_plan.log_start is None and not log_plan.log.is_altered:
            plan.rewrite_log_start(log_plan, finding.what)
        elif finding.file.endswith(_DERIVED) and finding.file not in log_plan.derived:
            log_plan.derived.add(finding.file)
            if not log_plan.log.is_altered:
                saved = "it is rebuilt from the log"
                if finding.kind is FindingKind.PRODUCERS_FORGOTTEN:
                    saved = "all records; a producer that wrote none of them is forgotten"
                plan.report_derived(finding.file, finding.what, stake=finding.means, saved=saved)
    for log_plan in plans.values():
        if log_plan.log.is_altered:
            _doubt_files(storage, log_plan)


def _doubt_files(storage: StorageReader, plan: LogPlan) -> None:
    """Of the files of an altered log, only the snapshots before the first lost offset are true."""
    lost = plan.log.lost()
    first = lost[0].start if lost else plan.log.end_offset
    for name in storage.files(str(plan.log.partition)):
        taken_at = offset_of(name, SNAPSHOT_SUFFIX)
        path = f"{plan.log.partition}/{name}"
        if (taken_at is None and path.endswith(_DERIVED)) or (taken_at is not None and taken_at > first):
            plan.derived.add(path)
