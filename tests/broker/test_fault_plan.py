"""What a broker cannot play and why, what the error of a fault that never struck shows, and crashes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import Broker, FaultNeverStruck, Producer
from fencepost.broker.fault_handles import FaultHandle
from fencepost.broker.faults import (
    COMPARED_TOPICS_MAX,
    FAULTS_MAX,
    Abilities,
    NoSuchFault,
    awaited,
    instead_of,
    playable,
)
from fencepost.client.errors import CommitOutcomeUnknown
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import FAULTS_HELP, POINTS, FaultLine, Point
from fencepost.protocol.terms import TopicPartition
from tests.broker.test_faults import PATIENCE_S, commit, only, producer, served, stored, write


def started_ms(broker: Broker) -> int:
    """When the broker that runs now was started."""
    with fencepost.Admin(broker.address) as admin:
        return admin.broker_status().started_ms


REFUSED = [
    ("drop", "is not a fault"),
    ("when broker sends Prodce reply do drop", '"Prodce" is not a REQUEST; did you mean "Produce"?'),
    ("when broker sends Produce reply #0 do drop", '"0" is not a whole number from 1 to 1000000000'),
    (
        "when t-0 appends data #1000000001 do pause broker",
        '"1000000001" is not a whole number from 1 to 1000000000',
    ),
    (
        "when t-0 appends data do slow disk of broker 1000000001 times",
        '"1000000001" is not a whole number from 1 to',
    ),
    (
        f"when t-0 appends data do slow disk of broker {'9' * 900} times",
        '9" is not a whole number from 1 to 1000000000',
    ),
    (
        "when t-0 appends data do slow disk of broker -3 times",
        '"-3" is not a whole number from 1 to 1000000000',
    ),
    (
        "when t-0 appends data do slow disk of broker 2.5 times",
        '"2.5" is not a whole number from 1 to 1000000000',
    ),
    ("when t-0 appends data do slow p 2.5 times", '"2.5" is not a whole number from 1 to 1000000000'),
    (
        "when t-0 appends data do flip a bit of t-0 at offset -1",
        '"-1" is not a whole number from 1 to 1000000000',
    ),
    ("when p sends EndTxn do drop every 1000000001 times", '"1000000001" is not a whole number from 1 to'),
    ("when p sends EndTxn do drop every 3 times at most 1.5 times", '"1.5" is not a whole number from 1 to'),
    ("when at -5 ms do pause broker", '"-5 ms" is not a time from 0 to 1000000000 ms'),
    ("when at 1000001 s do pause broker", '"1000001 s" is not a time from 0 to 1000000000 ms'),
    (f"when at {'9' * 900} min do pause broker", '9 min" is not a time from 0 to 1000000000 ms'),
    ("when p sends EndTxn do delay -3 s", '"-3 s" is not a time from 0 to 1000000000 ms'),
    ("when p sends EndTxn do hold until after -3 s", '"-3 s" is not a time from 0 to 1000000000 ms'),
    (
        "when p sends EndTxn do clock of broker -1000001 s",
        '"-1000001 s" is not a time from -1000000000 to 1000000000 ms',
    ),
    ("when p sends EndTxn do answer NOT_A_LEADER", 'did you mean "NOT_LEADER_OR_FOLLOWER"?'),
    (
        "when p sends EndTxn do answer FENCED",
        'did you mean "PRODUCER_FENCED", "FENCED_INSTANCE_ID" or "FENCED_LEADER_EPOCH"?',
    ),
    ("when p sends EndTxn do answer abort", 'did you mean "TRANSACTION_ABORTABLE"?'),
    ("when p sends EndTxn do crash", 'did you mean "crash NODE"? NODE is a node: node 1, '),
    ("when p sends EndTxn do fail", '"fail appends of PARTITION" or "fail syncs of PARTITION"?'),
    ("when p sends EndTxn do drop every 3", 'did you mean "when p sends EndTxn do drop every 3 times"?'),
    ("when broker crashes do drop", "the broker does not see its own crash"),
    ("when p receives EndTxn reply do drop", "name the reply that it sends"),
    ("when p gets PRODUCER_FENCED do drop", "name the error that it answers"),
    ("when commit of p is ok do pause broker", "not what happens inside a client"),
    ("when node 2 sends Produce reply do drop", 'there is no "node 2"; this broker is node 1'),
    ("when p sends Produce reply do drop", '"p" is not this broker'),
    ("when p sends Produce to q do drop", '"q" is not this broker'),
    ("when broker sends WriteTxnMarkers do drop", "a broker sends requests only to itself"),
    ("when p sends SaslHandshake do drop", "faults do not strike the requests of a login"),
    ("when nowhere appends data do pause broker", '"nowhere" is not a partition'),
    ("when t-00 appends data do pause broker", '"t-00" is not a partition; did you mean "t-0"?'),
    ("when t-\N{ARABIC-INDIC DIGIT ONE} appends data do pause broker", "is not a partition: a topic, a dash"),
    ("when t-2147483648 appends data do pause broker", "a topic, a dash and a number from 0 to 2147483647"),
    ("when t-99999999999 appends data do pause broker", "is not a partition: a topic, a dash"),
    ("when after 3 s do pause broker", "cannot begin a fault"),
    ("when p sends EndTxn do drop at most 2 times", "`at most` limits `every`"),
    ("when at 3 s do drop", '"drop" needs a message'),
    ("when at 3 s do pause broker every 2 times", "comes once"),
    ("when t-0 appends data do hold", '"hold" needs a message'),
    ("when broker sends EndTxn reply do delay", '"delay" needs a request'),
    ("when broker sends EndTxn reply do deliver twice", '"deliver twice" needs a request'),
    ("when broker sends EndTxn reply do answer PRODUCER_FENCED", "needs a request"),
    ("when p sends EndTxn do drop until after 3 s", "ends by itself"),
    (
        "when p sends EndTxn do hold until 3 s",
        'or "after 3 s" (a time since the fault struck; only for `until`)?',
    ),
    ("when p sends EndTxn do hold until at 3 s", "cannot end a fault"),
    ("when p sends EndTxn do hold until reader reads a", "not what happens inside a client"),
    ("when p sends EndTxn do kill p", "your own processes"),
    ("when p sends EndTxn do start p", "your own processes"),
    ("when p sends EndTxn do pause p", '"p" is not this broker'),
    ("when p sends EndTxn do crash node 7", 'there is no "node 7"'),
    ("when p sends EndTxn do crash broker until t-0 appends data", "a broker that is down reaches no point"),
    ("when p sends EndTxn do move t-0 to node 1", "the only node"),
    ("when p sends EndTxn do isolate broker", "fencepost.Proxy"),
    ("when p sends EndTxn do slow broker 3 times", "fencepost.Proxy"),
    ("when p sends EndTxn do flip a bit of t-0", "damage the files"),
    ("when p sends EndTxn do fail syncs of t-0", "this broker never syncs"),
    ("when p sends EndTxn do slow disk of broker 3 times", "this broker never syncs"),
    ("when p sends EndTxn do fail appends of nowhere", '"nowhere" is not a partition'),
]


@pytest.mark.parametrize(("fault", "because"), REFUSED)
def test_a_fault_that_a_broker_cannot_play_is_refused(fault: str, because: str) -> None:
    with pytest.raises(BadPhrase) as found:
        Broker(faults=[fault])
    assert because in str(found.value)
    assert found.value.__notes__[-1] == FAULTS_HELP


def test_an_error_lists_only_the_phrases_that_a_broker_can_play() -> None:
    with Broker() as broker:
        with pytest.raises(BadPhrase) as of_call:
            broker.faults.when("broker crashed")
        with pytest.raises(BadPhrase) as of_line:
            broker.faults.add("when broker crashed do drop")
        for problem in (of_call.value, of_line.value):
            assert "WHO answers ERROR [to WHO] [#N]" in problem.possible
            assert "WHO crashes [#N]" not in problem.possible
            assert "did you mean" not in str(problem)
        with pytest.raises(BadPhrase) as found:
            broker.faults.when("at 3 s").do("garbage")
        assert "crash NODE" in found.value.possible
        assert "isolate WHO" not in found.value.possible


@pytest.mark.parametrize(
    ("action", "parameter"),
    [
        ("drop every 3", "every= of when()"),
        ("drop at most 2 times", "times= of when()"),
        ("hold until after 3 s", "until= of do()"),
    ],
)
def test_what_a_call_gives_by_a_parameter_is_no_part_of_its_action(action: str, parameter: str) -> None:
    with Broker() as broker, pytest.raises(BadPhrase) as found:
        broker.faults.when("p sends EndTxn").do(action)
    assert f"give {parameter}" in str(found.value)


@pytest.mark.parametrize(
    ("point", "names"),
    [
        ("shop sends EndTxn #2", 'client id "shop"'),
        ("unnamed sends EndTxn", "clients without a client id"),
        ("broker sends Produce reply", "any client"),
        ("coordinator of app answers FENCED_LEADER_EPOCH to *", "any client"),
        ("node 1 receives Fetch from reader", 'client id "reader"'),
        ("before coordinator of app appends PREPARE", 'transactional id "app"'),
        ("coordinator of * appends PREPARE", "any transactional id"),
        ("t-0 appends COMMIT marker", "partition t-0, any transactional id"),
        ("* appends data for app", 'any partition, transactional id "app"'),
        ("at 3 s", ""),
    ],
)
def test_the_names_that_only_clients_give(point: str, names: str) -> None:
    assert awaited(POINTS.read(point)) == names


@pytest.mark.parametrize(
    ("action", "meaning"),
    [
        ("clock of broker 3 s", "JUMP is a time with its sign: +3 s, -20 ms"),
        ("slow disk of broker twice", "N is a whole number from 1 to 1000000000"),
        ("crash", "`broker` is the only node"),
    ],
)
def test_an_action_that_is_begun_is_explained(action: str, meaning: str) -> None:
    with pytest.raises(BadPhrase) as found:
        playable(f"when at 3 s do {action}", Abilities())
    assert "did you mean" in str(found.value)
    assert meaning in str(found.value)
    assert len(found.value.possible) == 1


@pytest.mark.parametrize(
    ("fault", "meant"),
    [
        ("when brker sends EndTxn reply do drop", "broker"),
        ("when shop sends EndTxn to brokre do drop", "broker"),
        ("when at 3 s do crash brokr", "broker"),
    ],
)
def test_the_likely_name_of_the_broker_is_suggested(fault: str, meant: str) -> None:
    with pytest.raises(BadPhrase, match=f'is not this broker; did you mean "{meant}"') as found:
        playable(fault, Abilities())
    assert found.value.possible == ("broker", "node 1")


def test_a_partition_is_compared_with_a_bounded_number_of_names() -> None:
    absent = TopicPartition("ordres", 0)
    counts = {f"topic-{number:04}": 12 for number in range(COMPARED_TOPICS_MAX - 1)}
    assert instead_of(absent, counts | {"orders": 1}) == '; did you mean "orders-0"?'
    assert instead_of(absent, counts | {"orders": 1, "one more": 1}) == ""
    assert instead_of(TopicPartition("orders", 3), counts | {"orders": 3, "one more": 1}) == (
        "; topic orders has 3 partitions"
    )


@pytest.mark.parametrize("point", ["garbage", "broker sends EndTxn reply"])
def test_a_phrase_that_is_none_names_the_page_of_the_phrases(point: str) -> None:
    with Broker() as broker:
        with pytest.raises(BadPhrase) as found:
            broker.faults.when(point).do("grabage")
        with pytest.raises(BadPhrase) as whole:
            broker.faults.add(f"when {point} do grabage")
    for problem in (found.value, whole.value):
        assert problem.__notes__.count(FAULTS_HELP) == 1


@pytest.mark.parametrize("setting", ["nth", "every", "times"])
def test_an_impossible_count_is_refused(setting: str) -> None:
    faults: Any = Broker().faults
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"{setting} must be at least 1, not {count}"):
            faults.when("p sends EndTxn", **{setting: count})
    for count in ("2", True, 1.0):
        with pytest.raises(TypeError, match=f"{setting} must be a number, not {count!r}"):
            faults.when("p sends EndTxn", **{setting: count})
    with pytest.raises(ValueError, match="give the occurrence once"):
        Broker().faults.when("p sends EndTxn #2", nth=3)
    with pytest.raises(ValueError, match="so it needs `every`"):
        Broker().faults.when("p sends EndTxn", times=3)
    with pytest.raises(ValueError, match="or one occurrence"):
        Broker().faults.when("p sends EndTxn #2", every=3)


def test_what_is_no_phrase_is_refused() -> None:
    faults: Any = Broker().faults
    with pytest.raises(TypeError, match=r"point must be a phrase such as 'broker sends .*', not 5"):
        faults.when(5)
    point = faults.when("p sends EndTxn")
    with pytest.raises(TypeError, match="action must be a phrase such as 'hold', not None"):
        point.do(None)
    with pytest.raises(TypeError, match="until must be a phrase such as 'after 300 ms', not 5"):
        point.do("hold", until=5)


def test_a_disk_in_memory_cannot_be_slow() -> None:
    fault = "when p sends EndTxn do slow disk of broker 3 times"
    with pytest.raises(BadPhrase, match="a sync takes no time; give the broker a directory"):
        Broker(sync="all", faults=[fault])


def test_faults_are_limited() -> None:
    with pytest.raises(BadPhrase, match="a fault of 30016 characters"):
        Broker(faults=["when p sends EndTxn do drop".ljust(30_016)])
    broker = Broker(faults=["when p sends EndTxn do drop"] * FAULTS_MAX)
    with pytest.raises(BadPhrase, match="remove some"):
        broker.faults.add("when p sends EndTxn do drop")


# --- a fault that never struck ------------------------------------------------------------------------------


def test_leaving_a_broker_names_the_fault_that_never_struck_and_what_resembles_it() -> None:
    with pytest.raises(FaultNeverStruck) as found, served("when ap sends Produce do drop") as broker:
        write(broker, b"a")
    assert 'the fault "when ap sends Produce do drop" never struck: its point was reached 0 times' in str(
        found.value
    )
    assert '"app sends Produce to broker" (once)' in str(found.value)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("when till sends EndTxn do drop", '"till" is a transactional id; name the client id'),
        (
            "when broker sends EndTxn reply to till do drop",
            '"till" is a transactional id; name the client id',
        ),
        (
            "when coordinator of app appends EMPTY do pause broker until after 1 ms",
            '"app" is a client id; name the transactional id',
        ),
    ],
)
def test_a_fault_that_takes_a_client_id_for_a_transactional_id_says_so(fault: str, told: str) -> None:
    with served(fault) as broker:
        with Producer(broker.address, client_id="app", transactional_id="till") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"a")
        with pytest.raises(FaultNeverStruck) as found:
            only(broker).wait_until_struck(timeout=0)
        assert f"reached 0 times: {told}. Similar points" in str(found.value)
        broker.faults.clear()


def test_an_id_that_is_both_a_client_id_and_a_transactional_id_is_not_called_the_wrong_one() -> None:
    with served(
        "when both sends Fetch do drop",
        "when coordinator of both appends PREPARE_ABORT do pause broker until after 1 ms",
    ) as broker:
        with Producer(broker.address, client_id="both", transactional_id="both") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"a")
        for fault in broker.faults.list():
            with pytest.raises(FaultNeverStruck, match=r"reached 0 times\. Similar points"):
                fault.wait_until_struck(timeout=0)
        broker.faults.clear()


NOT_YET = "reached{}: the application may not be connected to this broker, or may not have done this yet$"


def test_a_fault_whose_point_was_reached_only_before_it_was_added_says_so() -> None:
    with served() as broker:
        write(broker, b"a")
        first = broker.faults.when("app sends Produce").do("drop")
        with pytest.raises(FaultNeverStruck, match=NOT_YET.format(" after it was added")):
            first.wait_until_struck(timeout=0)
        write(broker, b"b")
        second = broker.faults.when("app sends Produce").do("drop")
        with pytest.raises(FaultNeverStruck, match=r"to broker\" \(once, before the fault was added\)"):
            second.wait_until_struck(timeout=0)
        second.remove()


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("coordinator of shop appends PREPARE_COMMIT", f"No similar point was {NOT_YET.format('')}"),
        ("at 16000 min", r"never struck: its time has not come yet$"),
    ],
)
def test_a_fault_that_is_unlike_anything_that_has_happened_says_that_it_may_be_too_early(
    point: str, said: str
) -> None:
    with served() as broker:
        fault = broker.faults.when(point).do("pause broker")
        write(broker, b"a")
        with pytest.raises(FaultNeverStruck, match=said):
            fault.wait_until_struck(timeout=0)
        fault.remove()


def test_a_fault_that_waits_for_a_later_occurrence_says_how_often_its_point_was_reached() -> None:
    with served("when app sends Produce #3 do drop") as broker:
        write(broker, b"a", b"b")
        with pytest.raises(FaultNeverStruck, match="reached 2 times, and it strikes at #3"):
            only(broker).wait_until_struck(timeout=0)
        with pytest.raises(FaultNeverStruck):
            broker.faults.require_all_struck()
        only(broker).remove()


def test_a_fault_that_found_nothing_says_so() -> None:
    with served("when app sends Produce do fail appends of t-7") as broker:
        write(broker, b"a")
        with pytest.raises(FaultNeverStruck, match="reached once, and there was nothing to strike"):
            only(broker).wait_until_struck(timeout=0)
        broker.faults.clear()


def test_the_error_of_the_test_is_not_hidden_by_a_fault_that_never_struck() -> None:
    with pytest.raises(ZeroDivisionError), served("when app sends Produce do drop"):
        print(1 / 0)


def test_an_engine_that_never_strikes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug in the engine: every fault of every test of this broker would catch it."""

    def never(_line: FaultLine, _count: int) -> bool:
        return False

    monkeypatch.setattr(FaultLine, "strikes_at", never)
    with pytest.raises(FaultNeverStruck), served("when app sends Produce do drop") as broker:
        write(broker, b"a")


