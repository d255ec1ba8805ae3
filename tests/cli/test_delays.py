"""What `produce` says while the broker does not acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event

import pytest
from typing_extensions import override

from fencepost import Broker, Producer, RequestTimeout
from fencepost.cli import delays
from tests.topics import create_topic


class Steps(Event):
    """What happens before each look of the watcher."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.steps = list(steps)

    @override
    def wait(self, timeout: float | None = None) -> bool:
        if not self.steps:
            return True
        self.steps.pop(0)()
        return False


@pytest.mark.parametrize("is_restarted", [False, True])
def test_only_what_is_acknowledged_is_called_so(
    is_restarted: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "OVERDUE_MS", 0)
    with Broker() as broker:
        create_topic(broker.address, "events")
        producer = Producer(broker.address, transactional_id="shop", max_block_ms=300)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("events", b"first").result()
        broker.kill()
        pending = [producer.send("events", b"second")]

        def grow_old() -> None:
            while not producer.overdue(0):
                pass

        def abort() -> None:
            with pytest.raises(RequestTimeout):
                producer.abort_transaction()

        def restart() -> None:
            broker.restart()
            pending[0].result()

        delays.watch(producer, pending, Steps(grow_old, restart if is_restarted else abort))
        with suppress(RequestTimeout):
            producer.close(0)
    said = capsys.readouterr().err
    assert said.count("events-0: no acknowledgement") == 1
    assert ("events-0: the broker acknowledges records again" in said) is is_restarted
