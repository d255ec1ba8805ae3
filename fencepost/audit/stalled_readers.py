"""What holds readers back: transactions that hang or are overdue, and a last stable offset that does not
move.

Rule: time is the time of the log. In an old directory no transaction becomes overdue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fencepost.audit.rows import Row
from fencepost.check.findings import Findings, Location
from fencepost.check.txn_consistency import HANGS

# transaction.max.timeout.ms: no transaction may take longer than that.
STANDSTILL_MS: Final = 900_000
# transaction.abort.timed.out.transaction.cleanup.interval.ms: how often a coordinator looks for late ones.
ABORT_INTERVAL_MS: Final = 10_000


class PartitionEnd(NamedTuple):
    """What bounds the readers of a partition."""

    last_stable_offset: int
    high_watermark: int
    newest_ms: int
    """The newest timestamp of its data."""


def judge_open(
    rows: Iterable[Row], ends: dict[tuple[str, int], PartitionEnd], *, now_ms: int, is_one_moment: bool
) -> Findings:
    """Judges open transactions, rows of the table `transactions` with times in ms, oldest first.

    `now_ms` is the newest time of the brokers' clocks in the log.
    """
    findings = Findings()
    oldest: set[tuple[str, int]] = set()
    for row in rows:
        partition = row["topic"], row["partition"]
        location = Location(row["file"], row["firstOffset"])
        if row["hanging"]:
            what = (
                f"producer {row['producerId']} has a transaction open since this offset, and no coordinator "
                "knows it"
            )
            findings.report(is_one_moment, location, what, HANGS)
        elif late := _lateness(row, now_ms):
            what = (
                f"the transaction of {row['transactionalId']!r}, open since this offset, is {_span(late)} "
                f"over its timeout of {_span(row['timeoutMs'])}"
            )
            findings.problem(
                location, what, "its coordinator should have aborted it: see `fencepost transactions`"
            )
        if partition not in oldest:
            oldest.add(partition)
            for what in _standstill(row, ends[partition], now_ms):
                means = "read_committed readers get nothing of what was written since"
                findings.problem(location, what, means)
    return findings


def _lateness(row: Row, now_ms: int) -> int:
    """How many ms an ongoing transaction is over its timeout; 0 for others."""
    if row["coordinatorState"] != "Ongoing" or row["coordinatorStartMs"] is None:
        return 0
    late = now_ms - row["coordinatorStartMs"] - row["timeoutMs"]
    return late if late > ABORT_INTERVAL_MS else 0


def _standstill(row: Row, end: PartitionEnd, now_ms: int) -> Iterator[str]:
    # Two clocks must not be mixed: the brokers' where the coordinator knows the transaction, else the data's.
    since, until = row["startMs"], end.newest_ms
    if not row["hanging"] and row["coordinatorStartMs"] is not None:
        since, until = row["coordinatorStartMs"], now_ms
    if since is None or until - since <= STANDSTILL_MS:
        return
    waiting = end.high_watermark - end.last_stable_offset
    yield (
        f"the last stable offset has been here for {_span(until - since)} of the log's time, and {waiting} "
        "offsets wait after it"
    )


def _span(ms: int) -> str:
    """`90 s`, `15 min`, `3 h`."""
    seconds = ms // 1000
    if seconds < 300:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3 * 3600 else f"{seconds // 3600} h"
