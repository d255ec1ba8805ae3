"""What a client raises: one class per thing that the caller can do next, and the sentence that says so.

Rule: cores keep failures as values (`Failure`), shells raise them;
an outcome that is not known is never called a failure.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from fencepost.protocol.errors import NO_ERROR, ErrorCode, FencepostError


class ClientError(FencepostError):
    """Parent of what a client raises; `error` is what a broker said, NONE when none said anything."""

    advice: ClassVar[str] = ""

    def __init__(self, because: str, error: ErrorCode = NO_ERROR) -> None:
        super().__init__(f"{because}. {self.advice}" if self.advice else because)
        self.because = because
        self.error = error


class WrongState(ClientError):
    """A call that its client does not allow now; nothing was done and nothing changed."""


class ClientClosed(WrongState):
    """The client was closed."""

    advice = "Make a new one"


class BufferFull(ClientError):
    """`send_nowait` found no room in `buffer_memory`; the record was not taken."""

    advice = "Use send(), which waits for room, or flush()"


class RecordTooLarge(ClientError):
    """One record is larger than this producer can ever send; it was not taken."""

    advice = "Split it, or store it elsewhere and send where it is"


class TransactionAborted(ClientError):
    """Something in this transaction failed, so it cannot commit; read_committed will see nothing of it."""

    advice = "Call abort_transaction(), then begin again"


class ProducerFenced(ClientError):
    """A newer producer with the same transactional id took over; the open transaction is aborted."""

    advice = "Close this producer: its successor goes on"


class ProducerFailed(ClientError):
    """This producer cannot go on."""

    advice = (
        "Close it and make a new one; with a transactional id, init_transactions() ends what was left open"
    )


class CommitOutcomeUnknown(ClientError):
    """The commit was given up after it had been sent: the transaction may be committed or aborted."""

    advice = (
        "Close this producer; init_transactions() of a new one with the same transactional id waits until "
        "the transaction is decided, then the committed offsets or the output say which way"
    )


class DeliveryTimeout(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`; it may or may not be in the log."""

    advice = "Outside a transaction only reading the log tells; inside one, abort it"


class DeliveryFailed(ClientError):
    """The broker refused the batch that held this record."""

    advice = "Mend what it names, then send the record again"


class RequestTimeout(ClientError):
    """No broker answered in time; what was asked goes on if the same call is made again."""

    advice = "Check that the broker runs, then call again"


class UnknownTopic(ClientError):
    """The cluster has no such topic or partition."""

    advice = "Name one that exists; Admin.create_topic() makes a topic"


class OffsetOutOfRange(ClientError):
    """The position lies before the log start or beyond its end, and `auto_offset_reset` is "error"."""

    advice = 'seek() to a position that exists, or choose auto_offset_reset="earliest" or "latest"'


class CommitFailed(ClientError):
    """The group has gone on without this consumer, and others may read its partitions: nothing was
    committed."""

    advice = "Drop what was read and not committed; poll() joins the group again and reads it anew"


class RebalanceInProgress(ClientError):
    """The group is between two generations, and the coordinator takes commits of neither."""

    advice = "Call poll() until the rebalance is over, then commit what is still assigned"


class FencedInstanceId(ClientError):
    """Another consumer with the same `group_instance_id` has joined the group in this one's place."""

    advice = "Close this consumer, and give each process a group_instance_id of its own"


class CorruptRecords(ClientError):
    """The bytes at the position are no batch, or their checksum is wrong."""

    advice = "Look at them with `fencepost dump`; seek() past them goes on without them"


class RequestFailed(ClientError):
    """The broker refused a request; `error` says why."""

    advice = "Mend what it names, then ask again"


@attrs.frozen
class Failure:
    """An error as a value: comparable, hashable, and an exception only when somebody raises it."""

    kind: type[ClientError]
    because: str = attrs.field(kw_only=True)
    error: ErrorCode = attrs.field(default=NO_ERROR, kw_only=True)

    def exception(self) -> ClientError:
        """A new exception, so that each who waits has a traceback of his own."""
        return self.kind(self.because, self.error)


def refused(kind: type[ClientError], error: ErrorCode, what: str, because: str = "") -> Failure:
    """The failure for an error that a broker answered to `what`, in the broker's words where it gave any."""
    return Failure(kind, because=f"{what}: {error.name}, {because or error.meaning}", error=error)
