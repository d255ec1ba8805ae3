"""A program that forks in the middle of a transaction: `python -m tests.client.forked ADDRESS`.

The child leaves the blocks of the clients, as `sys.exit` does, and takes nothing from its parent.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from fencepost import Admin, ClientClosed, Consumer, Producer, TopicPartition
from fencepost.client.group_member import RebalanceListener
from fencepost.client.shells.sync import SendFuture
from tests.forked_calls import refusals

HERE = TopicPartition("t", 0)


class Told(RebalanceListener):
    """Notes in which processes partitions were taken away."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        revoked_in.append(os.getpid())


revoked_in: list[int] = []


def refused(producer: Producer, sent: SendFuture, consumer: Consumer, admin: Admin) -> int:
    """How many calls in the child say whose client it is, and what to do."""
    return refusals(
        ClientClosed,
        "this client belongs to the parent of this forked process. Create a new client",
        sent.result,
        lambda: producer.send("t", b"child", partition=0),
        lambda: producer.send_many("t", [b"child"]),
        producer.flush,
        producer.begin_transaction,
        producer.commit_transaction,
        lambda: consumer.poll(100),
        admin.list_topics,
    )


def main(address: str) -> None:
    """The child exits with the number of calls that were refused, or with 0 if it was told of a rebalance."""
    child, code = -1, 0
    try:
        with ExitStack() as stack:
            admin = stack.enter_context(Admin(address))
            consumer = stack.enter_context(Consumer(address, group_id="g"))
            consumer.subscribe(["t"], Told())
            while not consumer.assignment():
                consumer.poll(1_000)
            producer = stack.enter_context(Producer(address, transactional_id="pay", linger_ms=60_000))
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"one", partition=0)
                producer.flush()
                sent = producer.send("t", b"two", partition=0)
                child = os.fork()
                if not child:
                    sys.exit(refused(producer, sent, consumer, admin))
                _, code = os.waitpid(child, 0)
                producer.flush()
                assert sent.result().offset == 1
            found: list[object] = []
            while len(found) < 2:
                found += [value for batch in consumer.poll(1_000) for value in batch.values]
            assert found == [b"one", b"two"], found
            assert "t" in [each.topic for each in admin.list_topics()]
    finally:
        if not child and revoked_in:
            os._exit(0)
    assert os.waitstatus_to_exitcode(code) == 8, code


if __name__ == "__main__":
    main(sys.argv[1])
