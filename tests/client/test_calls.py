"""Calls that are asked until they are answered: targets, doubts, pauses and time limits, by values alone."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import attrs
import pytest

from fencepost.client.admin import AdminCalls
from fencepost.client.calls import Wait
from fencepost.client.effects import CallAnswered, Effect, SendRequest, TransactionCall
from fencepost.client.errors import ClientError, Failure, RequestFailed, RequestTimeout, UnknownTopic
from fencepost.client.metadata import (
    CONSTANT_BACKOFFS,
    FIRST_BOOTSTRAP_NODE,
    METADATA_BACKOFF_MS,
    ClusterMetadata,
    CoordinatorOf,
    bootstrap_addresses,
)
from fencepost.client.reply_errors import REMEDIES, remedy_of, worst_error
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import ANY_NODE, CONTROLLER, BrokerAt, FinishedCall, PendingCalls, Target
from fencepost.client.settings import RETRY_BACKOFF_MAX_MS, UNKNOWN_GRACE_MS, backoff_ms
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode, Remedy
from fencepost.protocol.messages import ReplyBody, Request
from fencepost.protocol.terms import CoordinatorType, IsolationLevel, TopicPartition

Offsets = dict[TopicPartition, int | ClientError]
HERE, GONE = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = CoordinatorOf(CoordinatorType.GROUP, "g")
LIST = m.ListTransactions(states=(), producer_ids=(), duration_ms=-1)
LISTED = m.ListTransactionsReply(unknown_states=(), transactions=())
CREATE = m.CreateTopics(topics=(m.CreateTopic(topic="t", partition_count=1),))
OFFSETS = m.ListOffsets(
    isolation_level=IsolationLevel.READ_COMMITTED,
    partitions=(m.ListOffsetsPartition(topic="t", partition=0, timestamp=-1),),
)


class Asking:
    """Calls, their time, and what they sent."""

    def __init__(self, bootstrap: str = "a:1,b:2") -> None:
        self.calls = PendingCalls(ClusterMetadata(tuple(bootstrap_addresses(bootstrap))))
        self.now = 0
        self.sent: list[SendRequest] = []
        self.finished: list[FinishedCall] = []

    def ask(self, request: Request, target: Target, deadline: int | None = None) -> int:
        number = self.calls.submit(request, target, deadline)
        self.step()
        return number

    def step(self, ms: int = 0) -> None:
        self.now += ms
        self.finished += self.calls.expired(self.now)
        self.sent += self.calls.due(self.now)

    def answer(self, body: ReplyBody | None, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answers the oldest request."""
        send = self.sent.pop(0)
        answer = self.calls.answered(send.token, error, body, self.now)
        assert isinstance(answer, list)
        self.finished += answer
        self.step()

    @property
    def waiting(self) -> list[tuple[int, type]]:
        return [(send.node_id, type(send.request)) for send in self.sent]


def metadata(
    leader: int = 1, error: ErrorCode = ErrorCode.NONE, controller: int = 1, leader_epoch: int = 0
) -> m.MetadataReply:
    parts = [
        m.PartitionMetadata(partition=number, leader_id=leader, leader_epoch=leader_epoch)
        for number in (0, 1)
    ]
    return m.MetadataReply(
        cluster_id="c",
        controller_id=controller,
        nodes=tuple(m.NodeAddress(node_id=i, host="h", port=i) for i in (1, 2)),
        topics=(
            m.TopicMetadata(
                topic="t", error=error, is_internal=False, partitions=() if error else tuple(parts)
            ),
        ),
    )


def offsets(error: ErrorCode) -> m.ListOffsetsReply:
    part = m.ListedOffset(topic="t", partition=0, error=error, timestamp=-1, offset=3)
    return m.ListOffsetsReply(partitions=(part,))


