"""A program that gets Ctrl-C, or whose signal handler closes the client: at hundreds of random moments of a
call, or after every single instruction at which the interpreter looks for signals.

It runs as a process of its own: `python -m tests.client.interrupted CALL STORY ROUNDS ADDRESS CTRL_C`. A call
that never returns ends the process, with the stacks of all threads. CTRL_C: whose handler gets SIGINT,
"python" (its own) or "program" (one that raises, too).
"""

from __future__ import annotations

import dis
import faulthandler
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from itertools import count, pairwise
from threading import Timer
from types import CodeType, FrameType
from typing import Any

from fencepost import (
    Admin,
    ClientClosed,
    CommitOutcomeUnknown,
    Consumer,
    Producer,
    TopicPartition,
    TransactionAborted,
    WrongState,
)
from fencepost.client.group_member import RebalanceListener
from tests.reading import records

LIMIT_S = 150
HERE = TopicPartition("t", 0)


class Revocations(RebalanceListener):
    """Counts how often partitions are taken away."""

    count = 0

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.count += 1


revoked = Revocations()


def producer_of(address: str, **settings: Any) -> Producer:
    producer = Producer(address, linger_ms=1, **settings)
    producer.send("t", b"first", partition=0).result()
    return producer


def transactional(address: str) -> Producer:
    producer = Producer(address, transactional_id="pay")
    producer.init_transactions()
    return producer


def consumer_of(address: str) -> Consumer:
    consumer = Consumer(address, fetch_max_wait_ms=50)
    consumer.assign([HERE])
    consumer.poll(1_000)
    return consumer


def member_of(address: str) -> Consumer:
    consumer = Consumer(address, group_id="g", fetch_max_wait_ms=50)
    consumer.subscribe(["t"], revoked)
    while not consumer.assignment():
        consumer.poll(1_000)
    return consumer


def commit_a_transaction(producer: Producer) -> None:
    with producer.transaction():
        producer.send("t", b"x", partition=0)


def give_up_transaction(producer: Producer) -> None:
    """Ctrl-C may have hit the `with` statement itself, before its block or after it."""
    try:
        producer.abort_transaction()
    except (WrongState, CommitOutcomeUnknown):
        pass


def send_and_flush(producer: Producer) -> None:
    producer.send("t", b"x", partition=0)
    producer.flush()


CALLS: dict[str, tuple[Callable[[str], Any], Callable[[Any], object]]] = {
    "send": (producer_of, lambda client: client.send("t", b"x", partition=0).result()),
    "send_many": (producer_of, lambda client: client.send_many("t", [b"x", b"y"], partition=0)),
    "flush": (producer_of, send_and_flush),
    "transaction": (transactional, commit_a_transaction),
    "poll(0)": (consumer_of, lambda client: client.poll(0)),
    "poll(1000)": (consumer_of, lambda client: client.poll(1_000)),
    "poll of a member": (member_of, lambda client: client.poll(0)),
    "end_offsets": (Admin, lambda client: client.end_offsets([HERE])),
}


def interrupt(*_: object) -> None:
    """The handler of a program."""
    raise KeyboardInterrupt


def interrupt_calls(call: str, rounds: int, address: str) -> None:
    """Ctrl-C in each round: the next call must work, except after a commit with an unknown outcome."""
    draw, interrupted = random.Random(9), 0
    create, operate = CALLS[call]
    client = create(address)
    for _ in range(rounds):
        timer = Timer(draw.uniform(1e-5, 4e-3), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while True:
                operate(client)
        except KeyboardInterrupt as interruption:
            interrupted += 1
            if call == "transaction":
                give_up_transaction(client)
            if isinstance(interruption.__cause__, CommitOutcomeUnknown):
                client.close()
                client = create(address)
        timer.join()
        operate(client)
    client.close()
    assert interrupted == rounds


def closer(client: Any) -> Callable[..., None]:
    """A signal handler that closes the client."""

    def close(*_: object) -> None:
        client.close()

    return close


def close_in_calls(call: str, rounds: int, address: str) -> None:
    """The handler closes the client in each round: the call that it interrupts, or the next one, says so."""
    draw = random.Random(10)
    create, operate = CALLS[call]
    for number in range(rounds):
        client = create(address)
        signal.signal(signal.SIGALRM, closer(client))
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 4e-3))
        try:
            while True:
                operate(client)
        except (ClientClosed, CommitOutcomeUnknown):
            pass
        try:
            operate(client)
        except (ClientClosed, CommitOutcomeUnknown):
            pass
        else:
            raise AssertionError(f"round {number}: a closed client works")
        if call == "poll of a member":
            assert revoked.count == number + 1, f"round {number}: {revoked.count} revocations"


# --- every instruction --------------------------------------------------------------------------------------


@cache
def after_checks(code: CodeType) -> frozenset[int]:
    """The instructions before which the interpreter runs signal handlers: after calls and at loops."""
    steps = pairwise(dis.get_instructions(code))
    checks = ("CALL", "JUMP_BACKWARD", "RESUME")
    return frozenset(after.offset for step, after in steps if step.opname.startswith(checks))


