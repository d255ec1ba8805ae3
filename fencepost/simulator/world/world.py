"""A world: nodes, processes, a network and clocks on one line of virtual time, moved by one sequence of
choices.

Theory of operation. The world is a queue of acts, ordered by virtual time (integer nanoseconds) and then
by the order in which they were made. `run_until` takes the first one, sets the time to it, and calls it;
acts put new acts into the queue. No thread, no real clock and no random number takes part:

    queue ──▶ (time, number, act) ──▶ a message arrives · a disk has synced · a timer is due · a fault strikes
      ▲                                   │ node: the broker's real code, with its own clock
      └── later: now + latency(choice) ◀──┘ process: the client's real machines, driven by a script

Whatever is left to chance (a latency, a victim, what a disk loses) takes a small number from `choices`, where
0 is the calmest. So a seed, or a list of choices, is the whole run, and a run with zeros in it is a calmer
one. A number is drawn at the moment it is needed: one more draw anywhere makes another run of every seed.

Invariant: equal choices give equal runs in any process. `digest` hashes every act's time and number to
prove it; sets that are iterated, addresses and string hashes are what usually breaks it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import attrs

from fencepost.broker.contract import Reassign
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import CONTROLLER, Target
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.protocol.batches import place
from fencepost.protocol.messages import CreateTopic, CreateTopics, InitProducerId, Request, TopicConfig
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    CoordinatorType,
    TopicPartition,
)
from fencepost.protocol.transaction_log import read_transactions, transaction_batch
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import DiskFailed, EventStream, LogDeleted, LogWritten
from fencepost.simulator.world.journals import ClusterJournals
from fencepost.simulator.world.network import Network
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.processes import ClientProcess, Script

# Most messages are quick and few are very late: multiples of the quickest, by an even choice.
LATENCIES: Final = (1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 8, 12, 20, 60, 250)

ADMIN: Final = "admin"  # the process that creates the topics
SETUP_TIMEOUT_MS: Final = 60_000  # of the requests before a run, such as those that create topics
FIRST: Final = 2**60  # subtracted from an act's number: it comes before all others of its time


class Disordered(Exception):
    """A run does not end: too much happened, or nothing is left that could."""


@attrs.frozen(kw_only=True)
class WorldSettings:
    """The shape of a world, before any fault. Times are nanoseconds."""

    nodes: int = 1
    node_settings: NodeSettings
    policy: SyncPolicy = SyncPolicy.NONE
    journals: JournalSettings = attrs.field(factory=JournalSettings)
    latency: int = 200_000
    sync_latency: int = 1_000_000
    encodes: bool = False
    own_travels: bool = True  # requests of a node to itself use the network, too, so faults can strike them
    events_max: int = 50_000  # in each phase of a run; a whole run usually takes a thousand or two


class World:
    """Everything that a seed decides on. `marks` counts what was reached."""

    def __init__(self, settings: WorldSettings, choices: Choices) -> None:
        self.settings = settings
        self.choices = choices
        self.now = 0
        self.happened = 0
        self.queue: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self.marks: Counter[str] = Counter()
        self.events = EventStream()
        self.network = Network(self, encodes=settings.encodes)
        self.speeds: dict[str, int] = {}  # factors of slowness, by participant or disk
        self.writes_manifests = False  # as a server does: where a start may find less than was written
        self.broken_disks: set[tuple[str, str]] = set()  # operation and directory of a partition
        self.journals = ClusterJournals(self._choose_of_disk, settings=settings.journals, breaks=self._breaks)
        self.journals.when_deleted = lambda where: self.events.publish(LogDeleted(where))
        self.nodes = [self._make_node(number + 1) for number in range(settings.nodes)]
        self.processes: list[ClientProcess] = []
        self._acts: list[int] = []  # time and number of each, in turn

    def _make_node(self, node_id: int) -> SimulatedNode:
        # A node's port is its number, so `server` finds it by the address that clients know.
        settings = attrs.evolve(
            self.settings.node_settings, node_id=node_id, controller_id=1, host="node", port=node_id
        )
        return SimulatedNode(
            self,
            f"node {node_id}",
            settings,
            self.journals,
            self.settings.policy,
            carries_own=not self.settings.own_travels,
        )

    # --- time -----------------------------------------------------------------------------------------------

    def at(self, time: int, act: Callable[[Any], None], argument: object = None) -> None:
        """Call `act(argument)` at a time (nanoseconds), after what is scheduled for that time already."""
        # The number is unique, so the heap never compares acts, and equal times keep their order.
        self.happened += 1
        heappush(self.queue, (time, self.happened, act, argument))

    def next(self, act: Callable[[Any], None], argument: object = None) -> None:
        """Let `act(argument)` happen right after what happens now, before anything else."""
        self.happened += 1
        # Several of these keep their order among each other, too.
        heappush(self.queue, (self.now, self.happened - FIRST, act, argument))

    def latency(self, source: str) -> int:
        """How long a message of this participant takes."""
        factor = LATENCIES[self.choices.below(len(LATENCIES))] * self.settings.latency
        return factor * self.speeds[source] if source in self.speeds else factor

    def sync_latency(self, disk: str) -> int:
        """How long a sync of this disk takes."""
        factor = LATENCIES[self.choices.below(len(LATENCIES))] * self.settings.sync_latency
        return factor * self.speeds[disk] if disk in self.speeds else factor

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """One thing after the other. Disordered when that is not over within the settings' `events_max`."""
        queue, acts, end = self.queue, self._acts, self.happened + self.settings.events_max
        while not is_over():
            if not queue or self.happened > end:
                because = "nothing is left to happen" if not queue else "it produces events without end"
                raise Disordered(f"the world does not finish: {because}")
            self.now, number, act, argument = heappop(queue)
            # Only kept here, and hashed when somebody asks: this loop runs for everything that happens.
            acts += (self.now, number)
            act(argument)

    @property
    def digest(self) -> str:
        """The hash of the history so far: when everything happened, in which order, and every choice."""
        acts = "%d " * len(self._acts) % tuple(self._acts)
        return hashlib.blake2b(f"{acts}{self.choices.taken}".encode(), digest_size=16).hexdigest()

    # --- what is in it --------------------------------------------------------------------------------------

    def node(self, node_id: int) -> SimulatedNode:
        return self.nodes[node_id - 1]

    def server(self, node_id: int) -> SimulatedNode | None:
        """Who listens at this address; a node that is down refuses when it is reached."""
        return self.nodes[node_id - 1] if 1 <= node_id <= len(self.nodes) else None

    def led_logs(self) -> Iterator[tuple[TopicPartition, LeaderLog]]:
        """Every log that a node leads, or believes that it leads."""
        for node in self.nodes:
            if node.host is not None:
                yield from node.host.node.logs.items()

    def living(self) -> list[ClientProcess]:
        """The client processes that have neither ended nor been killed."""
        return [process for process in self.processes if not process.is_over]

    def participants(self) -> list[str]:
        """The nodes, up or down, and the living processes, by their names."""
        return [each.participant for each in (*self.nodes, *self.living())]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"node:{node.settings.node_id}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def process(self, name: str) -> ClientProcess:
        """A client process that does nothing yet."""
        process = ClientProcess(self, name)
        self.processes.append(process)
        return process

    def create_topics(self, topics: Sequence[tuple[str, int]], configs: tuple[TopicConfig, ...] = ()) -> None:
        """Creates topics, each with its number of partitions, as any client would, and returns when they
        exist. All of them get these `configs`.
        """
        wanted = tuple(
            CreateTopic(topic=name, partition_count=count, configs=configs) for name, count in topics
        )
        self._ask([(CreateTopics(topics=wanted), CONTROLLER)])

    def age_identities(self, epochs: Mapping[str, int]) -> None:
        """Gives each of these transactional ids an owner with this epoch.

        Nobody can wait for 32,766 transactions. So each id gets its first owner as usual, the cluster stops,
        its transaction logs get the record that so many owners would have left, and the cluster starts again.
        """
        self._ask(
            [
                (
                    InitProducerId(
                        transactional_id=name, transaction_timeout_ms=SETUP_TIMEOUT_MS,
                        producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH,
                    ),
                    CoordinatorOf(CoordinatorType.TRANSACTION, name),
                )
                for name in epochs
            ]
        )  # fmt: skip
        for node in self.nodes:
            node.kill()
        for partition in self.journals.partitions():
            if partition.topic == TRANSACTION_STATE_TOPIC:
                self._age(self.journals.journal(partition), epochs)
        self.start()

    def _age(self, journal: Journal, epochs: Mapping[str, int]) -> None:
        batches = [
            (header, bytes(batch)) for header, batch in journal.segments.batches(journal.log_start_offset)
        ]
        found = [read_transactions(batch, header) for header, batch in batches]
        for name, record in {name: record for each in found for name, record in each}.items():
            if record is None:  # expired already
                continue
            aged = transaction_batch(
                name, record._replace(producer_epoch=epochs[name]), timestamp=record.update_ms
            )
            header = place(aged, base_offset=journal.log_end_offset, leader_epoch=journal.leader_epoch)
            journal.append(aged, header, leader_epoch=journal.leader_epoch)
            self.events.publish(LogWritten(journal.partition, header, aged))
        journal.sync()

    def _ask(self, asked: Sequence[tuple[Request, Target]]) -> None:
        """A client makes these requests, one after the other, and returns when all are answered."""
        process = self.process(ADMIN)
        calls = process.request_calls(request_timeout_ms=SETUP_TIMEOUT_MS, api_timeout_ms=SETUP_TIMEOUT_MS)

        def script() -> Script[None]:
            for request, target in asked:
                # Raises what is refused: no fault strikes yet.
                yield from calls.ask(request, target)

        process.start(script())
        self.run_until(lambda: process.is_over)
        # Chance picks its victims from these, and a setup is not one of them.
        self.processes.remove(process)

    def move(self, partition: TopicPartition, node_id: int) -> None:
        """An operator asks the controller to move this partition to that node; the controller may be
        down.
        """
        controller = self.nodes[0]
        if controller.host is not None:
            controller.host.offer(Reassign(partition=partition, node_id=node_id))
            controller.work()

    # --- disks ----------------------------------------------------------------------------------------------

    def _choose_of_disk(self, most: int) -> int:
        return self.choices.below(most + 1)

    def _breaks(self, operation: str, path: str) -> bool:
        if not self.broken_disks:
            return False
        directory = path.partition("/")[0]
        if (operation, directory) not in self.broken_disks:
            return False
        # A fault of a disk has struck only once an operation has failed; the injector waits for this.
        self.events.publish(DiskFailed(operation, directory))
        return True