def test_a_leader_is_found_asked_and_found_again() -> None:
    talk = Asking()
    talk.ask(OFFSETS, HERE)
    assert talk.waiting == [(FIRST_BOOTSTRAP_NODE, m.Metadata)]
    talk.answer(metadata(leader=1))
    assert talk.waiting == [(1, m.ListOffsets)]
    talk.answer(offsets(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    talk.step(METADATA_BACKOFF_MS)
    assert [kind for _, kind in talk.waiting] == [m.Metadata]
    talk.answer(metadata(leader=2))
    assert talk.waiting == [(2, m.ListOffsets)]
    talk.answer(offsets(ErrorCode.NONE))
    assert [finished.failure for finished in talk.finished] == [None]


class ScriptDriver:
    """Runs a script by hand: keeps what it sends and what is answered."""

    now: int = 0
    wall_ms = 0
    cancelled: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.machine = RequestMachine("a:1")
        self.sent: list[SendRequest] = []
        self.resolved: dict[TransactionCall, Failure | None] = {}
        self.answers: dict[int, CallAnswered] = {}

    def perform(self, effects: list[Effect]) -> None:
        self.sent += [effect for effect in effects if isinstance(effect, SendRequest)]
        self.answers |= {effect.number: effect for effect in effects if isinstance(effect, CallAnswered)}

    def check_running(self) -> None:
        pass

    def answer(self, send: SendRequest, body: ReplyBody) -> None:
        self.perform(self.machine.on_reply(send.token, ErrorCode.NONE, body, 0))


def next_or_result(script: Generator[object, None, Offsets]) -> Offsets | None:
    try:
        next(script)
    except StopIteration as end:
        return end.value
    return None


def test_no_partition_waits_for_the_offset_of_another_and_each_has_its_own_error() -> None:
    driver = ScriptDriver()
    script = AdminCalls(driver.machine, driver, api_timeout_ms=1_000).list_offsets([HERE, GONE], -1)
    next(script)
    driver.answer(driver.sent.pop(), metadata())
    known, gone = driver.sent
    assert [type(send.request) for send in driver.sent] == [m.ListOffsets, m.ListOffsets]
    driver.answer(gone, offsets(ErrorCode.UNSUPPORTED_VERSION))
    driver.answer(known, offsets(ErrorCode.NONE))
    while (found := next_or_result(script)) is None:
        continue
    assert found[HERE] == 3
    refused = found[GONE]
    assert isinstance(refused, RequestFailed)
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert driver.answers == {}


def test_a_partition_that_is_created_after_it_was_denied_still_has_an_answer() -> None:
    """The call waits for the other partition, and metadata no longer denies this one."""
    driver, missing = ScriptDriver(), TopicPartition("t", 2)
    script = AdminCalls(driver.machine, driver, api_timeout_ms=60_000).list_offsets([missing, HERE], -1)
    next(script)
    driver.answer(driver.sent.pop(), reply := metadata())
    (known,) = driver.sent
    driver.now = UNKNOWN_GRACE_MS
    next(script)
    (topic,) = reply.topics
    created = attrs.evolve(topic.partitions[0], partition=2)
    grown = attrs.evolve(topic, partitions=(*topic.partitions, created))
    driver.machine.cluster.learn(attrs.evolve(reply, topics=(grown,)), from_node=1)
    driver.answer(known, offsets(ErrorCode.NONE))
    found = next_or_result(script)
    assert found is not None
    assert (found[HERE], type(found[missing])) == (3, UnknownTopic)


def test_metadata_that_is_older_than_a_call_cannot_deny_its_partition() -> None:
    """The partition may have been created since, and the broker may answer late."""
    driver, missing = ScriptDriver(), TopicPartition("t", 2)
    driver.machine.cluster.learn(metadata(), from_node=1)
    script = AdminCalls(driver.machine, driver, api_timeout_ms=60_000).list_offsets([missing], -1)
    wait = next(script)
    assert isinstance(wait, Wait)
    driver.now = UNKNOWN_GRACE_MS
    assert not wait.until()
    driver.answer(driver.sent.pop(), metadata())
    assert wait.until()
    found = next_or_result(script)
    assert found is not None
    assert type(found[missing]) is UnknownTopic


def test_one_broker_is_asked_as_soon_as_it_is_known_where_it_is() -> None:
    talk = Asking()
    talk.ask(LIST, BrokerAt(2))
    assert [kind for _, kind in talk.waiting] == [m.Metadata]
    talk.answer(metadata())
    assert talk.waiting == [(2, m.ListTransactions)]
    talk.answer(None, ErrorCode.NETWORK_EXCEPTION)
    talk.step(1_000)
    assert talk.waiting == [(2, m.ListTransactions)]
    talk.answer(LISTED)
    assert [finished.failure for finished in talk.finished] == [None]


def failure_at_the_deadline(
    request: Request, target: Target, answer: m.MetadataReply | None = None
) -> Failure:
    """What is told of a question that metadata says nobody can be asked."""
    talk = Asking()
    talk.ask(request, target, deadline=100)
    for _ in range(4):
        if talk.waiting:
            talk.answer(answer or metadata())
        talk.step(METADATA_BACKOFF_MS)
    (finished,) = talk.finished
    assert finished.failure is not None
    assert finished.failure.kind is RequestTimeout
    return finished.failure


def test_metadata_that_is_newer_than_a_call_denies_its_broker() -> None:
    """Without that, the call would wait until its timeout, a minute later."""
    driver = ScriptDriver()
    driver.machine.cluster.learn(metadata(), from_node=1)
    script = AdminCalls(driver.machine, driver, api_timeout_ms=60_000).broker_status(9)
    wait = next(script)
    assert isinstance(wait, Wait)
    driver.now = UNKNOWN_GRACE_MS
    assert not wait.until(), "it may have started since"
    driver.answer(driver.sent.pop(), metadata())
    assert wait.until()
    with pytest.raises(RequestFailed, match=r"^broker 9 is not running; the running brokers are: 1, 2\. "):
        next(script)


def test_a_request_to_a_broker_that_nobody_knows_has_its_reason_at_the_deadline() -> None:
    because = failure_at_the_deadline(LIST, BrokerAt(9)).because
    assert "broker 9 is not running; the running brokers are: 1, 2" in because


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "topic 't' does not exist"),
        (metadata(), "topic 't' has 2 partitions (0 to 1); there is no partition 5"),
    ],
    ids=["topic", "partition"],
)
def test_a_partition_that_does_not_exist_is_named_at_the_deadline(answer: m.MetadataReply, said: str) -> None:
    assert said in failure_at_the_deadline(OFFSETS, TopicPartition("t", 5), answer).because


