"""A sample of the conversations with a broker process over its socket; restarts are kills of the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.conversation import read_conversations
from tests.oracle.over_socket import can_be_played
from tests.oracle.recordings import ASKED, RECORDED, V2_CLIENT_V2
from tests.oracle.report import play_over_socket, sample
from tests.oracle.serving import settings_from_words, settings_in_words
from tests.oracle.speech import KNOWN

NAMES = ("old_versions_of_add", "coordinators", "describing", "conversation_0000")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_server_answers_as_kafka_did(path: Path) -> None:
    chosen = [each for each in read_conversations(path, KNOWN) if each.name in NAMES]
    played = play_over_socket(path, chosen)
    assert played.names == set(NAMES)
    assert "\n".join(difference.text for difference in played.differences) == ""


@pytest.mark.parametrize("path", ASKED, ids=lambda path: path.stem)
def test_markers_of_older_coordinators_are_read(path: Path) -> None:
    chosen = [
        each for each in read_conversations(path, KNOWN) if each.name == "markers_with_strange_identities"
    ]
    played = play_over_socket(path, chosen)
    assert played.asked
    assert "\n".join(difference.text for difference in played.differences) == ""


def test_a_killed_server_answers_as_a_killed_kafka_did() -> None:
    restarts = [each for each in read_conversations(V2_CLIENT_V2, KNOWN) if each.area == "restart"]
    (chosen,) = [each for each in restarts if each.name == "open_transaction_survives_a_restart"]
    played = play_over_socket(V2_CLIENT_V2, [chosen])
    assert played.asked
    assert not played.differences


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_sample_has_something_of_every_area_that_one_broker_can_play(path: Path) -> None:
    conversations = read_conversations(path, KNOWN)
    chosen = sample(conversations)
    possible = {each.area for each in conversations if can_be_played(each)}
    assert {each.area for each in chosen} == possible
    assert {"restart", "random", "produce", "end_txn"} <= possible
    assert len(chosen) < len(conversations) / 5


def test_settings_come_to_the_process_as_they_are() -> None:
    from tests.oracle.report import cluster_of

    for path in RECORDED:
        settings = cluster_of(path)
        assert settings_from_words(settings_in_words(settings)) == settings
