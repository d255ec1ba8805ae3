"""Stories of a transactional producer, told by hand: no thread, no await, only values."""

from __future__ import annotations

import pytest

from fencepost.client.batch import ProducerRecord
from fencepost.client.effects import BatchDone, TransactionCall
from fencepost.client.errors import (
    AuthorizationFailed,
    ClientClosed,
    ClientError,
    CommitOutcomeUnknown,
    DeliveryFailed,
    DeliveryTimeout,
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
    WrongState,
)
from fencepost.client.producer_states import (
    IDEMPOTENT,
    LAST_STATES,
    TRANSACTIONAL,
    ProducerInput,
    ProducerState,
    ProducerTable,
)
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.terms import TopicPartition, TransactionResult
from tests.client.conversation import HERE, PRODUCER_ID, ProducerTalk, transactional


def test_a_transaction_by_hand() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"1")
    talk.send(b"2", partition=1)
    assert [(p, h.producer_id, h.producer_epoch, h.base_sequence) for p, h in talk.batches()] == [
        (0, PRODUCER_ID, 0, 0),
        (1, PRODUCER_ID, 0, 0),
    ]
    assert all(header.is_transactional for _, header in talk.batches())
    talk.commit()
    assert not talk.waiting(m.EndTxn), "EndTxn is held until every batch is stored"
    talk.store(base_offset=10)
    talk.store(base_offset=20)
    assert talk.waiting(m.EndTxn) == [
        m.EndTxn(
            transactional_id="pay", producer_id=PRODUCER_ID, producer_epoch=0, result=TransactionResult.COMMIT
        )
    ]
    talk.end(epoch=1)
    assert talk.resolved == {TransactionCall.INIT_TRANSACTIONS: None, TransactionCall.COMMIT: None}
    assert [(done.partition, done.base_offset) for done in talk.done] == [(0, 10), (1, 20)]


def test_each_transaction_has_the_epoch_that_the_end_of_the_last_one_gave() -> None:
    talk = transactional()
    for epoch in range(3):
        talk.machine.begin()
        talk.send(b"x")
        assert [(h.producer_epoch, h.base_sequence) for _, h in talk.batches()] == [(epoch, 0)]
        talk.store()
        talk.commit()
        talk.end(epoch=epoch + 1)


def test_an_exhausted_epoch_goes_on_under_the_next_producer_id() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.store()
    talk.commit()
    talk.reply(talk.first(m.EndTxn), m.EndTxnReply(producer_id=99, producer_epoch=0))
    talk.machine.begin()
    talk.send(b"y")
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for _, h in talk.batches()] == [(99, 0, 0)]


@pytest.mark.parametrize("end", [ProducerTalk.commit, ProducerTalk.abort])
def test_the_end_of_a_transaction_to_which_nothing_was_added_is_not_sent(end: object) -> None:
    talk = transactional()
    talk.machine.begin()
    assert callable(end)
    end(talk)
    assert not talk.sent
    assert talk.machine.state is ProducerState.READY


def test_abort_sends_nothing_more_and_waits_for_what_is_on_its_way() -> None:
    talk = transactional(max_in_flight_requests_per_connection=1)
    talk.machine.begin()
    talk.send(b"on its way")
    talk.send(b"not sent")
    talk.abort()
    (unsent,) = talk.done
    assert unsent.failure is not None
    assert unsent.failure.kind is TransactionAborted
    assert not talk.waiting(m.EndTxn)
    talk.store()
    assert [request.result for request in talk.waiting(m.EndTxn)] == [TransactionResult.ABORT]
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.ABORT] is None


def test_what_would_go_again_in_a_spoiled_transaction_is_given_up() -> None:
    """Else flush() waits for a batch that nobody sends any more."""
    talk = transactional()
    talk.machine.begin()
    talk.send(b"refused", partition=0)
    talk.send(b"lost", partition=1)
    talk.store(error=ErrorCode.INVALID_PRODUCER_EPOCH)
    assert talk.machine.state is ProducerState.ABORTABLE_ERROR
    talk.lose(m.Produce)
    assert [batch.failure and batch.failure.kind for batch in talk.done] == [
        DeliveryFailed,
        TransactionAborted,
    ]


def test_offsets_travel_with_the_batches_and_hold_the_commit() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"out")
    talk.hear(talk.machine.send_offsets({TopicPartition("in", 0): 42}, "group", talk.now))
    (offsets,) = talk.waiting(m.TxnOffsetCommit)
    assert (offsets.group_id, offsets.producer_epoch, offsets.offsets[0].offset) == ("group", 0, 42)
    talk.commit()
    talk.store()
    assert not talk.waiting(m.EndTxn)
    talk.reply(talk.first(m.TxnOffsetCommit), answered_offsets(ErrorCode.NONE))
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.COMMIT] is None


