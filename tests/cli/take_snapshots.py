"""Snapshots: what every command prints on a terminal of 80 columns, in a pipe, and as JSON.

One session of commands runs three times, each time against a fresh broker in this process.
`python -m tests.cli.take_snapshots` writes the files in `snapshots/`; review them with `git diff`. A new
command needs one line in SESSION.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shlex
import socket
import struct
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.cli.commands import COMMANDS
from fencepost.client.errors import ProducerFenced
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.demo import run as demo_run
from fencepost.demo.run import Demo
from fencepost.lab import server as lab_server
from fencepost.lab.server import LabSettings
from fencepost.protocol.messages import BrokerStatusReply
from fencepost.protocol.terms import TopicPartition
from tests.audit.directories import put_on_disk
from tests.check.directories import SMALL_LOG, closed
from tests.check.planting import PLAIN
from tests.cli.busy_broker import status_after
from tests.cli.log_builder import build_story
from tests.cli.test_transactions import OF_OLD, make_it_hang
from tests.client.members import assignment, become_member
from tests.spark.one_spark import one_spark
from tests.topics import create_topic

SNAPSHOTS: Final = Path(__file__).parent / "snapshots"
WORDS: Final = tuple(words for words, command in COMMANDS.items() if command.place)
COLUMNS: Final = 80


class Mode(Enum):
    """Where the output goes."""

    TERMINAL = "terminal, 80 columns"
    PIPE = "pipe"
    JSON = "pipe, --json"


@attrs.frozen
class Step:
    """One command of the session, or something that happens between two commands."""

    command: str
    """What is typed after `fencepost`; {data} is a data directory, {tmp} an empty one."""
    code: int = attrs.field(default=0, kw_only=True)
    stdin: str = attrs.field(default="", kw_only=True)
    name: str = attrs.field(default="", kw_only=True)
    """The name of the snapshot, if it is not the only one of the command."""
    also: str = attrs.field(default="", kw_only=True)
    """Arguments that no user gives, and that the snapshot leaves out."""
    has_json: bool = attrs.field(default=True, kw_only=True)
    """Whether the command has the option --json."""
    has_counts: bool = attrs.field(default=False, kw_only=True)
    """The output counts what the simulator did, which a change of the simulator moves; numbers become 1."""
    happens: Callable[[Session], None] | None = attrs.field(default=None, kw_only=True)
    """Happens before the command."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways in which it runs."""
        return tuple(mode for mode in Mode if self.has_json or mode is not Mode.JSON)

    @property
    def words(self) -> str:
        """The command without its arguments."""
        return max((words for words in WORDS if f"{self.command} ".startswith(f"{words} ")), key=len)

    @property
    def file(self) -> Path:
        """The snapshot."""
        return SNAPSHOTS / f"{(self.name or self.words).strip('-').replace(' ', '-')}.txt"


@attrs.frozen
class Session:
    """What commands and happenings share."""

    address: str
    directory: Path
    stack: ExitStack


