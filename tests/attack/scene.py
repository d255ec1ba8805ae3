"""A broker process under attack, and the canary beside it.

Rule: the broker is `fencepost serve` in a process of its own, on a real directory and a real socket. Whatever
an attack waits for is progress of the canary, never a time.
"""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from fencepost import FencepostError
from fencepost.broker.access.files import format_users
from fencepost.broker.embedded import users_of
from fencepost.demo.processes import ChildProcess, ChildProcesses
from tests.attack.canary_process import Task
from tests.attack.ledger import Fate, Ledger
from tests.broker.wire import Wire

PATIENCE_S = 60.0  # without progress for so long, broker or canary hang
GLANCE_S = 0.5  # how soon it shows that the broker has ended
MIB = 1 << 20


class Hangs(FencepostError):
    """The broker or the canary made no progress for PATIENCE_S seconds."""


@attrs.frozen(kw_only=True)
class BrokerOptions:
    """How a broker is started: arguments of `fencepost serve`, and limits of the operating system."""

    arguments: tuple[str, ...] = ()
    open_files: int | None = None
    file_bytes: int | None = None
    """The largest file that it may write: beyond this a write fails, as on a full disk."""
    has_users: bool = False
    """Whether clients have to log in."""


PLAIN = BrokerOptions()
LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": "canary",
    "sasl_plain_password": "secret",
}
"""Settings of the clients of a broker with users."""


