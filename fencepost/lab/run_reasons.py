"""Why something happened outside of the nodes: on the network, by a fault, in a client.

Rule: a fault is explained by the phrase that planted it, and a client's outcome by what the client itself
says of it.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.observer import UNAWAITED
from fencepost.client.errors import (
    ClientError,
    CommitOutcomeUnknown,
    DeliveryTimeout,
    Failure,
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
)
from fencepost.faults.phrases import FaultLine
from fencepost.lab.rules import Reason
from fencepost.protocol.errors import NO_ERROR
from fencepost.simulator.faults.injector import Strike
from fencepost.simulator.run import Run
from fencepost.simulator.world.events import FaultEnded, FaultStruck

_TCP: Final = "TCP: a connection delivers in order, and loses everything when it breaks"

_LOSSES: Final = {
    UNAWAITED: "its caller gave up the connection, so nobody hears this reply",
    "the connection broke": "the connection broke while the message was on its way",
    "the node is down": "the node is down and refuses the connection",
    "the connection is gone": "its connection, or the receiver, was gone when it would have arrived",
}


def loss_reason(because: str) -> Reason:
    """Why a message never arrives."""
    told = _LOSSES.get(because, because)
    return Reason(text=f"The message is lost, because {told}.", rule=because, source=_TCP)


def late_reason(overtaken: str) -> Reason:
    """Why a message comes after others that left later."""
    return Reason(
        text=f"It arrives {overtaken}, which left later, because each travelled on a connection of its own.",
        rule="no order between connections",
        source=_TCP,
    )


def retry_reason(number: int, *, is_broken: bool) -> Reason:
    """Why a request leaves again."""
    because = "the connection broke" if is_broken else "no reply has come by now"
    return Reason(
        text=f"It repeats message {number}, because {because}.",
        rule="a request without a reply is repeated",
        source="KIP-98, Sender, NetworkClient.handleDisconnections",
    )


# --- faults -------------------------------------------------------------------------------------------------


def fault_reason(run: Run, event: FaultStruck | FaultEnded) -> Reason:
    """The phrase of the fault that strikes or ends, or that it was drawn by chance."""
    strike = _strike_of(run, event)
    if strike is None:
        return Reason(
            text=f"The seed of this world drew it: {event.label}.",
            rule="a fault drawn by chance",
            source="simulator/faults/random_faults.py",
        )
    fault = strike.fault
    (when,) = fault.when
    phrase = str(FaultLine(when=when, do=fault.do))
    if isinstance(event, FaultStruck):
        text = f"The scenario says: {phrase}."
    elif fault.until is not None:
        text = f"It ends here, as the scenario says: {phrase} until {fault.until}."
    else:
        text = f"The run heals what {phrase} has done."
    return Reason(text=text, rule=phrase, source="the scenario's [[fault]]")


def _strike_of(run: Run, event: FaultStruck | FaultEnded) -> Strike | None:
    """The planned fault with this effect."""
    ends = isinstance(event, FaultEnded)
    for strike in reversed(run.injector.strikes):
        for effect in strike.effects:
            label = effect.end_label if ends else effect.label
            told = (effect.participant, label, effect.message)
            if told[:2] == (event.participant, event.label) and told[2] is event.message:
                return strike
    return None


# --- clients ------------------------------------------------------------------------------------------------

_CONCLUSIONS: Final[dict[type[ClientError], str]] = {
    CommitOutcomeUnknown: "KIP-98: only the reply to EndTxn tells how it was decided",
    ProducerFenced: "KIP-98, KIP-588, ProducerFencedException",
    TransactionAborted: "KIP-1050: an abortable error",
    ProducerFailed: "KIP-1050: an application-recoverable error",
    DeliveryTimeout: "KIP-91, delivery.timeout.ms",
}


def conclusion_reason(participant: str, failure: Failure) -> Reason:
    """Why a call of a client failed, in its own words."""
    advice = failure.exception().advice
    told = f"{failure.because}. {advice}." if advice else f"{failure.because}."
    return Reason(
        text=f"{participant} concludes {failure.kind.__name__}: {told}",
        rule=failure.kind.__name__,
        error="" if failure.error is NO_ERROR else failure.error.name,
        source=_CONCLUSIONS.get(failure.kind, "KIP-1050"),
    )
