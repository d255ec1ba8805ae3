"""The settings of one broker process: where it listens, what it keeps where, and who may connect.

Rule: a frozen value, made by the program that starts a broker. Nothing changes it while the broker runs.
"""

from __future__ import annotations

import attrs

from fencepost.broker.access.session import AccessSettings
from fencepost.broker.feed import Feed
from fencepost.broker.observer import Observer
from fencepost.broker.settings import ConnectionSettings, NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.wire_protocols import ServedProtocol
from fencepost.journal.journal import JournalSettings


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """Settings of one broker process. `directory` None means in memory; `port` 0 means any free port.
    `advertised` is the host and port that the broker gives to clients; None: where the broker listens.
    """

    directory: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    advertised: tuple[str, int] | None = None
    protocol: ServedProtocol = ServedProtocol.BOTH
    access: AccessSettings = attrs.Factory(AccessSettings)
    sync: SyncPolicy = SyncPolicy.NONE
    node: NodeSettings = attrs.Factory(NodeSettings)
    connections: ConnectionSettings = attrs.Factory(ConnectionSettings)
    journal: JournalSettings = attrs.Factory(JournalSettings)
    faults: tuple[str, ...] = ()
    metrics_port: int | None = None  # None: no metrics; 0: any free port
    metrics_host: str = "127.0.0.1"
    observer: Observer | None = None
    feed: Feed | None = None  # None: this broker has no followers