class Target:
    """The broker: started again on the same directory and port, whatever happened to it."""

    def __init__(self, processes: ChildProcesses, directory: Path, options: BrokerOptions) -> None:
        self.directory = directory
        self.options = options
        self.ready: dict[str, Any] = {}
        self.starts = 0
        self._processes = processes
        self._child: ChildProcess | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Where it listens, also after it was started again."""
        return f"127.0.0.1:{self._port}"

    @property
    def client_settings(self) -> dict[str, Any]:
        """What an ordinary client needs besides the address."""
        return LOGIN if self.options.has_users else {}

    @property
    def child(self) -> ChildProcess:
        """The process."""
        assert self._child is not None, "the broker was started"
        return self._child

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self.child.is_running

    async def start(self) -> None:
        """Starts a process and waits until it is ready."""
        limits = (str(self.options.open_files or 0), str(self.options.file_bytes or 0))
        serve = ["serve", str(self.directory), "--port", str(self._port), "--with-parent"]
        if self.options.has_users:
            users = self.directory.with_name("users.toml")
            users.write_text(format_users(users_of({"canary": "secret"})))
            serve += ["--users", str(users)]
        module = ("tests.attack.limited", *limits) if any(map(int, limits)) else ("fencepost",)
        child = await self._processes.start("broker", *module, *serve, *self.options.arguments)
        with fails_after(PATIENCE_S, "the broker did not start"):
            ready = await child.hear()
        if ready is None:
            await child.wait()
            raise child.failure()
        self.ready, self._port, self._child = ready, ready["port"], child
        self.starts += 1

    async def end(self, how: signal.Signals) -> int:
        """Kills or stops the process; its return code."""
        with fails_after(PATIENCE_S, "the broker did not end"):
            return await self.child.end(how)

    async def connect(self) -> trio.SocketStream:
        """A connection to it. The caller closes it."""
        return await trio.open_tcp_stream("127.0.0.1", self._port)

    @asynccontextmanager
    async def wire(self) -> AsyncGenerator[Wire]:
        """A connection that speaks the protocol."""
        async with await self.connect() as stream:
            yield Wire(stream)

    def memory(self, field: str) -> float:
        """A field of /proc/PID/status in MiB: "VmRSS", or "VmHWM" for the peak. 0 where there is no /proc."""
        try:
            lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        except FileNotFoundError:
            return 0.0
        found = next((line for line in lines if line.startswith(f"{field}:")), f"{field}: 0 kB")
        return int(found.split()[1]) / 1024

    def forget_peak(self) -> None:
        """The peak of memory is counted from here on (Linux alone)."""
        clear = Path(f"/proc/{self.child.pid}/clear_refs")
        if clear.exists():
            clear.write_text("5")


class Canary:
    """The canary process and its ledger, which outlives the process."""

    def __init__(self, processes: ChildProcesses, target: Target, nursery: trio.Nursery) -> None:
        self.ledger = Ledger()
        self.failures: list[str] = []
        self.troubles: list[str] = []
        self.options: dict[str, Any] = {}
        self._processes = processes
        self._target = target
        self._nursery = nursery
        self._child: ChildProcess | None = None
        self._silent = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def transactions(self) -> int:
        """How many have ended, whichever way."""
        return sum(fate is not Fate.UNKNOWN for fate in self.ledger.fates.values())

    @property
    def unknown(self) -> int:
        """How many have an unknown outcome."""
        return self.ledger.count(Fate.UNKNOWN)

    async def start(self) -> None:
        """Starts the process, which goes on where the last one was."""
        first = max(self.ledger.fates, default=0) + 1
        task = Task(
            address=self._target.address,
            first=first,
            positions=self.ledger.positions,
            client_settings=self._target.client_settings,
            **self.options,
        )
        self._child = await self._processes.start("canary", "tests.attack.canary_process", task.to_json())
        self._silent = trio.Event()
        self._nursery.start_soon(self._listen, self._child, self._silent)

    async def stop(self) -> None:
        """Lets it end what it does; then it has read everything that it committed."""
        assert self._child is not None, "the canary was started"
        with fails_after(PATIENCE_S, "the canary did not end"):
            await self._child.tell("stop")
            await self._child.wait()
            await self._silent.wait()

    async def kill(self) -> None:
        """Kills it wherever it is."""
        assert self._child is not None, "the canary was started"
        await self._child.end(signal.SIGKILL)
        await self._silent.wait()

    async def revive(self) -> None:
        """Starts it again if it gave up, as a person would once the cause is gone."""
        if self._silent.is_set():
            self.failures.clear()
            await self.start()

    async def meanwhile(self, transactions: int) -> None:
        """Waits until it has ended so many more."""
        goal = self.transactions + transactions
        while self.transactions < goal and not self._silent.is_set():
            await self.lines(1)

    async def lines(self, count: int) -> None:
        """Waits until it has said so much more, which is in the middle of what it does."""
        for _ in range(count):
            with fails_after(PATIENCE_S, "the canary makes no progress"):
                await self._line()

    async def _line(self) -> None:
        while not self._silent.is_set():
            with trio.move_on_after(GLANCE_S):
                await self._progress.park()
                return
            if not self._target.is_running:
                raise Hangs("the broker ended")

    async def _listen(self, child: ChildProcess, silent: trio.Event) -> None:
        while (said := await child.hear()) is not None:
            self._note(said)
            self._progress.unpark_all()
        silent.set()
        self._progress.unpark_all()

    def _note(self, said: dict[str, Any]) -> None:
        fates = self.ledger.fates
        match said:
            case {"began": number} | {"unknown": number}:
                fates[number] = Fate.UNKNOWN
            case {"committed": number}:
                fates[number] = Fate.COMMITTED
            case {"aborted": number}:
                fates[number] = Fate.ABORTED
            case {"read": batches}:
                for partition, position, values in batches:
                    self.ledger.read[partition] += values
                    self.ledger.positions[partition] = position
            case {"failed": because}:
                self.failures.append(because)
            case _:
                pass
        if "because" in said or "trouble" in said:
            self.troubles.append(str(said))
        self.ledger.answers_ms += said.get("ms", [])


@attrs.define(eq=False)
class Scene:
    """What an attack acts on: broker, canary, chance, and the figures that it notes down."""

    target: Target
    canary: Canary
    processes: ChildProcesses
    chance: random.Random
    is_quick: bool
    directory: Path
    """Of its own, for whatever it needs besides."""
    kafka_frames: int = 0
    """How many damaged ones are sent; 0 for the usual number."""
    figures: dict[str, Any] = attrs.Factory(dict[str, Any])
    faults: list[str] = attrs.Factory(list[str])

    def scaled(self, quick: int, full: int) -> int:
        """An amount for the form of the run."""
        return quick if self.is_quick else full

    async def restart(self, how: signal.Signals) -> None:
        """Ends the broker and starts it again."""
        await self.target.end(how)
        await self.target.start()


@contextmanager
def fails_after(seconds: float, because: str) -> Generator[None]:
    """Raises Hangs, with words, when the block takes longer."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise Hangs(because)
