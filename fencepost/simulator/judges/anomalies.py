"""What can be wrong with a history: each rule with its name, its meaning and where it comes from.

Rule: the names are Jepsen's where Jepsen has the rule (jepsen/src/jepsen/tests/kafka.clj); they are stable,
scenarios expect them by name. A rule that Kafka allows to be broken says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.operations import ClientOperation, Record


@attrs.frozen
class Rule:
    """One thing that must not be seen; `looks_at` is what is counted to tell that the judge was not idle.

    `allowed_because` is empty for a rule whose breach is a violation.
    """

    name: str
    meaning: str = attrs.field(kw_only=True)
    looks_at: str = attrs.field(kw_only=True)
    allowed_because: str = attrs.field(default="", kw_only=True)


Looks = defaultdict[str, int]
"""How often each rule had something to look at, by its name. No Counter: its `__delitem__`, in Python, makes
every assignment three times as dear.
"""


@attrs.frozen
class Anomaly:
    """A rule was broken: by whom (the operations that show it), where, and by which records."""

    rule: Rule
    text: str = attrs.field(kw_only=True)
    partition: TopicPartition | None = attrs.field(default=None, kw_only=True)
    operations: tuple[ClientOperation, ...] = attrs.field(default=(), kw_only=True)
    records: tuple[Record, ...] = attrs.field(default=(), kw_only=True)

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.text}"


@attrs.frozen
class Verdict:
    """All that was found, allowed or not, and how often each rule had something to look at, by the rule's
    name.
    """

    anomalies: tuple[Anomaly, ...]
    sometimes: Mapping[str, int] = attrs.field(kw_only=True)

    @property
    def violations(self) -> tuple[Anomaly, ...]:
        """The anomalies that Kafka does not allow."""
        return tuple(anomaly for anomaly in self.anomalies if not anomaly.rule.allowed_because)


INCONSISTENT_OFFSETS = Rule(
    "inconsistent-offsets",
    meaning="Two values were seen at one offset of a partition.",
    looks_at="offsets of which a value is known",
)
DUPLICATE = Rule(
    "duplicate",
    meaning="One write was seen at two offsets: what idempotence rules out.",
    looks_at="values of which an offset is known",
)
PHANTOM = Rule(
    "phantom",
    meaning="A value was read that nobody wrote to that partition.",
    looks_at="values that were read",
)
ABORTED_READ = Rule(
    "G1a",
    meaning="A value was read whose write definitely failed; of a transaction: at read_committed.",
    looks_at="failed writes at offsets that readers went past",
)
PRECOMMITTED_READ = Rule(
    "precommitted-read",
    meaning="A transaction read at read_committed what it wrote itself.",
    looks_at="transactions that read a partition to which they wrote",
)
UNDECIDED_READ = Rule(
    "undecided-read",
    meaning="A transaction's value was read at read_committed before its commit was asked for.",
    looks_at="values of transactions that were read, where the time of their commit is known",
)
LOST_WRITE = Rule(
    "lost-write",
    meaning="Readers went past the offset of an acknowledged write, and nobody ever read it.",
    looks_at="acknowledged writes that readers went past",
)
TORN_TRANSACTION = Rule(
    "torn-transaction",
    meaning="Some writes of a transaction were read at read_committed, so it is committed; others are lost.",
    looks_at="transactions of several writes of which one was read",
)
UNSEEN = Rule(
    "unseen",
    meaning="An acknowledged write was still unread when its partition had at last been read to the end.",
    looks_at="acknowledged writes to partitions that were read to the end",
)
POLL_SKIP = Rule(
    "poll-skip",
    meaning="Between two operations a reader left out a record that others have read.",
    looks_at="partitions that a process went on reading in its next operation",
)
NONMONOTONIC_POLL = Rule(
    "nonmonotonic-poll",
    meaning="From one operation to the next a reader went back, though nobody set its position.",
    looks_at="partitions that a process went on reading in its next operation",
)
INTERNAL_POLL_SKIP = Rule(
    "int-poll-skip",
    meaning="Within one operation a reader left out a record that others have read.",
    looks_at="records read after another one of the same operation",
)
INTERNAL_NONMONOTONIC_POLL = Rule(
    "int-nonmonotonic-poll",
    meaning="Within one operation a reader went back.",
    looks_at="records read after another one of the same operation",
)
NONMONOTONIC_SEND = Rule(
    "nonmonotonic-send",
    meaning="A later operation of a process wrote at a lower offset than an earlier one.",
    looks_at="partitions that a process wrote to again in a later operation",
)
INTERNAL_NONMONOTONIC_SEND = Rule(
    "int-nonmonotonic-send",
    meaning="Within one operation a later send got a lower offset than an earlier one.",
    looks_at="writes after another one of the same operation to the same partition",
)
CIRCULAR_READS = Rule(
    "G1c",
    meaning="Transactions each read at read_committed what the next one wrote, in a cycle (pure wr edges).",
    looks_at="wr edges between transactions that read and write",
)
CIRCULAR_WRITES = Rule(
    "G0",
    meaning="Transactions wrote before each other in a cycle (ww edges between neighbours in a log).",
    looks_at="ww edges",
    allowed_because="Kafka does not isolate writes: records of open transactions stand mixed in a log",
)
MISSING_OUTPUT = Rule(
    "missing-output", meaning="An input's result is not in the output.", looks_at="results that inputs have"
)
DOUBLED_OUTPUT = Rule(
    "doubled-output",
    meaning="A result is in the output more often than its inputs say.",
    looks_at="results that inputs have",
)
FOREIGN_OUTPUT = Rule(
    "foreign-output", meaning="The output holds what is no input's result.", looks_at="results in the output"
)

RULES = (
    INCONSISTENT_OFFSETS,
    DUPLICATE,
    PHANTOM,
    ABORTED_READ,
    PRECOMMITTED_READ,
    UNDECIDED_READ,
    LOST_WRITE,
    TORN_TRANSACTION,
    UNSEEN,
    POLL_SKIP,
    NONMONOTONIC_POLL,
    INTERNAL_POLL_SKIP,
    INTERNAL_NONMONOTONIC_POLL,
    NONMONOTONIC_SEND,
    INTERNAL_NONMONOTONIC_SEND,
    CIRCULAR_READS,
    CIRCULAR_WRITES,
    MISSING_OUTPUT,
    DOUBLED_OUTPUT,
    FOREIGN_OUTPUT,
)
