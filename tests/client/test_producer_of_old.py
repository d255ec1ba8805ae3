"""Stories of a producer that speaks the generation before KIP-890 part 2, told by hand."""

from __future__ import annotations

import pytest

from fencepost.client.effects import TransactionCall
from fencepost.client.errors import ProducerFenced, TransactionAborted
from fencepost.client.producer_states import ProducerState
from fencepost.client.settings import PRODUCER_PROTOCOLS, ProducerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.terms import NEWEST_VERSION, TransactionResult
from tests.client.conversation import HERE, PRODUCER_ID, ProducerTalk, transactional


def old(**settings: object) -> ProducerTalk:
    """A producer of old, initialized and in a transaction."""
    talk = transactional(transaction_version=0, **settings)
    talk.machine.begin()
    return talk


def take_in(talk: ProducerTalk, error: ErrorCode = ErrorCode.NONE) -> list[int]:
    """Answers AddPartitionsToTxn; the partitions that it was about."""
    send = talk.first(m.AddPartitionsToTxn)
    assert isinstance(send.request, m.AddPartitionsToTxn)
    parts = tuple(
        m.PartitionError(topic=part.topic, partition=part.partition, error=error)
        for part in send.request.partitions
    )
    talk.reply(send, m.AddPartitionsToTxnReply(partitions=parts))
    return [part.partition for part in parts]


def end(talk: ProducerTalk) -> m.EndTxn:
    """Answers EndTxn as brokers answer older clients: nothing about who they are."""
    send = talk.first(m.EndTxn)
    assert isinstance(send.request, m.EndTxn)
    talk.reply(send, m.EndTxnReply(producer_id=-1, producer_epoch=-1))
    return send.request


def test_a_partition_is_added_before_anything_is_written_to_it() -> None:
    talk = old()
    talk.send(b"1")
    assert not talk.batches(), "the coordinator has not taken the partition in yet"
    talk.send(b"2", partition=1)
    talk.send(b"3", partition=1)
    assert take_in(talk) == [0]
    assert [partition for partition, _ in talk.batches()] == [0]
    assert take_in(talk) == [1], "what came meanwhile is asked for in one go"
    assert talk.sequences(1) == [0, 1]
    talk.send(b"4")
    assert talk.sequences() == [0, 1], "once added, a partition stays in the transaction"
    assert not talk.waiting(m.AddPartitionsToTxn)


def test_it_speaks_the_versions_of_old() -> None:
    talk = old()
    talk.send(b"1")
    spoken = [talk.first(m.AddPartitionsToTxn).version]
    take_in(talk)
    spoken.append(talk.first(m.Produce).version)
    talk.store()
    talk.hear(talk.machine.send_offsets({HERE: 5}, "g", talk.now))
    spoken.append(talk.first(m.AddOffsetsToTxn).version)
    talk.reply(talk.first(m.AddOffsetsToTxn), m.AddOffsetsToTxnReply())
    spoken.append(talk.first(m.TxnOffsetCommit).version)
    talk.reply(talk.first(m.TxnOffsetCommit), m.TxnOffsetCommitReply(partitions=()))
    talk.commit()
    spoken.append(talk.first(m.EndTxn).version)
    assert spoken == [3, 11, NEWEST_VERSION, 4, 4]


def test_transactions_share_an_epoch_and_sequences_run_on() -> None:
    talk = transactional(transaction_version=0)
    for number in range(3):
        talk.machine.begin()
        talk.send(b"x")
        take_in(talk)
        assert [(h.producer_epoch, h.base_sequence) for _, h in talk.batches()] == [(0, number)]
        talk.store()
        talk.commit()
        assert end(talk).producer_epoch == 0
        assert talk.machine.state is ProducerState.READY


def test_offsets_wait_until_their_group_is_added() -> None:
    talk = old()
    talk.hear(talk.machine.send_offsets({HERE: 5}, "g", talk.now))
    assert not talk.waiting(m.TxnOffsetCommit)
    assert [request.group_id for request in talk.waiting(m.AddOffsetsToTxn)] == ["g"]
    talk.commit()
    talk.reply(talk.first(m.AddOffsetsToTxn), m.AddOffsetsToTxnReply())
    assert len(talk.waiting(m.TxnOffsetCommit)) == 1
    assert not talk.waiting(m.EndTxn)
    talk.reply(talk.first(m.TxnOffsetCommit), m.TxnOffsetCommitReply(partitions=()))
    assert end(talk).result is TransactionResult.COMMIT
    assert talk.resolved[TransactionCall.COMMIT] is None


@pytest.mark.parametrize(
    "error", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION]
)
def test_what_may_pass_is_asked_again(error: ErrorCode) -> None:
    talk = old()
    talk.send(b"1")
    talk.refuse(m.AddPartitionsToTxn, error)
    assert not talk.batches()
    talk.after(100)
    take_in(talk)
    assert talk.sequences() == [0]


def test_a_fenced_one_hears_of_it_before_it_writes() -> None:
    talk = old()
    talk.send(b"1")
    talk.refuse(m.AddPartitionsToTxn, ErrorCode.PRODUCER_FENCED)
    assert talk.machine.state is ProducerState.FATAL_ERROR
    assert talk.done[0].failure is not None
    assert talk.done[0].failure.kind is ProducerFenced
    assert not talk.batches()