# --- handles ------------------------------------------------------------------------------------------------


def test_a_removed_fault_strikes_no_more_and_is_not_missed() -> None:
    with served("when app sends Produce do drop every 1 times") as broker:
        fault = only(broker)
        assert repr(fault) == "FaultHandle('when app sends Produce do drop every 1 times')"
        fault.remove()
        assert broker.faults.list() == []
        for use in (fault.remove, fault.end, lambda: fault.struck):
            with pytest.raises(NoSuchFault):
                use()
        write(broker, b"a")
        assert stored(broker) == [b"a"]


def test_removing_a_fault_ends_it() -> None:
    with served("when t-0 appends data do pause broker") as broker, Producer(broker.address) as app:
        sent = app.send("t", b"a")
        only(broker).wait_until_struck(PATIENCE_S)
        broker.faults.clear()
        sent.result(PATIENCE_S * 1000)


def test_faults_can_be_asked_for_before_the_start_and_from_any_thread() -> None:
    broker = Broker(faults=["when app sends CreateTopics do drop"])
    faults: list[FaultHandle] = [broker.faults.when("app sends Metadata").do("delay 1 ms")]
    with broker:
        threads = [
            threading.Thread(
                target=lambda: faults.append(broker.faults.when("broker receives Metadata").do("delay 1 ms"))
            )
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with fencepost.Admin(broker.address, client_id="app") as admin:
            admin.create_topic("t")
            admin.list_topics()
        assert len(broker.faults.list()) == 22
        assert {fault.reached for fault in faults} == {1}
        broker.faults.clear()  # of several at one point the first one decided the fate of the message


def test_what_watches_a_broker_may_ask_for_faults() -> None:
    with served() as broker:

        def hear(point: Point) -> None:
            if str(point) == "t-0 appends data" and not broker.faults.list():
                broker.faults.when("broker sends Produce reply").do("drop")

        stop = broker.faults.watch(hear)
        write(broker, b"a")
        stop()
        assert only(broker).struck == 1
        assert stored(broker) == [b"a"]


# --- crashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_broker_crashes_at_a_decision_and_starts_again(in_memory: bool, tmp_path: Path) -> None:
    """PREPARE_COMMIT is the last record: the next start carries the decision out, and the retry learns it."""
    with served(directory=None if in_memory else tmp_path) as broker, producer(broker, "pay") as app:
        app.init_transactions()
        fault = broker.faults.when("coordinator of pay appends PREPARE_COMMIT").do(
            "crash broker", until="after 50 ms"
        )
        before = started_ms(broker)
        commit(app, b"a")
        assert fault.struck == 1
        assert started_ms(broker) > before, "another life"
        commit(app, b"b")
        assert stored(broker) == [b"a", b"b"]


def test_a_crash_before_a_decision_leaves_it_to_the_retry() -> None:
    with served() as broker, producer(broker, "pay") as app:
        app.init_transactions()
        broker.faults.when("before coordinator of pay appends PREPARE_COMMIT").do(
            "crash broker", until="after 20 ms"
        )
        commit(app, b"a")  # the client retries EndTxn at the broker that runs again
        assert stored(broker) == [b"a"]


def test_a_reply_does_not_leave_a_broker_that_crashes() -> None:
    with served() as broker, Producer(broker.address, transactional_id="pay", max_block_ms=300) as app:
        app.init_transactions()
        fault = broker.faults.when("broker sends EndTxn reply").do("crash broker")
        with pytest.raises(CommitOutcomeUnknown):
            commit(app, b"a")
        fault.wait_until_struck(PATIENCE_S)
        broker.restart()
        assert stored(broker) == [b"a"]


def test_a_power_cut_loses_what_was_not_synced() -> None:
    with served() as broker:
        write(broker, b"a")
        fault = broker.faults.when("t-0 appends data").do("cut power of broker")
        with Producer(broker.address, delivery_timeout_ms=500, request_timeout_ms=300) as app:
            app.send("t", b"b")
            fault.wait_until_struck(PATIENCE_S)
        broker.restart()
        with fencepost.Admin(broker.address) as admin:
            assert admin.list_topics() == [], "nothing was synced"


def test_a_crash_loses_what_was_held_and_keeps_the_disk_broken() -> None:
    with served("when app sends Produce do hold", "when at 0 ms do fail appends of t-0") as broker:
        held, broken = broker.faults.list()
        with producer(broker) as app:
            sent = app.send("t", b"a")
            held.wait_until_struck(PATIENCE_S)
            broker.kill()
            for fault in (held, broken):
                fault.end()  # of a broker that is down: there is nothing to release
            broker.faults.add("when at 0 ms do fail appends of t-0").end()
            broker.restart()
            broker.faults.list()[-1].wait_until_struck(PATIENCE_S)
            broker.faults.clear()
            sent.result(PATIENCE_S * 1000)
        assert stored(broker) == [b"a"]


def test_a_stopped_broker_can_be_asked_for_faults() -> None:
    with served("when t-0 appends data do pause broker") as broker:
        with Producer(broker.address) as app:
            sent = app.send("t", b"a")
            only(broker).wait_until_struck(PATIENCE_S)
            broker.restart()  # the pause ends with the process
            sent.result(PATIENCE_S * 1000)
    only(broker).end()
    broker.faults.clear()
    assert broker.faults.list() == []


def test_counts_go_on_after_a_restart() -> None:
    with served("when app sends Produce #3 do drop") as broker:
        write(broker, b"a", b"b")
        broker.restart()
        write(broker, b"c")
        assert only(broker).struck == 1
        assert stored(broker) == [b"a", b"b", b"c"]
