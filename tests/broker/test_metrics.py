"""The port for metrics: what it answers, and that every metric moves with what it is about."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

import fencepost
from fencepost.broker import counters, lifecycle, metrics_port
from fencepost.broker.contract import Disconnected, Outcome, Reply, ReplyTo
from fencepost.broker.counters import Counters, TopicCounts
from fencepost.broker.metrics import METRICS, Families
from fencepost.broker.metrics_port import MetricsPort
from fencepost.broker.server import Server
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import APIS, Produce, ProducedPartition, ProduceReply
from fencepost.protocol.terms import NO_OFFSET
from tests.access.samples import SAMPLES
from tests.broker.wire import PATIENCE_S, opened_server, serving
from tests.topics import create_topic

ORDERS = fencepost.TopicPartition("orders", 0)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def get(port: int | None, path: str, method: str = "GET") -> tuple[int, str]:
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def parsed(text: str) -> Samples:
    """All samples, read by Prometheus's own parser."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(broker: fencepost.Broker) -> Samples:
    status, text = get(broker.metrics_port, "/metrics")
    assert status == 200
    return parsed(text)


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


# --- what moves ---------------------------------------------------------------------------------------------

STANDING = frozenset(
    {
        "fencepost_build_info",
        "fencepost_start_time_seconds",
        # These four need a broken disk or a lost transaction: test_status.py.
        "fencepost_disk_problems_total",
        "fencepost_hanging_transactions",
        "kafka_log_LogManager_OfflineLogCount",
        "kafka_server_ReplicaManager_PartitionsWithLateTransactionsCount",
    }
)
"""What the story below does not move."""


