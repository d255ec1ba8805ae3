"""`fencepost serve` in a process of its own, with the methods of an embedded broker.

Rule: no process outlives its object or the program that started it, however that ends.
"""

# A finalizer kills the process when its BrokerProcess is collected. That happens only if nothing that lives
# as long as the process refers to the BrokerProcess: not _Child, not the thread that reads the output, and
# not the registry of the faults, which therefore has a weak reference.

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from io import BufferedReader, BufferedWriter
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.embedded import (
    BrokerFailed,
    LocalBroker,
    checked_choice,
    checked_directory,
    checked_port,
)
from fencepost.broker.fault_handles import Faults, naming_help
from fencepost.broker.faults import Abilities
from fencepost.broker.listeners import parsed_listener
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.disk import DiskStorage
from fencepost.protocol.forked_process import in_child
from fencepost.testing.fault_registry import ProcessFaultRegistry
from fencepost.testing.process_recording import ProcessRecording

PATIENCE_S: Final = 60.0  # for a start, which reads the log, or a stop, which syncs it
LINES_KEPT: Final = 1_000  # of what a process prints
LAST_LINES: Final = 20  # of it in an error
POWER_LOSS: Final = re.compile(r"the power was cut: lost [1-9]")
POWER_CUT: Final = b"cut the power\n"  # understood by `serve --with-parent`