def test_a_partition_without_a_leader_is_named_at_the_deadline() -> None:
    because = failure_at_the_deadline(OFFSETS, HERE, metadata(leader=-1)).because
    assert "partition t-0 has no leader" in because


def test_a_call_without_a_coordinator_has_the_error_of_its_lookup() -> None:
    talk = Asking()
    talk.calls.cluster.learn(metadata(), from_node=1)
    talk.ask(LIST, GROUP, deadline=100)
    assert [kind for _, kind in talk.waiting] == [m.FindCoordinator]
    talk.answer(None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert "COORDINATOR_NOT_AVAILABLE" in talk.calls.why_pending()
    talk.step(100)
    (finished,) = talk.finished
    assert finished.failure is not None
    assert "COORDINATOR_NOT_AVAILABLE" in finished.failure.because


@pytest.mark.parametrize("said", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NETWORK_EXCEPTION])
def test_a_call_that_ran_out_of_time_has_the_last_error_that_a_broker_said(said: ErrorCode) -> None:
    talk = Asking()
    talk.ask(LIST, ANY_NODE, deadline=100)
    talk.answer(None, said)
    talk.step(100)
    (finished,) = talk.finished
    assert finished.failure is not None
    assert finished.failure.error is (said if said is ErrorCode.KAFKA_STORAGE_ERROR else ErrorCode.NONE)


def test_where_no_broker_answered_its_address_is_named_at_the_deadline() -> None:
    talk = Asking()
    talk.ask(LIST, CONTROLLER, deadline=100)
    talk.step(100)
    (finished,) = talk.finished
    assert finished.failure is not None
    assert "no broker answered at a:1, b:2" in finished.failure.because


def test_a_refused_marker_is_an_error_of_its_reply() -> None:
    part = m.PartitionError(topic="t", partition=0, error=ErrorCode.INVALID_PRODUCER_EPOCH)
    good = attrs.evolve(part, error=ErrorCode.NONE)
    reply = m.WriteTxnMarkersReply(markers=(m.WrittenMarker(producer_id=1, partitions=(good, part)),))
    assert worst_error(reply)[0] is ErrorCode.INVALID_PRODUCER_EPOCH
    fine = m.WriteTxnMarkersReply(markers=(m.WrittenMarker(producer_id=1, partitions=(good,)),))
    assert worst_error(fine) == (ErrorCode.NONE, "")


