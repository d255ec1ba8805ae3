"""Some of the conversations with a broker process in Kafka's own bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import pytest

from fencepost.kafka_bridge.apis import SERVED
from fencepost.protocol.messages import API_BY_REQUEST
from tests.oracle.conversation import Question, read_conversations
from tests.oracle.kafka_words import WORDS
from tests.oracle.over_kafka import UNSPOKEN, OverKafka
from tests.oracle.recordings import ASKED, OTHER_CLUSTERS, RECORDED, V0_UNVERIFIED, V2_CLIENT_V2
from tests.oracle.report import play_over_socket
from tests.oracle.speech import KNOWN, SPEECH

CHOSEN: Final = {
    V2_CLIENT_V2: ("old_versions_of_add", "coordinators", "describing", "one_member", "conversation_0000"),
    V0_UNVERIFIED: ("old_versions_of_add", "records_deleted_under_a_transaction"),
    ASKED[0]: (
        "a_second_member_joins",
        "groups_of_one_kind_and_another",
        "partitions_that_come_and_go",
        "refused_batches_and_markers_of_their_epoch",
    ),
}


@pytest.mark.parametrize("path", CHOSEN, ids=lambda path: path.stem)
def test_the_server_answers_in_kafkas_bytes_as_kafka_did(path: Path) -> None:
    chosen = [each for each in read_conversations(path, KNOWN) if each.name in CHOSEN[path]]
    assert len(chosen) == len(CHOSEN[path])
    played = play_over_socket(path, chosen, OverKafka)
    assert len(played.asked) > 20
    assert "\n".join(difference.text for difference in played.differences) == ""


def test_an_answer_that_is_not_kafkas_is_found() -> None:
    (chosen,) = [each for each in read_conversations(V0_UNVERIFIED, KNOWN) if each.name == "coordinators"]
    first, *rest = chosen.steps
    assert isinstance(first, Question)
    planted = attrs.evolve(chosen, steps=(attrs.evolve(first, reply={"error": "PLANTED"}), *rest))
    (found,) = play_over_socket(V0_UNVERIFIED, [planted], OverKafka).differences
    assert found.answer.question.reply == {"error": "PLANTED"}


def test_every_request_of_the_recordings_has_kafkas_words_and_is_served() -> None:
    assert {kind.__name__ for kind in WORDS} == set(SPEECH) - UNSPOKEN
    asked = {kind for kind in API_BY_REQUEST if kind.__name__ in SPEECH}
    assert {API_BY_REQUEST[kind].key for kind in asked} <= set(SERVED)
    versions = {
        (question.request, question.version)
        for path in (*RECORDED, *ASKED, *OTHER_CLUSTERS)
        for conversation in read_conversations(path, KNOWN)
        for question in conversation.questions
    }
    served = {
        (kind.__name__, version)
        for kind in asked
        for api in (SERVED[API_BY_REQUEST[kind].key],)
        for version in range(api.first, api.last + 1)
    }
    assert versions <= served
