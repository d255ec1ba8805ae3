"""The IO thread of the blocking shell: it ends when it is told to, whatever it was about to do."""

from __future__ import annotations

import threading

from fencepost.client.network import Network
from fencepost.client.requests import RequestMachine
from fencepost.client.shells.sockets import monotonic_ms
from fencepost.client.shells.sync_driver import IOThread, Sockets

PATIENCE_S = 10.0
WHILE_IT_LOOKS = "while it looks for work"


def stop_at(moment: str) -> bool:
    """Stops a io_thread at a moment of its round; whether it ended."""
    network = Network(RequestMachine("127.0.0.1:1"), client_id="", request_timeout_ms=1_000)
    sockets = Sockets(network, lock=threading.Lock(), clock=monotonic_ms)
    in_round = threading.Event()

    def has_work() -> bool:
        if in_round.is_set():
            return False
        if moment == WHILE_IT_LOOKS:
            stopper.start()
            stopper.join(0.2)  # as far as stop() gets while the io_thread is here
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
