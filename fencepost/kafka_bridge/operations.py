"""The operations that a client may perform on what it describes (KIP-430), as Kafka's bit field.

Rule: they are listed only if the request asks for them, and never for what its client may not describe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from fencepost.kafka_bridge.exchange import (
    Answer,
    Context,
    Exchange,
    Translate,
    Translated,
    Values,
    exchange_in,
)
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import OPERATION_BITS
from fencepost.protocol.wire_protocol import ResourceKind

CLUSTER_NAME: Final = "kafka-cluster"  # Resource.CLUSTER_NAME
NOTHING: Final = 0
# Kafka lists them even for a topic that does not exist, or cannot exist.
_LISTED_WITH: Final = (NO_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


@attrs.frozen(kw_only=True)
class AuthorizedOperations:
    """How a translation lists operations: `asked` is the field of the request, `field` that of the response.
    `entries` are the resources in the response, and `name` what names each; without them, it is the cluster.
    """

    kind: ResourceKind
    asked: str | None
    """None: the request need not ask."""
    field: str
    entries: str | None = None
    name: str = "name"

    def __call__(self, translate: Translate) -> Translate:
        def translate_with_operations(request: Any, version: int) -> Translated:
            translated = translate(request, version)
            if self.asked is not None and not getattr(request, self.asked, False):
                return translated
            return lambda context: self._with_operations(translated, context)

        return translate_with_operations

    def _with_operations(self, translated: Translated, context: Context) -> Exchange:
        exchange = exchange_in(context, translated)

        def respond(answers: Sequence[Answer]) -> Values:
            values = exchange.respond(answers)
            if self.entries is None:
                return self._listed(values, CLUSTER_NAME, context)
            listed = [self._listed(each, each[self.name], context) for each in values[self.entries]]
            return {**values, self.entries: listed}

        return attrs.evolve(exchange, respond=respond)

    def _listed(self, entry: Mapping[str, Any], name: str | None, context: Context) -> Values:
        # Without a name, the client may not describe it; with another error, nothing was described.
        if name is None or entry["error_code"] not in _LISTED_WITH:
            return entry
        operations = context.operations(self.kind, name)
        # Who may not describe a resource learns nothing of it, not even what else it may do there.
        return {**entry, self.field: operations if operations & OPERATION_BITS["Describe"] else NOTHING}
