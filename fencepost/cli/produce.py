"""`fencepost produce`: writes lines as records, optionally in transactions.

Rule: records that it reports as written are acknowledged, and committed if they are in a transaction.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from fencepost.cli.errors import WRONG_USAGE, CommandFailed
from fencepost.cli.options import (
    ANSWER_MS,
    DEFAULT,
    AsJson,
    Bootstrap,
    CommandConfig,
    InPartition,
    connect,
    partitions_of,
    security_of,
)
from fencepost.cli.output import print_json
from fencepost.cli.table import counted
from fencepost.client.settings import newest_dialect
from fencepost.client.shells.sync import Producer, SendFuture
from fencepost.protocol.terms import INTERNAL_TOPICS

Pair = tuple[bytes | None, bytes]  # key and value

PENDING_MAX = 10_000  # sends in flight before it waits for the oldest


class Written:
    """Counts the acknowledged records of each partition."""

    def __init__(self) -> None:
        self.transactions = 0
        self.spans: dict[int, list[int]] = {}
        self.records = 0
        self._pending: deque[SendFuture] = deque()

    def add(self, outcome: SendFuture) -> None:
        """Adds a send in flight; waits for the oldest one when there are too many."""
        self._pending.append(outcome)
        if len(self._pending) > PENDING_MAX:
            self._settle()

    def finish(self) -> None:
        """Waits for all sends in flight."""
        while self._pending:
            self._settle()

    def _settle(self) -> None:
        delivered = self._pending.popleft().result()
        self.records += 1
        span = self.spans.setdefault(delivered.partition, [delivered.offset, delivered.offset])
        span[1] = delivered.offset


def produce(
    topic: str,
    file: Path | None = None,
    /,
    *,
    separator: str = "\t",
    partition: InPartition | None = None,
    transactional_id: str | None = None,
    records_per_transaction: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
    bootstrap: Bootstrap = DEFAULT,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Write lines of text as records.

    Parameters
    ----------
    topic
        The topic to write to.
    file
        File to read. [default: standard input]
    separator
        Separator of key and value; empty if lines have no keys.
    partition
        Write to this partition. By default the key decides.
    transactional_id
        Write in transactions under this id. A running producer with the same id is fenced.
    records_per_transaction
        Commit after this number of lines. By default all lines are one transaction.
    compression
        Compression of the batches.
    """
    if transactional_id == "":
        raise CommandFailed(
            "--transactional-id must not be empty",
            then="give this producer a name, or leave the option out to write without transactions",
            code=WRONG_USAGE,
        )
    if records_per_transaction is not None and transactional_id is None:
        raise CommandFailed(
            "--records-per-transaction needs --transactional-id",
            then="choose an id for this producer: --transactional-id NAME",
            code=WRONG_USAGE,
        )
    written = Written()
    records = split_lines(read_lines(file), separator=separator)
    with connect(bootstrap, command_config) as admin:
        if topic in INTERNAL_TOPICS:
            raise CommandFailed(
                f"{topic} is an internal topic: only the broker writes to it",
                then="`fencepost topic list` shows the topics",
                code=WRONG_USAGE,
            )
        partitions_of(admin, topic, [] if partition is None else [partition])
        spoken = newest_dialect(admin.transaction_version())
    with Producer(
        bootstrap,
        transactional_id=transactional_id,
        compression_type=compression,
        max_block_ms=ANSWER_MS,
        transaction_version=spoken,
        **security_of(command_config),
    ) as producer:
        if transactional_id is None:
            send(producer, topic, records, partition=partition, written=written)
        else:
            producer.init_transactions()
            send_in_transactions(
                producer, topic, records, partition=partition, written=written, count=records_per_transaction
            )
    report(topic, written, as_json=as_json)


def read_lines(file: Path | None) -> Iterator[bytes]:
    """The lines of the file or of standard input, without line endings."""
    if file is None:
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    with file.open("rb") as lines:
        yield from (line.rstrip(b"\r\n") for line in lines)


def split_lines(lines: Iterator[bytes], *, separator: str) -> Iterator[Pair]:
    """(key, value) of each line; the key is None if the line has no separator."""
    between = separator.encode()
    for line in lines:
        if between and between in line:
            key, _, value = line.partition(between)
            yield key, value
        else:
            yield None, line


def send(
    producer: Producer, topic: str, records: Iterator[Pair], *, partition: int | None, written: Written
) -> None:
    """Sends all records and waits for their acknowledgements."""
    for key, value in records:
        written.add(producer.send(topic, value, key, partition=partition))
    producer.flush()
    written.finish()


def send_in_transactions(
    producer: Producer,
    topic: str,
    records: Iterator[Pair],
    *,
    partition: int | None,
    written: Written,
    count: int | None,
) -> None:
    """Sends all records, `count` in each transaction; an error aborts the open transaction."""
    while first := list(islice(records, 1)):
        rest = records if count is None else islice(records, count - 1)
        with producer.transaction():
            send(producer, topic, iter(first), partition=partition, written=written)
            send(producer, topic, rest, partition=partition, written=written)
        written.transactions += 1


def report(topic: str, written: Written, *, as_json: bool) -> None:
    """Prints how many records were written, and their offsets."""
    if as_json:
        spans = {
            str(partition): {"first_offset": first, "last_offset": last}
            for partition, (first, last) in sorted(written.spans.items())
        }
        counts = {"records": written.records, "transactions": written.transactions}
        print_json({"topic": topic, **counts, "partitions": spans})
        return
    how = f" in {counted(written.transactions, 'transaction')}" if written.transactions else ""
    print(f"{counted(written.records, 'record')} written to {topic}{how}")
    for partition, (first, last) in sorted(written.spans.items()):
        print(f"  partition {partition}: offsets {first} to {last}")
