"""`fencepost status`: the health of a broker at a glance; exit code 1 if something is wrong.

Rule: a problem is something that an operator has to act on. Each one says what, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.cli.errors import FAILED, OK
from fencepost.cli.options import LOCAL, AsJson, ClusterOptions
from fencepost.cli.output import Columns, print_entry, print_json, row_of
from fencepost.cli.table import Duration, moment
from fencepost.protocol.messages import BrokerStatusReply, TopicStatus
from fencepost.protocol.terms import NO_TIMESTAMP, TopicPartition

RECENT_MS: Final = 5 * 60_000  # a disk problem counts for this long
NAMED_MAX: Final = 5  # partitions that a problem names


def _total(status: BrokerStatusReply, value: str) -> int:
    return sum(getattr(topic, value) for topic in status.topics)


def _partitions(status: BrokerStatusReply, value: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic.topic, number) for topic in status.topics for number in getattr(topic, value)
    ]


def _furthest(status: BrokerStatusReply) -> TopicStatus | None:
    """The topic with the largest lag of a last stable offset; None if there is no lag."""
    found = max(status.topics, key=lambda topic: topic.stable_lag, default=None)
    return found if found is not None and found.stable_lag else None


def _lags_most(status: BrokerStatusReply) -> str | None:
    topic = _furthest(status)
    return None if topic is None else f"{topic.topic}-{topic.stable_lag_partition}"


def _oldest_open(status: BrokerStatusReply) -> Duration | None:
    times = [topic.oldest_open_ms for topic in status.topics if topic.oldest_open_ms != NO_TIMESTAMP]
    return Duration(max(0, status.now_ms - min(times))) if times else None


def problems(status: BrokerStatusReply) -> list[str]:
    """What an operator has to act on."""
    found: list[str] = []
    if status.unserved:
        where = _named(status.unserved)
        found.append(f"partitions not served: {where} (stop the broker, then `fencepost check DIR`)")
    if late := _partitions(status, "late"):
        found.append(f"late transactions in {_named(late)} (`fencepost transactions late`)")
    if hanging := _partitions(status, "hanging"):
        command = f"fencepost transactions find-hanging -t {hanging[0].topic} --max-transaction-timeout 0"
        found.append(f"hanging transactions in {_named(hanging)} (`{command}`)")
    recent = [each for each in status.disk_problems if status.now_ms - each.at_ms < RECENT_MS]
    if recent:
        found.append(f"{recent[-1].text} (see the broker's log)")
    return found


STATUS: Columns[BrokerStatusReply] = (
    ("healthy", "HEALTHY", lambda status: not problems(status)),
    ("version", "VERSION", lambda status: status.version),
    ("node_id", "NODE", lambda status: status.node_id),
    ("uptime_ms", "UPTIME", lambda status: Duration(status.now_ms - status.started_ms)),
    ("transaction_version", "TRANSACTION-VERSION", lambda status: status.transaction_version),
    ("partition_verification", "PARTITION-VERIFICATION", lambda status: status.partition_verification),
    ("fixes_off", "FIXES-OFF", lambda status: list(status.fixes_off)),
    ("broken", "BROKEN", lambda status: list(status.broken)),
    ("connections", "CONNECTIONS", lambda status: status.connections),
    ("topics", "TOPICS-WITH-INTERNAL", lambda status: len(status.topics)),
    ("partitions", "PARTITIONS-WITH-INTERNAL", lambda status: _total(status, "partitions")),
    ("unserved", "NOT-SERVED", lambda status: [str(key) for key in status.unserved]),
    ("size_bytes", "BYTES", lambda status: _total(status, "size_bytes")),
    ("groups", "GROUPS", lambda status: sum(each.count for each in status.groups)),
    ("open_transactions", "OPEN-TRANSACTIONS", lambda status: _total(status, "open_transactions")),
    ("late", "LATE", lambda status: [str(key) for key in _partitions(status, "late")]),
    ("hanging", "HANGING", lambda status: [str(key) for key in _partitions(status, "hanging")]),
    ("oldest_open_ms", "OLDEST-OPEN", _oldest_open),
    ("stable_lag", "LSO-LAG", lambda status: max((topic.stable_lag for topic in status.topics), default=0)),
    ("stable_lag_partition", "LSO-LAG-IN", _lags_most),
)


def status(*, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> int:
    """Show the health of a broker."""
    with cluster.connect() as admin:
        found = admin.broker_status()
    wrong = problems(found)
    if as_json:
        disks = [{"at_ms": each.at_ms, "text": each.text} for each in found.disk_problems]
        print_json({**row_of(STATUS, found), "disk_problems": disks, "problems": wrong})
    else:
        print_entry(STATUS, found, as_json=False)
        disks = found.disk_problems
        is_told = bool(disks) and any(disks[-1].text in problem for problem in wrong)
        for each in disks[:-1] if is_told else disks:
            print(f"\nDisk, {moment(each.at_ms)}: {each.text}")
        for problem in wrong:
            print(f"\nProblem: {problem}")
    return FAILED if wrong else OK


def _named(keys: Sequence[TopicPartition]) -> str:
    names = ", ".join(map(str, keys[:NAMED_MAX]))
    return names if len(keys) <= NAMED_MAX else f"{names} and {len(keys) - NAMED_MAX:,} more"
