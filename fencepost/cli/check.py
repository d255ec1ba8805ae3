"""`fencepost check DIR`: compares every file of a data directory, or of a log directory of Apache Kafka, with
a full scan of its batches.

Rule: it only reads, and locks the directory against brokers meanwhile. The exit code is 0 without problems
(notes do not count), 1 with problems or while a broker runs there, 2 if there is no such directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding, Findings, Severity, counted
from fencepost.cli.errors import FAILED, OK, CommandFailed
from fencepost.cli.options import AsJson
from fencepost.cli.output import print_json
from fencepost.cli.table import RED, YELLOW, styled
from fencepost.journal.disk import DiskStorage
from fencepost.journal.storage import DirectoryInUse

STYLES: Final = {Severity.PROBLEM: RED, Severity.NOTE: YELLOW}
WHILE_IT_RUNS: Final = (
    "while it runs, use `fencepost status` for its health, `fencepost transactions find-hanging -t TOPIC` "
    "for hanging transactions, and `fencepost dump` for the contents of its files"
)


def check(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Check every file of a data directory, while no broker uses it.

    Parameters
    ----------
    directory
        The data directory of `fencepost serve`, or a log directory of Apache Kafka.
    """
    storage = DiskStorage(directory, read_only=True)
    try:
        storage.keep_out()
        findings = check_directory(storage)
    except DirectoryInUse as problem:
        raise CommandFailed(f"{problem}; nothing was checked", then=WHILE_IT_RUNS) from problem
    finally:
        storage.unlock()
    counts = {
        "partitions": findings.partitions,
        "segments": findings.segments,
        "batches": findings.batches,
        "bytes": findings.bytes,
        "transactional_ids": findings.transactional_ids,
    }
    return print_findings(findings, counts, "internal ones included", as_json=as_json)


def print_findings(findings: Findings, counts: dict[str, int], which: str, *, as_json: bool) -> int:
    """Prints what a check found and a summary; returns the exit code. `counts` counts partitions, batches,
    bytes and more; `which` says which partitions these are.
    """
    problems, notes = findings.count(Severity.PROBLEM), findings.count(Severity.NOTE)
    if as_json:
        for finding in findings.found:
            print_json(facts(finding))
        print_json({"problems": problems, "notes": notes, **counts})
    else:
        for finding in findings.found:
            print(in_words(finding))
        partitions = f"{counted(counts['partitions'], 'partition')} with files ({which})"
        size = f"{counted(counts['batches'], 'batch')}, {counts['bytes']:,} bytes"
        print(f"{partitions}, {size}: {counted(problems, 'problem')}, {counted(notes, 'note')}.")
    return FAILED if problems else OK


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
    """A finding on two lines: the place and what is there, then what it means."""
    place = finding.file if finding.offset is None else f"{finding.file} at offset {finding.offset}"
    severity = styled(f"{finding.severity.value:<8}", STYLES[finding.severity])
    return f"{severity} {place}: {finding.what}\n{'':<8} {finding.means}"
