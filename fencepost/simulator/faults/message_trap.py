"""Lies in wait for a message of a certain kind, to strike when that is sent.

Rule: until then nothing happens; a message that never comes was not struck.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    EndTxn,
    EndTxnReply,
    Heartbeat,
    HeartbeatReply,
    InitProducerId,
    InitProducerIdReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    Produce,
    ProduceReply,
    ReplyBody,
    Request,
    SyncGroup,
    SyncGroupReply,
    TxnOffsetCommit,
    TxnOffsetCommitReply,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.simulator.world.events import MessageSent
from fencepost.simulator.world.network import ReplyMessage, RequestMessage, SimulatedConnection
from fencepost.simulator.world.world import World

# What it hurts most not to hear: something was done, and will be asked for again.
ANSWERS: Final = (EndTxnReply, ProduceReply, InitProducerIdReply, TxnOffsetCommitReply, WriteTxnMarkersReply)
# What does most harm when it arrives after whoever asked has gone on (KAFKA-17754, KIP-890).
REQUESTS: Final = (
    *(EndTxn, EndTxn, EndTxn, Produce, Produce),
    *(WriteTxnMarkers, TxnOffsetCommit, AddPartitionsToTxn, InitProducerId),
)
# Besides, in worlds with members of groups.
GROUP_ANSWERS: Final = (JoinGroupReply, SyncGroupReply, HeartbeatReply)
GROUP_REQUESTS: Final = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, TxnOffsetCommit)


@attrs.define(eq=False)
class MessageTrap:
    """Hears of each message: `strike` has the connection of the first message that says `awaited`."""

    world: World
    awaited: type[Request] | type[ReplyBody]
    strike: Callable[[SimulatedConnection], None]
    is_over: bool = False

    def lie_in_wait(self) -> None:
        """From now on."""
        self.world.events.subscribe(MessageSent, self._sent)

    def leave(self) -> None:
        """Nobody waits any more."""
        self.world.events.unsubscribe(MessageSent, self._sent)

    def _sent(self, sent: MessageSent) -> None:
        message = sent.message
        said = (
            message.body
            if isinstance(message, ReplyMessage)
            else message.request
            if isinstance(message, RequestMessage)
            else None
        )
        if not self.is_over and isinstance(said, self.awaited):
            self.is_over = True
            self.world.next(self._spring, sent.channel.connection)

    def _spring(self, connection: SimulatedConnection) -> None:
        if connection.is_open:
            self.strike(connection)
        self.leave()
