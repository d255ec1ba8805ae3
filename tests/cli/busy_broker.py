"""A broker whose load is the same in each second: what `top` shows depends on no machine."""

from __future__ import annotations

from typing import Final

from fencepost.protocol import messages as m

STARTED_MS: Final = 1_700_000_000_000
BEFORE_S: Final = 93_784  # it has been up for a day, two hours, three minutes and four seconds


def status_after(seconds: int) -> m.BrokerStatusReply:
    """What it answers this long after the first question."""
    total = BEFORE_S + seconds
    return m.BrokerStatusReply(
        version="0.1.0",
        node_id=1,
        now_ms=STARTED_MS + total * 1_000,
        started_ms=STARTED_MS,
        transaction_version=2,
        partition_verification=True,
        fixes_off=(),
        broken=(),
        unserved=(),
        topics=(
            _topic("orders", total * 12_345, size=100, read=1, open_transactions=12, stable_lag=3_456),
            _topic("the-audit-log-of-all-regions", total // 10, size=2_000, read=0),
            _topic("__transaction_state", total * 800, size=60, read=0),
        ),
        transactions=(),
        groups=(),
        requests=(
            m.RequestStatus(
                api="Produce", count=total * 1_234, errors=total // 2, total_us=total * 1_234 * 180
            ),
            m.RequestStatus(api="EndTxn", count=total * 400, errors=0, total_us=total * 400 * 950),
            m.RequestStatus(api="Fetch", count=total * 77, errors=0, total_us=total * 77 * 500_000),
            m.RequestStatus(api="Metadata", count=3, errors=1, total_us=900),
        ),
        connections=42,
        disk_problems=(),
        directory="data",
    )


def _topic(
    name: str, records: int, *, size: int, read: int, open_transactions: int = 0, stable_lag: int = 0
) -> m.TopicStatus:
    return m.TopicStatus(
        topic=name,
        partitions=3,
        sizes=(m.PartitionSize(partition=0, size_bytes=records * size),),
        open_transactions=open_transactions,
        late=(),
        hanging=(),
        stable_lag=stable_lag,
        stable_lag_partition=0,
        oldest_open_ms=-1,
        records_in=records,
        bytes_in=records * size,
        bytes_out=records * size * read,
    )