def test_a_coordinator_is_looked_up_once_for_all_who_wait() -> None:
    talk = Asking()
    for _ in range(3):
        talk.ask(LIST, GROUP)
    assert [kind for _, kind in talk.waiting] == [m.FindCoordinator]
    talk.answer(m.FindCoordinatorReply(node_id=2, host="h", port=2))
    assert talk.waiting == [(2, m.ListTransactions)] * 3
    talk.answer(None, ErrorCode.NOT_COORDINATOR)
    talk.answer(LISTED)
    talk.step(1_000)
    assert [kind for _, kind in talk.waiting].count(m.FindCoordinator) == 1


def test_a_coordinator_that_cannot_be_found_fails_those_who_wait() -> None:
    talk = Asking()
    talk.ask(LIST, GROUP)
    talk.ask(LIST, GROUP)
    talk.answer(None, ErrorCode.INVALID_REQUEST)
    assert [finished.failure is not None and finished.failure.kind for finished in talk.finished] == [
        RequestFailed,
        RequestFailed,
    ]
    talk.step(10_000)
    assert not talk.sent


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_coordinator_that_nobody_waits_for_any_more_is_not_looked_up_again(*, is_cancelled: bool) -> None:
    talk = Asking()
    number = talk.ask(LIST, GROUP, deadline=100)
    if is_cancelled:
        talk.calls.cancel(number)
    talk.step(100)
    talk.answer(None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    talk.step(10_000)
    assert not talk.sent
    talk.ask(LIST, GROUP)
    assert [kind for _, kind in talk.waiting] == [m.FindCoordinator]


def test_the_controller_is_found_by_metadata() -> None:
    talk = Asking()
    talk.ask(CREATE, CONTROLLER)
    talk.answer(metadata(controller=2))
    assert talk.waiting == [(2, m.CreateTopics)]


def test_nodes_are_asked_in_turn() -> None:
    talk = Asking()
    talk.ask(LIST, ANY_NODE)
    seen: list[int] = []
    for _ in range(4):
        seen.append(talk.waiting[0][0])
        talk.answer(None, ErrorCode.NETWORK_EXCEPTION)
        talk.step(RETRY_BACKOFF_MAX_MS)
    assert seen == [FIRST_BOOTSTRAP_NODE, FIRST_BOOTSTRAP_NODE - 1] * 2


def metadata_times(talk: Asking, answer: m.MetadataReply | None, seconds: int) -> list[int]:
    """When it asks for metadata that is always answered so, None: by no broker."""
    asked: list[int] = []
    end = talk.now + 1_000 * seconds
    while talk.now < end:
        for send in [send for send in talk.sent if isinstance(send.request, m.Metadata)]:
            asked.append(talk.now)
            talk.sent.remove(send)
            error = ErrorCode.NETWORK_EXCEPTION if answer is None else ErrorCode.NONE
            assert talk.calls.answered(send.token, error, answer, talk.now) == []
        talk.step()
        wake_at = talk.calls.wake_at(talk.now)
        assert wake_at is None or wake_at > talk.now, "a time in the past would be a busy loop"
        talk.step(10)
    return asked


MISSING = {
    "a partition without a leader": (HERE, metadata(leader=-1)),
    "a leader that is not running": (HERE, metadata(leader=9)),
    "a partition": (TopicPartition("t", 5), metadata()),
    "a topic": (HERE, metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
    "a broker": (BrokerAt(9), metadata()),
    "a controller": (CONTROLLER, metadata(controller=-1)),
    "every broker": (HERE, None),
}


@pytest.mark.parametrize(("target", "answer"), MISSING.values(), ids=MISSING)
def test_what_stays_missing_is_asked_for_ever_more_rarely(
    target: Target, answer: m.MetadataReply | None
) -> None:
    talk = Asking()
    talk.ask(OFFSETS, target)
    asked = metadata_times(talk, answer, seconds=10)
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_BACKOFF_MAX_MS
    assert 1 < len(asked) < 30


def pausing() -> Asking:
    """After ten seconds without a leader; a request for metadata has just left."""
    talk = Asking()
    talk.ask(OFFSETS, HERE)
    metadata_times(talk, metadata(leader=-1), seconds=10)
    while not talk.sent:
        talk.step(10)
    return talk


def test_a_new_topic_is_asked_for_at_once() -> None:
    talk = pausing()
    talk.answer(metadata(leader=-1))
    talk.ask(OFFSETS, TopicPartition("new", 0))
    assert [send.request for send in talk.sent] == [m.Metadata(topics=("t", "new"))]


def test_news_end_the_long_pauses_and_so_does_a_time_in_which_nothing_was_missing() -> None:
    talk = pausing()
    talk.answer(metadata(leader=2, leader_epoch=1))
    assert talk.waiting == [(2, m.ListOffsets)]
    talk.sent.clear()
    for _ in range(2 * CONSTANT_BACKOFFS):  # as a leader of a group that looks for new partitions
        talk.step(60_000)
        talk.calls.cluster.is_stale = True
        talk.step()
        talk.answer(metadata(leader=2, leader_epoch=1))
    talk.calls.cluster.is_stale = True
    talk.step(METADATA_BACKOFF_MS)
    assert [kind for _, kind in talk.waiting] == [m.Metadata]


def test_a_topic_in_the_making_is_asked_for_until_it_is_there() -> None:
    talk = Asking()
    talk.ask(OFFSETS, HERE)
    for _ in range(3):
        talk.answer(metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        assert not talk.sent
        talk.step(RETRY_BACKOFF_MAX_MS)
    talk.answer(metadata())
    assert talk.waiting == [(1, m.ListOffsets)]


def test_time_limits_hold_while_waiting_and_while_in_flight() -> None:
    talk = Asking()
    talk.ask(LIST, ANY_NODE, deadline=100)
    talk.ask(OFFSETS, HERE, deadline=200)
    talk.step(100)
    (first,) = talk.finished
    assert first.failure is not None
    assert first.failure.kind is RequestTimeout
    assert first.call.indefinite, "it was on its way: it may have been carried out"
    talk.answer(LISTED)
    talk.step(100)
    assert [finished.call.indefinite for finished in talk.finished] == [True, False]


def test_what_is_sent_once_comes_back_untouched() -> None:
    talk = Asking()
    token = talk.calls.once(1, LIST)
    talk.step()
    assert talk.calls.answered(token, ErrorCode.NETWORK_EXCEPTION, None, 5) is None
    assert talk.calls.answered(token, ErrorCode.NONE, LISTED, 5) == [], "an answer counts once"


def test_a_cancelled_call_is_not_heard_of_again() -> None:
    talk = Asking()
    number = talk.ask(LIST, ANY_NODE)
    assert not talk.calls.cancel(number, also_in_flight=False)
    assert talk.calls.cancel(number)
    assert not talk.calls.cancel(number)
    talk.answer(LISTED)
    assert not talk.finished


def test_pauses_double_up_to_a_second() -> None:
    pauses = [backoff_ms(attempts) for attempts in range(1, 12)]
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert pauses[-1] == RETRY_BACKOFF_MAX_MS


def test_a_call_that_meets_the_end_of_the_last_transaction_is_soon_retried() -> None:
    talk = Asking()
    talk.ask(LIST, ANY_NODE)
    for pause_ms in (1, 2, 4, 8):
        talk.answer(None, ErrorCode.CONCURRENT_TRANSACTIONS)
        talk.step(pause_ms - 1)
        assert not talk.sent
        talk.step(1)
        assert [kind for _, kind in talk.waiting] == [m.ListTransactions]
    assert backoff_ms(100, ErrorCode.CONCURRENT_TRANSACTIONS) == RETRY_BACKOFF_MAX_MS


@pytest.mark.parametrize("text", ["", "host", "host:", ":9", "host:0", "host:70000", "host:x", "a:1,,b:2"])
def test_a_bootstrap_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        bootstrap_addresses(text)


def test_bootstrap_addresses() -> None:
    assert bootstrap_addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]


def test_exceptions_to_the_error_table_are_exceptions() -> None:
    for (request, error), remedy in REMEDIES.items():
        assert error.remedy is not remedy, f"{request.__name__} {error.name} says what the table says"
        assert remedy_of(request, error) is remedy
    assert remedy_of(m.EndTxn, ErrorCode.INVALID_PRODUCER_EPOCH) is Remedy.FATAL
    assert remedy_of(m.Produce, ErrorCode.INVALID_PRODUCER_EPOCH) is Remedy.ABORT


def test_a_refusal_names_what_it_is_about() -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = m.TopicMetadata(topic="nope", error=unknown, is_internal=False, partitions=())
    body = m.MetadataReply(cluster_id="", controller_id=1, nodes=(), topics=(topic,))
    assert worst_error(body) == (unknown, "topic 'nope' does not exist")
    part = m.PartitionError(topic="nope", partition=3, error=unknown)
    assert worst_error(m.OffsetCommitReply(partitions=(part,)))[1] == "partition nope-3 does not exist"
