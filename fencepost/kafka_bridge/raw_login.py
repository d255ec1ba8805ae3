"""A login as with SaslHandshake version 0: the messages of the mechanism are frames of their own.

Rule: there are no headers, so a frame is a token only while one is due. A failed login gets no answer, and
the connection is closed (SaslServerAuthenticator).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.protocol.scram import PLAIN, SCRAM_SHA_256

TOKENS: Final[Mapping[str, int]] = {PLAIN: 1, SCRAM_SHA_256: 2}  # SCRAM: client-first, client-final
"""How many tokens a client sends in a login with each mechanism."""


@attrs.define
class RawLogin:
    """The tokens that the client has yet to send on this connection."""

    due: int = 0

    def begin(self, mechanism: str) -> None:
        self.due = TOKENS.get(mechanism, 0)  # the handshake refuses any other
