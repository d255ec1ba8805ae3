"""The application: reads numbers from `in`, writes their squares to `out`, exactly once. Run it as often as
you like; the processes share the partitions of `in`.

`python -m tests.groups.copier ADDRESS NAME [TRANSACTIONS]` says in JSON lines what happens to it. With a
number of transactions it stops in the middle of the next one, as a process that is about to be killed.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import fencepost
from fencepost import Consumer, Producer, RebalanceListener, TopicPartition

POLL_MS = 200


class Says(RebalanceListener):
    """Tells which partitions come and go."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        say(revoked=[where.partition for where in partitions])

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        say(assigned=[where.partition for where in partitions])

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        say(lost=[where.partition for where in partitions])


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def copy(consumer: Consumer, producer: Producer, hold_after: int | None) -> None:
    """One transaction per poll: the output and the input offsets count together, or not at all."""
    transactions = 0
    while True:
        batches = consumer.poll(POLL_MS)
        if not batches:
            continue
        producer.begin_transaction()
        for batch in batches:
            producer.send_many("out", [b"%d" % int(value) ** 2 for value in batch.values], batch.values)
        # With the membership, so that the coordinator refuses it if another process has the partitions now.
        producer.send_offsets_to_transaction(
            {batch.partition: batch.next_offset for batch in batches}, consumer.group_metadata()
        )
        if transactions == hold_after:
            producer.flush()
            say(held=sum(map(len, batches)))
            signal.pause()
        try:
            producer.commit_transaction()
        except fencepost.TransactionAborted as problem:
            say(aborted=problem.error.name)
            producer.abort_transaction()
            for where, offset in consumer.committed(consumer.assignment()).items():
                consumer.seek(where, offset or 0)
            continue
        transactions += 1
        say(copied=sum(map(len, batches)))


def stop(number: int, frame: object) -> None:
    """Ends the blocks of main(), which leave the group and close the producer."""
    sys.exit()


def main(address: str, name: str, hold_after: int | None = None) -> None:
    signal.signal(signal.SIGTERM, stop)
    with (
        Consumer(
            address,
            group_id="copiers",
            partition_assignment_strategy=["cooperative-sticky"],
            session_timeout_ms=1_000,
            heartbeat_interval_ms=100,
            fetch_max_bytes=2_000,  # small bites, so that there are many transactions
            client_id=name,
        ) as consumer,
        Producer(address, transactional_id=f"copier-{name}", transaction_timeout_ms=2_000) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe(["in"], Says())
        copy(consumer, producer, hold_after)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(count) for count in sys.argv[3:4]))
