"""The error table: every code has a row, and the rows tell a client what is safe."""

from __future__ import annotations

import pytest

from fencepost.protocol.errors import ErrorCode, FencepostError, ProtocolViolation, Remedy


@pytest.mark.parametrize("error", ErrorCode, ids=lambda error: error.name)
def test_every_code_says_what_it_means_and_what_to_do(error: ErrorCode) -> None:
    assert ErrorCode(int(error)) is error
    assert isinstance(error.remedy, Remedy)
    assert isinstance(error.definite, bool)
    assert error.meaning
    assert error.meaning[0].islower()
    assert not error.meaning.endswith(".")


def test_no_two_codes_mean_the_same() -> None:
    assert len({error.meaning for error in ErrorCode}) == len(ErrorCode), "two codes with the same words"


def test_only_success_and_a_known_duplicate_need_nothing() -> None:
    nothing = {error for error in ErrorCode if error.remedy is Remedy.NONE}
    assert nothing == {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}


def test_what_may_have_had_an_effect_is_never_called_definite() -> None:
    """A lost or late answer says nothing; a client that takes it for "no" loses or doubles data."""
    indefinite = {error.name for error in ErrorCode if not error.definite}
    assert {
        "UNKNOWN_SERVER_ERROR",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "KAFKA_STORAGE_ERROR",
    } <= indefinite
    assert not {"PRODUCER_FENCED", "INVALID_TXN_STATE", "NONE"} & indefinite


def test_bytes_that_break_the_protocol_are_an_error_of_fencepost() -> None:
    assert issubclass(ProtocolViolation, FencepostError)
