"""Whether the damage of a run was noticed: *detected or harmless, never wrong*.

Rule: only what reaches an operator or a client counts. The other judges say whether anything was wrong.
"""

#     a node refuses a damaged log, or does not start without its metadata    the operator reads why
#     a reader gets an error instead of records                               KAFKA_STORAGE_ERROR
#     a reader refuses records whose checksum is wrong                        CorruptRecords
#
# A run with damage that was not noticed must end like any other run: everything copied, nothing open. This
# is what "harmless" means. Once damage was noticed, the cluster need not make progress, and only what
# clients see counts.

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.contract import Answered, StorageFailed, Warn
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.world.events import DamageNoticed, FetchReplied, NodeStepped
from fencepost.simulator.world.world import World

DETECTED: Final = "damage: detected"
HARMLESS: Final = "damage: harmless"
_SAID: Final = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE})


@attrs.define(eq=False)
class DamageBook:
    """When somebody first noticed damage (nanoseconds)."""

    world: World
    detected_at: int | None = None

    @property
    def is_detected(self) -> bool:
        return self.detected_at is not None

    def attach(self) -> None:
        """Look on from now on."""
        self.world.events.subscribe(NodeStepped, self._stepped)
        self.world.events.subscribe(FetchReplied, self._fetched)
        self.world.events.subscribe(DamageNoticed, lambda _: self._note())

    def verdict(self) -> str | None:
        """The fate of the damage of this run, as a mark; None if nothing was damaged."""
        if not self.world.journals.damaged:
            return None
        return DETECTED if self.is_detected else HARMLESS

    def _stepped(self, step: NodeStepped) -> None:
        arrived = step.arrived
        if isinstance(arrived, StorageFailed) and arrived.needs_operator:
            self._note()
        elif isinstance(arrived, Answered) and any(isinstance(each, Warn) for each in step.outcome.effects):
            self._note()  # it refused records of the controller

    def _fetched(self, replied: FetchReplied) -> None:
        damaged = self.world.journals.damaged
        for part in replied.reply.partitions:
            # A disk that fails for a while gives the same errors, and that is not damage.
            if part.error in _SAID and TopicPartition(part.topic, part.partition) in damaged:
                self._note()

    def _note(self) -> None:
        if self.world.journals.damaged and self.detected_at is None:
            self.detected_at = self.world.now
