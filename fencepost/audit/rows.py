"""Findings as rows of Spark, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from fencepost.check.findings import Finding, Findings, Severity

FINDING_SCHEMA: Final = "severity string, file string, offset bigint, what string, means string"

Row = Mapping[str, Any]


def finding_rows(findings: Findings) -> Iterator[dict[str, Any]]:
    """Yields the findings so far as rows, and removes them from `findings`."""
    for finding in findings.found:
        fields = attrs.asdict(finding, filter=attrs.filters.exclude("kind"))  # an audit asks for no repair
        yield {**fields, "severity": finding.severity.value}
    findings.found.clear()


def findings_of(rows: Iterable[Row]) -> list[Finding]:
    found = [Finding(**dict[str, Any](row, severity=Severity(row["severity"]))) for row in rows]
    return sorted(found, key=lambda each: (each.file, each.offset is not None, each.offset or 0, each.what))
