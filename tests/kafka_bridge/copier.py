"""The application: copies records from the topic `in` to the topic `out`, exactly once, with one library.

`python -m tests.kafka_bridge.copier LIBRARY ADDRESS [TRANSACTIONS]` is a static member of the group
`copiers`, and runs until SIGTERM. It says when its clients are ready. With a number of transactions it stops
in the middle of the next one, as a process that is about to be killed, and says so.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

from fencepost import TopicPartition
from tests.kafka_bridge import aio, confluent, kafka_python, ours
from tests.kafka_bridge.libraries import Access, Message, Reported

GROUP: Final = "copiers"
SOURCE, TARGET = "in", "out"
RECORDS_MAX: Final = 4  # of a transaction: there are many
TIMEOUT_MS: Final = 60_000


class Clients(NamedTuple):
    """What makes the clients of a library."""

    producer: Callable[[], Any]
    consumer: Callable[[], Any]


def clients_of(name: str, access: Access, process: ExitStack) -> Clients:
    """Those of a library, in a process that closes what they share."""
    given = {"group": GROUP, "instance": name}
    transactional_id = f"copier-{name}"
    match name:
        case confluent.NAME:
            return Clients(
                lambda: confluent.ConfluentProducer(access, transactional_id, TIMEOUT_MS, None),
                lambda: confluent.ConfluentConsumer(access, isolation="read_committed", **given),
            )
        case aio.NAME:
            loop = aio.LoopThread()
            process.callback(loop.close)
            return Clients(
                lambda: aio.AioProducer(loop, access, transactional_id, TIMEOUT_MS, None),
                lambda: aio.KeepingConsumer(loop, access, isolation="read_committed", **given),
            )
        case kafka_python.NAME:
            return Clients(
                lambda: kafka_python.KafkaPythonProducer(access, transactional_id, TIMEOUT_MS, None),
                lambda: kafka_python.KafkaPythonConsumer(access, isolation="read_committed", **given),
            )
        case _:
            return Clients(
                lambda: ours.OurProducer(access, transactional_id), lambda: ours.OurConsumer(access, **given)
            )


def copy(name: str, producer: Any, consumer: Any, hold_after: int | None) -> None:
    """One transaction per poll: the output and the input offsets count together, or not at all."""
    consumer.subscribe(SOURCE)
    transactions = 0
    while True:
        messages: Sequence[Message] = consumer.poll(RECORDS_MAX)
        if not messages:
            continue
        producer.begin()
        for message in messages:
            producer.send(TARGET, message.value, key=name.encode(), partition=message.partition)
        ends = {TopicPartition(SOURCE, each.partition): each.offset + 1 for each in messages}
        producer.send_offsets(ends, consumer.member())
        if transactions == hold_after:
            producer.flush()
            print("held", flush=True)
            signal.pause()
        producer.commit()
        transactions += 1


def stop(_number: int, _frame: object) -> None:
    """Ends the blocks of main(), which close the clients."""
    sys.exit()


def main(name: str, servers: str, hold_after: int | None = None) -> None:
    signal.signal(signal.SIGTERM, stop)
    with ExitStack() as process:
        clients = clients_of(name, Access(servers=servers), process)
        while True:
            try:
                with closing(clients.producer()) as producer, closing(clients.consumer()) as consumer:
                    print("ready", flush=True)
                    copy(name, producer, consumer, hold_after)
            except Reported as problem:  # begin anew, at the committed offsets
                print(problem, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(count) for count in sys.argv[3:4]))