def test_a_partition_that_is_not_taken_in_spoils_the_transaction() -> None:
    talk = old()
    talk.send(b"1")
    take_in(talk, ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert talk.machine.state is ProducerState.ABORTABLE_ERROR
    assert talk.done[0].failure is not None
    assert talk.done[0].failure.kind is TransactionAborted
    talk.abort()
    assert end(talk).result is TransactionResult.ABORT, "another partition may be in it all the same"
    assert talk.machine.state is ProducerState.READY


def test_an_abort_waits_for_what_is_being_added() -> None:
    """Added after the end, a partition would belong to the next transaction: the epoch is the same."""
    talk = old()
    talk.send(b"1")
    talk.hear(talk.machine.send_offsets({HERE: 5}, "g", talk.now))
    talk.abort()
    assert not talk.waiting(m.EndTxn)
    take_in(talk)
    assert not talk.batches(), "the batch was given up"
    assert not talk.waiting(m.AddOffsetsToTxn)
    assert end(talk).result is TransactionResult.ABORT
    assert talk.resolved[TransactionCall.ABORT] is None


def test_an_abort_waits_for_offsets_that_are_on_their_way() -> None:
    talk = old()
    talk.hear(talk.machine.send_offsets({HERE: 5}, "g", talk.now))
    talk.reply(talk.first(m.AddOffsetsToTxn), m.AddOffsetsToTxnReply())
    talk.abort()
    assert not talk.waiting(m.EndTxn)
    talk.reply(talk.first(m.TxnOffsetCommit), m.TxnOffsetCommitReply(partitions=()))
    assert end(talk).result is TransactionResult.ABORT


def test_who_lost_a_batch_asks_for_the_next_epoch() -> None:
    """Nobody knows whether its sequence is in the log, from which the next transaction goes on (KIP-360)."""
    talk = old(delivery_timeout_ms=1_000)
    talk.send(b"1")
    take_in(talk)
    talk.after(2_000)
    assert talk.machine.state is ProducerState.ABORTABLE_ERROR
    talk.abort()
    end(talk)
    (request,) = talk.waiting(m.InitProducerId)
    assert (request.producer_id, request.producer_epoch) == (PRODUCER_ID, 0)
    assert TransactionCall.ABORT not in talk.resolved
    talk.grant(epoch=1)
    assert talk.resolved[TransactionCall.ABORT] is None
    talk.machine.begin()
    talk.send(b"2")
    take_in(talk)
    assert [(h.producer_epoch, h.base_sequence) for _, h in talk.batches()][-1] == (1, 0)


def test_what_was_lost_under_an_epoch_is_of_no_concern_to_the_next() -> None:
    talk = old(delivery_timeout_ms=1_000)
    talk.send(b"1")
    take_in(talk)
    talk.after(2_000)
    talk.abort()
    end(talk)
    talk.grant(epoch=1)
    talk.machine.begin()
    talk.send(b"2", partition=1)
    take_in(talk)
    talk.lose(m.Produce)
    talk.store()
    talk.commit()
    end(talk)
    assert talk.resolved[TransactionCall.COMMIT] is None
    assert not talk.waiting(m.InitProducerId)


@pytest.mark.parametrize("kind", [m.AddPartitionsToTxn, m.AddOffsetsToTxn, m.TxnOffsetCommit])
def test_what_would_be_asked_again_is_given_up_by_an_abort(kind: type) -> None:
    """Offsets of a topic that does not exist are asked forever; the abort does not wait for that."""
    talk = old()
    if kind is m.AddPartitionsToTxn:
        talk.send(b"1")
    else:
        talk.hear(talk.machine.send_offsets({HERE: 5}, "g", talk.now))
    if kind is m.TxnOffsetCommit:
        talk.reply(talk.first(m.AddOffsetsToTxn), m.AddOffsetsToTxnReply())
    talk.abort()
    assert talk.machine.awaits_coordinator
    assert not talk.waiting(m.EndTxn)
    talk.refuse(kind, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert end(talk).result is TransactionResult.ABORT
    assert talk.machine.state is ProducerState.READY


def test_an_abort_that_lost_nothing_keeps_the_epoch() -> None:
    talk = old()
    talk.send(b"1")
    take_in(talk)
    talk.store()
    talk.send(b"2")
    talk.abort()
    talk.store()
    end(talk)
    assert not talk.waiting(m.InitProducerId)
    talk.machine.begin()
    talk.send(b"3")
    take_in(talk)
    assert talk.sequences() == [2]


def test_an_empty_transaction_is_not_heard_of() -> None:
    talk = old()
    talk.commit()
    assert not talk.waiting(m.EndTxn)
    assert talk.resolved[TransactionCall.COMMIT] is None


def test_a_copy_goes_its_own_way() -> None:
    talk = old()
    talk.send(b"1")
    twin = fork(talk.machine)
    assert fingerprint(twin) == fingerprint(talk.machine)
    take_in(talk)
    assert fingerprint(twin) != fingerprint(talk.machine)
    assert twin.awaits_coordinator
    assert not talk.machine.awaits_coordinator


def test_only_known_generations_are_spoken() -> None:
    assert list(PRODUCER_PROTOCOLS) == [0, 2]
    with pytest.raises(ValueError, match="transaction_version"):
        ProducerSettings(transactional_id="pay", transaction_version=1)