def test_later_offsets_of_a_group_do_not_overtake_earlier_ones() -> None:
    talk = transactional()
    talk.machine.begin()
    for offset in (1, 2, 3):
        talk.hear(talk.machine.send_offsets({TopicPartition("in", 0): offset}, "group", talk.now))
    assert [request.offsets[0].offset for request in talk.waiting(m.TxnOffsetCommit)] == [1]
    talk.reply(talk.first(m.TxnOffsetCommit), answered_offsets(ErrorCode.NONE))
    assert [request.offsets[0].offset for request in talk.waiting(m.TxnOffsetCommit)] == [3]


def answered_offsets(error: ErrorCode) -> m.TxnOffsetCommitReply:
    return m.TxnOffsetCommitReply(partitions=(m.PartitionError(topic="in", partition=0, error=error),))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorCode.ILLEGAL_GENERATION, TransactionAborted),
        (ErrorCode.UNKNOWN_MEMBER_ID, TransactionAborted),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAborted),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, TransactionAborted),
        (ErrorCode.INVALID_PRODUCER_EPOCH, TransactionAborted),
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ProducerFailed),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationFailed),
    ],
)
def test_refused_offsets_show_at_commit(error: ErrorCode, kind: type) -> None:
    talk = transactional()
    talk.machine.begin()
    talk.hear(talk.machine.send_offsets({TopicPartition("in", 0): 1}, "group", talk.now))
    talk.commit()
    talk.reply(talk.first(m.TxnOffsetCommit), answered_offsets(error))
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert (failure.kind, failure.error) == (kind, error)


# --- commits that nobody knows about ------------------------------------------------------------------------


def committing() -> ProducerTalk:
    """A producer whose EndTxn(commit) is on its way."""
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.store()
    talk.commit()
    assert talk.waiting(m.EndTxn)
    return talk


def test_a_lost_answer_to_a_commit_is_asked_for_again_under_the_same_epoch() -> None:
    talk = committing()
    talk.lose(m.EndTxn)
    talk.after(1_000)
    (again,) = talk.waiting(m.EndTxn)
    assert (again.producer_epoch, again.result) == (0, TransactionResult.COMMIT)
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.COMMIT] is None
    assert talk.machine.producer_epoch == 1


@pytest.mark.parametrize(
    "error", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
)
def test_a_refusal_after_a_lost_answer_decides_nothing(error: ErrorCode) -> None:
    talk = committing()
    talk.lose(m.EndTxn)
    talk.after(1_000)
    talk.refuse(m.EndTxn, error)
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert (failure.kind, failure.error) == (CommitOutcomeUnknown, error)


@pytest.mark.parametrize(
    ("error", "kind", "state"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced, ProducerState.FATAL_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced, ProducerState.FATAL_ERROR),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ProducerFailed, ProducerState.FATAL_ERROR),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAborted, ProducerState.ABORTABLE_ERROR),
        (ErrorCode.INVALID_TXN_STATE, TransactionAborted, ProducerState.ABORTABLE_ERROR),
        (ErrorCode.UNKNOWN_SERVER_ERROR, CommitOutcomeUnknown, ProducerState.COMMIT_OUTCOME_UNKNOWN),
    ],
)
def test_a_first_refusal_of_a_commit_is_definite_if_its_error_is(
    error: ErrorCode, kind: type, state: ProducerState
) -> None:
    talk = committing()
    talk.refuse(m.EndTxn, error)
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert (failure.kind, talk.machine.state) == (kind, state)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_a_commit_is_sent_again_after_what_passes(error: ErrorCode) -> None:
    talk = committing()
    talk.refuse(m.EndTxn, error)
    assert not talk.waiting(m.EndTxn)
    talk.after(1_000)
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.COMMIT] is None


