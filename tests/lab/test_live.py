"""A real broker that is followed: by whom, through kills, with every client; and no answer changes."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from fencepost import (
    Admin,
    Broker,
    BrokerProcess,
    Consumer,
    Producer,
    ProducerFenced,
    Recording,
    StepFeed,
    TopicPartition,
)
from fencepost.cli import lab as lab_command
from fencepost.cli.application import run
from fencepost.lab.growing_run import DOWN, Entry
from fencepost.lab.live import Live, Stage
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Event
from fencepost.testing.topic import create_topic
from tests.kafka_bridge import aio, confluent
from tests.kafka_bridge.libraries import Access
from tests.lab.lab_process import lab

PATIENCE_S = 60.0
FOLLOWED = ("--follow",)


@attrs.define(eq=False)
class Page:
    """What a page that asks again and again has."""

    live: Live
    document: Entry = attrs.Factory(dict[str, Any])
    mark: str = ""

    async def until(self, is_there: Callable[[Entry], bool]) -> Entry:
        """The document as soon as it has what is waited for."""
        with trio.fail_after(PATIENCE_S):
            while True:
                await self.look()
                if self.document and is_there(self.document):
                    return self.document

    async def look(self) -> Entry:
        """Ask once."""
        answer = await self.live.answer(self.mark)
        self.mark = answer["mark"]
        if answer["document"] is not None:
            self.document = answer["document"]
        elif answer["growth"] is not None:
            self.document["steps"] += answer["growth"].pop("steps")
            for entry in answer["growth"].pop("batches"):
                self.document["batches"][entry["index"] : entry["index"] + 1] = [entry]
            messages = {each["number"]: each for each in self.document["messages"]}
            messages |= {each["number"]: each for each in answer["growth"].pop("messages")}
            self.document |= {"messages": list(messages.values()), **answer["growth"]}
        return answer

    async def stage(self, stage: Stage) -> str:
        """The sentence of a stage, once it is reached."""
        with trio.fail_after(PATIENCE_S):
            while (await self.look())["status"]["stage"] != stage.value:
                pass
        return self.live.status.text


@asynccontextmanager
async def following(address: str, **security: Any) -> AsyncGenerator[Page]:
    live = Live(address, security)  # pyright: ignore[reportArgumentType] - a test's own
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.follow)
        yield Page(live)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def followed(faults: tuple[str, ...] = ()) -> AsyncGenerator[tuple[Broker, Page]]:
    """A broker in this process with the topic `orders`, and the page that follows it."""
    with Broker(feed=StepFeed(), faults=faults) as broker:
        create_topic(broker, "orders")
        async with following(broker.address) as page:
            yield broker, page


def texts(document: Entry) -> str:
    return "\n".join(step["text"] for step in document["steps"])


def lanes(document: Entry) -> list[str]:
    return [each["name"] for each in document["participants"]]


def pay(address: str, value: bytes, *, client_id: str = "shop", transactional_id: str = "pay") -> None:
    with Producer(address, transactional_id=transactional_id, client_id=client_id) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", value, partition=0)


def be_fenced(address: str) -> None:
    with Producer(address, transactional_id="pay") as zombie, Admin(address) as admin:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send("orders", b"late", partition=0).result()
        admin.force_terminate_transaction("pay")
        with pytest.raises(ProducerFenced):
            zombie.commit_transaction()


def committed(value: str) -> Callable[[Entry], bool]:
    def is_there(document: Entry) -> bool:
        return any(
            each["values"] == [value] and each["result"] == "committed" for each in document["batches"]
        )

    return is_there


# --- every client, through kills ----------------------------------------------------------------------------


def pay_with_confluent(address: str, value: bytes) -> None:
    producer = confluent.ConfluentProducer(Access(servers=address), "of C", 60_000, None)
    producer.begin()
    producer.send("orders", value)
    producer.commit()
    producer.close()


def pay_with_aiokafka(address: str, value: bytes) -> None:
    loop = aio.LoopThread()
    try:
        producer = aio.AioProducer(loop, Access(servers=address), "of aiokafka", 60_000, None)
        producer.begin()
        producer.send("orders", value)
        producer.commit()
        producer.close()
    finally:
        loop.close()


@pytest.mark.trio
async def test_where_no_broker_was_seen_the_page_says_how_to_start_one() -> None:
    async with following("127.0.0.1:1") as page:  # nothing listens there
        with trio.fail_after(PATIENCE_S):
            while "start one with `fencepost serve" not in page.live.status.text:
                await page.look()


@pytest.mark.trio
async def test_a_broker_process_is_followed_through_a_kill_with_all_clients(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", options=FOLLOWED) as broker:
        create_topic(broker, "orders")
        async with following(broker.address) as page:
            await page.until(lambda document: "ready" in texts(document))
            for send, value in ((pay, b"ours"), (pay_with_confluent, b"of C"), (pay_with_aiokafka, b"aio")):
                await trio.to_thread.run_sync(send, broker.address, value)
                await page.until(committed(value.decode()))
            broker.kill()
            assert (await page.stage(Stage.WAITING)).endswith("no broker answers there")
            broker.restart()
            document = await page.until(lambda document: "restart" in texts(document))
            assert DOWN in texts(document)
            assert page.live.status.stage is Stage.FOLLOWING
            await trio.to_thread.run_sync(pay, broker.address, b"again")
            document = await page.until(committed("again"))
    assert {"shop", "aiokafka", "rdkafka", "broker"} <= {name.partition("-")[0] for name in lanes(document)}
    state = {key: value for step in document["steps"] for key, value in step.get("changes", {}).items()}
    assert state["participant/broker"] == "up"
    assert state["txn/of C"]["state"] == "CompleteCommit"
    assert state["log/orders-0"] == {**state["log/orders-0"], "end": 8, "lso": 8, "hw": 8, "leader": "broker"}
    assert [step["at"] for step in document["steps"]] == sorted(step["at"] for step in document["steps"])
    assert all(message["arrived"] is not None for message in document["messages"] if message["answers"])


@pytest.mark.trio
async def test_a_crash_inside_the_process_loses_no_step() -> None:
    crash = "when coordinator of pay appends PREPARE_COMMIT do crash broker until after 50 ms"
    async with followed((crash,)) as (broker, page):
        await trio.to_thread.run_sync(pay, broker.address, b"A")
        document = await page.until(committed("A"))
    told = texts(document)
    places = [told.index(word) for word in ("PrepareCommit", "crash", "restart", "CompleteCommit")]
    assert places == sorted(places)
    assert "missing" not in told


@pytest.mark.trio
async def test_a_paused_broker_shows_what_it_did_last() -> None:
    pause = "when coordinator of pay appends PREPARE_COMMIT do pause broker"
    async with followed((pause,)) as (broker, page):
        await page.until(lambda document: "ready" in texts(document))
        paying = threading.Thread(target=pay, args=(broker.address, b"A"))
        paying.start()
        document = await page.until(lambda document: "pause" in texts(document))
        assert texts(document).rstrip().endswith("fault at broker: pause")
        broker.faults.list()[0].end()
        await page.until(committed("A"))
        paying.join()


@pytest.mark.trio
async def test_every_decision_has_its_reason() -> None:
    async with followed() as (broker, page):
        await trio.to_thread.run_sync(be_fenced, broker.address)
        document = await page.until(lambda document: "PRODUCER_FENCED" in texts(document))
    whys = [step["why"] for step in document["steps"] if "why" in step]
    assert "PRODUCER_FENCED" in {why.get("error") for why in whys}
    decided = [step for step in document["steps"] if step["kind"] in ("appended", "coordinated", "bounded")]
    assert decided
    assert all(step["why"]["text"] and step["why"]["source"] for step in decided)


# --- readers ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_readers_have_positions_and_isolation_levels() -> None:
    async with followed() as (broker, page):
        pay(broker.address, b"A")

        def read() -> None:
            with Consumer(broker.address, client_id="reader", isolation_level="read_committed") as consumer:
                consumer.assign([TopicPartition("orders", 0)])
                while not consumer.poll(100):
                    pass
                consumer.poll(100)

        await trio.to_thread.run_sync(read)
        document = await page.until(lambda document: "orders-0@2" in texts(document))
    reader = next(each for each in document["participants"] if each["name"] == "reader")
    assert reader["isolation"] == "read_committed"
    changes = [step.get("changes", {}) for step in document["steps"]]
    assert [each["reader/reader/orders-0"] for each in changes if "reader/reader/orders-0" in each] == [0, 2]


# --- names are text, and bounded ----------------------------------------------------------------------------


@pytest.mark.trio
async def test_names_and_values_are_plain_text_and_short() -> None:
    name, value = "<img src=x onerror=alert(1)>", b"<script>" + b"x" * 500
    async with followed() as (broker, page):
        for client_id, payer in ((name, "a"), ("y" * 200, "b"), ("broker", "c")):
            pay(broker.address, value, client_id=client_id, transactional_id=payer)
        document = await page.until(
            lambda document: sum(each["result"] == "committed" for each in document["batches"]) == 3
        )
    shown = lanes(document)
    assert name in shown
    assert "broker (a client)" in shown
    assert max(map(len, shown)) <= 60
    assert all(len(text) <= 60 for each in document["batches"] for text in each["values"])
    assert max(len(step["text"]) for step in document["steps"]) < 300


# --- who may follow, and whether anybody can ----------------------------------------------------------------


@pytest.mark.trio
async def test_a_broker_that_was_not_asked_to_says_how() -> None:
    with Broker() as broker:
        async with following(broker.address) as page:
            assert "stop it and start it again with --follow" in await page.stage(Stage.REFUSED)


ACLS = """
[[acl]]
principal = ["User:eve"]
allow = ["Describe"]
cluster = true

