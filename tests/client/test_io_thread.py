"""The IO thread of the blocking shell: it ends when it is told to, whatever it was about to do."""

from __future__ import annotations

import threading
from typing import cast

from fencepost.client.network import NetworkClient
from fencepost.client.requests import RequestMachine
from fencepost.client.shells.sockets import monotonic_ms
from fencepost.client.shells.sync_driver import IOThread, Sockets

PATIENCE_S = 60.0
WHILE_IT_LOOKS = "while it looks for work"


class WatchedLock:
    """A lock that shows when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(self, *problem: object) -> None:
        self._lock.release()


def stop_at(moment: str) -> bool:
    """Stop an IO thread at a moment of its round; return whether it ended."""
    network = NetworkClient(RequestMachine("127.0.0.1:1"), client_id="", request_timeout_ms=1_000)
    lock = WatchedLock()
    sockets = Sockets(network, lock=cast("threading.Lock", lock), clock=monotonic_ms)
    in_round = threading.Event()

    def has_work() -> bool:
        if in_round.is_set():
            return False
        if moment == WHILE_IT_LOOKS:
            stopper.start()
            # stop() gets as far as the lock, which the IO thread holds while it looks.
            assert lock.is_awaited.wait(PATIENCE_S)
        in_round.set()
        return False

    io_thread = IOThread(sockets, has_work, tick_ms=1)
    stopper = threading.Thread(target=io_thread.stop, daemon=True)
    io_thread.want()
    assert in_round.wait(PATIENCE_S)
    if moment != WHILE_IT_LOOKS:
        stopper.start()
    stopper.join(PATIENCE_S)
    sockets.close()
    return not stopper.is_alive()


def test_an_io_thread_that_sleeps_can_be_stopped() -> None:
    assert stop_at("after its round")


def test_an_io_thread_can_be_stopped_while_it_looks_for_work() -> None:
    assert stop_at(WHILE_IT_LOOKS)
