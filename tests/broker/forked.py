"""A program that forks with running brokers: `python -m tests.broker.forked DIRECTORY`.

The children leave the blocks of the brokers, as `sys.exit` does; the parent's brokers notice nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fencepost import Admin, Broker, BrokerFailed, BrokerProcess, Proxy
from tests.broker.test_lifecycle import committed, make_topic, write
from tests.forked_calls import refusals

ALARM_S = 120  # a child that waits forever is ended


def forked(child: Callable[[int, int], int]) -> tuple[int, Callable[[], int]]:
    """Fork. The child gets a pipe to its parent, and one that ends when its parent lets it go. Returns what
    the child wrote first, and a function that lets it go and returns its exit code.
    """
    (told, tell), (wait, go) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: this process has threads
        pid = os.fork()
    if not pid:
        signal.alarm(ALARM_S)
        for parents in (told, go):
            os.close(parents)
        sys.exit(child(tell, wait))
    for childs in (tell, wait):
        os.close(childs)
    count = int.from_bytes(os.read(told, 1))

    def let_go() -> int:
        os.close(told)
        os.close(go)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return count, let_go


def calls_of(broker: Broker | BrokerProcess) -> list[Callable[[], object]]:
    """Every call that would reach the broker."""
    return [
        broker.start,
        broker.kill,
        broker.power_cut,
        broker.restart,
        lambda: broker.is_running,
        lambda: broker.faults.add("when broker sends EndTxn reply do drop"),
    ]


def live_on(brokers: list[Broker | BrokerProcess], proxy: Proxy) -> None:
    """What the parent does while its child lives."""
    for broker in brokers:
        write(broker, b"1")
        broker.kill()
        broker.restart()
        write(broker, b"2")
        broker.power_cut()
        broker.restart()
        broker.stop()
        broker.start()
        assert committed(broker) == [b"1", b"2"], broker
    port = int(proxy.address.rpartition(":")[2])
    proxy.close()
    with Proxy(brokers[0], port=port) as again, Admin(again.address) as admin:
        admin.list_topics()
    for broker in brokers:
        broker.restart()  # and advertise no proxy


def main(directory: Path) -> None:
    """The child tells how many calls were refused, and lives while its parent's brokers come and go."""
    parent = os.getpid()
    with ExitStack() as stack:
        memory = stack.enter_context(Broker(sync="commit", metrics_port=0))
        disk = stack.enter_context(Broker(directory / "embedded", sync="commit"))
        process = stack.enter_context(BrokerProcess(directory / "process", sync="commit", record=True))
        proxy = stack.enter_context(Proxy(process))
        brokers: list[Broker | BrokerProcess] = [memory, disk, process]
        for broker in brokers:
            make_topic(broker)

        def child(tell: int, wait: int) -> int:
            for broker in brokers:
                broker.stop()  # does nothing
            calls = (call for broker in brokers for call in calls_of(broker))
            count = refusals(BrokerFailed, "Make a client here", *calls)
            for broker in brokers:
                with Admin(broker.address) as admin:
                    admin.list_topics()
            os.write(tell, bytes([count]))
            os.read(wait, 1)
            return 7

        with holding(memory):
            count, let_go = forked(child)
        assert count == 3 * len(calls_of(memory)), count
        assert process.is_running
        live_on(brokers, proxy)
        assert let_go() == 7
        for broker in brokers:
            assert committed(broker) == [b"1", b"2"]
        assert process.recording is not None
        assert list(process.recording.points()), "the child removed the files of the recording"
    assert os.getpid() == parent


class holding:  # noqa: N801 - reads as a phrase
    """Another thread is changing the broker while this process forks."""

    def __init__(self, broker: Broker) -> None:
        self._changes = broker._changes  # pyright: ignore[reportPrivateUsage] - held as start() does
        self._holds, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._changes:
            self._holds.set()
            self._ends.wait()

    def __enter__(self) -> None:
        self._thread.start()
        self._holds.wait()

    def __exit__(self, *_problem: object) -> None:
        self._ends.set()
        self._thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
