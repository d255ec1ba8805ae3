"""What a server counts and logs: replies, refused connections, disks, steps of the node.

Rule: it listens and changes nothing. The port for metrics and BrokerStatus show the counters; `logging` gets
the notices.
"""

from __future__ import annotations

import os
import time

from fencepost.broker.clocks import monotonic_ms, now_ms
from fencepost.broker.connections import Connection, InProgress
from fencepost.broker.contract import BecomeLeader, Input, Outcome, Received, Reply
from fencepost.broker.counters import Counters
from fencepost.broker.host import Host
from fencepost.broker.notices import FENCED, REPORTED, Notices
from fencepost.broker.status import with_counts
from fencepost.broker.troubles import Trouble, TroubleKind
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.messages import BrokerStatusReply


def shown_directory(directory: str | None) -> str:
    """Where a broker keeps its logs, as its clients see it."""
    return "memory" if directory is None else os.path.abspath(directory)


class Monitor:
    """The counters and notices of one server."""

    def __init__(self, host: Host) -> None:
        self.counters = Counters(now_ms())
        self.notices = Notices(monotonic_ms)
        self._host = host

    # --- the node and its disks

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        """The node took an input and decided."""
        if outcome.appends:
            self.counters.appended(outcome.appends)
            kind = type(arrived.request) if type(arrived) is Received else type(arrived)
            if kind in REPORTED:
                self.notices.step(kind, arrived, outcome, self._host.node)
        elif type(arrived) is BecomeLeader:
            self.notices.step(BecomeLeader, arrived, outcome, self._host.node)

    def take_troubles(self, now: int) -> None:
        """Report the troubles that the host has collected."""
        troubles, self._host.troubles = self._host.troubles, []
        for trouble in troubles:
            self.notices.trouble(trouble)
            if trouble.kind is TroubleKind.DISK:
                self.counters.disk_failed(now, trouble.text)

    def bug(self, what_happened: str, problem: Exception) -> None:
        """A bug of the broker cost a reply or a connection."""
        self.notices.trouble(Trouble.bug(what_happened, problem))

    # --- replies

    def answered(
        self, connection: Connection, ended: InProgress, answer: Reply, *, is_injected: bool
    ) -> None:
        """A request was answered, or a fault has injected the reply; a producer may have been refused because
        it is fenced.
        """
        errors = self.counters.answered(ended.kind, answer, time.monotonic_ns() - ended.began_ns)
        if errors and ended.transactional_id is not None and not is_injected:
            for error in FENCED.intersection(errors):
                self.notices.refusal(ended.kind, ended.transactional_id, error, connection.peer)

    def too_large(self, answer: Reply, problem: FencepostError) -> None:
        """A reply does not fit into a frame."""
        self.notices.log("a reply that is too large", f"{type(answer.body).__name__}: {problem}")

    def with_counts(
        self, status: BrokerStatusReply, *, directory: str | None, connections: int
    ) -> BrokerStatusReply:
        """The status of the node, and the broker's counters."""
        return with_counts(
            status,
            self.counters,
            directory=shown_directory(directory),
            sizes=self._host.log_sizes(),
            connections=connections,
        )

    # --- connections

    def refused(self, why: str, *, peer: str = "") -> None:
        """A connection was closed before it was served."""
        self.counters.refused_connections += 1
        whose = f" from {peer}" if peer else ""
        self.notices.log(f"refused: {why}", f"refused a connection{whose}: {why}", peer=peer or None)

    def dropped(self, connection: Connection, why: str) -> None:
        """A connection was closed: its client is late, in others' way, or its Produce with acks 0 failed."""
        peer = connection.peer
        self.notices.log("a connection", f"closed a connection from {peer}: its client {why}", peer=peer)

    def violated(
        self, connection: Connection, cause: str, problem: FencepostError, *, what_happened: str
    ) -> None:
        """A client broke the rules of a protocol, or did not prove who it is."""
        peer = connection.peer
        self.counters.refused_connections += 1
        self.notices.log(cause, f"{what_happened} a connection from {peer}: {problem}", peer=peer)

    def denied(self, connection: Connection, principal: str, what: str) -> None:
        """A principal may not do what it asked for."""
        line = f"{principal} may not {what}"
        self.notices.log(f"a denial of {principal}", line, peer=connection.peer, principal=principal)