def everyday(broker: fencepost.Broker) -> Samples:
    """A bit of everything; the metrics while a transaction is open."""
    with (
        fencepost.Admin(broker.address) as admin,
        fencepost.Producer(broker.address, transactional_id="till") as producer,
        fencepost.Consumer(broker.address, group_id="readers", auto_offset_reset="error") as consumer,
    ):
        admin.create_topic("orders")
        with pytest.raises(fencepost.RequestFailed):
            admin.create_topic("orders")
        with socket.create_connection(("127.0.0.1", int(broker.address.split(":")[1]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"a")
        producer.commit_transaction()
        consumer.assign([ORDERS])
        consumer.seek(ORDERS, 0)
        while not consumer.poll(timeout_ms=1_000):
            pass
        consumer.commit()
        consumer.seek(ORDERS, 99)
        with pytest.raises(fencepost.OffsetOutOfRange):
            consumer.poll(timeout_ms=1_000)
        admin.delete_records({ORDERS: 1})
        producer.begin_transaction()
        producer.send("orders", b"b")
        producer.flush()
        with pytest.raises(fencepost.FencepostError):
            produce_too_much(broker)
        return scraped(broker)


def produce_too_much(broker: fencepost.Broker) -> None:
    create_topic(broker.address, "narrow", configs={"max.message.bytes": "100"})
    with fencepost.Producer(broker.address) as producer:
        producer.send("narrow", bytes(1_000)).result()


def unmoved(before: Samples, after: Samples) -> set[str]:
    """The metrics whose samples are as they were."""
    changed = {name for (name, labels), found in after.items() if before.get((name, labels), 0.0) != found}
    return {
        row.shown_name
        for row in METRICS
        if not changed & {row.shown_name, f"{row.name}_count", f"{row.name}_sum"}
    }


def test_every_metric_moves_and_is_parsed(tmp_path: Path) -> None:
    with fencepost.Broker(str(tmp_path), sync="all", metrics_port=0) as broker:
        before = scraped(broker)
        after = everyday(broker)
    assert unmoved(before, after) == STANDING
    assert value(after, "kafka_server_BrokerTopicMetrics_MessagesIn_total", topic="orders") == 2
    assert value(after, "kafka_network_RequestMetrics_Requests_total", request="EndTxn") == 1
    errors = "kafka_network_RequestMetrics_Errors_total"
    assert value(after, errors, request="CreateTopics", error="TOPIC_ALREADY_EXISTS") == 1
    assert value(after, errors, request="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
    assert value(after, "fencepost_open_transactions") == 1
    lag = "kafka_cluster_Partition_LastStableOffsetLag"
    assert value(after, lag, topic="orders", partition="0") == 1
    assert value(after, "fencepost_transactional_ids", state="Ongoing") == 1
    assert value(after, "kafka_coordinator_group_GroupMetadataManager_NumGroups", state="Empty") == 1


def count_nothing(counters: Counters, outcome: Outcome) -> None:
    """A mistake."""


def test_a_counter_that_stands_still_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "appended", count_nothing)
    with fencepost.Broker(str(tmp_path), sync="all", metrics_port=0) as broker:
        before = scraped(broker)
        after = everyday(broker)
    planted = {f"kafka_server_BrokerTopicMetrics_{name}_total" for name in ("MessagesIn", "BytesIn")}
    assert unmoved(before, after) == STANDING | planted


def test_names_are_unique_and_follow_a_rule() -> None:
    names = [row.shown_name for row in METRICS]
    assert len(set(names)) == len(names)
    assert {name.partition("_")[0] for name in names} == {"kafka", "fencepost"}


@pytest.mark.trio
async def test_every_api_is_counted() -> None:
    async with serving() as (server, wires):
        wire = await wires.open()
        await wire.prepare()
        for api in APIS:
            await wire.ask(SAMPLES[api.request][0]())
        server.is_ready = True
        port = MetricsPort(server, server.listener)
        text = (await port.answer("GET", "/metrics")).body.decode()
    samples = parsed(text)
    for name in ("Requests_total", "TotalTimeMs_count"):
        counted = {
            dict(labels)["request"]: found
            for (sample, labels), found in samples.items()
            if sample == f"kafka_network_RequestMetrics_{name}"
        }
        assert counted.keys() == {api.name for api in APIS}
        assert min(counted.values()) >= 1


@pytest.mark.trio
async def test_a_deleted_topic_is_not_shown_any_more() -> None:
    async with serving() as (server, wires):
        wire = await wires.open()
        await wire.prepare()
        server.monitor.counters.topics["gone"] = TopicCounts(bytes_in=1)
        server.is_ready = True
        port = MetricsPort(server, server.listener)
        assert b'"gone"' not in (await port.answer("GET", "/metrics")).body


def test_names_of_topics_that_do_not_exist_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "TOPICS_KEPT", 3)
    counted = Counters(0)
    for number in range(5):
        part = ProducedPartition(
            topic=f"made-up-{number}",
            partition=0,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            base_offset=NO_OFFSET,
            log_start_offset=NO_OFFSET,
        )
        counted.answered(Produce, Reply(ReplyTo(1, number), ProduceReply(partitions=(part,))), 1)
    assert list(counted.topics) == ["made-up-2", "made-up-3", "made-up-4"]
    assert counted.requests[Produce].durations.count == 5


# --- HTTP ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def monitored() -> AsyncGenerator[tuple[Server, int]]:
    """A server and its port for metrics, in this task tree."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with serving() as (server, _), trio.open_nursery() as nursery:
            server.is_ready = True
            nursery.start_soon(MetricsPort(server, listener).serve)
            yield server, listener.getsockname()[1]
            nursery.cancel_scope.cancel()


def test_paths_and_methods() -> None:
    with fencepost.Broker(metrics_port=0) as broker:
        port = broker.metrics_port
        assert get(port, "/ready") == (200, "ready\n")
        assert get(port, "/ready?verbose") == (200, "ready\n")
        assert get(port, "/metrics", "HEAD") == (200, "")
        assert get(port, "/secrets")[0] == 404
        assert get(port, "/ready", "POST")[0] == 405


def test_a_broker_without_the_port_has_none() -> None:
    with fencepost.Broker() as broker:
        assert broker.metrics_port is None


def test_a_port_in_use_prevents_the_start(tmp_path: Path) -> None:
    with fencepost.Broker(metrics_port=0) as broker:
        taken = broker.metrics_port
        with pytest.raises(
            fencepost.FencepostError, match=rf"cannot listen on 127\.0\.0\.1:{taken}: .*another metrics port"
        ):
            fencepost.Broker(str(tmp_path / "data"), metrics_port=taken).start()
    assert not (tmp_path / "data").exists()


@pytest.mark.trio
@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"hello\r\n\r\n", b"GET /ready\r\n\r\n", b"x" * 10_000], ids=len
)
async def test_nonsense_is_refused(sent: bytes) -> None:
    async with monitored() as (_, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(sent)
            assert (await stream.receive_some(1_000)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.trio
async def test_silent_clients_make_room_for_those_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been silent for longest is closed."""
    monkeypatch.setattr(metrics_port, "CONNECTIONS_MAX", 2)
    async with monitored() as (_, port):
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        with trio.fail_after(PATIENCE_S):
            assert await trio.to_thread.run_sync(get, port, "/ready") == (200, "ready\n")
            assert await silent[0].receive_some(1) == b""
            await silent[1].send_all(b"GET /ready HTTP/1.1\r\n\r\n")
            assert (await silent[1].receive_some(1_000)).startswith(b"HTTP/1.1 200 ")
        for stream in silent:
            await stream.aclose()


@pytest.mark.trio
async def test_clients_that_ask_together_share_one_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask, even clients that have left, the broker makes one text at a time; none is older than
    the request that it answers.
    """
    begun, may_end = trio.Semaphore(0), threading.Semaphore(0)
    makes = metrics_port.exposition

    def exposition(families: Families) -> bytes:
        trio.from_thread.run_sync(begun.release)
        may_end.acquire()
        return makes(families)

    monkeypatch.setattr(metrics_port, "exposition", exposition)
    with opened_server() as server, socket.socket() as unused:
        server.is_ready = True
        port, answers = MetricsPort(server, unused), list[tuple[int, bytes]]()

        async def ask(number: int) -> None:
            answers.append((number, (await port.answer("GET", "/metrics")).body))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 0)
            await begun.acquire()
            for number in range(1, 10):
                nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked()
            may_end.release()
            await begun.acquire()
            early = [number for number, _ in answers]
            may_end.release(10)
    assert early == [0], "a text from before the request"
    assert sorted(number for number, _ in answers) == list(range(10))
    assert len({id(body) for number, body in answers if number}) == 1


@pytest.mark.trio
async def test_it_is_not_ready_while_it_reads_its_logs() -> None:
    async with monitored() as (server, port):
        server.is_ready = False
        for path in ("/ready", "/metrics"):
            assert await trio.to_thread.run_sync(get, port, path) == (503, "the broker reads its logs\n")
        server.is_ready = True
        assert await trio.to_thread.run_sync(get, port, "/ready") == (200, "ready\n")


@pytest.mark.trio
async def test_reading_the_logs_lets_the_port_answer_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ROUND_NS", 0)
    with opened_server() as server:  # its own tasks, which would do the same work, start after recovery
        turns: list[bool] = []

        async def answer_meanwhile() -> None:
            while not server.is_ready:
                turns.append(server.is_ready)
                await trio.lowlevel.checkpoint()

        for number in range(100):
            server.host.offer(Disconnected(connection=-number))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_meanwhile)
            await lifecycle.recover(server, is_monitored=True)
        assert len(turns) >= 100, "another task had its turn before everything was read"
        assert server.is_ready


def test_a_browser_at_the_port_for_clients_is_recognised(caplog: pytest.LogCaptureFixture) -> None:
    with fencepost.Broker() as broker, pytest.raises(http.client.HTTPException):
        get(int(broker.address.rpartition(":")[2]), "/")
    assert "its client speaks HTTP; only the port of --metrics-port answers that" in caplog.text


def test_both_ports_stay_through_a_restart() -> None:
    with fencepost.Broker(metrics_port=0) as broker:
        port = broker.metrics_port
        before = scraped(broker)
        broker.kill()
        broker.restart()
        assert broker.metrics_port == port
        assert scraped(broker).keys() == before.keys()
