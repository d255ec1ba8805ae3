"""A broken rule, found while a world runs: it ends the run.

Rule: the name is stable, so that searches and shrinkers can tell one violation from another; the evidence
is one line.
"""

from __future__ import annotations


class Violation(Exception):
    """What must not happen happened."""

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule = rule
        self.evidence = evidence
