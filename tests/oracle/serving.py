"""Broker processes for conversations over a socket, each with the settings that a recording asks for.

Rule: a broker is the server that `fencepost serve` runs. It is forked from a process that has loaded the
modules, because a thousand conversations need a thousand brokers.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from functools import cache, partial
from importlib import import_module
from typing import Any

import attrs
import trio

from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.lifecycle import Ready, serve_until_signalled
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS


def settings_in_words(settings: NodeSettings) -> str:
    """What differs from the default, as JSON; the transaction version by its number."""
    plain = NodeSettings()
    names = [field.name for field in attrs.fields(NodeSettings) if field.name != "transaction_version"]
    words = {
        name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(plain, name)
    }
    return json.dumps({"transaction_version": settings.transaction_version.number, **words})


def settings_from_words(words: str) -> NodeSettings:
    """The settings that `settings_in_words` wrote down."""
    fields = json.loads(words)
    return NodeSettings(transaction_version=TRANSACTION_VERSIONS[fields.pop("transaction_version")], **fields)


def _serve(directory: str, words: str) -> None:
    """Serve until a signal comes."""

    def tell(ready: Ready) -> None:
        print(json.dumps({"port": ready.port, "pid": os.getpid()}), flush=True)

    settings = BrokerSettings(directory=directory, node=settings_from_words(words))
    trio.run(partial(serve_until_signalled, settings, on_ready=tell))


def _start(directory: str, words: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _serve(directory, words)
        status = 0
    finally:
        print(json.dumps({"ended": status}), flush=True)
        os._exit(status)  # the loop of the parent is not the child's


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> None:
    """Start and kill brokers as the lines on stdin say, until there are no more."""
    import_module("fencepost.kafka_bridge.connection")  # which a broker loads at its first Kafka connection
    brokers: set[int] = set()
    try:
        for line in sys.stdin:
            order = json.loads(line)
            if "kill" in order:
                brokers.remove(order["kill"])
                _kill(order["kill"])
                print(json.dumps({"killed": order["kill"]}), flush=True)
            else:
                brokers.add(_start(order["directory"], order["settings"]))
    finally:
        for pid in brokers:
            _kill(pid)


class BrokerStarter:
    """The process that starts brokers, on the side of those who need them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.oracle.serving"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.close)

    def start(self, directory: str, words: str) -> tuple[int, int]:
        """The process id and the port of a new broker. EOFError if it ended before it was ready."""
        said = self._order({"directory": directory, "settings": words})
        if "ended" in said:
            raise EOFError(f"the broker ended with {said['ended']} before it was ready")
        return said["pid"], said["port"]

    def kill(self, pid: int) -> None:
        """Kill a broker, and wait until it is gone."""
        self._order({"kill": pid})

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it was asked for"
        assert stdout is not None, "it was asked for"
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        said = stdout.readline()
        if not said:
            raise EOFError("the process that starts brokers has ended")
        return json.loads(said)

    def close(self) -> None:
        """End the process, and the brokers that it started."""
        self._process.communicate()


@cache
def starter() -> BrokerStarter:
    """One for each process that plays."""
    return BrokerStarter()


if __name__ == "__main__":
    main()