def write_and_leave_open(session: Session) -> None:
    """A transaction stays open behind three records, until a command of the session fences its producer."""
    session.stack.enter_context(pytest.raises(ProducerFenced))  # when the producer is closed, at the end
    producer = session.stack.enter_context(
        Producer(
            session.address, transactional_id="order-service-eu-central-1-0000017", transaction_version=0
        )
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("shipments", b"in flight", partition=0).result()


def hang(session: Session) -> None:
    """A transaction hangs in orders-0."""
    make_it_hang(session.address)


def form_groups(session: Session) -> None:
    """A group with committed offsets, and one with a member."""
    with Consumer(session.address, group_id="billing") as consumer:
        consumer.commit({TopicPartition("shipments", 0): 1, TopicPartition("shipments", 1): 0})
    become_member(session.address, "readers", assignment("shipments", [0]), "shipments")


def grow_busy(session: Session) -> None:
    """From now on, the broker says the same of each second."""
    patch, seconds = session.stack.enter_context(pytest.MonkeyPatch.context()), count()

    def broker_status(_admin: Admin) -> BrokerStatusReply:
        return status_after(next(seconds))

    patch.setattr(Admin, "broker_status", broker_status)


def keep_a_directory(session: Session) -> None:
    """A broker leaves a transaction that was committed, and one that was aborted."""
    with Broker(session.directory / "kept") as broker:
        create_topic(broker.address, "orders", 1)
        with Producer(broker.address, transactional_id="till") as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("orders", b"apple", b"alice")
                end()


def damage(session: Session) -> None:
    """Of a directory without problems, one batch gets the sequence of the batch before it."""
    at = closed()
    at.change(SMALL_LOG, PLAIN + 2, base_sequence=1)
    put_on_disk(at, session.directory / "damaged")


def count_as_a_demo(session: Session) -> None:
    """From now on, the demo kills nothing: its counts are those of a run that did."""
    counts = {
        "flights_loaded": 1_000,
        "delays_committed": 1_000,
        "totals_match": True,
        "uncommitted_visible": 150,
        "worker_kills": 8,
        "worker_kills_in_transaction": 6,
        "broker_kills": 2,
        "broker_kills_between_prepare_and_complete": 1,
        "zombies": 3,
        "zombies_fenced": 3,
        "committed_transactions": 90,
        "aborted_transactions": 12,
        "aborted_on_purpose": 4,
        "lost_replies": 7,
        "stream_kills": 1,
        "stream_batches": 5,
        "stream_matches": True,
    }

    async def perform(demo: Demo) -> None:
        for name, value in counts.items():
            setattr(demo.result, name, value)
        await trio.lowlevel.checkpoint()

    session.stack.enter_context(pytest.MonkeyPatch.context()).setattr(demo_run, "perform", perform)


def stop_the_lab_at_once(session: Session) -> None:
    """From now on, a lab that is ready stops, as by Ctrl-C."""

    async def serve_lab(
        settings: LabSettings, listening: socket.socket, on_ready: Callable[[str], None]
    ) -> None:
        with trio.CancelScope() as scope:

            def ready(address: str) -> None:
                on_ready(address)
                scope.cancel()

            await SERVE_LAB(settings, listening, ready)

    session.stack.enter_context(pytest.MonkeyPatch.context()).setattr(lab_server, "serve_lab", serve_lab)


SERVE_LAB: Final = lab_server.serve_lab
LINES: Final = "alice\t10\nbob\t20\nno key\n"
STOPS_AT_ONCE: Final = "--with-parent"
"""The parent that the command watches has closed its stdin."""
OFFLINE: Final = "--transactional-id till --records-per-transaction 2"

# In this order: later commands see what earlier ones did.
SESSION: Final = (
    Step("topic create shipments -p 2 -c retention.ms=3600000"),
    Step("topic create shipments", name="error already exists", code=1),
    Step("topic list"),
    Step("topic list --bootstrap-server 127.0.0.1:1", name="error no broker", code=3),
    Step("topic list --partition 1", name="error unknown option", code=2),
    Step("produce shipments -p 0", stdin=LINES),
    Step(f"produce shipments -p 1 {OFFLINE}", name="produce in transactions", stdin=LINES),
    Step("consume shipments -p 0 -n 3"),
    Step("produce shipments -p 0 -f jsonl", name="produce mistake", stdin='{"value": "1"}\nx\n', code=1),
    Step("consume shipments --from 5", name="consume notice"),
    Step("consume shipments --from 99", name="error no such offset", code=1),
    Step("consume shipments -g reading -n 2", name="consume group"),
    Step("topic describe shipments", happens=write_and_leave_open),
    Step("consume shipments -p 0 --from 3", name="consume open transaction"),
    Step("topic describe nope", name="error unknown topic", code=1),
    Step("topic alter shipments -c retention.ms=7200000 -p 3"),
    Step("topic delete-records shipments -p 1 --before 1"),
    Step("transactions list"),
    Step("transactions describe order-service-eu-central-1-0000017"),
    Step("transactions describe-producers -t shipments -p 1"),
    Step("group delete reading", name="group delete reading"),
    Step("group list", happens=form_groups),
    Step("group describe billing"),
    Step("group describe readers", name="group describe members"),
    Step("group reset-offsets billing -t shipments --to-latest"),
    Step("group delete-offsets billing -t shipments -p 1"),
    Step("group delete billing"),
    Step("transactions find-hanging -t orders", code=1, happens=hang),
    Step("status", code=1, has_counts=True),
    Step("transactions find-hanging -t shipments", name="transactions find-hanging nothing"),
    Step("transactions late", code=1),
    Step("transactions abort -t orders -p 0 --start-offset 2"),
    Step("transactions force-terminate order-service-eu-central-1-0000017"),
    Step('fault add "when broker sends Metadata reply do delay 1 ms" "when till sends EndTxn #7 do drop"'),
    Step('fault add "when till sends EndTx do drop"', name="error unknown fault", code=2),
    Step("fault wait --timeout 0", code=1),
    Step("fault list"),
    Step("fault end 2"),
    Step("fault remove"),
    Step("topic delete shipments"),
    Step("dump {data} --records --indexes"),
    Step("repair {data}", code=1),
    Step("repair {data} --write", name="repair write"),
    Step("check {data}"),
    Step("check {tmp}", name="error no data directory", code=2),
    Step("audit {tmp}/kept --master local[2]", name="audit nothing found", happens=keep_a_directory),
    Step("audit {tmp}/damaged --master local[2]", code=1, happens=damage),
    Step("export {tmp}/kept {tmp}/lake --to parquet --master local[2]"),
    Step("export {tmp}/kept {tmp}/lake --master local[2]", name="export again"),
    Step("user add {tmp}/users.toml alice", stdin="secret\n"),
    Step("user remove {tmp}/users.toml alice"),
    Step("run zombie_fencing"),
    Step("explore --transaction-version 0", code=1, has_counts=True),
    Step("fuzz --seeds 2 --cores 1", has_counts=True),
    Step("shrink --seed 2 --break fencing --budget 5000 --output {tmp}/small.toml", has_counts=True),
    Step("shrink --seed 7", name="error nothing to shrink", code=1),
    Step("--install-completion --shell bash"),
    Step("help", has_json=False),
    Step("help glossary", name="help page", has_json=False),
    Step("serve --memory --port 0 --override max.connections=100", also=STOPS_AT_ONCE, has_json=False),
    Step("serve", name="error no place", code=2, has_json=False),
    Step("demo --flights 100 --kills 100", name="error too many kills", code=2),
    Step("demo --flights 1000", happens=count_as_a_demo),
    Step("lab --no-browser --port 0", happens=stop_the_lab_at_once, has_json=False),
    Step("top --once", also="--interval 0.001", happens=grow_busy),
)

UNSTABLE: Final = (
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "2026-01-01 00:00:00.000Z"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-01-01T00:00:00.000Z"),
    (r"read in \d+ ms", "read in 1 ms"),
    (r"\b1[6-9]\d{11}\b", "1700000000000"),
    (r"127\.0\.0\.1:\d{5}\b", "127.0.0.1:50000"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "00000000-0000-0000-0000-000000000000"),
    (r'("duration_ms": )\d+', r"\g<1>1000"),
    (r"(Duration(?: *): +|Z  )[\d,]+ \w+( \d+ \w+)?", r"\g<1>1 s"),
    (r"((?:UPTIME|OLDEST-OPEN): +)[\d,]+ \w+( \d+ \w+)?", r"\g<1>1 s"),
    (r'("\w*(?:seconds?|speed)": )[\d.]+', r"\g<1>1.0"),
    (r"\b[\d,.]+ s\b", "1.0 s"),
    (r"\?token=[\w-]+", "?token=secret"),
    (r'("pid": )\d+', r"\g<1>4711"),
    (r'("port": )\d+', r"\g<1>50000"),
    (r'("digest": )"\w+"', r'\g<1>"1"'),
    (r'("(?:events|virtual_ms)": )[\d.]+', r"\g<1>1"),
    (r"[\d,]+ transactions per core second", "100 transactions per core second"),
)
COUNTS: Final = ((r"\b\d[\d,.]*\b", "1"),)


@contextmanager
def streams(mode: Mode, stdin: str) -> Generator[Callable[[], tuple[str, str]]]:
    """Runs its body with stdin, stdout and stderr; the result reads (stdout, stderr)."""
    errors = io.StringIO()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        stack.enter_context(redirect_stderr(errors))
        read = stack.enter_context(terminal() if mode is Mode.TERMINAL else pipe())
        yield lambda: (read(), errors.getvalue())


@contextmanager
def pipe() -> Generator[Callable[[], str]]:
    """Standard output is no terminal; the result reads it."""
    written = io.BytesIO()
    wrapper = io.TextIOWrapper(written, encoding="utf-8", write_through=True)  # closes `written` when it dies
    with redirect_stdout(wrapper):
        yield lambda: written.getvalue().decode()
    wrapper.detach()


@contextmanager
def terminal() -> Generator[Callable[[], str]]:
    """Standard output is a terminal of 80 columns; the result closes it and reads what it shows."""
    primary, secondary = os.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    chunks: list[bytes] = []

    def drain() -> None:
        try:
            while chunk := os.read(primary, 65_536):
                chunks.append(chunk)
        except OSError:  # EIO: the other end is closed, and everything is read
            return

    reader = threading.Thread(target=drain)
    reader.start()
    screen = os.fdopen(secondary, "w", encoding="utf-8")

    def read() -> str:
        screen.close()
        reader.join()
        return b"".join(chunks).decode().replace("\r\n", "\n")

    try:
        with redirect_stdout(screen):
            yield read
    finally:
        read()
        os.close(primary)


def stable(text: str, step: Step, directory: Path) -> str:
    """The text with fixed values for those that differ from run to run."""
    text = text.replace(str(directory), "/tmp")
    for pattern, replacement in (*UNSTABLE, *(COUNTS if step.has_counts else ())):
        text = re.sub(pattern, replacement, text)
    return text


@attrs.frozen
class Shown:
    """What one command printed."""

    stdout: str
    stderr: str
    code: int


def play(mode: Mode, directory: Path) -> dict[Step, Shown]:
    """The whole session in one mode."""
    data = build_story(directory / "data")
    environment = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "HOME": str(directory), "TERM": "xterm"}
    shown: dict[Step, Shown] = {}
    with Broker(**OF_OLD) as broker, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, "FENCEPOST_BOOTSTRAP_SERVER": broker.address}.items():
            patch.setenv(name, value)
        session = Session(broker.address, directory, stack)
        for step in SESSION:
            if step.happens is not None:
                step.happens(session)
            if mode not in step.modes:
                continue
            arguments = shlex.split(f"{step.command} {step.also}".format(data=data, tmp=directory))
            with streams(mode, step.stdin) as read:
                code = run([*arguments, "--json"] if mode is Mode.JSON else arguments)
            out, err = (stable(text, step, directory) for text in read())
            shown[step] = Shown(out, err, code)
    return shown


def take() -> dict[Step, dict[Mode, Shown]]:
    """The session in every mode."""
    taken: dict[Step, dict[Mode, Shown]] = {step: {} for step in SESSION}
    for mode in Mode:
        with tempfile.TemporaryDirectory() as directory:
            for step, shown in play(mode, Path(directory)).items():
                taken[step][mode] = shown
    return taken


def as_text(step: Step, shown: dict[Mode, Shown]) -> str:
    """One snapshot."""
    parts = [f"$ fencepost {step.command}\n"]
    for mode in step.modes:
        parts.append(f"\n[{mode.value}]\n{shown[mode].stdout}")
        if shown[mode].stderr:
            parts.append(f"[on stderr]\n{shown[mode].stderr}")
    parts.append(f"\n[exit code {shown[Mode.PIPE].code}]\n")
    return "".join(parts)


def main() -> None:
    """Writes all snapshots, and removes those of steps that are gone."""
    for old in SNAPSHOTS.glob("*.txt"):
        old.unlink()
    with one_spark():
        taken = take()
    for step, shown in taken.items():
        step.file.write_text(as_text(step, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
