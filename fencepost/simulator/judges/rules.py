"""The rules that a run may break, each with a stable name: scenarios and searches expect violations by name.

Two judges, two lists. The *black box* sees what clients saw, once a run is over: its rules are named as
Jepsen's where Jepsen has the rule (jepsen/src/jepsen/tests/kafka.clj), and a breach is an Anomaly. The *white
box* sees every step of every node, and the disks at the end: its rules are I1 to I22, and a breach is a
Violation, raised in the step that breaks it. I10, exactly once from end to end, is judged from outside
(black_box.exactly_once).

Each rule also counts how often it had something to look at (`Exercised`): a rule that never does proves
nothing, and tests demand that every rule is exercised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.operations import ClientOperation, Record


class Violation(Exception):
    """A rule of the white box was broken while a world ran: it ends the run. The name is stable, so that
    shrinkers can tell one violation from another; the evidence is one line.
    """

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule = rule
        """Its name."""
        self.evidence = evidence
        """What was seen, in a line."""


def shown(value: bytes) -> str:
    """A value in evidence, as people read it; bytes that are not text are escaped."""
    return f'"{value.decode(errors="backslashreplace")}"'


@attrs.frozen
class Rule:
    """One thing that must not be seen; `exercised_by` is what is counted to show that the judge was not
    idle.
    """

    name: str
    meaning: str = attrs.field(kw_only=True)
    exercised_by: str = attrs.field(kw_only=True)

    def broken(self, evidence: str) -> Violation:
        """What to raise where a step broke it."""
        return Violation(self.name, evidence)


Exercised = defaultdict[str, int]
"""How often each rule had something to look at, by its name. Not a Counter: its `__delitem__`, in Python,
triples the cost of each assignment.
"""


@attrs.frozen
class Anomaly:
    """A rule of the black box was broken: by which operations, where, and by which records."""

    rule: Rule
    text: str = attrs.field(kw_only=True)
    partition: TopicPartition | None = attrs.field(default=None, kw_only=True)
    operations: tuple[ClientOperation, ...] = attrs.field(default=(), kw_only=True)
    records: tuple[Record, ...] = attrs.field(default=(), kw_only=True)

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.text}"


@attrs.frozen
class HistoryVerdict:
    """All anomalies of a history, and how often each rule had something to look at."""

    anomalies: tuple[Anomaly, ...]
    exercised: Mapping[str, int] = attrs.field(kw_only=True)


# --- what clients see ---------------------------------------------------------------------------------------

INCONSISTENT_OFFSETS = Rule(
    "inconsistent-offsets",
    meaning="Two values were seen at one offset of a partition.",
    exercised_by="offsets with a known value",
)
DUPLICATE = Rule(
    "duplicate",
    meaning="One write was seen at two offsets. Idempotence must prevent that.",
    exercised_by="values with a known offset",
)
PHANTOM = Rule(
    "phantom",
    meaning="A value was read that no client wrote to that partition.",
    exercised_by="values that were read",
)
ABORTED_READ = Rule(
    "G1a",
    meaning="A value was read although its write failed. For a transaction's value, only reads at "
    "read_committed count.",
    exercised_by="failed writes at offsets that readers passed",
)
PRECOMMITTED_READ = Rule(
    "precommitted-read",
    meaning="A transaction read its own uncommitted write at read_committed.",
    exercised_by="transactions that read a partition to which they wrote",
)
UNDECIDED_READ = Rule(
    "undecided-read",
    meaning="A value was read at read_committed before the commit of its transaction was requested.",
    exercised_by="transactional values that were read, if the time of their commit request is known",
)
LOST_WRITE = Rule(
    "lost-write",
    meaning="Readers passed the offset of an acknowledged write, and none of them ever read it.",
    exercised_by="acknowledged writes that readers passed",
)
TORN_TRANSACTION = Rule(
    "torn-transaction",
    meaning="Some writes of a transaction were read at read_committed, and others are missing.",
    exercised_by="transactions with several writes, at least one of which was read",
)
UNSEEN = Rule(
    "unseen",
    meaning="An acknowledged write was still unread when its partition had been read to the end.",
    exercised_by="acknowledged writes to partitions that were read to the end",
)
POLL_SKIP = Rule(
    "poll-skip",
    meaning="Between two operations a reader skipped a record that others have read.",
    exercised_by="partitions that a process continued to read in its next operation",
)
NONMONOTONIC_POLL = Rule(
    "nonmonotonic-poll",
    meaning="From one operation to the next a reader went back without a seek.",
    exercised_by="partitions that a process continued to read in its next operation",
)
INTERNAL_POLL_SKIP = Rule(
    "int-poll-skip",
    meaning="Within one operation a reader skipped a record that others have read.",
    exercised_by="second and later records read in one operation",
)
INTERNAL_NONMONOTONIC_POLL = Rule(
    "int-nonmonotonic-poll",
    meaning="Within one operation a reader went back.",
    exercised_by="second and later records read in one operation",
)
NONMONOTONIC_SEND = Rule(
    "nonmonotonic-send",
    meaning="A later operation of a process wrote at a lower offset than an earlier one.",
    exercised_by="partitions that a process wrote to again in a later operation",
)
INTERNAL_NONMONOTONIC_SEND = Rule(
    "int-nonmonotonic-send",
    meaning="Within one operation a later send got a lower offset than an earlier one.",
    exercised_by="second and later writes of one operation to one partition",
)
CIRCULAR_READS = Rule(
    "G1c",
    meaning="At read_committed, transactions read each other's writes in a cycle (write-read edges only).",
    exercised_by="write-read edges between transactions that read and write",
)
LOST_LATEST = Rule(
    "lost-latest",
    meaning="A reader of a compacted topic passed a committed record without getting it, although neither "
    "a newer record with the same key nor retention can have removed it yet.",
    exercised_by="records of compacted topics that were the latest for their key when they were read",
)
EARLY_TOMBSTONE = Rule(
    "early-tombstone",
    meaning="A reader passed a tombstone without getting it, less than `delete.retention.ms` after its "
    "commit.",
    exercised_by="tombstones that were read within this time",
)
STALE_VALUE = Rule(
    "stale-value",
    meaning="After a reader has read a whole compacted topic, its value for a key is not the last "
    "one that was written.",
    exercised_by="keys for which the judge compared the last record with what the last reader got",
)
MISSING_OUTPUT = Rule(
    "missing-output",
    meaning="The result of an input is missing from the output.",
    exercised_by="expected results",
)
DOUBLED_OUTPUT = Rule(
    "doubled-output",
    meaning="A result is in the output more often than its inputs produce it.",
    exercised_by="expected results",
)
FOREIGN_OUTPUT = Rule(
    "foreign-output",
    meaning="The output holds a value that no input produces.",
    exercised_by="results in the output",
)

HISTORY_RULES: Final = tuple(found for found in list(globals().values()) if isinstance(found, Rule))
"""All rules of the black box."""

# --- what happens inside, step by step --------------------------------------------------------------------

BOUNDS = Rule(
    "I1 bounds",
    meaning="log start <= LSO <= high watermark <= log end; the LSO is the first undecided offset.",
    exercised_by="steps that changed the offsets of a partition",
)
MONOTONE = Rule(
    "I2 monotone",
    meaning="The LSO never goes back, under any leader, unless power was lost.",
    exercised_by="steps that moved an LSO",
)
UNIQUE_SEQUENCE = Rule(
    "I3 unique sequence",
    meaning="Each sequence of a producer id and epoch enters a log at most once, and without a gap.",
    exercised_by="batches with a sequence",
)
HANGING = Rule(
    "I4 hanging",
    meaning="No batch enters a log after its transaction's marker, and none enters a log that will get no "
    "marker.",
    exercised_by="transactional batches",
)
ONE_DECISION = Rule(
    "I5 one decision",
    meaning="A transaction has the same marker, COMMIT or ABORT, in every partition.",
    exercised_by="second and later markers of a transaction",
)
DURABLE_DECISION = Rule(
    "I6 durable decision",
    meaning="Markers come after a durable PREPARE_*, carry the epoch of its coordinator or of a later one, "
    "and end no other transaction; COMPLETE_* comes after all markers, and no state goes back.",
    exercised_by="markers, and records of transactions",
)
UNIQUE_IDENTITY = Rule(
    "I7 unique identity",
    meaning="Epochs never fall, no producer id is allocated twice, and no two clients get the same identity.",
    exercised_by="identities that were granted",
)
CONVERGENCE = Rule(
    "I8 convergence",
    meaning="Once faults are healed, every decision is carried out and no request is left waiting.",
    exercised_by="runs that were healed",
)
OFFSETS_WITH_MARKER = Rule(
    "I9 offsets with marker",
    meaning="A transaction's offsets take effect with its COMMIT marker and not before; those of an "
    "acknowledged commit always take effect.",
    exercised_by="markers that decide offsets, and commits with offsets",
)
READ_COMMITTED = Rule(
    "I11 read committed",
    meaning="A fetch ends below the LSO and lists exactly the aborted transactions in its range.",
    exercised_by="fetched batches at read_committed",
)
RECOVERY = Rule(
    "I12 recovery",
    meaning="A new leader has everything that was acknowledged, and the same state as its predecessor.",
    exercised_by="logs that were taken over",
)
FENCED = Rule(
    "I13 fenced",
    meaning="Once a newer owner is admitted, writes and EndTxns of the older owner are refused.",
    exercised_by="writes and EndTxns under an id that had an earlier owner",
)
TIMEOUT = Rule(
    "I14 timeout",
    meaning="An open transaction is aborted by the first scan after the timeout that its producer requested, "
    "and by no earlier one.",
    exercised_by="scans that found open transactions",
)
DURABLE_REPLIES = Rule(
    "I15 durable replies",
    meaning="A reply confirms a write only once the write is durable, that is, below the high watermark.",
    exercised_by="replies that confirm a write",
)
RETRIES_SUCCEED = Rule(
    "I16 retries succeed",
    meaning="A retried EndTxn or InitProducerId succeeds until a newer owner is admitted.",
    exercised_by="retries of EndTxn and InitProducerId",
)

ONE_OWNER = Rule(
    "I17 one owner",
    meaning="Two members of a group never own the same partition in the same generation.",
    exercised_by="partitions that a group gave to one of several members",
)

LISTED_OFFSETS = Rule(
    "I18 listed offsets",
    meaning="ListOffsets returns the log start, the high watermark, the LSO, or the first record at or "
    "after a time.",
    exercised_by="offsets that were listed",
)
EXPIRY = Rule(
    "I19 expiry",
    meaning="A transactional id expires only when it has no unfinished transaction and its last record is "
    "at least transactional.id.expiration.ms old.",
    exercised_by="transactional ids that expired",
)
FORGOTTEN_OFFSETS = Rule(
    "I20 forgotten offsets",
    meaning="Once a topic is deleted, no group has a committed offset of it, even if its name is used again.",
    exercised_by="offsets that were committed when their topic was deleted",
)
TOPIC_IDS = Rule(
    "I21 topic ids",
    meaning="A batch enters only the topic that its Produce names by id, not another one of the same name.",
    exercised_by="batches that arrived with the id of their topic",
)
FILES = Rule(
    "I22 files",
    meaning="At the end of a run whose disks were not damaged, `fencepost check` finds no problem on them: "
    "indexes, snapshots and manifests agree with their logs, and every decision has its markers.",
    exercised_by="logs that were checked",
)

STEP_RULES: Final = tuple(
    found for found in list(globals().values()) if isinstance(found, Rule) and found not in HISTORY_RULES
)
"""All rules of the white box."""
