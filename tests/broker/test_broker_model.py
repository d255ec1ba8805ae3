"""A broker and a model that knows no state, in random conversations: they agree, the conversations say
enough, and mistakes in the broker are found.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.broker.broker_machine import BrokerAndModel
from tests.broker.broker_mutations import MUTATIONS
from tests.simulator.planting import Mutation, planted

TestBrokerAndModel = BrokerAndModel.TestCase
TestBrokerAndModel.settings = settings(max_examples=25, stateful_step_count=30)

# The same conversations each time, and no search for shorter ones. In short rounds: in a long one Hypothesis
# begins with small examples, and varies each later one several times. In a round of fewer than ten every
# example but the first is drawn anew.
ROUNDS: Final = 35  # at most: a search ends with what it looks for
RICHEST: Final = 7  # the seed that comes upon most, so it is the first
PLANNED: Final = settings(
    max_examples=9,
    stateful_step_count=30,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)


class Planned(BrokerAndModel):
    """Conversations that follow from a seed."""


def converse(machine: type[Planned]) -> None:
    """Each round begins with its own seed."""
    for number in (RICHEST, *range(ROUNDS)):
        run_state_machine_as_test(seed(number)(machine), settings=PLANNED)


SOMETIMES: Final = (
    "a repetition was recognised",
    "a repetition across a restart",
    "a batch across the end of sequences",
    "a sequence began again",
    "a verification was refused",
    "a zombie's end was refused",
    "an expectation was refused",
    "an aborted transaction across segments",
    "the log start moved into an open transaction",
    "the stable end lay below the log start",
    "the stable end waited for the disk",
    "a restart in the middle of a transaction",
    "a stop in the middle of a transaction",
    "a kill in the middle of work",
    "segments were gone after records were deleted",
    "a newer offset outlived the decision of an older one",
    "a transaction timed out",
    "a producer expired",
    "an id expired",
    "a topic went that a transaction was in",
    "a transaction was stuck in PREPARE",
    "a log was too old for a client",
    "a marker by hand: NONE",
    "a marker by hand: INVALID_PRODUCER_EPOCH",
    "a marker by hand: TRANSACTION_COORDINATOR_FENCED",
    "TxnOffsetCommit: NONE",
    "TxnOffsetCommit: INVALID_PRODUCER_EPOCH",
    "TxnOffsetCommit: INVALID_PRODUCER_ID_MAPPING",
    "TxnOffsetCommit: TRANSACTION_ABORTABLE",
    "Produce: INVALID_PRODUCER_EPOCH",
    "Produce: INVALID_PRODUCER_ID_MAPPING",
    "Produce: INVALID_TXN_STATE",
    "Produce: OUT_OF_ORDER_SEQUENCE_NUMBER",
    "Produce: TRANSACTION_ABORTABLE",
    "Produce: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "Produce: UNKNOWN_TOPIC_OR_PARTITION",
)


class NothingIsMissing(Exception):
    """Everything has come up: the search is over."""


class Search(Planned):
    """Conversations until all of SOMETIMES has come up."""

    def teardown(self) -> None:
        super().teardown()
        if not missing():
            raise NothingIsMissing


def missing() -> list[str]:
    return [what for what in SOMETIMES if not BrokerAndModel.came_up[what]]


def test_the_conversations_come_upon_everything_there_is() -> None:
    BrokerAndModel.came_up.clear()
    with suppress(NothingIsMissing):
        converse(Search)
    assert missing() == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_is_found(mutation: Mutation) -> None:
    with planted(mutation), pytest.raises(AssertionError):
        converse(Planned)
