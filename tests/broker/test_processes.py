"""Brokers as processes and as threads: started, signalled, killed, and started again on what they left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio

from fencepost.broker.embedded import Broker
from fencepost.broker.listeners import CannotListen
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import DirectoryInUse, NotADataDirectory
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import CreateTopic, CreateTopics, Metadata, MetadataReply
from fencepost.protocol.terms import TopicPartition
from fencepost.testing.broker_process import BrokerProcess
from tests.broker.requests import (
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    Identity,
    body_of,
    end_request,
    fetch_request,
    fetched,
    identity_of,
    next_offset,
    produce_request,
    produced,
    visible_values,
)
from tests.broker.wire import PATIENCE_S, Wire, Wires, connecting

pytestmark = pytest.mark.trio

Policy = Literal["none", "commit", "all"]


@attrs.frozen
class Process:
    """`fencepost serve` as a process, and connections to it."""

    process: trio.Process
    wires: Wires

    async def ended(self, number: signal.Signals) -> tuple[int, str]:
        """Signal it; its exit code and what it wrote to stderr."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        with trio.fail_after(PATIENCE_S):
            said = b"".join([chunk async for chunk in self.process.stderr])
            return await self.process.wait(), said.decode()

    async def line(self) -> str:
        """What it says next on stdout."""
        return (await _lines(self.process, 1))[0]


async def _lines(process: trio.Process, count: int) -> list[str]:
    assert process.stdout is not None
    said = bytearray()
    with trio.fail_after(PATIENCE_S):
        while said.count(b"\n") < count:
            chunk = await process.stdout.receive_some()
            assert chunk, "the broker ended before it said so much"
            said += chunk
    return said.decode().splitlines()


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fencepost", "serve", str(directory), *arguments]