@pytest.mark.parametrize("waits_for", ["records", "offsets", "metadata"])
def test_a_commit_that_was_not_sent_in_time_says_what_it_waited_for(waits_for: str) -> None:
    talk = transactional()
    talk.machine.begin()
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if waits_for == "offsets":
        talk.hear(talk.machine.send_offsets({HERE: 1}, "g", talk.now))
        talk.commit()
        talk.refuse(m.TxnOffsetCommit, error)
    else:
        talk.send(b"x")
        talk.commit()
        if waits_for == "records":
            talk.refuse(m.Produce, error)
        else:
            talk.machine.cluster.topic_errors["t"] = error
    talk.hear(talk.machine.give_up_commit(talk.now))
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert failure.because.startswith("commit_transaction() timed out or was interrupted before the commit")
    assert failure.because.endswith(f"{error.meaning} (UNKNOWN_TOPIC_OR_PARTITION)")


def test_a_commit_that_is_given_up_is_unknown_and_leaves_only_close() -> None:
    talk = committing()
    talk.hear(talk.machine.give_up_commit(talk.now))
    machine = talk.machine
    calls = [
        lambda: machine.init_transactions(talk.now),
        machine.begin,
        lambda: machine.append(ProducerRecord("t", b"y"), now=talk.now, wall_ms=0),
        lambda: machine.send_offsets({HERE: 1}, "g", talk.now),
        lambda: machine.commit(talk.now),
        lambda: machine.abort(talk.now),
    ]
    for call in calls:
        with pytest.raises(CommitOutcomeUnknown, match="Close this producer"):
            call()
    talk.end(epoch=1)  # the answer comes too late to be of use
    assert machine.state is ProducerState.COMMIT_OUTCOME_UNKNOWN
    talk.hear(machine.close(talk.now))
    with pytest.raises(CommitOutcomeUnknown):
        machine.begin()


def test_a_commit_that_is_given_up_before_it_was_sent_is_surely_no_commit() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.commit()
    talk.hear(talk.machine.give_up_commit(talk.now))
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert failure.kind is TransactionAborted
    talk.abort()
    talk.store()
    talk.end(epoch=1)
    assert talk.machine.state is ProducerState.READY


# --- batches that fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ],
)
def test_a_refused_batch_spoils_its_transaction_and_not_the_producer(error: ErrorCode) -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.store(error=error)
    with pytest.raises(TransactionAborted, match="abort_transaction"):
        talk.commit()
    with pytest.raises(TransactionAborted):
        talk.send(b"more")
    talk.abort()
    talk.end(epoch=1)
    talk.machine.begin()
    talk.send(b"again")
    assert [(h.producer_epoch, h.base_sequence) for _, h in talk.batches()] == [(1, 0)]


def test_a_batch_that_fails_during_commit_fails_the_commit() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.commit()
    talk.store(error=ErrorCode.INVALID_RECORD)
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert failure.kind is TransactionAborted
    assert not talk.waiting(m.EndTxn)


def test_a_fenced_producer_is_done() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.send(b"y", partition=1)
    talk.store(error=ErrorCode.PRODUCER_FENCED)
    assert talk.machine.state is ProducerState.FATAL_ERROR
    assert [done.failure.kind for done in talk.done if done.failure] == [ProducerFenced, ProducerFenced]
    for call in (talk.commit, talk.abort, talk.machine.begin):
        with pytest.raises(ProducerFenced, match="the newer one continues"):
            call()


def test_a_batch_that_expired_after_it_was_sent_must_be_aborted() -> None:
    talk = transactional(delivery_timeout_ms=5_000)
    talk.machine.begin()
    talk.send(b"x")
    talk.commit()
    talk.after(5_000)
    assert [done.failure.kind for done in talk.done if done.failure] == [DeliveryTimeout]
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert failure.kind is TransactionAborted
    talk.abort()
    talk.end(epoch=1)
    talk.store()  # the late answer to the expired batch changes nothing
    assert talk.machine.state is ProducerState.READY
    assert talk.machine.producer_epoch == 1


def test_an_abortable_failure_while_aborting_is_ignored() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.abort()
    talk.store(error=ErrorCode.INVALID_RECORD)
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.ABORT] is None


def test_a_connection_that_is_lost_while_aborting_sends_nothing_again() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.abort()
    talk.lose(m.Produce)
    talk.after(2_000)
    assert not talk.waiting(m.Produce)
    talk.end(epoch=1)
    assert talk.machine.state is ProducerState.READY