class _Child:
    """One process of a broker, and what it prints. It is killed when `owner` is collected."""

    def __init__(
        self,
        command: list[str],
        lines: deque[str],
        on_strike: Callable[[dict[str, Any]], None],
        *,
        owner: BrokerProcess,
    ) -> None:
        self._lines = lines
        self._on_strike = on_strike
        self._is_settled = threading.Event()
        self.ready: dict[str, Any] | None = None
        # In a session of its own: Ctrl-C reaches the program that tests, and not its brokers.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="output of fencepost serve", daemon=True)
        self._finalizer = weakref.finalize(owner, self.end, signal.SIGKILL)
        in_child(self, _Child._leave_to_parent)
        self._reader.start()

    def _leave_to_parent(self) -> None:
        self._finalizer.detach()
        for pipe in (self.process.stdin, self.process.stdout):
            # `serve --with-parent` ends at the end of its stdin. The buffer is left as it is: a thread of the
            # parent may have held its lock.
            cast("BufferedReader | BufferedWriter", pipe).raw.close()
        self.process.returncode = 0  # as Popen does with the child of another process: it gets no signal

    def _read(self) -> None:
        assert self.process.stdout is not None, "it was asked for"
        with self.process.stdout as output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\n")
                self._lines.append(line)
                if line.startswith('{"ready": true'):
                    self.ready = json.loads(line)
                    self._is_settled.set()
                elif line.startswith('{"fault_id": '):
                    self._on_strike(json.loads(line))
        self._is_settled.set()

    def wait_until_ready(self) -> bool:
        """Whether it got ready; False if it has ended or takes too long."""
        self._is_settled.wait(PATIENCE_S)
        return self.ready is not None

    def order(self, line: bytes) -> None:
        """Write a line to it; nothing happens if it has ended."""
        assert self.process.stdin is not None, "it was asked for"
        with suppress(BrokenPipeError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def end(self, how: signal.Signals | None = None) -> int:
        """Send a signal, wait for the end, return the exit code. A process that does not end is killed."""
        assert self.process.stdin is not None, "it was asked for"
        if how is not None:
            self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        if threading.current_thread() is not self._reader:  # which may be the thread that collects the owner
            self._reader.join()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self._finalizer.detach()
        return code


class BrokerProcess(LocalBroker):
    """A broker in a child process, on loopback. Use it as a context manager, or call `start()` and `stop()`.

    Port and data stay the same through all kills and starts. The process ends when nothing refers to this
    object any more, or when this program ends, at the latest.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        port: int = 0,
        sync: Literal["none", "commit", "all"] = "none",
        advertised_listener: str | None = None,
        override: Mapping[str, object] | None = None,
        faults: Iterable[str] = (),
        options: Iterable[str] = (),
        record: bool = False,
    ) -> None:
        """`directory`: for the data, created if it does not exist. `port`: 0 is any free one. `sync`: "none",
        "commit" or "all", as for a Broker. `advertised_listener`: the HOST:PORT that the broker gives to
        clients, if it is not where the broker listens. `override`: settings under their names in Kafka
        (docs/clients.md). `faults`: as `fencepost serve --fault` takes them. `options`: further options of
        `fencepost serve`, such as ("--users", "users.toml"). `record`: whether to fill `recording`.
        ValueError or TypeError if an argument is invalid.
        """
        super().__init__(checked_port(port))
        self.directory = checked_directory(directory)
        """Where the data is."""
        policy = checked_choice("sync", sync, SyncPolicy)
        for name, given in (("options", options), ("faults", faults)):
            if isinstance(given, str):
                raise TypeError(f"{name} must be a list of texts, not one text: {given!r}")
        self.advertised_listener = advertised_listener
        """The HOST:PORT that the broker gives to clients from the next start on; None: `address`."""
        if advertised_listener is not None:
            parsed_listener(advertised_listener)
        self._arguments = [self.directory, "--sync", policy.value, *options]
        for name, value in (override or {}).items():
            self._arguments += ["--override", f"{name}={value}"]
        abilities = Abilities(syncs=policy is not SyncPolicy.NONE)
        with naming_help():
            self._registry = ProcessFaultRegistry(partial(_address_of, weakref.ref(self)), faults, abilities)
        self.faults = Faults(self._registry)
        """The faults of this broker: `broker.faults.when(...).do(...)`."""
        self.recording = ProcessRecording() if record else None
        """What happened through all kills and starts, with `record=True`."""
        self._child: _Child | None = None
        self._has_lost_data = False
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    @property
    def has_lost_data(self) -> bool:
        """Whether a power cut has taken bytes that were not synced."""
        return self._has_lost_data

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._running().process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        self._check_own()
        return self._child is not None and self._child.process.poll() is None

    @property
    def output(self) -> str:
        """The last lines that its processes have printed."""
        return "\n".join(self._lines)

    def start(self) -> Self:
        """Start a process, and return when it accepts connections. Raises DirectoryInUse if another broker
        has the directory, CannotListen if another program has the port, else BrokerFailed with the output.
        """
        if self.is_running:
            raise BrokerFailed("this broker is running; restart() stops it first")
        self._ports.keep(BrokerSettings(port=self._ports.port), DiskStorage(self.directory))
        if self._child is not None:  # it ended by itself; its last line may say which fault struck
            self._child.end()
        arguments = [*self._arguments, *self._registry.arguments(), "--port", str(self.port), "--with-parent"]
        if self.advertised_listener is not None:
            arguments += ["--advertised-listener", self.advertised_listener]
        if self.recording is not None:
            arguments += ["--record-to", str(self.recording.next_life())]
        # -P: a file of the user, such as outcome.py, must not take the place of a library.
        command = [sys.executable, "-P", "-m", "fencepost", "serve", *arguments]
        self._child = child = _Child(command, self._lines, self._registry.on_strike, owner=self)
        if not child.wait_until_ready():
            self._child = None
            self._ports.release()
            raise self._failure("was not ready", child.end(signal.SIGKILL))
        return self

    def stop(self) -> None:
        """Stop the process cleanly (SIGTERM); does nothing if it was killed. Raises BrokerFailed if it ended
        unexpectedly. In a forked process this does nothing: the broker is the parent's.
        """
        if self._is_parents:
            return
        try:
            self._end()
        finally:
            self._ports.release()

    def kill(self) -> None:
        """Kill the process (SIGKILL). What it wrote is there at the next start."""
        child = self._running()
        self._child = None
        child.end(signal.SIGKILL)
        if self.recording is not None:
            self.recording.end_life()

    def power_cut(self) -> None:
        """Kill the broker, and lose every byte that it did not sync. Bytes that an earlier process of this
        directory wrote count as synced.
        """
        child = self._running()
        self._child = None
        child.order(POWER_CUT)
        code = child.end()
        if code != -signal.SIGKILL:
            raise self._failure("did not lose its power", code)
        self._has_lost_data = self._has_lost_data or POWER_LOSS.search(self.output) is not None

    def _running(self) -> _Child:
        self._check_own()
        if self._child is None or not self.is_running:
            raise BrokerFailed("the broker is down; start() starts it")
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            code = child.end(signal.SIGTERM)
            if code not in (0, -signal.SIGKILL):  # a fault may have killed it
                raise self._failure("ended unexpectedly", code)

    def _failure(self, what: str, code: int) -> BrokerFailed:
        said = "\n".join(list(self._lines)[-LAST_LINES:]) or "nothing"
        return BrokerFailed(
            f"the broker process {what} and ended with exit code {code}; its last output:\n{said}"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Without an error, FaultNeverStruck is raised if a fault has not struck."""
        try:
            if error is None and not self._is_parents:
                self.faults.require_all_struck()
        finally:
            self.stop()


def _address_of(broker: weakref.ref[BrokerProcess]) -> str | None:
    """Where it listens; None while it is down, and once it is gone."""
    found = broker()
    return found.address if found is not None and found.is_running else None
