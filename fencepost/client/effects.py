"""What a client machine wants done, as values: send a request, wake up at a time, report how a call ended.

Rule: a machine touches nothing. A shell or the simulator performs its effects in order and reports the
results back.
"""

from __future__ import annotations

import attrs

from fencepost.client.batch import ProducerBatch
from fencepost.client.errors import Failure
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import NEWEST_VERSION, IdentityEnum
from fencepost.protocol.values import value


class TransactionCall(IdentityEnum):
    """The calls of a producer that wait for the coordinator."""

    INIT_TRANSACTIONS = "init_transactions"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


@value
class SendRequest:
    """Send `request`, encoded as Kafka's `version`, to a node; its reply, or its loss, comes back under
    `token`, at most once. `timeout_ms` replaces the client's request timeout for this request.
    """

    node_id: int
    request: Request = attrs.field(kw_only=True)
    token: int = attrs.field(kw_only=True)
    version: int = attrs.field(kw_only=True, default=NEWEST_VERSION)
    timeout_ms: int | None = attrs.field(kw_only=True, default=None)


@value
class WakeAt:
    """Call `wake` at `at`, in milliseconds of the clock of the inputs; a later WakeAt replaces this one."""

    at: int


@value
class Resolve:
    """A call of the producer has ended; `failure` is None when it succeeded."""

    operation: TransactionCall
    failure: Failure | None = attrs.field(default=None, kw_only=True)


@value
class BatchDone:
    """Every record of a batch has its outcome: wake those who wait, and call the functions that the program
    gave for its records.
    """

    batch: ProducerBatch


@value
class CallAnswered:
    """A request of a consumer or admin has ended, with a reply or a failure. `number` is from `ask`."""

    number: int
    reply: object = attrs.field(kw_only=True)
    failure: Failure | None = attrs.field(default=None, kw_only=True)


@value
class WarnProgram:
    """Something that no call raises and that the program should know about, in words: for `logging`."""

    because: str


Effect = SendRequest | WakeAt | Resolve | BatchDone | CallAnswered | WarnProgram
