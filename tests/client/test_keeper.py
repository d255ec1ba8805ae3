"""The keeper thread of the blocking shell: it ends when it is told to, whatever it was about to do."""

from __future__ import annotations

import threading

from fencepost.client.requests import AskingMachine
from fencepost.client.session import Session
from fencepost.client.shells.sync_sockets import Keeper, Wires, monotonic_ms

PATIENCE_S = 10.0
WHILE_IT_LOOKS = "while it looks for work"


def stop_at(moment: str) -> bool:
    """Stops a keeper at a moment of its round; whether it ended."""
    session = Session(AskingMachine("127.0.0.1:1"), client_id="", request_timeout_ms=1_000)
    wires = Wires(session, lock=threading.Lock(), clock=monotonic_ms)
    in_round = threading.Event()

    def has_work() -> bool:
        if in_round.is_set():
            return False
        if moment == WHILE_IT_LOOKS:
            stopper.start()
            stopper.join(0.2)  # as far as stop() gets while the keeper is here
        in_round.set()
        return False

    keeper = Keeper(wires, has_work, tick_ms=1)
    stopper = threading.Thread(target=keeper.stop, daemon=True)
    keeper.want()
    assert in_round.wait(PATIENCE_S)
    if moment != WHILE_IT_LOOKS:
        stopper.start()
    stopper.join(PATIENCE_S)
    wires.close()
    return not stopper.is_alive()


def test_a_keeper_that_sleeps_can_be_stopped() -> None:
    assert stop_at("after its round")


def test_a_keeper_can_be_stopped_while_it_looks_for_work() -> None:
    assert stop_at(WHILE_IT_LOOKS)
