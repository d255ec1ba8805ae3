"""The rules for what happens inside a cluster, step by step: each with its name and its meaning.

Rule: names are stable, scenarios and searches expect them by name. What clients see has rules of its own
(anomalies.py).
"""

from __future__ import annotations

from fencepost.simulator.judges.anomalies import Rule

BOUNDS = Rule(
    "I1 bounds",
    meaning="log start <= LSO <= high watermark <= log end; the LSO is the first offset that is undecided.",
    looks_at="steps that moved a partition",
)
MONOTONE = Rule(
    "I2 monotone",
    meaning="The LSO never goes back, whoever leads, unless power was lost.",
    looks_at="steps that moved an LSO",
)
SEQUENCE_ONCE = Rule(
    "I3 sequence once",
    meaning="Each producer id, epoch and sequence enters a log at most once, and without a gap.",
    looks_at="batches with a sequence",
)
HANGING = Rule(
    "I4 hanging",
    meaning="Nothing of a transaction enters a log behind its marker, or where no marker will come.",
    looks_at="transactional batches",
)
ONE_DECISION = Rule(
    "I5 one decision",
    meaning="The markers of one transaction say the same in every partition.",
    looks_at="markers of a transaction behind its first one",
)
DURABLE_DECISION = Rule(
    "I6 durable decision",
    meaning="Markers follow a durable PREPARE_*, COMPLETE_* follows the markers, and nothing goes back.",
    looks_at="markers, and records of transactions",
)
IDENTITY_ONCE = Rule(
    "I7 identity once",
    meaning="Epochs never fall, no producer id is given twice, and an identity goes to one client alone.",
    looks_at="identities that were granted",
)
CONVERGENCE = Rule(
    "I8 convergence",
    meaning="When all is well again every decision is carried out, and nobody waits for anything.",
    looks_at="runs that were healed",
)
OFFSETS_WITH_MARKER = Rule(
    "I9 offsets with marker",
    meaning="A transaction's offsets count when its commit marker is there, and else never.",
    looks_at="markers that decide offsets",
)
READ_COMMITTED = Rule(
    "I11 read committed",
    meaning="A fetch ends below the LSO, and names exactly the aborted transactions that it meets.",
    looks_at="fetched batches at read_committed",
)
RECOVERY = Rule(
    "I12 recovery",
    meaning="Whoever leads next finds all that was promised, and knows what its last leader knew.",
    looks_at="logs that were taken over",
)
FENCED = Rule(
    "I13 fenced",
    meaning="Once a newer owner was let in, the older one's writes and ends are refused.",
    looks_at="writes and ends of producers that had a predecessor",
)
TIMEOUT = Rule(
    "I14 timeout",
    meaning="No transaction stays open past its timeout and the next scan.",
    looks_at="scans that found transactions open",
)
SEEN_IS_SAFE = Rule(
    "I15 seen is safe",
    meaning="Whatever a client was told has happened is below the high watermark.",
    looks_at="answers that tell of a write",
)
TOLD_AGAIN = Rule(
    "I16 told again",
    meaning="Whoever asks again for what was done is told so, as long as nobody else was let in.",
    looks_at="ends and identities that were asked for again",
)

STEP_RULES = (
    BOUNDS,
    MONOTONE,
    SEQUENCE_ONCE,
    HANGING,
    ONE_DECISION,
    DURABLE_DECISION,
    IDENTITY_ONCE,
    CONVERGENCE,
    OFFSETS_WITH_MARKER,
    READ_COMMITTED,
    RECOVERY,
    FENCED,
    TIMEOUT,
    SEEN_IS_SAFE,
    TOLD_AGAIN,
)
"""I10, exactly once end to end, is judged from outside (exactly_once.py)."""
