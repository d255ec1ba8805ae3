"""SaslHandshake and SaslAuthenticate of Kafka's clients (KIP-43, KIP-152).

Rule: the messages of a mechanism pass as bytes. Connections answer these requests; the node never sees them.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.kafka_bridge.exchange import Answer, Context, Exchange, Translated, Values, explained, one
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR

FIRST_WITH_SASL_AUTHENTICATE: Final = 1  # of SaslHandshake; before it, tokens follow without headers


def sasl_handshake(request: Any, version: int) -> Translated:
    """Choose the mechanism."""

    def of_connection(context: Context) -> Exchange:
        def respond(answer: Answer) -> Values:
            # Only once the mechanism is accepted: no token follows a refusal.
            if answer.error is NO_ERROR and version < FIRST_WITH_SASL_AUTHENTICATE:
                context.raw_login.begin(request.mechanism)
            offered = () if answer.body is None else answer.body.mechanisms
            return {"error_code": answer.error, "mechanisms": offered}

        return one(m.SaslHandshake(mechanism=request.mechanism), respond)

    return of_connection


def sasl_authenticate(request: Any, _: int) -> Exchange:
    """Send one message of the mechanism."""

    def respond(answer: Answer) -> Values:
        body = answer.body or m.SaslAuthenticateReply(auth_bytes=b"")
        return {
            **explained(answer.error),
            "auth_bytes": body.auth_bytes,
            "session_lifetime": body.session_lifetime_ms,
        }

    return one(m.SaslAuthenticate(auth_bytes=request.auth_bytes), respond)