@asynccontextmanager
async def started(directory: Path, *arguments: str) -> AsyncGenerator[Process]:
    """A broker process that is ready; killed at the end if it still runs."""
    process = await trio.lowlevel.open_process(
        command(directory, "--port", "0", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        faults = arguments.count("--fault")  # a line for each
        words, *_, facts = await _lines(process, 3 + faults)
        ready = json.loads(facts)
        told = (ready["ready"], ready["pid"], ready["directory"], "ready" in words)
        assert told == (True, process.pid, str(directory), True)
        async with connecting((ready["host"], ready["port"])) as wires:
            yield Process(process, wires)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


async def refused(directory: Path, *arguments: str) -> tuple[int, str]:
    """A broker that cannot start: its exit code, and what it says."""
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(
            command(directory, *arguments), capture_stdout=True, capture_stderr=True, check=False
        )
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def visible_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


async def transacted(wire: Wire, me: Identity, word: str) -> Identity:
    """One transaction over both partitions; who the producer is after it."""
    request = produce_request(me, {ORDERS: word, OTHERS: word})
    with trio.fail_after(PATIENCE_S):
        while any(part.error for part in produced(await wire.ask(request)).values()):
            await trio.lowlevel.checkpoint()
    return identity_of(await wire.ask_until_done(end_request(me, COMMIT)))


async def read(wire: Wire) -> str:
    """What is committed, once every transaction is decided."""
    values: list[str] = []
    offset = 0
    with trio.fail_after(PATIENCE_S):
        while True:
            part = fetched(await wire.ask(fetch_request(ORDERS, offset=offset)))
            if part.error or part.last_stable_offset != part.high_watermark:
                continue
            if not part.records:
                return " ".join(values)
            # A segment at a time: the markers are much later than the batches, and began a new one.
            values += visible_values(part)
            offset = next_offset(part)


# --- processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_a_broker_in_order(tmp_path: Path, number: signal.Signals) -> None:
    async with started(tmp_path) as broker:
        wire = await broker.wires.open()
        await wire.prepare()
        me = await transacted(wire, await wire.identity(), "a")
        await wire.send(fetch_request(ORDERS, offset=2, max_wait_ms=60_000))
        code, said = await broker.ended(number)
        assert code == 0
        assert said.endswith("INFO fencepost.broker: stopped\n")
        assert (tmp_path / "clean-shutdown.json").exists()
    async with started(tmp_path) as broker:
        wire = await broker.wires.open()
        await transacted(wire, me, "b")
        assert await read(wire) == "a b"


@pytest.mark.parametrize("policy", ["none", "commit", "all"])
async def test_a_broker_that_is_killed_goes_on_where_it_was(tmp_path: Path, policy: str) -> None:
    async with started(tmp_path, "--sync", policy) as broker:
        wire = await broker.wires.open()
        await wire.prepare()
        me = await transacted(wire, await wire.identity(), "a")
        stale = await wire.identity("other")
        await wire.ask_until_done(produce_request(stale, {ORDERS: "never"}, name="other"))
        await broker.ended(signal.SIGKILL)
    assert not (tmp_path / "clean-shutdown.json").exists()
    async with started(tmp_path, "--sync", policy) as broker:
        wire = await broker.wires.open()
        await transacted(wire, me, "b")
        await wire.identity("other")
        assert await read(wire) == "a b"


async def test_a_decision_that_a_kill_interrupted_is_carried_out(tmp_path: Path) -> None:
    """Held just after PREPARE_COMMIT was written: neither answer nor marker has left."""
    fault = "when coordinator of pay appends PREPARE do pause node 1"
    async with started(tmp_path, "--fault", fault) as broker:
        wire = await broker.wires.open()
        await wire.prepare()
        me = await wire.identity()
        await wire.ask_until_done(produce_request(me, {ORDERS: "a", OTHERS: "a"}))
        await wire.send(end_request(me, COMMIT))
        struck = {"fault_id": 1, "fault": fault, "struck": 1, "pid": broker.process.pid}
        point = "coordinator of pay appends PREPARE_COMMIT"
        assert json.loads(await broker.line()) == {**struck, "point": point}
        await broker.ended(signal.SIGKILL)
    async with started(tmp_path) as broker:
        wire = await broker.wires.open()
        assert await read(wire) == "a"
        heir = identity_of(await wire.ask_until_done(end_request(me, COMMIT)))
        assert heir == Identity(me.producer_id, me.producer_epoch + 1)


@pytest.mark.parametrize("policy", ["none", "commit", "all"])
async def test_writes_to_a_file_that_somebody_removed_are_refused(tmp_path: Path, policy: Policy) -> None:
    """They would be gone at the next start. Without syncs it takes until the next manifest to notice."""
    async with started(tmp_path, "--sync", policy) as broker:
        wire = await broker.wires.open()
        await wire.prepare()

        async def write(key: TopicPartition) -> ErrorCode:
            return produced(await wire.ask(produce_request(NOBODY, {key: "a"}, name=None)))[key].error

        assert await write(ORDERS) is ErrorCode.NONE
        (tmp_path / "orders-0" / file_name(0, LOG)).unlink()
        with trio.fail_after(PATIENCE_S):
            accepted = 0
            while (error := await write(ORDERS)) is ErrorCode.NONE:
                accepted += 1
        assert (error, policy != "all" or accepted == 0) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
        assert await write(OTHERS) is ErrorCode.NONE
        assert await write(ORDERS) is ErrorCode.KAFKA_STORAGE_ERROR, "it stays refused"
        _, said = await broker.ended(signal.SIGTERM)
        assert "orders-0" in said
        assert "was removed or replaced while the broker was writing to it" in said


async def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        for port in (
            "0",
            str(broker.wires.address[1]),
        ):  # with the same port, the directory is still the cause
            code, said = await refused(tmp_path, "--port", port)
            owner = f"fencepost: {tmp_path} is in use by a broker (process {broker.process.pid})"
            assert (code, said) == (1, f"{owner}: stop it first, or use another directory\n")
        wire = await broker.wires.open()
        assert (await wire.ask(Metadata(topics=None))).error is ErrorCode.NONE


async def test_a_port_has_one_broker(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = await refused(tmp_path, "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert said.endswith("or choose another port (0 is a free one); the option is --port\n")
    assert os.listdir(tmp_path) == [], "a broker that cannot listen leaves nothing behind"


async def test_somebodys_own_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    code, said = await refused(tmp_path, "--port", "0")
    assert code == 2
    assert "thesis.txt" in said
    assert visible_names(tmp_path) == ["thesis.txt"]


# --- threads -----------------------------------------------------------------------------------------------


async def _topics(broker: Broker) -> list[str]:
    host, _, port = broker.address.rpartition(":")
    async with connecting((host, int(port))) as wires:
        wire = await wires.open()
        body = body_of(await wire.ask(Metadata(topics=None)), MetadataReply)
        return [topic.topic for topic in body.topics if not topic.is_internal]


async def _make(broker: Broker, topic: str) -> None:
    host, _, port = broker.address.rpartition(":")
    async with connecting((host, int(port))) as wires:
        wire = await wires.open()
        await wire.ask(CreateTopics(topics=(CreateTopic(topic=topic, partition_count=1),)))


async def test_two_brokers_in_one_process_know_nothing_of_each_other() -> None:
    with Broker() as one, Broker() as two:
        assert one.address != two.address
        await _make(one, "mine")
        assert (await _topics(one), await _topics(two)) == (["mine"], [])


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Broker(data) as broker:
        for port in (0, broker.port):
            for other in (Broker(data, port=port), BrokerProcess(data, port=port)):
                with pytest.raises(DirectoryInUse, match="is in use by a broker"):
                    other.start()
        with pytest.raises(CannotListen, match="choose another port"):
            Broker(port=int(broker.address.rpartition(":")[2])).start()
        assert await _topics(broker) == []
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("years of work")
    with pytest.raises(NotADataDirectory, match=r"thesis\.txt"):
        Broker(str(tmp_path / "own")).start()