class CtrlC:
    """Sends Ctrl-C at the n-th of these instructions that this thread executes in a client."""

    def __init__(self, number: int) -> None:
        self._left = number

    @contextmanager
    def armed(self) -> Generator[None]:
        """The instructions of the block are counted."""
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    @property
    def is_over(self) -> bool:
        """Whether it was sent."""
        return self._left <= 0

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if "fencepost/client/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        # Without a line, a generator is being closed: from Python 3.14 on, that swallows the exception.
        is_check = frame.f_lineno is not None and frame.f_lasti in after_checks(frame.f_code)
        if event == "opcode" and is_check:
            self._left -= 1
            if not self._left:
                signal.raise_signal(signal.SIGINT)
        return self._step


def every_instruction(work: Callable[[CtrlC], None], rounds: int) -> None:
    """Does the work again and again, until it has been interrupted at each instruction; or at every
    `rounds`-th, as most are within steps, where it makes no difference.
    """
    for number in count(1, rounds):
        interrupt = CtrlC(number)
        work(interrupt)
        if not interrupt.is_over:
            # The fewest are in a poll by a worker: about 50; Python 3.14 traces less, and has 9.
            assert number > 5, "hardly anything was interrupted"
            return


def transactions(_call: str, rounds: int, address: str) -> None:
    """Each transaction is stored as a whole or not at all, as its error says; the next one works."""
    producer = transactional(address)
    committed: dict[bytes, bool | None] = {}

    def transact(interrupt: CtrlC) -> None:
        nonlocal producer
        name = b"%d" % len(committed)
        committed[name] = None
        try:
            with interrupt.armed(), producer.transaction():
                producer.send("t", name, partition=0)
                producer.send("t", name, b"key", partition=0, headers=[("h", name)])
            committed[name] = True
        except KeyboardInterrupt as problem:
            if "the transaction was committed" in str(getattr(problem, "__notes__", "")):
                committed[name] = True
            elif isinstance(problem.__cause__, TransactionAborted):
                committed[name] = False
            elif isinstance(problem.__cause__, CommitOutcomeUnknown):
                producer.close()
                producer = transactional(address)
        try:
            producer.begin_transaction()
        except WrongState:  # it hit the `with` statement itself
            producer.abort_transaction()
            producer.begin_transaction()
        producer.send("t", b"after " + name, partition=0).result()
        producer.commit_transaction()

    every_instruction(transact, rounds)
    producer.close()
    stored = Counter(record.value for record in records(address, [HERE]))
    for name, is_stored in committed.items():
        assert stored[b"after " + name] == 1
        assert stored[name] in ((0, 2) if is_stored is None else (2,) if is_stored else (0,)), name


def sends(_call: str, rounds: int, address: str) -> None:
    """Each record is stored at most once, and exactly once if send() or flush() returned."""
    producer = producer_of(address)
    names: list[bytes] = []

    def send(interrupt: CtrlC) -> None:
        names.append(b"%d" % len(names))
        try:
            with interrupt.armed():
                producer.send("t", names[-1] + b"a", partition=0)
                producer.send_many("t", [names[-1] + b"b", names[-1] + b"c"], [b"k", b"k"], partition=0)
                producer.flush()
        except KeyboardInterrupt:
            assert producer.send("t", names[-1] + b"d", partition=0).result().offset > 0

    every_instruction(send, rounds)
    producer.close()
    stored = Counter(record.value for record in records(address, [HERE]))
    assert max(stored.values()) == 1
    assert all(stored[name + b"d"] for name in names[:-1])
    assert all(stored[names[-1] + each] for each in (b"a", b"b", b"c"))


def reads(call: str, rounds: int, address: str) -> None:
    """A program that seeks to where it was reads every record once, in order."""
    with producer_of(address) as producer:
        producer.send_many("t", [b"x"] * 20_000, partition=0)
    seen = 0
    with Consumer(address, fetch_max_wait_ms=5, fetch_max_bytes=2_000) as consumer:
        consumer.assign([HERE])

        def read(interrupt: CtrlC) -> None:
            nonlocal seen
            try:
                with interrupt.armed():
                    if call == "for":
                        for record in consumer:
                            assert record.offset == seen
                            seen += 1
                            if seen % 3 == 0:
                                break
                    else:
                        for batch in consumer.poll(1_000):
                            assert batch.base_offset <= seen < batch.next_offset
                            seen = batch.next_offset
            except KeyboardInterrupt:
                consumer.seek(HERE, seen)

        every_instruction(read, rounds)
    assert seen


STORIES: dict[str, Callable[[str, int, str], None]] = {
    "interrupt": interrupt_calls,
    "close": close_in_calls,
    "transactions": transactions,
    "sends": sends,
    "reads": reads,
}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    _, what, story, how_often, server, ctrl_c = sys.argv
    if ctrl_c == "program":
        signal.signal(signal.SIGINT, interrupt)
    STORIES[story](what, int(how_often), server)
