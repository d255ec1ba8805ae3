"""`fencepost check DIR`: every file of a data directory against a full scan of its batches.

Rule: reads alone, and keeps brokers out meanwhile; exit code 0 without problems (notes are none), 1 with, 2
when there was nothing to check.
"""

from __future__ import annotations

from pathlib import Path

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding, Findings, Severity
from fencepost.cli.errors import FAILED, OK, WRONG_USAGE, CommandFailed
from fencepost.cli.options import AsJson
from fencepost.cli.output import counted, print_json
from fencepost.journal.disk import DiskStorage
from fencepost.journal.storage import DirectoryInUse, NotADataDirectory


def check(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Check a data directory that no broker is running on: batches, sequences, indexes, snapshots, manifests,
    and the transaction log against the markers.

    A problem is a promise that the files break (exit code 1). A note is what the next start sets right, or
    what an administrator did.

    Parameters
    ----------
    directory
        What `fencepost serve` was started on.
    """
    storage = DiskStorage(directory, read_only=True)
    try:
        storage.keep_out()
        findings = check_directory(storage)
    except (DirectoryInUse, NotADataDirectory) as problem:
        raise CommandFailed(str(problem), then="nothing was checked", code=WRONG_USAGE) from problem
    finally:
        storage.unlock()
    for finding in findings.found:
        if as_json:
            print_json(facts(finding))
        else:
            print(in_words(finding))
    summary = counts(findings)
    if as_json:
        print_json(summary)
    else:
        looked_at = f"{counted(summary['partitions'], 'partition')}, {counted(summary['batches'], 'batch')}"
        verdict = f"{counted(summary['problems'], 'problem')}, {counted(summary['notes'], 'note')}"
        print(f"{looked_at}, {summary['bytes']:,} bytes: {verdict}.")
    return FAILED if summary["problems"] else OK


def facts(finding: Finding) -> dict[str, str | int | None]:
    """A finding as JSON."""
    return {
        "severity": finding.severity.value,
        "file": finding.file,
        "offset": finding.offset,
        "what": finding.what,
        "means": finding.means,
    }


def in_words(finding: Finding) -> str:
    """A finding on two lines: where and what, and below it what it means."""
    place = finding.file if finding.offset is None else f"{finding.file} at offset {finding.offset}"
    return f"{finding.severity.value:<8} {place}: {finding.what}\n{'':<8} {finding.means}"


def counts(findings: Findings) -> dict[str, int]:
    """The last line: how much was found in how much."""
    return {
        "problems": findings.count(Severity.PROBLEM),
        "notes": findings.count(Severity.NOTE),
        "partitions": findings.partitions,
        "segments": findings.segments,
        "batches": findings.batches,
        "bytes": findings.bytes,
        "transactional_ids": findings.transactional_ids,
    }
