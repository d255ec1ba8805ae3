"""Directories of brokers that had a protection off, or were of an old generation: what the check makes of
them, and of what an administrator then does.
"""

from __future__ import annotations

import attrs

from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.check.directory import check_directory
from fencepost.check.findings import Findings, Severity
from fencepost.check.txn_consistency import SPLIT, UNDECIDED, report_disagreement
from fencepost.journal.journal import JournalSettings
from fencepost.log_model.transactions import Disagreement, LoggedDecision, LoggedState
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import AddPartitionsToTxn, DeleteTopics, EndTxn, Produce, Request
from fencepost.protocol.terms import TransactionResult
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    Identity,
    add_request,
    batch,
    identity_of,
    init_request,
    marker_request,
    produce_batches,
    produced,
)
from tests.broker.story import SETTINGS, Story

OLD: dict[type[Request], int] = {AddPartitionsToTxn: 3, Produce: 11, EndTxn: 4}
OF_OLD = attrs.evolve(SETTINGS, transaction_version=TRANSACTION_VERSIONS[0], partition_verification=False)


def told(story: Story, severity: Severity = Severity.PROBLEM) -> list[str]:
    """What is said of the directory when its broker is dead."""
    story.kill()
    found = [finding.what for finding in check_directory(story.storage).found if finding.severity is severity]
    story.start()
    story.settle()
    return found


def write(story: Story, me: Identity, value: str, sequence: int) -> None:
    """A batch that is accepted."""
    assert story.produce(me, value, sequence=sequence).error is ErrorCode.NONE


def test_without_dedup_a_repeated_batch_lies_there_twice() -> None:
    story = Story(settings=attrs.evolve(SETTINGS, broken=frozenset({"dedup"})))
    me = story.identity()
    write(story, me, "a", 0)
    assert told(story) == []
    write(story, me, "a", 0)
    assert told(story) == ["producer 0 epoch 0: sequence 0 where 1 was expected"]


def test_the_missing_marker_of_an_abort_splits_nothing() -> None:
    decided = LoggedState(None, "__transaction_state-0/0.log", 5, 0)
    abort = LoggedDecision("pay", 7, 0, TransactionResult.ABORT, True, True, decided, 0)
    findings = Findings()
    report_disagreement(ORDERS, None, Disagreement(abort, None), findings)
    report_disagreement(
        ORDERS, None, Disagreement(abort._replace(result=TransactionResult.COMMIT), None), findings
    )
    assert [finding.means for finding in findings.found] == [UNDECIDED, SPLIT]


def test_without_fencing_a_zombie_gets_through() -> None:
    story = Story(settings=attrs.evolve(SETTINGS, broken=frozenset({"fencing"})))
    zombie = story.identity()
    write(story, zombie, "a", 0)
    heir = story.identity()
    write(story, heir, "b", 0)
    assert told(story) == []
    write(story, zombie, "c", 0)
    assert any("a batch of this epoch after epoch" in what for what in told(story))


def old_story() -> tuple[Story, Identity]:
    """A transaction that committed as before KIP-890, without asking anybody about batches."""
    story = Story(settings=OF_OLD, versions=OLD)
    me = story.identity()
    story.ask(add_request(me, ORDERS))
    write(story, me, "a", 0)
    assert story.end(me, COMMIT).error is ErrorCode.NONE
    return story, me


def test_epochs_that_transactions_share_are_told_apart_by_their_order() -> None:
    story, me = old_story()
    sequence = 1
    for result in (ABORT, COMMIT, COMMIT, ABORT, ABORT):
        story.ask(add_request(me, ORDERS))
        write(story, me, "x", sequence)
        sequence += 1
        assert story.end(me, result).error is ErrorCode.NONE
    assert told(story) == []
    assert told(story, Severity.NOTE) == []


def test_a_late_batch_hangs_until_an_administrator_aborts_it() -> None:
    story, me = old_story()
    write(story, me, "late", 1)
    assert told(story) == ["producer 0 has a transaction open since this offset, and no coordinator knows it"]
    story.ask(marker_request(me, TransactionResult.ABORT, ORDERS, transaction_version=0))
    assert told(story) == []
    assert told(story, Severity.NOTE) == ["ABORT of producer 0 epoch 0, but no coordinator decided it"]
    assert story.visible() == "a"


def test_a_marker_of_a_stranger_does_not_prove_that_its_producer_id_was_given() -> None:
    """Without access control anyone may send one, and the id is whatever it says."""
    story = Story()
    write(story, story.identity(), "a", 0)
    story.ask(marker_request(Identity(1 << 40, 3), ABORT, ORDERS))
    assert "abort" in story.written()
    assert told(story) == []


def test_a_topic_made_anew_owes_nothing_to_the_old_one() -> None:
    story = Story()
    me = story.identity()
    write(story, me, "a", 0)
    story.ended(me, COMMIT)
    story.ask(DeleteTopics(topics=("orders",)))
    assert told(story) == []
    story.create("orders", 2)
    assert told(story) == []


def put(story: Story, who: Identity, *, sequence: int = 0, name: str | None = "pay") -> None:
    """A batch of this moment."""
    records = batch(who, "x", sequence=sequence, transactional=name is not None, timestamp=story.now)
    assert produced(story.ask(produce_batches({ORDERS: records}, name=name)))[ORDERS].error is ErrorCode.NONE


def test_a_producer_that_the_broker_forgot_is_no_problem() -> None:
    """It forgets by its clock; the newest timestamp in a log may be that of the forgotten producer."""
    settings = attrs.evolve(
        SETTINGS, producer_id_expiration_ms=4_000, producer_id_expiration_check_interval_ms=1_000
    )
    story = Story(settings=settings, journal=JournalSettings(segment_bytes=1))  # a snapshot after each batch
    me, plain = story.identity(), identity_of(story.ask(init_request(None)))
    put(story, plain, name=None)
    put(story, me)
    me = story.ended(me, COMMIT)
    story.wait(10_000)
    assert story.partition().producers == {}
    put(story, NOBODY, name=None)
    put(story, plain, sequence=1, name=None)
    put(story, me)
    assert told(story) == []
    notes = told(story, Severity.NOTE)
    assert {"producer 0 is missing", "producer 1 is missing"} <= {*notes}
    assert "producer 0: coordinator_epoch -1 (the log says 0)" in notes, "it begins anew with its batch"
    story.ended(me, ABORT)
    story.wait(10_000)
    story.host.stop()
    assert told(story) == []