[[acl]]
principal = ["User:lab"]
allow = ["ClusterAction", "Describe"]
cluster = true
"""


def login(name: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": name,
        "sasl_plain_password": "secret",
    }


@pytest.mark.trio
async def test_with_acls_a_follower_needs_cluster_action() -> None:
    users = {"eve": "secret", "lab": "secret"}
    with Broker(feed=StepFeed(), users=users, acls=ACLS) as broker:
        async with following(broker.address, **login("eve")) as page:
            assert "needs ClusterAction on Cluster" in await page.stage(Stage.REFUSED)
        async with following(broker.address, **{**login("lab"), "sasl_plain_password": "wrong"}) as page:
            assert "refuses the login" in await page.stage(Stage.REFUSED)
        async with following(broker.address, **login("lab")) as page:
            await page.until(lambda document: "ready" in texts(document))


# --- what it costs ------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_follower_that_was_too_slow_goes_on_with_the_state() -> None:
    feed = StepFeed()
    feed.buffer.steps_max = 100
    with Broker(feed=feed) as broker:
        create_topic(broker, "orders")
        for number in range(20):
            pay(broker.address, b"%d" % number)
        async with following(broker.address) as page:
            document = await page.until(committed("19"))
    assert len(document["steps"]) <= 101
    assert "was like this before" in document["steps"][0]["text"]
    assert document["steps"][0]["changes"]["log/orders-0"]["end"] > 0


def conversation(*, is_followed: bool) -> list[Event]:
    """The events of the same work, at a broker that is followed and at one that is not."""
    seen = Recording()
    with Broker(observer=seen, feed=StepFeed() if is_followed else None) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders")
            if is_followed:
                admin.follow()
        for number in range(5):
            pay(broker.address, b"%d" % number)
        be_fenced(broker.address)
    return [event for event in seen.history().events if not isinstance(event, Bounded)]


def test_following_changes_no_answer() -> None:
    without, with_follower = conversation(is_followed=False), conversation(is_followed=True)
    assert [_timeless(event) for event in with_follower] == [_timeless(event) for event in without]


def _timeless(event: Event) -> str:
    changes: dict[str, Any] = {"at": 0}
    match event:
        case Appended(header=header):
            changes["header"] = attrs.evolve(header, crc=0, base_timestamp=0, max_timestamp=0)
        case Coordinated(record=record):
            changes["record"] = record._replace(update_ms=0, start_ms=0)
        case _:
            pass
    return str(attrs.evolve(event, **changes))


# --- the lab ------------------------------------------------------------------------------------------------


def test_the_lab_serves_what_it_follows(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", options=FOLLOWED) as broker,
        lab("--bootstrap-server", broker.address) as page,
    ):
        assert b'"mode":"live"' in page.ask(f"/?token={page.token}").body
        assert page.ask("/api/live", headers={"x-fencepost-token": None}).status == 401
        answer = page.answer("/api/live")
        while not (answer["document"] or {"steps": []})["steps"]:
            answer = page.answer("/api/live")
        assert answer["status"] == {
            "stage": "following", "text": f"following {broker.address}", "broker": broker.address
        }  # fmt: skip
        assert answer["document"]["source"] == "broker"
        assert page.answer(f"/api/live?after={answer['mark']}")["document"] is None
        assert "the steps for followers" in broker.output


def test_the_terminal_says_that_no_broker_answers() -> None:
    """Nobody may look at the page."""
    with lab("--bootstrap-server", "127.0.0.1:1") as page:
        said = page.errors(2)
    assert said == [
        "fencepost: no broker answers at 127.0.0.1:1: Connection refused\n",
        "  start one with `fencepost serve DIRECTORY --follow`; the lab waits for it\n",
    ]


def test_the_terminal_says_that_a_broker_accepts_no_followers() -> None:
    with Broker() as broker, lab("--bootstrap-server", broker.address) as page:
        said = page.errors(2)
    assert said == [
        f"fencepost: {broker.address} was started without --follow, so the page cannot show what it does\n",
        "  stop it and start it again with --follow: `fencepost serve DIRECTORY --follow`\n",
    ]


@pytest.mark.parametrize(("name", "password", "code"), [("eve", "secret", 1), ("lab", "wrong", 3)])
def test_a_lab_that_may_not_follow_does_not_begin(
    name: str, password: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which right is missing, and prints no address of a page that would show nothing."""
    monkeypatch.setattr(lab_command, "CHECK_SECONDS", PATIENCE_S)
    for key, value in {**login(name), "sasl_plain_password": password}.items():
        monkeypatch.setenv(f"FENCEPOST_{key.upper()}", value)
    with Broker(feed=StepFeed(), users={"eve": "secret", "lab": "secret"}, acls=ACLS) as broker:
        assert run(["lab", "--bootstrap-server", broker.address, "--port", "0", "--no-browser"]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert (
        "not authorized for ClusterAction on the cluster" if code == 1 else "refused user 'lab'"
    ) in told.err


def test_a_lab_without_a_broker_follows_none() -> None:
    with lab() as page:
        refused = page.ask("/api/live")
        assert refused.status == 404
        assert "--bootstrap-server HOST:PORT" in refused.error