# --- beginnings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION]
)
def test_the_identity_is_asked_for_until_it_is_granted(error: ErrorCode) -> None:
    talk = ProducerTalk(transactional().machine.settings)
    talk.hear(talk.machine.init_transactions(talk.now))
    for _ in range(3):
        talk.refuse(m.InitProducerId, error)
        talk.after(2_000)
    talk.grant(epoch=4)
    assert talk.resolved == {TransactionCall.INIT_TRANSACTIONS: None}
    assert talk.machine.producer_epoch == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, ProducerFailed),
        (ErrorCode.UNSUPPORTED_VERSION, ProducerFailed),
    ],
)
def test_an_identity_that_is_refused_ends_the_producer(error: ErrorCode, kind: type) -> None:
    talk = ProducerTalk(transactional().machine.settings)
    talk.hear(talk.machine.init_transactions(talk.now))
    talk.refuse(m.InitProducerId, error)
    failure = talk.resolved[TransactionCall.INIT_TRANSACTIONS]
    assert failure is not None
    assert failure.kind is kind


def test_calls_in_the_wrong_order_are_refused_and_change_nothing() -> None:
    talk = ProducerTalk(transactional().machine.settings)
    for call in (talk.machine.begin, talk.commit, talk.abort):
        before = fingerprint(talk.machine)
        with pytest.raises(WrongState, match="init_transactions"):
            call()
        assert fingerprint(talk.machine) == before
    talk.initialize()
    with pytest.raises(WrongState, match="begin_transaction"):
        talk.commit()
    with pytest.raises(WrongState, match="begin_transaction"):
        talk.send(b"x")
    talk.machine.begin()
    with pytest.raises(WrongState, match="commit or abort it first"):
        talk.machine.begin()
    with pytest.raises(WrongState):
        talk.hear(talk.machine.init_transactions(talk.now))


def test_a_closed_producer_gives_every_record_an_outcome() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.hear(talk.machine.close(talk.now))
    assert [done.failure.kind for done in talk.done if done.failure] == [ClientClosed]
    with pytest.raises(ClientClosed):
        talk.machine.begin()


@pytest.mark.parametrize(
    ("is_sent", "kind", "why"),
    [
        (False, ClientClosed, "the producer was closed before the commit was sent"),
        (True, CommitOutcomeUnknown, "the producer was closed before the reply arrived"),
    ],
)
def test_a_commit_of_a_producer_that_is_closed_has_a_result(
    is_sent: bool, kind: type[ClientError], why: str
) -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    talk.commit()
    if is_sent:
        talk.store()
        assert talk.waiting(m.EndTxn)
    talk.hear(talk.machine.close(talk.now))
    failure = talk.resolved[TransactionCall.COMMIT]
    assert failure is not None
    assert failure.kind is kind
    assert why in failure.because
    assert talk.machine.is_over


# --- for simulators -----------------------------------------------------------------------------------------


def test_a_copy_goes_its_own_way() -> None:
    talk = transactional()
    talk.machine.begin()
    talk.send(b"x")
    twin = fork(talk.machine)
    before = fingerprint(twin)
    assert before == fingerprint(talk.machine)
    assert hash(before) == hash(fingerprint(talk.machine))
    produce = talk.first(m.Produce)
    talk.store()
    talk.commit()
    talk.end(epoch=1)
    assert fingerprint(twin) == before
    assert fingerprint(talk.machine) != before
    effects = twin.on_reply(produce.token, ErrorCode.NETWORK_EXCEPTION, None, talk.now)
    assert twin.accumulator.batches, "the twin's batch waits for its retry"
    assert not talk.machine.accumulator.batches
    assert not any(isinstance(effect, BatchDone) for effect in effects)


# --- the table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [TRANSACTIONAL, IDEMPOTENT])
def test_every_state_answers_every_call_and_is_reached(table: ProducerTable) -> None:
    reached = {ProducerState.UNINITIALIZED}
    for _ in table:
        reached |= {cell for s in reached for cell in table[s].values() if isinstance(cell, ProducerState)}
    unreached = set[ProducerState]() if table is TRANSACTIONAL else {ProducerState.COMMIT_OUTCOME_UNKNOWN}
    assert set(table) == reached | unreached
    calls = set(list(ProducerInput)[:7])
    assert all(calls <= set(row) for row in table.values())


def test_nothing_but_close_leaves_the_last_states() -> None:
    for table in (TRANSACTIONAL, IDEMPOTENT):
        for state in LAST_STATES:
            moves = {
                call
                for call, cell in table[state].items()
                if isinstance(cell, ProducerState) and cell is not state
            }
            assert moves <= {ProducerInput.CLOSE}


def test_an_uncertain_commit_is_never_aborted_by_the_table() -> None:
    assert (
        TRANSACTIONAL[ProducerState.COMMIT_OUTCOME_UNKNOWN][ProducerInput.ABORT]
        is ErrorCode.INVALID_TXN_STATE
    )
