"""Settings are checked when a client is made, and each refusal says what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client import errors as errors_module
from fencepost.client.errors import ClientError, DeliveryTimeout
from fencepost.client.settings import ConsumerSettings, ProducerSettings, compression_named, isolation_named
from fencepost.protocol.errors import ErrorCode

WRONG: list[tuple[type[Any], dict[str, Any], str]] = [
    (ProducerSettings, {"transactional_id": ""}, "must not be empty"),
    (ProducerSettings, {"max_in_flight_requests_per_connection": 6}, "from 1 to 5"),
    (ProducerSettings, {"max_in_flight_requests_per_connection": 0}, "from 1 to 5"),
    (ProducerSettings, {"batch_size": 0}, "from 1 to 2147483647"),
    (ProducerSettings, {"linger_ms": -1}, "from 0 to"),
    (ProducerSettings, {"transaction_version": 1}, "0 or 2"),
    (ProducerSettings, {"buffer_memory": 10}, "at least batch_size"),
    (ProducerSettings, {"linger_ms": 500, "delivery_timeout_ms": 500}, r"\(500\) must be above linger_ms"),
    (ProducerSettings, {"transactional_id": "x" * 250}, "transactional_id must have at most 249 characters"),
    (ConsumerSettings, {"group_id": ""}, "must not be empty"),
    (ConsumerSettings, {"group_id": "x" * 250}, "group_id must have at most 249 characters, not 250"),
    (ConsumerSettings, {"group_id": "g", "group_instance_id": "x" * 250}, "group_instance_id must have"),
    (ConsumerSettings, {"request_timeout_ms": 500}, r"fetch_max_wait_ms \(500\) must be below"),
    (ConsumerSettings, {"auto_offset_reset": "newest"}, "earliest, latest, none, or by_duration"),
    (ConsumerSettings, {"fetch_max_bytes": 0}, "from 1 to"),
]


@pytest.mark.parametrize(("settings", "wrong", "words"), WRONG)
def test_settings_that_make_no_sense_are_refused(
    settings: type[Any], wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**wrong)
    assert settings() == settings()


@pytest.mark.parametrize("name", ["SNAPPY", "brotli", ""])
def test_a_compression_that_nobody_can_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="none, gzip, snappy, lz4 or zstd"):
        compression_named(name)


def test_every_error_says_what_to_do_next() -> None:
    errors = [kind for kind in vars(errors_module).values() if isinstance(kind, type)]
    kinds = [kind for kind in errors if issubclass(kind, ClientError)]
    assert len(kinds) > 10
    # WrongState says it in its reason, which differs from state to state.
    assert [kind.__name__ for kind in kinds if not kind.advice] == ["ClientError", "WrongState"]
    assert str(DeliveryTimeout("t-0: late")).startswith("t-0: late. In a transaction")


def test_names_of_isolation_levels() -> None:
    assert isolation_named("read_committed").value == 1
    with pytest.raises(ValueError, match="read_uncommitted"):
        isolation_named("committed")


HELPFUL: list[tuple[type[ClientError], ErrorCode, str]] = [
    (errors_module.DeliveryFailed, ErrorCode.INVALID_PRODUCER_EPOCH, "it raises ProducerFenced if a newer"),
    (
        errors_module.TransactionAborted,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "it raises ProducerFenced if a newer",
    ),
    (errors_module.DeliveryFailed, ErrorCode.MESSAGE_TOO_LARGE, "smaller records"),
    (errors_module.TransactionAborted, ErrorCode.MESSAGE_TOO_LARGE, "then repeat with smaller records"),
    (errors_module.DeliveryFailed, ErrorCode.INVALID_RECORD, "needs a key"),
    (errors_module.ProducerFailed, ErrorCode.UNSUPPORTED_VERSION, "with transaction_version=0"),
    (errors_module.UnknownTopic, ErrorCode.INVALID_TOPIC_EXCEPTION, "249 ASCII letters"),
    (errors_module.RequestFailed, ErrorCode.INVALID_TOPIC_EXCEPTION, "249 ASCII letters"),
    (errors_module.RequestFailed, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "list_topics"),
    (errors_module.RequestFailed, ErrorCode.TOPIC_ALREADY_EXISTS, "existing topic"),
    (errors_module.RequestFailed, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "list_transactions"),
    (errors_module.RequestFailed, ErrorCode.GROUP_ID_NOT_FOUND, "list_consumer_groups"),
    (errors_module.RequestFailed, ErrorCode.NON_EMPTY_GROUP, "Stop the members"),
    (errors_module.RequestFailed, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "Stop the members"),
    (errors_module.RequestFailed, ErrorCode.OFFSET_OUT_OF_RANGE, "end_offsets"),
]


@pytest.mark.parametrize(("kind", "error", "words"), HELPFUL)
def test_advice_fits_the_error(kind: type[ClientError], error: ErrorCode, words: str) -> None:
    advice = str(kind("x", error)).removeprefix("x. ")
    assert words in advice
    assert kind.advice not in advice
